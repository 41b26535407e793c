"""What sites must agree on before round 0: columns by name, classes, statistics, sizes."""

import csv
import json
import logging
from typing import Any

import numpy as np
import pytest
from faults import OWN_FILES as RUN
from faults import At, change_reply
from flwr.app import ConfigRecord, RecordDict
from scipy.sparse import csr_array

import fedpage as fp
from fedpage.flower import messages, site_files
from fedpage.flower.agreement import Agreement
from fedpage.flower.gathering import StartFailed
from fedpage.runs.status import read_status

COLUMNS = ("age", "bmi", "pressure", "sugar")
NAMED = ",".join(COLUMNS)
SIZES = (15, 25, 20)
ALL_CALLED = {"hyper": "S=3 K=2 eta_l=0.0001"}
NUMBERS = {"classes": "", "hyper": "S=2 K=2 eta_l=0.00001"}
NO_NAMES = {"label": "", "method": "fedavg"}


def make_rows(labels=2):
    """Return features of very different scales and labels for each of three sites."""
    rng = np.random.default_rng(0)
    scale, shift = np.array([10.0, 4.0, 20.0, 0.5]), np.array([60.0, 25.0, 120.0, 5.0])
    return [
        (np.round(shift + scale * rng.normal(size=(size, 4)), 3), rng.integers(0, labels, size))
        for size in SIZES
    ]


def pooled(rows, objective=fp.LogisticRegression, **options):
    return objective(fp.Dataset.from_clients(rows), alpha=0.05, **options)


def write(path, X, y, columns=COLUMNS, order=None):
    """Write a table whose columns are in an order; the label is somewhere among them."""
    table = [
        [*columns, "sick"],
        *([*row, b] for row, b in zip(X.tolist(), y.tolist(), strict=True)),
    ]
    order = range(len(columns) + 1) if order is None else order
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([[row[place] for place in order] for row in table])


def spoil_cell(path, text, column=1, row=3):
    lines = path.read_text().splitlines()
    cells = lines[row].split(",")
    cells[column] = text
    lines[row] = ",".join(cells)
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def sites(tmp_path):
    """Return a function that writes three tables and returns the node configs."""

    def make(rows=None, orders=(None, None, None), **node):
        state = str(tmp_path / "client-state")
        for client, (X, y) in enumerate(rows or make_rows()):
            write(tmp_path / f"site{client}.csv", X, y, order=orders[client])
        return [
            {"partition-id": i, "data": str(tmp_path / f"site{i}.csv"), "client-state-dir": state}
            | node
            for i in range(3)
        ]

    return make


@pytest.fixture
def train(federate):
    def run(nodes, fault=None, **changes):
        given = {name: changes.pop(name) for name in ("prepare", "kill") if name in changes}
        return federate(fault, nodes=nodes, **given, **RUN | changes)

    return run


@pytest.fixture
def problems(train):
    """Return a function that returns why a run cannot start, a line for each site."""

    def find(nodes, fault=None, **changes):
        with pytest.raises(StartFailed) as failed:
            train(nodes, fault, **changes)
        return list(failed.value.problems)

    return find


# Columns, classes and kinds of files


@pytest.mark.parametrize(
    ("changes", "objective"),
    [
        ({"columns": NAMED}, fp.LogisticRegression),
        ({"columns": ""}, fp.LogisticRegression),
        ({"columns": "sugar, age, bmi, pressure"}, fp.LogisticRegression),
        ({"objective": "softmax-l2", "classes": "0,1,2"}, fp.Softmax),
        ({"objective": "squares-l2"} | NUMBERS, fp.LeastSquares),
        ({"objective": "huber-l2"} | NUMBERS, fp.Huber),
    ],
)
def test_columns_in_any_order_train_the_model_of_the_pooled_rows(
    train, simulated, sites, changes, objective, tmp_path
):
    """Site 1 has its columns reversed and site 2 its label first; site 0 lacks a class."""
    rows = make_rows(labels=3 if objective is fp.Softmax else 2)
    rows[0] = rows[0][0], np.minimum(rows[0][1], 1)
    if not changes.get("classes", "0,1"):
        rows = [(X, np.round(X @ [0.1, 0.2, 0.0, 1.0], 2)) for X, _ in rows]
    strategy = train(sites(rows, (None, [4, 3, 2, 1, 0], [4, 1, 3, 0, 2])), **changes)
    names = [name.strip() for name in (changes.get("columns") or NAMED).split(",")]
    assert json.loads((tmp_path / "run" / "agreement.json").read_text())["columns"] == names
    places = [COLUMNS.index(name) for name in names]
    problem = pooled([(X[:, places], y) for X, y in rows], objective)
    assert strategy.history.same(simulated(problem, **RUN | changes))


@pytest.mark.parametrize("columns", [NAMED, ""])
def test_missing_and_extra_columns_are_named_before_round_0(
    problems, sites, tmp_path, columns, caplog
):
    nodes = sites()
    X, y = make_rows()[2]
    write(tmp_path / "site2.csv", X, y, columns=("age", "BMI", "pressure", "sugar"))
    (line,) = problems(nodes, columns=columns)
    words = "client 2: its columns are not those agreed; missing: 'bmi'; extra: 'BMI'"
    assert line.startswith(words)
    assert line in caplog.text
    assert not (tmp_path / "run" / "history.jsonl").exists()


def test_extra_columns_may_be_ignored(train, problems, simulated, sites, tmp_path):
    nodes = sites()
    X, y = make_rows()[1]
    wide = np.column_stack([np.arange(len(y)), X])
    write(tmp_path / "site1.csv", wide, y, columns=("patient", *COLUMNS))
    (line,) = problems(nodes, columns=NAMED)
    assert "extra: 'patient'" in line
    strategy = train(nodes, columns=NAMED, **{"extra-columns": "ignore"})
    assert strategy.history.same(simulated(pooled(make_rows()), **RUN))


def test_most_sites_decide_if_the_run_config_names_no_columns(problems, sites, tmp_path):
    """The lowest client is the one that differs, and it is the one that is refused."""
    nodes = sites()
    X, y = make_rows()[0]
    write(tmp_path / "site0.csv", X[:, :3], y, columns=COLUMNS[:3])
    (line,) = problems(nodes)
    assert line.startswith("client 0: its columns are not those agreed; missing: 'sugar'")


def test_names_that_travel_are_few_short_and_printable(problems, sites, tmp_path):
    nodes = sites()
    X, y = make_rows()[2]
    names = ["x\x1b[31m" + "y" * 300, *(f"extra{i}" for i in range(30))]
    wide = np.column_stack([X, np.zeros((len(y), len(names)))])
    write(tmp_path / "site2.csv", wide, y, columns=(*COLUMNS, *names))
    (line,) = problems(nodes, columns=NAMED)
    assert "yyyy" in line
    for hidden in ("\x1b", "y" * 60, "extra20"):
        assert hidden not in line


def test_categories_classes_and_parquet(train, problems, simulated, tmp_path):
    """Categories are agreed by the run config; sites may lack some, and may use parquet."""
    import polars

    rng = np.random.default_rng(1)
    rows, nodes = [], []
    for client, size in enumerate(SIZES):
        age = np.round(rng.normal(size=size), 3)
        ward = rng.choice(["a", "b"] if client else ["b"], size=size)
        sick = rng.choice(["no", "yes"], size=size)
        table = polars.DataFrame({"ward": ward, "sick": sick, "age": age})
        path = tmp_path / f"site{client}.{'parquet' if client == 1 else 'csv'}"
        table.write_parquet(path) if client == 1 else table.write_csv(path)
        nodes.append({"partition-id": client, "data": str(path)})
        X = np.column_stack([age, ward == "a", ward == "b", ward == "c"]).astype(float)
        rows.append((X, sick))
    changes = {
        "classes": "no,yes", "columns": "age,ward", "categories": "ward=c|b|a",
        "method": "fedavg", "intercept": True,
    }  # fmt: skip
    history = train(nodes, **changes).history
    assert history.same(simulated(pooled(rows, intercept=True), **RUN | changes))
    assert len(history.x) == 5
    lines = problems(nodes, **changes | {"categories": "ward=a|c"})
    assert len(lines) == 3
    assert all("bad-category" in line and "'b'" not in line for line in lines)


def write_libsvm(path, X, y):
    lines = [
        f"{b} {' '.join(f'{j + 1}:{v!r}' for j, v in enumerate(row) if v)}\n"
        for row, b in zip(X.tolist(), y.tolist(), strict=True)
    ]
    path.write_text("".join(lines))


def test_files_without_names_need_an_agreed_number_of_features(
    train, problems, simulated, tmp_path
):
    """A sparse file whose highest index is smaller is refused, unless features is configured."""
    rows = make_rows()
    rows[2][0][:, 3] = 0.0
    sparse: list[dict] = []
    dense: list[dict] = []
    for client, (X, y) in enumerate(rows):
        write_libsvm(tmp_path / f"site{client}.svm", X, y)
        np.savez(tmp_path / f"site{client}.npz", X=X, y=y)
        for nodes, end in ((sparse, "svm"), (dense, "npz")):
            nodes.append({"partition-id": client, "data": str(tmp_path / f"site{client}.{end}")})
    (line,) = problems(sparse, **NO_NAMES)
    assert line == (
        "client 2: it has 3 features, and other sites have 4; name the number in the run config: "
        "features"
    )
    changes = RUN | NO_NAMES
    expected = simulated(pooled([(csr_array(X), y) for X, y in rows]), **changes)
    assert train(sparse, **NO_NAMES, features=4).history.same(expected)
    assert "bad-file" in problems(sparse, **NO_NAMES, features=3)[0]
    out = {"out": str(tmp_path / "dense")}
    assert train(dense, **NO_NAMES, **out).history.same(simulated(pooled(rows), **changes))
    assert "another number of features" in problems(dense, **NO_NAMES, features=5)[0]


def test_a_file_without_names_does_not_join_tables(problems, sites, tmp_path):
    nodes = sites()
    write_libsvm(tmp_path / "site2.svm", *make_rows()[2])
    nodes[2]["data"] = str(tmp_path / "site2.svm")
    assert "client 2: its file has no column names" in problems(nodes, columns=NAMED)[0]
    assert "client 2: some files have column names and others" in problems(nodes)[0]


# Statistics


@pytest.mark.parametrize("objective", ["logistic-l2", "softmax-l2"])
def test_standardised_by_the_statistics_of_all_sites(train, simulated, sites, objective, tmp_path):
    """The model has the bits of a simulation over the pooled rows, standardised as agreed."""
    changes = {
        "standardise": True, "intercept": True, "objective": objective, "method": "fedpage",
        "hyper": "S=2 K=3 eta_g=0.3",
    }  # fmt: skip
    rows = make_rows()
    for X, _ in rows:
        X[:, 0] = X[:, 0] * 1e-3 + 1e6  # the sum of squares has no digits of the variance
        X[:, 1] = 0.1  # a constant has exactly scale 1 and its value as mean
    orders = (None, [4, 3, 2, 1, 0], None)
    strategy = train(sites(rows, orders, **{"share-statistics": True}), **changes)
    agreed = json.loads((tmp_path / "run" / "agreement.json").read_text())
    means, scales = np.array(agreed["means"]), np.array(agreed["scales"])
    pool = np.concatenate([X for X, _ in rows])
    np.testing.assert_allclose(means, pool.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(scales[[0, 2, 3]], pool.std(axis=0)[[0, 2, 3]], rtol=1e-9)
    assert (means[1], scales[1]) == (0.1, 1.0)
    kind = fp.Softmax if objective.startswith("softmax") else fp.LogisticRegression
    problem = pooled([((X - means) / scales, y) for X, y in rows], kind, intercept=True)
    assert strategy.history.same(simulated(problem, **RUN | changes))


def test_a_site_that_does_not_share_its_statistics_is_refused(problems, sites):
    nodes = sites(**{"share-statistics": True})
    del nodes[1]["share-statistics"]
    asked = At(None, messages.STATISTICS)
    (line,) = problems(nodes, asked, standardise=True)
    assert line.startswith("client 1: its owner has not set share-statistics")
    assert asked.seen == []


def test_statistics_that_no_rows_have_are_refused(problems, sites):
    negative = change_reply(lambda arrays, header: arrays["squares"].__setitem__(0, -1.0))
    nodes = sites(**{"share-statistics": True})
    (line,) = problems(nodes, At(negative, messages.STATISTICS, [2]), standardise=True)
    assert line.startswith("client 2: its statistics are not finite or negative")


# Bad sites


def test_all_problems_are_listed_together(problems, sites, tmp_path, caplog):
    """One line for each site, with a code and a reference; no cell, path, row or traceback."""
    nodes = sites()
    spoil_cell(tmp_path / "site0.csv", "nan")
    spoil_cell(tmp_path / "site1.csv", "41250.5", column=4)
    (tmp_path / "site2.csv").unlink()
    with caplog.at_level(logging.INFO, logger="flwr"):
        lines = sorted(problems(nodes, columns=NAMED))
    assert len(lines) == 3
    for client, code in enumerate(("bad-cell", "bad-label", "no-file")):
        line = lines[client]
        assert line.startswith(f"client {client}: ")
        assert f"({code}; details in its node's log under " in line
        for hidden in ("41250", str(tmp_path), "\n"):
            assert hidden not in line
        assert caplog.text.count(line) == 1
    assert not (tmp_path / "run" / "nodes.json").exists()


@pytest.mark.parametrize("text", ["", "inf", "high", "1,2"])
def test_a_bad_cell_refuses_its_site_only(problems, sites, tmp_path, text):
    nodes = sites()
    spoil_cell(tmp_path / "site1.csv", text)
    (line,) = problems(nodes)
    assert line.startswith("client 1: ")
    assert f"({'bad-file' if ',' in text else 'bad-cell'};" in line


@pytest.mark.parametrize(
    ("row", "text", "words"), [(3, "", "a cell of its data"), (0, "BMI", "its columns")]
)
def test_a_site_that_is_mended_in_time_takes_part(
    train, simulated, sites, tmp_path, row, text, words
):
    """The node notices a wrong cell, the server another name; the status says why it waits."""
    nodes = sites()
    good = (tmp_path / "site1.csv").read_text()
    spoil_cell(tmp_path / "site1.csv", text, row=row)
    asked = At(None, messages.DESCRIBE, [1])
    waiting: list[str] = []

    def mend(client, message):
        asked(client, message)
        if len(asked.seen) == 3 and not waiting:
            (tmp_path / "site1.csv").write_text(good)
            waiting.extend(read_status(tmp_path / "run").waiting.splitlines())

    strategy = train(nodes, mend, wait=300.0)
    assert len(asked.seen) == 3
    assert waiting[0] == "waiting for the nodes of 3 clients: 3 connected, 2 that fit"
    assert waiting[1].startswith(f"client 1: {words}")
    assert strategy.history.same(simulated(pooled(make_rows()), **RUN))


def test_a_run_may_start_without_some_clients(train, sites, tmp_path):
    """The client is missing until its site is mended, and then joins the run."""
    nodes = sites()
    good = (tmp_path / "site1.csv").read_text()
    spoil_cell(tmp_path / "site1.csv", "")
    changes = {"min-clients": 2, **ALL_CALLED, "retries": 1, "lost-after": 50}

    def prepare(grid):
        def mend(client, message):
            if message.metadata.group_id == "3" and 77 not in grid.online:
                (tmp_path / "site1.csv").write_text(good)
                grid.move(1, 77)

        grid.fault = mend

    history = train(nodes, prepare=prepare, **changes).history
    assert history.last("round") == 5
    missing = np.diff(history["missing"]).tolist()
    assert (missing[:3], missing[-1]) == ([2, 2, 2], 0)
    assert np.diff(history["gradients"])[-1] > np.diff(history["gradients"])[0]


def test_rows_that_change_during_a_run_are_refused(train, sites, tmp_path, caplog):
    """The same after a resume: a run does not go on with other rows than those of its start."""
    nodes = sites()

    def change(client, message):
        if message.metadata.group_id == "3":
            spoil_cell(tmp_path / "site1.csv", "26.125")

    history = train(nodes, change, **ALL_CALLED).history
    found = {e["text"] for e in history.events if e["event"] == "rejected" and e["round"] == 3}
    assert found
    assert all("client 1: its rows are not those that were agreed" in text for text in found)
    out = {"out": str(tmp_path / "again")}
    train(nodes, kill=2, **ALL_CALLED, **out)
    spoil_cell(tmp_path / "site0.csv", "27.125")
    history = train(nodes, **ALL_CALLED, **out).history
    assert "refused: client 0: its rows are not those with which this run began" in caplog.text
    assert np.diff(history["missing"])[-1] > 0


def test_a_resumed_run_uses_the_recorded_agreement(train, sites, tmp_path):
    """It asks for no statistics again."""
    nodes = sites(**{"share-statistics": True})
    train(nodes, kill=2, standardise=True)
    path = tmp_path / "run" / "agreement.json"
    text = path.read_text()
    path.write_text("{}")
    with pytest.raises(fp.InputError, match="not what the sites of a run agreed on"):
        train(nodes, standardise=True)
    path.write_text(text)
    again = train(nodes, standardise=True)
    assert messages.STATISTICS not in {kind for _, kind in again.grid.sent}
    whole = train(nodes, standardise=True, out=str(tmp_path / "whole"))
    assert again.history.same(whole.history)


# Descriptions


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "client 5": ({"client": 5}, "it says it holds client 5, but the run has clients 0 to 2"),
    "client -1": ({"client": -1}, "it says it holds client -1"),
    "client 2^62": ({"client": 2**62}, "it says it holds client too many"),
    "duplicate": ({"client": 1}, "both say they hold it; neither is used"),
    "features 10^8": ({"features": 10**8, "d": 10**8}, "it says it has 100,000,000 features"),
    "features 2^62": ({"features": 2**62, "d": 2**62}, "it says it has too many features"),
    "d 2^40": ({"d": 2**40}, "which its features do not explain"),
    "no features": ({"features": 0}, "it says it has 0 features"),
    "other features": ({"features": 7, "d": 7}, "it has 7 features, and other sites have 4"),
    "rows -1": ({"rows": -1}, "it says it has -1 rows, but 1 to 10,000,000 are accepted"),
    "rows 10^9": ({"rows": 10**9}, "it says it has 1,000,000,000 rows"),
    "rows text": ({"rows": "many"}, "header field 'rows' must be of type int, not str"),
    "columns list": ({"columns": ["a"]}, "'columns' must be of type str, not list"),
    "columns numbers": ({"columns": "[1,2,3,4]"}, "is not a list of names"),
    "columns twice": ({"columns": '["a","a"]'}, "has a name twice"),
    "columns long": ({"columns": json.dumps(["a" * 10**6])}, "a name with more than 200 letters"),
    "columns huge": ({"columns": "a" * (1 + (1 << 24))}, "its list of columns is too long"),
    "digest": ({"digest": "x" * 10**6}, "its digest of the rows is not one"),
    "version": ({"fedpage": "1" * 10**6}, "it has fedpage another version, but the server has"),
    "problem": ({"problem": "0" * 64}, "it has other code of the problem than the server"),
    "code": ({"code": "0" * 64}, "it has other code of the method"),
    "unknown field": ({"extra": 1}, "the header has unknown fields"),
    "rows 21": ({"rows": 21}, "it says it has 21 rows, but 1 to 20 are accepted"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_description_that_cannot_be_is_refused(train, problems, sites, case, caplog):
    """The node is refused in a line, and the run starts without it if that is allowed."""
    change, words = HOSTILE[case]

    def lie(reply):
        header = dict(reply.content["header"]) | change
        reply.content = RecordDict({"header": ConfigRecord(header)})
        return reply

    fault = At(lie, messages.DESCRIBE, [2])
    limit = {"max-rows": 20} if case == "rows 21" else {}
    (line,) = [line for line in problems(sites(), fault, **limit) if words in line]
    assert len(line) < 200
    assert caplog.text.count("fedpage: refused: " + line) == 1
    if case in ("client 5", "rows text", "code"):
        history = train(sites(), fault, **{"min-clients": 2}).history
        assert history.last("round") == 5
        assert len(history.x) == 4


# Agreements


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[]", "[" * 10**5, "nan",
        '{"columns":[],"features":-1,"d":1,"means":[],"scales":[]}',
        '{"columns":["a"],"features":1,"d":1,"means":[NaN],"scales":[1.0]}',
        '{"columns":["a"],"features":1,"d":1,"means":[0.0],"scales":[0.0]}',
        '{"columns":["a","b"],"features":2,"d":2,"means":[0.0],"scales":[1.0]}',
        '{"columns":[],"features":1e3,"d":1,"means":[],"scales":[]}',
    ],
)  # fmt: skip
def test_agreements_that_a_node_refuses(text):
    with pytest.raises(messages.ProtocolError):
        Agreement.from_text(text)


def test_files_are_described_to_their_owner(tmp_path):
    path = tmp_path / "a.csv"
    write(path, *make_rows()[0])
    words = f"{path}: 15 rows, 5 columns: age, bmi, pressure, sugar, sick"
    assert site_files.describe_file(path) == words
    spoil_cell(path, "")
    with pytest.raises(fp.InputError, match="row 4, column 'bmi': the value is missing"):
        site_files.describe_file(path)
