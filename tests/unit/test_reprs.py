"""Check that every public object says what matters in a line, and in HTML without leaks."""

import inspect
import re
from collections.abc import Callable
from functools import cache
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest

import fedpage as fp
from fedpage.core import display
from fedpage.core.errors import did_you_mean
from fedpage.runs.history import History


@cache
def problem():
    data = fp.load("census", rows=60)
    return fp.LogisticRegression(data, 6, reg="l2", metrics=["accuracy"], weights="size")


@cache
def history():
    return fp.simulate(problem(), fp.SecantPAGE(S=2), rounds=20, seed=0)


def arrays():
    return fp.Dataset.from_arrays(np.arange(12.0).reshape(6, 2), [0, 1, 0, 1, 0, 1])


def torch_problem():
    torch = pytest.importorskip("torch", reason="TorchProblem needs torch")
    rows = (torch.ones(4, 3), torch.zeros(4, 1))
    return fp.TorchProblem(torch.nn.Linear(3, 1), torch.nn.MSELoss(), [rows, rows])


def linear_model(cls):
    """Make a linear model: of counts, or of two classes if it takes no others."""
    counts = fp.Dataset("counts", np.arange(12.0).reshape(6, 2), np.arange(6.0))
    try:
        return cls(counts, 3)
    except fp.InputError:
        return cls(arrays(), 3)


EXAMPLES: dict[str, Callable[[], object]] = {
    "METHODS": lambda: fp.METHODS,
    "METRICS": lambda: fp.METRICS,
    "OBJECTIVES": lambda: fp.OBJECTIVES,
    "Bernoulli": lambda: fp.Bernoulli(0.1),
    "Best": lambda: fp.Best(torch_problem(), "best.npz"),
    "Chain": lambda: fp.Chain(fp.TopK(0.1), fp.Natural()),
    "ClientScores": lambda: problem().client_scores(np.zeros(problem().d)),
    "CoxModel": lambda: fp.CoxModel(arrays(), np.arange(1.0, 7.0), np.ones(6), fp.blocks(6, 2)),
    "Dataset": arrays,
    "Devices": lambda: fp.Devices("cross-silo", deadline=3.0),
    "Dither": lambda: fp.Dither(4),
    "Faults": lambda: fp.Faults(dropout=0.1, gone=(1, 2)),
    "FitResult": lambda: fp.fit(
        {"a": [1, 4, 2, 3, 3, 9], "y": [1, 3, 2, 2, 4, 8], "site": [*"aabbcc"]},
        "gaussian",
        label="y",
        client="site",
    ),
    "FunctionCallback": lambda: fp.FunctionCallback(on_record=print),
    "History": history,
    "LinearModel": lambda: fp.LinearModel(arrays(), 3, loss="logistic"),
    "LogisticRegression": problem,
    "Metric": lambda: fp.METRICS["accuracy"],
    "Partition": lambda: fp.power_law(1000, 300),
    "Study": lambda: fp.Study({"small": problem()}, {"fedavg": fp.FedAvg(S=2)}, rounds=3),
    "Quadratic": lambda: fp.Quadratic(np.stack([np.eye(9)] * 40), np.ones((40, 50, 9))),
    "RandK": lambda: fp.RandK(0.1),
    "RowProblem": lambda: fp.RowProblem(np.full(500, 20), d=3),
    "RunOptions": lambda: fp.RunOptions(x0=np.zeros(500), faults=fp.Faults(lost=0.2)),
    "Runs": lambda: fp.Runs([history()] * 3),
    "Scaled": lambda: fp.Scaled(fp.Natural()),
    "Simulation": lambda: fp.Simulation(problem(), fp.FedAvg(S=2), seed=0),
    "Smoothness": lambda: problem().smoothness(),
    "Stop": lambda: fp.Stop(0.1),
    "StopReason": lambda: fp.StopReason.TARGET,
    "Stopped": lambda: fp.Stopped(fp.StopReason.TARGET, "at round 3"),
    "ClippedMean": lambda: fp.ClippedMean(bound=1.0),
    "FixedPointMean": lambda: fp.FixedPointMean(bound=1.0),
    "PrivateMean": lambda: fp.PrivateMean(clip=1.0, noise=1.0),
    "TopK": lambda: fp.TopK(0.1),
    "Tuning": lambda: fp.tune(
        problem(), fp.PAGE(S=2), target=0.2, search={"step": [0.3]}, seeds=1, held_out_seeds=1
    ),
    "TorchProblem": torch_problem,
    "Track": lambda: fp.Track(Silent()),
}
NO_INSTANCES = {"Method", "Oracle", "Problem", "Codec", "InputError"}
"""Protocols, a base class, and an error, whose text is its message."""


class Silent:
    def start(self, name, settings): ...

    def log(self, round, values): ...

    def finish(self, reason, detail): ...


def has_instances(name: str) -> bool:
    try:
        value = getattr(fp, name)
    except ImportError:  # of an extra that is not installed
        return False
    if name in NO_INSTANCES or name == "__version__" or isinstance(value, ModuleType):
        return False
    return inspect.isclass(value) or not inspect.isroutine(value)


def make(name: str) -> object:
    """Make one of a public class: by its example, or without arguments."""
    if name in EXAMPLES:
        return EXAMPLES[name]()
    cls = getattr(fp, name)
    return linear_model(cls) if issubclass(cls, fp.LinearModel) else cls()


def public_names() -> list[str]:
    return [name for name in fp.__all__ if name in EXAMPLES or has_instances(name)]


@pytest.mark.parametrize("name", public_names())
def test_the_repr_is_a_line_without_arrays_and_addresses(name):
    text = repr(make(name))
    assert not re.search(r"object at 0x|<function|array\(|\n", text)
    assert len(text) <= (1200 if text.startswith("Registry") else 330)
    assert type(make(name)).__name__ in text or text.startswith("Registry")


@pytest.mark.parametrize(
    ("make_value", "text"),
    [
        (
            problem,
            "LogisticRegression(census, l2 alpha=0.1, 6 clients (blocks), d=123, 60 rows, "
            "weights size)",
        ),
        (
            lambda: fp.LeastSquares(fp.load("census", rows=60), fp.iid(60, 5, seed=3)),
            "LeastSquares(census, 5 clients (iid, seed=3), d=123, 60 rows)",
        ),
        (
            lambda: fp.Stop([0.1, "accuracy:0.9"]),
            "Stop(target=(Target(value=0.1), Target(column='accuracy', value=0.9)))",
        ),
        (fp.Policy, "Policy()"),
        (lambda: fp.RunOptions(threads=2), "RunOptions(threads=2)"),
    ],
)
def test_a_repr_says_what_is_set(make_value, text):
    assert repr(make_value()) == text


def test_results_of_studies_are_a_line_and_a_table():
    choice = fp.choose(problem(), target=0.1, methods=["page", "saga"], seeds=1, held_out_seeds=4)
    tuning = fp.tune(
        problem(), fp.PAGE(S=2), target=0.1, seeds=1, held_out_seeds=3, max_runs=30, rounds=50
    )
    plan = fp.plan(problem(), target=0.01, S=3)
    for found in (choice, tuning, plan):
        assert re.match(rf"{type(found).__name__}\(.*gradient norm .*\)$", repr(found))
        assert "<td" in html(found)
    assert "SCAFFOLD" in str(plan)
    assert "L=3.6 (computed)" in str(plan)
    assert choice.recommended.label in repr(choice)


def html(value) -> str:
    text = value._repr_html_()
    ElementTree.fromstring(f"<div>{text}</div>")  # all tags are closed, in order
    assert not re.search(r"object at 0x|nan\b", text)
    return text


def test_a_history_in_a_notebook_is_a_table_of_its_columns():
    text = html(history())
    for word in ("loss", "gradient norm", "accuracy", "bytes up", "first", "last"):
        assert word in text
    assert html(History({"method": {"name": "FedPAGE"}})).count("<table") == 0


@pytest.mark.parametrize("name", ["LogisticRegression", "Quadratic", "RowProblem", "TorchProblem"])
def test_a_problem_in_a_notebook_is_a_table(name):
    assert "objective" in html(make(name))


def test_a_data_set_in_a_notebook_has_its_labels():
    data = fp.Dataset.from_arrays(np.ones((4, 2)), ["no", "yes", "yes", "yes"])
    assert "{&#x27;no&#x27;: 1, &#x27;yes&#x27;: 3}" in html(data)
    assert "nonzeros" in html(fp.load("census", rows=10))


def test_html_is_escaped():
    evil = "<script>alert(1)</script>"
    run = History({"method": {"name": evil}})
    run.append({"round": 0, "loss": 1.0, evil: 3.0})
    run.append({"round": 1, "loss": 0.1, evil: 2.0})
    data = fp.Dataset(evil, np.ones((4, 1)), np.ones(4))
    for text in (
        html(run),
        html(fp.LeastSquares(data, 2)),
        display.html_table(evil, [evil], [[evil]]),
    ):
        assert "<script" not in text


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("FedPage", "FedPAGE"),
        ("logistic_regression", "LogisticRegression"),
        ("Scaffnw", "Scaffnew"),
    ],
)
def test_an_unknown_name_suggests_a_known_one(wrong, right):
    with pytest.raises(AttributeError, match=f"did you mean '{right}'"):
        getattr(fp, wrong)
    assert did_you_mean(wrong, [right])
    with pytest.raises(AttributeError, match=r"has no attribute '_private'$"):
        fp._private  # noqa: B018


def test_report_writes_a_page_and_is_still_a_package(tmp_path):
    other = fp.simulate(problem(), fp.FedAvg(S=2), rounds=20, seed=0)
    path = fp.report([history(), other], tmp_path / "report.html", column="loss")
    text = path.read_text(encoding="utf-8")
    assert path == tmp_path / "report.html"
    assert "SecantPAGE, FedAvg on census" in text
    assert fp.report(history(), tmp_path / "one.html").exists()
    assert fp.report.page.write_runs
    for wrong in ([], [1], [History()]):
        with pytest.raises(fp.InputError, match="histor"):
            fp.report(wrong, tmp_path / "no.html")


def test_plan_uses_constants_that_are_given():
    plan = fp.plan(problem(), target=0.01, S=2, constants={"L": 100.0})
    assert (plan.setting.L, plan.origin["L"]) == (100.0, "given")
    assert "L=100 (given)" in str(plan)
