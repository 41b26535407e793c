"""What sites must agree on before round 0: columns by name, classes, statistics, sizes."""

from __future__ import annotations

import csv
import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

import fedpage as fp
from fedpage.flower import messages, site_files
from fedpage.flower.agreement import (
    Agreement,
    Statistics,
    combine_statistics,
    compute_scales,
    compute_statistics,
)
from fedpage.flower.config import parse_app_config
from fedpage.flower.gathering import StartFailed
from fedpage.flower.schema import parse_schema
from fedpage.runs.status import read_status

COLUMNS = ("age", "bmi", "pressure", "sugar")
SIZES = (15, 25, 20)
RUN = {
    "clients": 3,
    "data": "",
    "label": "sick",
    "classes": "0,1",
    "objective": "logistic-l2",
    "alpha": 0.05,
    "method": "scaffold",
    "hyper": "S=2 K=2 eta_l=0.0001",
    "rounds": 5,
    "record-every": 1,
}


def make_rows(labels=2, seed=0):
    """Return features of very different scales and labels for each of three sites."""
    rng = np.random.default_rng(seed)
    scale, shift = np.array([10.0, 4.0, 20.0, 0.5]), np.array([60.0, 25.0, 120.0, 5.0])
    sites = []
    for size in SIZES:
        X = np.round(shift + scale * rng.normal(size=(size, 4)), 3)
        y = rng.integers(0, labels, size=size)
        sites.append((X, y))
    return sites


def write(path, X, y, columns=COLUMNS, order=None, label="sick"):
    """Write a table whose columns are in an order; the label is somewhere among them."""
    names = [*columns, label]
    order = list(range(len(names))) if order is None else order
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([names[i] for i in order])
        for row, target in zip(X.tolist(), y.tolist(), strict=True):
            cells = [*row, target]
            out.writerow([cells[i] for i in order])
    return path


@pytest.fixture
def sites(tmp_path):
    """Return a function that writes three tables and returns the node configs."""

    def make(rows=None, orders=(None, None, None), **node):
        found = []
        for client, (X, y) in enumerate(rows or make_rows()):
            path = write(tmp_path / f"site{client}.csv", X, y, order=orders[client])
            found.append(
                {
                    "partition-id": client,
                    "data": str(path),
                    "client-state-dir": str(tmp_path / "client-state"),
                    **node,
                }
            )
        return found

    return make


def pooled(rows, objective=fp.LogisticRegression, **options):
    return objective(fp.Dataset.from_clients(rows), alpha=0.05, **options)


def lines_of(failed):
    return list(failed.value.problems)


# Columns


@pytest.mark.parametrize("columns", [",".join(COLUMNS), ""])
def test_another_order_of_columns_trains_the_same_model(federate, simulated, sites, columns):
    """Site 1 has its columns reversed and site 2 its label first: the bits are the simulator's."""
    orders = (None, [4, 3, 2, 1, 0], [4, 1, 3, 0, 2])
    nodes = sites(orders=orders)
    assert Path(nodes[1]["data"]).read_text().startswith("sick,sugar,pressure,bmi,age")
    strategy = federate(nodes=nodes, **RUN, columns=columns)
    assert strategy.history.same(simulated(pooled(make_rows()), **RUN))
    text = (strategy._out / "agreement.json").read_text()
    assert json.loads(text)["columns"] == list(COLUMNS)


def test_the_run_config_fixes_the_order_of_the_model(federate, simulated, sites):
    names = ("sugar", "age", "bmi", "pressure")
    places = [COLUMNS.index(name) for name in names]
    strategy = federate(nodes=sites(), **RUN, columns=", ".join(names))
    rows = [(X[:, places], y) for X, y in make_rows()]
    assert strategy.history.same(simulated(pooled(rows), **RUN))


@pytest.mark.parametrize("columns", [",".join(COLUMNS), ""])
def test_missing_and_extra_columns_are_named_before_round_0(
    federate, sites, tmp_path, columns, caplog
):
    nodes = sites()
    X, y = make_rows()[2]
    write(tmp_path / "site2.csv", X, y, columns=("age", "BMI", "pressure", "sugar"))
    with pytest.raises(StartFailed) as failed:
        federate(nodes=nodes, **RUN, columns=columns)
    (line,) = lines_of(failed)
    assert line.startswith(
        "client 2: its columns are not those agreed; missing: 'bmi'; extra: 'BMI'"
    )
    assert line in caplog.text
    assert not (tmp_path / "run" / "history.jsonl").exists()
    assert len(str(failed.value)) < 250


def test_extra_columns_may_be_ignored(federate, simulated, sites, tmp_path):
    nodes = sites()
    X, y = make_rows()[1]
    wide = np.column_stack([np.arange(len(y)), X])
    write(tmp_path / "site1.csv", wide, y, columns=("patient", *COLUMNS))
    columns = ",".join(COLUMNS)
    with pytest.raises(StartFailed, match=r"client 1: .*extra: 'patient'"):
        federate(nodes=nodes, **RUN, columns=columns)
    strategy = federate(nodes=nodes, **RUN, columns=columns, **{"extra-columns": "ignore"})
    assert strategy.history.same(simulated(pooled(make_rows()), **RUN))


def test_most_sites_decide_where_the_run_config_names_no_columns(federate, sites, tmp_path):
    """The lowest client is the one that differs, and it is the one that is refused."""
    nodes = sites()
    X, y = make_rows()[0]
    write(tmp_path / "site0.csv", X[:, :3], y, columns=COLUMNS[:3])
    with pytest.raises(StartFailed) as failed:
        federate(nodes=nodes, **RUN)
    (line,) = lines_of(failed)
    assert line.startswith("client 0: its columns are not those agreed; missing: 'sugar'")


def test_no_name_of_a_site_that_the_refusal_bounds(federate, sites, tmp_path):
    """Names that travel are few and short, and unprintable letters are replaced."""
    nodes = sites()
    X, y = make_rows()[2]
    names = ["x\x1b[31m" + "y" * 300, *(f"extra{i}" for i in range(30))]
    wide = np.column_stack([X, np.zeros((len(y), len(names)))])
    write(tmp_path / "site2.csv", wide, y, columns=(*COLUMNS, *names))
    with pytest.raises(StartFailed) as failed:
        federate(nodes=nodes, **RUN, columns=",".join(COLUMNS))
    (line,) = lines_of(failed)
    assert "\x1b" not in line
    assert "yyyy" in line
    assert "y" * 60 not in line
    assert "extra20" not in line


# Encoding


def test_categories_classes_and_parquet(federate, simulated, tmp_path):
    """Categories are agreed by the run config; sites may lack some, and may use parquet."""
    pytest.importorskip("pyarrow")
    import pyarrow
    from pyarrow import parquet

    rng = np.random.default_rng(1)
    rows, nodes = [], []
    for client, size in enumerate(SIZES):
        age = np.round(rng.normal(size=size), 3)
        ward = rng.choice(["a", "b"] if client else ["b"], size=size)
        sick = rng.choice(["no", "yes"], size=size)
        table = {"ward": ward, "sick": sick, "age": age}
        path = tmp_path / f"site{client}.{'parquet' if client == 1 else 'csv'}"
        if client == 1:
            parquet.write_table(pyarrow.table({k: v.tolist() for k, v in table.items()}), path)
        else:
            cells = zip(*(v.tolist() for v in table.values()), strict=True)
            text = "\n".join(",".join(map(str, row)) for row in cells)
            path.write_text(f"{','.join(table)}\n{text}\n")
        nodes.append({"partition-id": client, "data": str(path)})
        X = np.column_stack([age, ward == "a", ward == "b", ward == "c"]).astype(float)
        rows.append((X, sick))
    changes = {
        "classes": "no,yes",
        "columns": "age,ward",
        "categories": "ward=c|b|a",
        "method": "fedavg",
        "intercept": True,
    }
    strategy = federate(nodes=nodes, **RUN | changes)
    expected = simulated(pooled(rows, intercept=True), **RUN | changes)
    assert strategy.history.same(expected)
    assert len(strategy.history.x) == 5
    with pytest.raises(StartFailed) as failed:
        federate(nodes=nodes, **RUN | changes | {"categories": "ward=a|c"})
    assert len(lines_of(failed)) == 3
    assert all("bad-category" in line for line in lines_of(failed))
    assert "'b'" not in str(failed.value)


def test_softmax_with_the_agreed_classes(federate, simulated, sites, tmp_path):
    """Site 0 lacks a class, and the model has an output for it all the same."""
    rows = make_rows(labels=3)
    rows[0] = (rows[0][0], np.minimum(rows[0][1], 1))
    changes = {"objective": "softmax-l2", "classes": "0,1,2", "intercept": True}
    strategy = federate(nodes=sites(rows), **RUN | changes)
    problem = pooled(rows, fp.Softmax, intercept=True)
    assert problem.d == 15
    assert strategy.history.same(simulated(problem, **RUN | changes))


@pytest.mark.parametrize(
    ("objective", "problem"),
    [("squares-l2", fp.LeastSquares), ("huber-l2", fp.Huber)],
)
def test_regression_takes_numbers(federate, simulated, sites, objective, problem):
    rows = [(X, np.round(X @ [0.1, 0.2, 0.0, 1.0], 2)) for X, _ in make_rows()]
    changes = {"objective": objective, "classes": "", "hyper": "S=2 K=2 eta_l=0.00001"}
    strategy = federate(nodes=sites(rows), **RUN | changes)
    assert strategy.history.same(simulated(pooled(rows, problem), **RUN | changes))


# Statistics


def standardised(rows):
    """Return the rows of each site, standardised with the statistics of all of them."""
    X = np.concatenate([X for X, _ in rows])
    parts = [compute_statistics(X) for X, _ in rows]
    total = combine_statistics([len(y) for _, y in rows], parts)
    scales = compute_scales(len(X), total.squares)
    np.testing.assert_allclose(total.means, X.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(scales, X.std(axis=0), rtol=1e-12)
    return [((X - total.means) / scales, y) for X, y in rows]


@pytest.mark.parametrize("objective", ["logistic-l2", "softmax-l2"])
def test_standardised_by_the_statistics_of_all_sites(
    federate, simulated, sites, objective, tmp_path
):
    """The model has the bits of a simulation over the pooled, standardised rows."""
    changes = {
        "standardise": True,
        "intercept": True,
        "objective": objective,
        "method": "fedpage",
        "hyper": "S=2 K=3 eta_g=0.3",
    }
    nodes = sites(orders=(None, [4, 3, 2, 1, 0], None), **{"share-statistics": True})
    strategy = federate(nodes=nodes, **RUN | changes)
    kind = fp.Softmax if objective.startswith("softmax") else fp.LogisticRegression
    problem = pooled(standardised(make_rows()), kind, intercept=True)
    assert strategy.history.same(simulated(problem, **RUN | changes))
    agreement = json.loads((strategy._out / "agreement.json").read_text())
    pool = np.concatenate([X for X, _ in make_rows()])
    np.testing.assert_allclose(agreement["means"], pool.mean(axis=0))
    np.testing.assert_allclose(agreement["scales"], pool.std(axis=0))
    plain = {"standardise": False, "out": str(tmp_path / "plain")}
    plain = federate(nodes=nodes, **RUN | changes | plain)
    assert plain.history.x.tobytes() != strategy.history.x.tobytes()


def test_a_site_that_does_not_share_its_statistics_is_refused(federate, sites):
    nodes = sites(**{"share-statistics": True})
    del nodes[1]["share-statistics"]
    sent = []
    with pytest.raises(StartFailed) as failed:
        federate(
            lambda client, message: sent.append(message.metadata.message_type),
            nodes=nodes, **RUN, standardise=True,
        )  # fmt: skip
    (line,) = lines_of(failed)
    assert line.startswith("client 1: its owner has not set share-statistics")
    assert set(sent) == {messages.DESCRIBE}


def test_statistics_that_no_rows_have_are_refused(federate, sites):
    """A node that sends a negative variance or a NaN is named, and nothing starts."""

    def spoil(reply):
        arrays = {name: a.numpy() for name, a in reply.content["arrays"].items()}
        arrays["squares"][0] = -1.0
        header = messages.StatisticsReply(**dict(reply.content["header"]))
        reply.content = messages.encode_arrays(arrays, header)
        return reply

    def fault(client, message):
        is_asked = message.metadata.message_type == messages.STATISTICS and client == 2
        return spoil if is_asked else None

    with pytest.raises(StartFailed, match="client 2: its statistics are not finite or negative"):
        federate(fault, nodes=sites(**{"share-statistics": True}), **RUN, standardise=True)


def test_combined_statistics_are_stable_and_those_of_constant_columns_exact():
    rng = np.random.default_rng(0)
    X = 1e9 + rng.normal(size=(500, 2))
    X[:, 1] = 0.1
    parts = [compute_statistics(part) for part in np.array_split(X, [3, 100, 101])]
    total = combine_statistics([3, 97, 1, 399], parts)
    scales = compute_scales(500, total.squares)
    assert scales[0] == pytest.approx(np.std(X[:, 0] - 1e9), rel=1e-7)
    assert total.means[1] == 0.1
    assert scales[1] == 1.0
    assert total.squares[1] == 0.0
    assert Statistics(total.means, total.squares) == total


# Bad sites


def spoil_cell(path, text, column=1, row=3):
    lines = path.read_text().splitlines()
    cells = lines[row].split(",")
    cells[column] = text
    lines[row] = ",".join(cells)
    path.write_text("\n".join(lines) + "\n")


def test_all_problems_are_listed_together(federate, sites, tmp_path, caplog):
    """One line for each site, with a code and a reference; no cell, path, row or traceback."""
    nodes = sites()
    spoil_cell(tmp_path / "site0.csv", "nan")
    spoil_cell(tmp_path / "site1.csv", "41250.5", column=4)
    (tmp_path / "site2.csv").unlink()
    with caplog.at_level(logging.INFO, logger="flwr"), pytest.raises(StartFailed) as failed:
        federate(nodes=nodes, **RUN, columns=",".join(COLUMNS))
    lines = sorted(lines_of(failed))
    assert len(lines) == 3
    codes = ("bad-cell", "bad-label", "no-file")
    for client, (line, code) in enumerate(zip(lines, codes, strict=True)):
        assert line.startswith(f"client {client}: ")
        assert f"({code}; details in its node's log under " in line
        assert "41250" not in line
        assert str(tmp_path) not in line
        assert "\n" not in line
        assert caplog.text.count(line) == 1
    assert not (tmp_path / "run" / "nodes.json").exists()


@pytest.mark.parametrize(
    ("text", "code"),
    [("", "bad-cell"), ("inf", "bad-cell"), ("high", "bad-cell"), ("1,2", "bad-file")],
)
def test_a_bad_cell_refuses_its_site_only(federate, sites, tmp_path, text, code):
    nodes = sites()
    spoil_cell(tmp_path / "site1.csv", text)
    with pytest.raises(StartFailed) as failed:
        federate(nodes=nodes, **RUN)
    (line,) = lines_of(failed)
    assert line.startswith("client 1: ")
    assert f"({code};" in line


@pytest.mark.parametrize(
    ("row", "text", "problem"),
    [
        (3, "", "client 1: a cell of its data is empty or not a finite number (bad-cell;"),
        (0, "BMI", "client 1: its columns are not those agreed; missing: 'bmi'; extra: 'BMI'"),
    ],
)
def test_a_site_that_is_mended_in_time_takes_part(
    federate, simulated, sites, tmp_path, row, text, problem
):
    """The node notices a wrong cell, the server another name; the status says why it waits."""
    nodes = sites()
    good = (tmp_path / "site1.csv").read_text()
    spoil_cell(tmp_path / "site1.csv", text, row=row)

    def mend(client, message):
        if client == 1 and message.metadata.message_type == messages.DESCRIBE:
            seen.append(client)
            if len(seen) == 3:
                (tmp_path / "site1.csv").write_text(good)
                status = read_status(tmp_path / "run")
                waiting.extend([] if status is None else status.waiting.splitlines())

    seen: list[int] = []
    waiting: list[str] = []
    strategy = federate(mend, nodes=nodes, **RUN, wait=300.0)
    assert len(seen) == 3
    assert waiting[0] == "waiting for the nodes of 3 clients: 3 connected, 2 that fit"
    assert waiting[1].startswith(problem)
    assert strategy.history.same(simulated(pooled(make_rows()), **RUN))
    assert sum(kind == messages.DESCRIBE for _, kind in strategy.grid.sent) == 5


def test_a_run_may_start_without_some_clients(federate, sites, tmp_path):
    """The client is missing until its site is mended, and then joins the run."""
    nodes = sites()
    good = (tmp_path / "site1.csv").read_text()
    spoil_cell(tmp_path / "site1.csv", "")
    changes = {"min-clients": 2, "hyper": "S=3 K=2 eta_l=0.0001", "retries": 1, "lost-after": 50}

    def prepare(grid):
        def mend(client, message):
            if message.metadata.group_id == "3" and 77 not in grid.online:
                (tmp_path / "site1.csv").write_text(good)
                old = grid.node(1)
                grid.add(77, 1, grid.contexts[old].node_config, grid.contexts[old].run_config)
                grid.online.discard(old)
                grid.online.add(77)

        grid.fault = mend

    strategy = federate(nodes=nodes, prepare=prepare, **RUN | changes)
    history = strategy.history
    assert history.last("round") == 5
    missing = np.diff(history["missing"]).tolist()
    assert missing[:3] == [2, 2, 2]
    assert missing[-1] == 0
    assert np.diff(history["gradients"])[-1] > np.diff(history["gradients"])[0]
    assert json.loads((tmp_path / "run" / "nodes.json").read_text())[1][0] == 0
    with pytest.raises(fp.InputError, match="min-clients needs weights = 'uniform'"):
        federate(nodes=nodes, **RUN | changes | {"weights": "size"})


def test_rows_that_change_after_the_start_are_refused(federate, sites, tmp_path):
    nodes = sites()

    def change(client, message):
        if message.metadata.group_id == "3":
            spoil_cell(tmp_path / "site1.csv", "26.125")

    history = federate(change, nodes=nodes, **RUN | {"hyper": "S=3 K=2 eta_l=0.0001"}).history
    texts = {e["text"] for e in history.events if e["event"] == "rejected" and e["round"] == 3}
    assert texts
    assert all("client 1: its rows are not those that were agreed" in text for text in texts)


class Killed(BaseException):
    pass


def die(info):
    if info.round == 2:
        raise Killed


def test_a_resumed_run_uses_the_recorded_agreement(federate, simulated, sites, tmp_path):
    """It asks for no statistics again."""
    nodes = sites(**{"share-statistics": True})
    changes = RUN | {"standardise": True}
    with pytest.raises(Killed):
        federate(nodes=nodes, callbacks=[fp.FunctionCallback(on_round_end=die)], **changes)
    text = (tmp_path / "run" / "agreement.json").read_text()
    (tmp_path / "run" / "agreement.json").write_text("{}")
    with pytest.raises(fp.InputError, match="not what the sites of a run agreed on"):
        federate(nodes=nodes, **changes)
    (tmp_path / "run" / "agreement.json").write_text(text)
    again = federate(nodes=nodes, **changes)
    assert messages.STATISTICS not in {kind for _, kind in again.grid.sent}
    problem = pooled(standardised(make_rows()))
    assert again.history.same(simulated(problem, **changes))


def test_a_resumed_run_does_not_train_on_other_rows(federate, sites, tmp_path, caplog):
    nodes = sites()
    changes = RUN | {"hyper": "S=3 K=2 eta_l=0.0001"}
    with pytest.raises(Killed):
        federate(nodes=nodes, callbacks=[fp.FunctionCallback(on_round_end=die)], **changes)
    spoil_cell(tmp_path / "site0.csv", "26.125")
    history = federate(nodes=nodes, **changes).history
    assert "refused: client 0: its rows are not those with which this run began" in caplog.text
    assert np.diff(history["missing"])[-1] > 0


# Files without names


def write_libsvm(path, X, y):
    rows = zip(X.tolist(), y.tolist(), strict=True)
    path.write_text(
        "".join(
            f"{b} {' '.join(f'{j + 1}:{v!r}' for j, v in enumerate(row) if v)}\n" for row, b in rows
        )
    )


def test_files_without_names_need_an_agreed_number_of_features(federate, simulated, tmp_path):
    """A sparse file whose highest index is smaller is refused, unless features is configured."""
    from scipy.sparse import csr_array

    rows, nodes = make_rows(), []
    rows[2][0][:, 3] = 0.0
    for client, (X, y) in enumerate(rows):
        write_libsvm(tmp_path / f"site{client}.svm", X, y)
        nodes.append({"partition-id": client, "data": str(tmp_path / f"site{client}.svm")})
    changes = RUN | {"label": "", "method": "fedavg"}
    with pytest.raises(StartFailed) as failed:
        federate(nodes=nodes, **changes)
    (line,) = lines_of(failed)
    assert line == (
        "client 2: it has 3 features, and other sites have 4; name the number in the run config: "
        "features"
    )
    strategy = federate(nodes=nodes, **changes, features=4)
    sparse = [(csr_array(X), y) for X, y in rows]
    assert strategy.history.same(simulated(pooled(sparse), **changes))
    with pytest.raises(StartFailed, match="bad-file"):
        federate(nodes=nodes, **changes, features=3)


def test_arrays_in_npz_files(federate, simulated, tmp_path):
    rows, nodes = make_rows(), []
    for client, (X, y) in enumerate(rows):
        np.savez(tmp_path / f"site{client}.npz", X=X, y=y)
        nodes.append({"partition-id": client, "data": str(tmp_path / f"site{client}.npz")})
    changes = RUN | {"label": "", "method": "fedavg"}
    assert federate(nodes=nodes, **changes).history.same(simulated(pooled(rows), **changes))
    with pytest.raises(StartFailed, match=r"another number of features"):
        federate(nodes=nodes, **changes, features=5)


def test_a_file_without_names_does_not_join_tables(federate, sites, tmp_path):
    nodes = sites()
    X, y = make_rows()[2]
    write_libsvm(tmp_path / "site2.svm", X, y)
    nodes[2]["data"] = str(tmp_path / "site2.svm")
    with pytest.raises(StartFailed, match="client 2: its file has no column names"):
        federate(nodes=nodes, **RUN, columns=",".join(COLUMNS))
    with pytest.raises(StartFailed, match="client 2: some files have column names and others"):
        federate(nodes=nodes, **RUN)


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
    "columns huge": ({"columns": "a" * (1 << 25)}, "its list of columns is too long"),
    "digest": ({"digest": "x" * 10**6}, "its digest of the rows is not one"),
    "version": ({"fedpage": "1" * 10**6}, "it has fedpage another version, but the server has"),
    "problem": ({"problem": "0" * 64}, "it has other code of the problem than the server"),
    "code": ({"code": "0" * 64}, "it has other code of the method"),
    "unknown field": ({"extra": 1}, "the header has unknown fields"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_description_that_cannot_be_is_refused(federate, sites, case, caplog):
    """The node is refused in a line, and the run starts without it if that is allowed."""
    change, words = HOSTILE[case]

    def lie(reply):
        header = dict(reply.content["header"]) | change
        reply.content = RecordDict({"header": ConfigRecord(header)})
        return reply

    def fault(client, message):
        is_asked = message.metadata.message_type == messages.DESCRIBE
        return lie if client == 2 and is_asked else None

    with pytest.raises(StartFailed) as failed:
        federate(fault, nodes=sites(), **RUN)
    lines = [line for line in lines_of(failed) if words in line]
    assert len(lines) == 1, lines_of(failed)
    assert len(lines[0]) < 200
    assert caplog.text.count("fedpage: refused: " + lines[0]) == 1
    if case != "duplicate":
        history = federate(fault, nodes=sites(), **RUN, **{"min-clients": 2}).history
        assert history.last("round") == 5
        assert len(history.x) == 4


def test_the_cap_of_rows_is_configured(federate, sites):
    with pytest.raises(StartFailed, match="client 1: it says it has 25 rows, but 1 to 20 are"):
        federate(nodes=sites(), **RUN, weights="size", **{"max-rows": 20})


def test_a_flood_of_nodes_is_forgotten_when_it_leaves(federate, sites):
    """Nodes that lie and reconnect under new ids leave nothing behind in the server."""
    from fedpage.flower import gathering

    kept, told = [], []
    ask = gathering.Gathering._ask

    def look(self, late):
        ask(self, late)
        kept.append(len(self._refused) + len(self._answers) + len(self._asked))
        told.append(len(self._told))

    def prepare(grid):
        config = grid.contexts[grid.node(2)]
        ids = iter(range(1000, 10_000))

        def flood(client, message):
            if client == 9:
                grid.online.discard(message.metadata.dst_node_id)
                number = next(ids)
                grid.add(number, 9, {"partition-id": 99}, config.run_config)
                grid.online.add(number)

        grid.online.discard(grid.node(2))
        grid.add(999, 9, {"partition-id": 99}, config.run_config)
        grid.online.add(999)
        grid.fault = flood

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering.Gathering, "_ask", look)
        with pytest.raises(StartFailed):
            federate(nodes=sites(), prepare=prepare, **RUN, wait=40.0)
    assert len(kept) > 10
    # Three nodes are connected at a time. Of each the server keeps its answer or refusal, and when
    # it was asked, also where it answered: one that fits alone may not fit the others.
    assert max(kept) <= 6
    assert max(told) <= 3


# Configuration and agreement


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"columns": "a,b,a", "label": "y"}, "columns has 'a' twice"),
        ({"columns": "a,,b", "label": "y"}, "columns has an empty name"),
        ({"columns": "a,b", "label": "b"}, "the label 'b' cannot be a feature too"),
        ({"columns": "a,b", "label": ""}, "columns are named, but not the label column"),
        ({"classes": "1"}, "classes must be two or more labels"),
        ({"classes": ""}, "name the labels for logistic-l2"),
        ({"classes": "0,1,2"}, "logistic-l2 takes two classes, not 3; use softmax"),
        ({"columns": "a,b", "categories": "c=1|2"}, "categories names 'c', which is not a column"),
        ({"categories": "sex"}, "categories must be as in 'sex=f|m; ward=a|b'"),
        ({"categories": "sex=f|f"}, "categories must be as in"),
        ({"standardise": True, "data": "census"}, "standardise is for the sites' own files"),
        ({"extra-columns": "ignore", "columns": ""}, "needs the names of the columns"),
        ({"extra-columns": "keep"}, "extra-columns must be 'refuse' or 'ignore'"),
        ({"min-clients": 4}, "min-clients is larger than clients"),
    ],
)
def test_invalid_settings_of_the_data(config, change, words):
    from fedpage.flower.server_app import FedpageStrategy

    with pytest.raises(fp.InputError, match=words) as error:
        FedpageStrategy(config | RUN | change)
    assert len(str(error.value)) <= 200


def test_names_with_commas_and_spaces(config):
    schema = parse_schema(
        parse_app_config(
            config | RUN | {"columns": 'age, "height, cm" ,bmi', "classes": " no, yes"}
        )
    )
    assert schema.columns == ("age", "height, cm", "bmi")
    assert schema.classes == ("no", "yes")


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


def test_an_agreement_survives_its_text():
    agreement = Agreement(("a", 'b"\n'), 2, 3, (0.1, -1e300), (math.pi, 1e-300))
    assert Agreement.from_text(agreement.to_text()) == agreement


def test_files_are_described_to_their_owner(tmp_path):
    X, y = make_rows()[0]
    path = write(tmp_path / "a.csv", X, y)
    text = site_files.describe_file(path)
    assert text == f"{path}: 15 rows, 5 columns: age, bmi, pressure, sugar, sick"
    spoil_cell(path, "")
    with pytest.raises(fp.InputError, match="row 4, column 'bmi': the value is missing"):
        site_files.describe_file(path)
