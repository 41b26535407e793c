"""A fit with standard errors over the sites' own tables equals the pooled analysis."""

import csv
import json

import numpy as np
import pytest
import support
from faults import AWAY, REQUEST, At, ask, refusal
from flwr.app import Array

import fedpage as fp
from fedpage.flower import disclosure, messages
from fedpage.flower.agreement import Agreement
from fedpage.flower.gathering import StartFailed
from fedpage.flower.secure_aggregation import protocol
from fedpage.flower.secure_aggregation.node_state import NodeState

SIZES = (260, 230, 300)
OUTCOMES = {
    "logistic": {"label": "ill", "classes": "0,1"},
    "gaussian": {"label": "bmi"},
    "poisson": {"label": "visits"},
    "cox": {"label": "days", "event": "died"},
}
ALL = {"ill", "visits", "days", "died"}


def patients(site):
    """Return the columns of a site's patients, with columns of unlike units."""
    rng, n = np.random.default_rng(site), SIZES[site]
    age = np.round(rng.normal(55 + 5 * site, 12, n), 1)
    stage = rng.choice(["I", "II", "III"], n, p=[0.5, 0.3, 0.2])
    sex = rng.choice(["f", "m"], n)
    risk = 0.06 * (age - 60) + 0.8 * (stage == "III") + 0.4 * (sex == "m")
    return {
        "age": age,
        "bmi": np.round(rng.normal(26, 4, n), 1),
        "income": np.round(rng.normal(5e4, 1e4, n)),
        "stage": stage,
        "sex": sex,
        "ill": (rng.random(n) < 1 / (1 + np.exp(-risk))).astype(int),
        "visits": rng.poisson(np.exp(0.5 + 0.4 * risk)),
        "days": np.ceil(rng.exponential(200 * np.exp(-risk))),
        "died": (rng.random(n) < 0.7).astype(int),
    }


def used(table, family):
    """Return the columns of a family's model: its outcomes, and not those of others."""
    own = {OUTCOMES[family]["label"], OUTCOMES[family].get("event")}
    return {name: values for name, values in table.items() if name in own or name not in ALL}


def write(path, table):
    with path.open("w", newline="") as file:
        rows = zip(*(column.tolist() for column in table.values()), strict=True)
        csv.writer(file).writerows([list(table), *rows])


@pytest.fixture
def fit(federate, tmp_path):
    """Return a function that fits a family over three sites, and returns the strategy."""

    def run(family="logistic", tables=None, node=None, name="fit", trained=False, **changes):
        nodes = []
        for site, table in enumerate(tables or [used(patients(i), family) for i in range(3)]):
            write(tmp_path / f"{name}{site}.csv", table)
            own = {"partition-id": site, "data": str(tmp_path / f"{name}{site}.csv")}
            own |= {"client-state-dir": str(tmp_path / f"state{site}"), "share-statistics": True}
            nodes.append(own | (node or {}))
        settings: dict = {"categories": "stage; sex", "rounds": 30, "data": ""}
        settings |= {} if trained else {"family": family}
        settings |= OUTCOMES[family] | {"clients": len(nodes), "out": str(tmp_path / name)}
        return federate(nodes=nodes, **(settings | changes))

    return run


def pooled(family, **options):
    tables = [used(patients(i), family) for i in range(3)]
    rows = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    rows["site"] = np.repeat(["a", "b", "c"], SIZES)
    outcome = OUTCOMES[family]
    label = (outcome["label"], "died") if family == "cox" else outcome["label"]
    return fp.fit(rows, family, label=label, client="site", **options)


@pytest.mark.parametrize("family", OUTCOMES)
def test_a_federation_fits_what_the_pooled_rows_give(fit, family, tmp_path):
    found, expected = fit(family).fit, pooled(family)
    assert found.names == expected.names
    np.testing.assert_allclose(found.params, expected.params, rtol=1e-9)
    np.testing.assert_allclose(found.cov_params(), expected.cov_params(), rtol=1e-8)
    for name in ("llf", "llnull", "aic", "deviance", "null_deviance", "scale"):
        if getattr(expected, name) is not None:
            assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-10)
    assert found.wald_test("stage") == pytest.approx(expected.wald_test("stage"), rel=1e-7)
    assert json.loads((tmp_path / "fit" / "fit.json").read_text())["rows"] == sum(SIZES)
    assert "stage=III" in (tmp_path / "fit" / "fit.txt").read_text()


@pytest.mark.parametrize(
    "changes",
    [
        {"standardise": True, "aggregation": "secure:bound=100"},
        {"standardise": True, "ties": "breslow", "family": "cox"},
        {"categories": "stage=I|II|III; sex=f|m", "reference": "stage=II; sex=m"},
    ],
)
def test_secure_standardised_and_named_fits_are_the_same(fit, changes):
    family = changes.get("family", "logistic")
    options: dict = {"ties": "breslow"} if family == "cox" else {}
    if "reference" in changes:
        options["reference"] = {"stage": "II", "sex": "m"}
    found, expected = fit(**changes).fit, pooled(family, **options)
    assert found.names == expected.names
    np.testing.assert_allclose(found.params, expected.params, rtol=1e-9)
    np.testing.assert_allclose(found.bse, expected.bse, rtol=1e-9)


def test_a_killed_fit_resumes_with_equal_bits(fit, tmp_path):
    whole = fit("cox", name="whole").fit
    fit("cox", kill=2)
    found = fit("cox").fit
    assert found.params.tobytes() == whole.params.tobytes()
    assert found.llnull == whole.llnull
    with pytest.raises(fp.InputError, match="finished"):
        fit("cox")


def test_the_model_predicts_new_rows(fit, run, tmp_path):
    expected = pooled("logistic")
    found = fit().fit
    rows = {name: values[:4] for name, values in used(patients(1), "logistic").items()}
    model = fp.load_federated(tmp_path / "fit")
    margins = rows["age"] * 0.0 + expected.params[-1]
    for name, b in zip(expected.names[:-1], expected.params, strict=False):
        column, _, level = name.partition("=")
        margins = margins + b * (rows[column] == level if level else rows[column])
    odds = 1 / (1 + np.exp(-margins))
    np.testing.assert_allclose(model.predict_proba(rows)[:, 1], odds, rtol=1e-8)
    assert model.predict(rows).tolist() == (odds > 0.5).astype(int).tolist()
    assert model.names == found.names[:-1]
    assert model.predict(rows | {"id": list("abcd")}).tolist() == model.predict(rows).tolist()
    text = support.refusal(model.predict, rows | {"stage": ["V"] * 4})
    assert text.endswith("correct it or leave the row out")
    table = (tmp_path / "fit" / "fit.txt").read_text()
    assert "The event is ill=1." in table
    assert "compared with stage=I" in table
    del rows["ill"]
    rows["id"] = np.arange(4)
    write(tmp_path / "new.csv", rows)
    code, out, _ = run("deploy", "predict", "fit", "new.csv", "--out", "found.csv")
    assert code == 0
    assert "4 predictions" in out
    table = (tmp_path / "found.csv").read_text().splitlines()
    assert table[0] == "prediction,p(0),p(1)"
    np.testing.assert_allclose([float(line.split(",")[2]) for line in table[1:]], odds, rtol=1e-8)


def test_models_of_ordinary_runs_predict_too(fit, tmp_path):
    ordinary = fit(
        name="plain", trained=True, method="fedavg", hyper="S=3 K=2 eta_l=0.01",
        standardise=True, **{"record-every": 0, "objective": "logistic-l2", "intercept": True},
    )  # fmt: skip
    model = fp.load_federated(tmp_path / "plain")
    assert ordinary.fit is None
    assert model.classes == (0, 1)
    assert "stage=I" in model.names  # all categories: there is a regulariser
    rows = used(patients(0), "logistic")
    assert np.mean(model.predict(rows) == rows["ill"]) > 0.6


# Categories


def replaced(column, count, word):
    """Return a column of text whose first cells are a word."""
    return np.array([word] * count + column[count:].tolist())


def test_rare_categories_are_not_told_and_not_used(fit, tmp_path, node_log):
    tables = [used(patients(i), "logistic") for i in range(3)]
    tables[1]["stage"] = replaced(tables[1]["stage"], 3, "secret")
    run = fit(tables=tables, retries=0, patience=1, **{"full-retries": 0})
    assert run.fit is None
    assert run.history.stop_reason is fp.StopReason.ROUND_FAILED
    text = (tmp_path / "fit" / "agreement.json").read_text()
    assert dict(Agreement.from_text(text).levels)["stage"] == ("I", "II", "III")
    assert "secret" not in text
    (event,) = [e["text"] for e in run.history.events if "bad-category" in e["text"]][:1]
    assert "secret" in node_log(event.rpartition(" ")[2].rstrip(")"))


def test_a_category_that_one_site_has_often_is_agreed(fit):
    tables = [used(patients(i), "logistic") for i in range(3)]
    tables[1]["stage"] = replaced(tables[1]["stage"], 80, "IV")
    assert "stage=IV" in fit(tables=tables).fit.names


# What a site refuses


def refused(fit, node_log, run=None, **options):
    """Return what the node's log says about the first refusal of a fit."""
    try:
        strategy = fit(retries=0, patience=1, **{"full-retries": 0}, **options)
        text = next(e["text"] for e in strategy.history.events if "node's log" in e["text"])
    except StartFailed as error:
        text = error.problems[0]
    return node_log(text.rpartition(" ")[2].rstrip(")"))


@pytest.mark.parametrize(
    ("node", "changes", "what"),
    [
        ({"hessians": "never"}, {}, "never"),
        ({"hessians": "secure"}, {}, "secure"),
        ({"least-rows": 500}, {}, "500 are needed"),
        ({"most-exchanges": 40}, {}, "360 are needed"),
        ({"least-cell": 60}, {"categories": "stage=I|II|III; sex=f|m"}, "60 are needed"),
        ({"most-exchanges": 2}, {}, "have answered 2 exchanges"),
        ({"share-statistics": False}, {"standardise": True}, "share-statistics"),
    ],
)
def test_a_site_refuses_hessians_that_may_reveal_rows(fit, node_log, node, changes, what):
    assert what in refused(fit, node_log, node=node, **changes)


def test_the_check_of_a_site_has_the_rules(run, tmp_path):
    write(tmp_path / "site.csv", {name: column[:40] for name, column in patients(0).items()})
    settings = ("family=logistic", "label=ill", "classes=0,1", "data=", "columns=age,bmi")
    changes = [word for text in (*settings, "extra-columns=ignore") for word in ("--set", text)]
    assert run("deploy", "init", "app", *changes)[0] == 0
    node = f'partition-id=0 data="{tmp_path / "site.csv"}"'
    out = run("deploy", "check", "--app", "app", "--node-config", node)[1]
    assert "40 rows are too few for a Hessian" in out


def test_the_check_of_a_site_names_texts_and_ignores_gaps_elsewhere(run, tmp_path):
    table = {name: column.astype(object) for name, column in patients(0).items()}
    table["bmi"][7] = ""
    write(tmp_path / "site.csv", table)
    settings = ("family=logistic", "label=ill", "classes=0,1", "data=", "extra-columns=ignore")
    changes = [word for text in settings for word in ("--set", text)]
    node = ("--node-config", 'partition-id=0 data="site.csv"')
    for columns, words in (
        ("age,stage", "or name 'stage' in categories in the run config"),
        ("age,income", "fits the app: 260 rows, 2 features"),
        ("age,bmi", "row 9, column 'bmi': the value is missing"),
    ):
        app = columns.replace(",", "-")
        assert run("deploy", "init", app, *changes, "--set", f"columns={columns}")[0] == 0
        _, out, err = run("deploy", "check", "--app", app, *node)
        found = " ".join((out + err).split())
        assert words in found
        assert ("is missing" in found) == (columns == "age,bmi")


def test_rare_combinations_with_the_outcome_are_refused(fit, node_log):
    tables = [used(patients(i), "logistic") for i in range(3)]
    rare = np.flatnonzero((tables[2]["sex"] == "m") & (tables[2]["ill"] == 1))[4:]
    tables[2]["ill"][rare] = 0
    named = {"categories": "stage=I|II|III; sex=f|m"}
    assert "sex=m: 4 rows" in refused(fit, node_log, tables=tables, **named)


def test_few_events_are_refused(fit, node_log):
    tables = [used(patients(i), "cox") for i in range(3)]
    tables[0]["died"][:] = 0
    tables[0]["died"][:9] = 1
    assert "9 events" in refused(fit, node_log, family="cox", tables=tables)


def test_exchanges_are_counted_over_runs(fit, node_log):
    exchanges = fit(name="one").fit.exchanges
    node = {"most-exchanges": exchanges + 1}
    assert fit(name="two", node=node).fit is not None  # the same models reveal nothing new
    named = {"reference": "stage=II", "rounds": 30}
    assert "have answered" in refused(fit, node_log, name="three", node=node, **named)


def test_no_second_sum_at_a_model_over_other_sites(fit, node_log):
    """The difference of a fit with a site and one without it would be that site's Hessian."""
    secure = {"aggregation": "secure:bound=100,least=2", "standardise": True}
    tables = [used(patients(i), "logistic") for i in range(3)]
    assert fit(name="all", tables=tables, **secure).fit is not None
    assert "given before" in refused(fit, node_log, name="rest", tables=tables[:2], **secure)


def test_a_sum_of_hessians_is_unmasked_whole_or_not_at_all(fit, node_log, monkeypatch):
    """The nodes refuse a server that goes on without a client that was lost."""
    secure = {"aggregation": "secure:bound=100,least=2", "standardise": True}
    call = fp.Newton.call
    monkeypatch.setattr(fp.Newton, "call", lambda *a: call(*a)._replace(require_all=False))
    lost = At(AWAY, kind=protocol.TRAIN, clients=[1])
    tables = [used(patients(i), "logistic") for i in (0, 1, 2, 0)]
    assert "over all clients" in refused(fit, node_log, tables=tables, fault=lost, **secure)


@pytest.mark.parametrize("name", ["Other", "Model"])
def test_no_other_name_unmasks_a_part_of_a_sum(fit, node_log, monkeypatch, name):
    """The nodes go by the sums of their Hessians, and not by what the server calls them."""
    secure = {"aggregation": "secure:bound=100,least=2", "standardise": True}
    call, encode = fp.Newton.call, protocol.encode_request
    grids: list = []

    def fault(client, message):
        if message.metadata.message_type == protocol.UNMASK and name == "Model":
            config = {"family": "", "method": "fedavg", "hyper": ""}  # its message is a Model too
            grids[0].contexts[grids[0].node(client)].run_config.update(config)
        return lost(client, message)

    def rename(session, *args, **options):
        return encode(session._replace(message=name), *args, **options)

    monkeypatch.setattr(fp.Newton, "call", lambda *a: call(*a)._replace(require_all=False))
    monkeypatch.setattr(protocol, "encode_request", rename)
    lost = At(AWAY, kind=protocol.TRAIN, clients=[1])
    tables = [used(patients(i), "logistic") for i in (0, 1, 2, 0)]
    options = secure | {"tables": tables, "fault": fault, "prepare": grids.append}
    assert "over all clients" in refused(fit, node_log, **options)


def test_a_part_cannot_be_unmasked_before_the_sum_begins(fit, node_log, tmp_path):
    def unmask_first(client, message):
        if message.metadata.message_type == protocol.TRAIN and client == 0:
            session = protocol.decode_request(message.content, has_roster=True)[0]
            state = NodeState(tmp_path / "state0", session.run, 0)
            state.reveal(session.round, session.message, (0, 2))

    secure = {"aggregation": "secure:bound=100", "standardise": True}
    assert "unmasked in part" in refused(fit, node_log, fault=unmask_first, **secure)


def test_sums_of_other_columns_are_over_the_same_sites(fit, node_log):
    secure = {"aggregation": "secure:bound=100,least=2", "standardise": True}
    tables = [used(patients(i), "logistic") for i in range(3)]
    assert fit(name="all", tables=tables, **secure).fit is not None
    for table in tables:
        del table["bmi"]
    assert fit(name="fewer", tables=tables, **secure).fit is not None
    for table in tables:
        del table["income"]
    assert "given before" in refused(fit, node_log, name="rest", tables=tables[:2], **secure)


# What a hostile server asks


@pytest.fixture
def ask_site(tmp_path):
    """Return a function that sends one message to a site, and returns the reply's content."""

    def send(table, kind=messages.TRAIN, columns=("age", "bmi"), x=None, node=None, **changes):
        write(tmp_path / "site.csv", table)
        own = {"data": str(tmp_path / "site.csv"), "client-state-dir": str(tmp_path / "state")}
        settings = {"clients": 3, "rounds": 9, "data": "", "label": "ill", "classes": "0,1"}
        settings |= {"family": "logistic", "extra-columns": "ignore", "columns": ",".join(columns)}
        scales = changes.pop("scales", ())
        d = 3 if x is None else len(x)
        agreed = Agreement(columns, d - 1, d, (0.0,) * len(scales), scales).to_text()
        header = REQUEST._replace(message="Model", d=d, agreement=agreed)._asdict()
        if kind == messages.STATISTICS:
            header = messages.StatisticsRequest(0, agreed)._asdict()
        arrays = {"x": Array(np.zeros(d) if x is None else np.array(x, float))}
        return ask(own | (node or {}), settings | changes, kind, header, arrays)

    return send


def test_no_model_may_single_out_rows(ask_site, node_log):
    """Far beyond all ages the Hessian is the row of the oldest patient."""
    reply = ask_site(patients(0), x=[10, 0, -10 * 110])
    assert "rows have the weight" in node_log(refusal(reply).reference)


def test_another_scale_is_another_model(ask_site, node_log):
    for scale in (1.0, 2.0):
        reply = ask_site(
            patients(0), scales=(scale, 1.0), x=[0.1, 0, 0], node={"most-exchanges": 1}
        )
    assert "have answered 1 exchanges" in node_log(refusal(reply).reference)


def test_statistics_are_not_told_with_the_categories(ask_site):
    changes = {"columns": ("age", "stage"), "categories": "stage", "standardise": True}
    assert refusal(ask_site(patients(0), messages.STATISTICS, **changes)).code == "no-statistics"


def rare_reference(table):
    table["stage"] = replaced(np.where(table["stage"] == "I", "II", table["stage"]), 1, "I")
    return {"columns": ("bmi", "stage"), "categories": "stage=I|II|III", "x": np.zeros(4)}


def one_ill(table):
    table["ill"] = np.arange(len(table["ill"])) == 7
    table["ill"] = table["ill"].astype(int)
    return {}


def one_ill_man(table):
    men = np.flatnonzero((table["sex"] == "m") & (table["ill"] == 1))
    table["ill"][men[1:]] = 0
    changes = {"columns": ("age", "sex"), "categories": "sex=f|m"}
    return changes | {"family": "gaussian", "classes": ""}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (rare_reference, "the reference of stage: 1 rows"),
        (one_ill, "the outcome: 1 rows"),
        (one_ill_man, "sex=m: 1 rows"),
    ],
)
def test_rare_cells_are_refused_under_any_name(ask_site, node_log, change, what):
    table = patients(0)
    changes = change(table)
    assert what in node_log(refusal(ask_site(table, **changes)).reference)


def test_a_site_for_fits_sends_no_gradients(ask_site):
    """Differences of gradients would be a Hessian that no rule has seen."""
    only, plain = {"fits-only": True}, {"family": "", "method": "fedavg", "hyper": ""}
    assert refusal(ask_site(patients(0), node=only, **plain)).code == "not-allowed"
    assert "g" in ask_site(patients(0), node=only).content["arrays"]


def test_public_data_is_not_guarded(federate):
    run = federate(method="newton", hyper="", rounds=2, evaluation="none")
    assert run.history.last("round") == 2
    assert disclosure.sends_hessian(run.method)
    assert not disclosure.sends_hessian(fp.FedAvg())


# Mistakes


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"rounds": 2}, "no maximum of the likelihood"),
        ({"event": "died"}, "for cox the label is the time"),
        ({"label": ""}, "label column"),
        ({"data": "census"}, "own tables"),
        ({"aggregation": "trimmed:share=0.1"}, "mean or secure"),
        ({"min-clients": 2}, "min-clients"),
        ({"reference": "stage=V"}, "no category 'V'"),
        ({"reference": "age=3"}, "must name a category"),
        ({"classes": ""}, "classes"),
    ],
)
def test_wrong_fits_are_refused(fit, changes, what):
    with pytest.raises(fp.InputError, match=what):
        fit(**changes)


def test_a_separating_column_is_named(fit):
    tables = [used(patients(i), "logistic") for i in range(3)]
    for table in tables:
        table["income"] = 1e4 + 1e3 * table["ill"] + table["age"]
    with pytest.raises(fp.InputError, match="income separates"):
        fit(tables=tables)


def test_a_model_that_is_not_there_is_reported(tmp_path):
    with pytest.raises(fp.InputError, match="no such file"):
        fp.load_federated(tmp_path)
    (tmp_path / "model.json").write_text('{"format": "other"}')
    with pytest.raises(fp.InputError, match="not a model"):
        fp.load_federated(tmp_path / "model.json")
