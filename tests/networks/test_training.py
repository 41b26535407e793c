"""Check metrics, held-out rows, and the best model in a file."""

import numpy as np
import pytest
import torch
from nets import SIZES, mlp_problem, network, rows
from torch import nn
from torch.nn import functional as F

import fedpage as fp
from fedpage.core.metrics import accuracy
from fedpage.engine.aggregation import Aggregation

FEDAVG = fp.FedAvg(S=4, K=3, eta_l=0.3)
UNSTABLE = fp.FedAvg(S=4, K=3, eta_l=1.5)
"""Its last model is not its best."""


def largest(outputs, targets):
    return outputs.abs().max()


@pytest.fixture(scope="module")
def trained():
    others = rows([7, 11], seed=5)
    metrics = {"accuracy": accuracy, "largest": largest}
    held_out = rows([13], seed=9)[0]
    problem = mlp_problem(metrics=metrics, held_out=held_out, held_out_clients=others)
    return problem, fp.simulate(problem, FEDAVG, rounds=6, seed=0, record_every=2), others


def test_records_have_metrics(trained):
    problem, history, others = trained
    module = problem.to_module(history.x)
    X, y = (np.concatenate(parts) for parts in zip(*rows(SIZES), strict=True))
    outputs = module(torch.tensor(X, dtype=torch.float64)).detach()
    assert history.last("accuracy") == float((outputs.argmax(1).numpy() == y).mean())
    assert history.last("largest") == pytest.approx(float(outputs.abs().max()), rel=1e-12)
    assert len(history["held_out_accuracy"]) == 4
    assert np.isfinite(history["held_out_largest"]).all()
    each = [problem.evaluate_on(history.x, data) for data in others]
    for name in ("loss", "accuracy", "largest"):
        mean = np.mean([values[name] for values in each])
        assert history.last(f"held_out_clients_{name}") == pytest.approx(mean, rel=1e-12)
    inputs, targets = others[0]
    outputs = module(torch.tensor(inputs, dtype=torch.float64))
    expected = F.cross_entropy(outputs, torch.tensor(targets)).item()
    assert each[0]["loss"] == pytest.approx(expected, rel=1e-12)


def test_metrics_of_single_clients(trained):
    problem, history, _ = trained
    clients = np.array([0, 4, 7])
    found = problem.evaluate_clients(clients, history.x)
    assert found.losses.shape == (3,)
    assert found.gradients.shape == (3, problem.d)
    data = rows(SIZES)
    for place, client in enumerate(clients):
        expected = problem.evaluate_on(history.x, data[client])
        assert found.losses[place] == pytest.approx(expected["loss"], rel=1e-12)
        for name in ("accuracy", "largest"):
            assert found.metrics[name][place] == expected[name]


def test_held_out_rows_do_not_change_the_model(trained):
    _, history, _ = trained
    plain = fp.simulate(mlp_problem(), FEDAVG, rounds=6, seed=0)
    assert plain.x.tobytes() == history.x.tobytes()


def test_accuracy_of_a_single_output():
    outputs = torch.tensor([[2.0], [-1.0], [0.5]])
    assert accuracy(outputs, torch.tensor([1, 0, 0])) == pytest.approx(2 / 3)
    assert accuracy(outputs[:, 0], torch.tensor([1, -1, -1])) == pytest.approx(2 / 3)


@pytest.mark.parametrize("name", ["best.npz", "best.safetensors"])
def test_best_model_is_saved_and_loaded(name, tmp_path):
    if name.endswith("safetensors"):
        pytest.importorskip("safetensors")
    problem = mlp_problem(metrics=["accuracy"])
    seen = []

    class Collect(fp.Callback):
        def on_record(self, record, x):
            seen.append((record["accuracy"], x.copy()))

    best = fp.Best(problem, tmp_path / name, "accuracy")
    options = {"rounds": 12, "seed": 0, "record_every": 1}
    fp.simulate(problem, UNSTABLE, callbacks=[best, Collect()], **options)
    top = max(value for value, _ in seen)
    x = next(x for value, x in seen if value == top)
    assert seen[-1][0] < top
    model = fp.load_model(tmp_path / name, network(seed=9).double())
    X = torch.tensor(rows([3])[0][0], dtype=torch.float64)
    assert torch.equal(model(X), problem.to_module(x)(X))
    assert not model.training
    expected = {"column": "accuracy", "value": repr(top), "round": str(best.round)}
    assert problem.about(tmp_path / name) == expected
    assert b"pickle" not in (tmp_path / name).read_bytes()


def test_best_model_of_a_resumed_run(tmp_path):
    problem = mlp_problem(metrics=["accuracy"])

    def stop(info):
        if info.round == 7:
            raise KeyboardInterrupt

    def run(name, *others, out=None, **given):
        best = fp.Best(problem, tmp_path / name)
        options = fp.RunOptions(**{"checkpoint_every": 2} | given) if out else None
        fp.simulate(
            problem, UNSTABLE, rounds=12, seed=0, record_every=1, callbacks=[best, *others],
            out=out, options=options,
        )  # fmt: skip
        return best

    whole = run("whole.npz")
    with pytest.raises(KeyboardInterrupt):
        run("best.npz", fp.FunctionCallback(on_round_end=stop), out=tmp_path / "run")
    resumed = run("best.npz", out=tmp_path / "run", resume=True)
    assert (resumed.value, resumed.round) == (whole.value, whole.round)
    assert (tmp_path / "best.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_best_knows_the_direction_of_columns(tmp_path):
    problem = mlp_problem(metrics=["accuracy"])
    directions = {"loss": False, "held_out_loss": False, "accuracy": True, "r2": True}
    for column, direction in directions.items():
        assert fp.Best(problem, tmp_path / "b.npz", column).higher_is_better is direction
    with pytest.raises(fp.InputError, match="score"):
        fp.Best(problem, tmp_path / "b.npz", "score")
    best = fp.Best(problem, tmp_path / "b.npz", "score", higher_is_better=True)
    assert best.higher_is_better


WRONG_FILES = (
    ("none.npz", network, "no such file"),
    ("good.npz", lambda: nn.Linear(6, 3), "no 0.bias in the model"),
    ("good.npz", lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)), "shape .* in"),
    ("cut.npz", network, "not a saved model"),
    ("bad.safetensors", network, "not a saved model"),
    ("evil.npz", network, "not a saved model"),
)


@pytest.mark.parametrize(("name", "model", "words"), WRONG_FILES)
def test_files_that_do_not_fit_are_refused(name, model, words, tmp_path):
    if name.endswith("safetensors"):
        pytest.importorskip("safetensors")
    good = fp.save_model(tmp_path / "good.npz", network())
    (tmp_path / "cut.npz").write_bytes(good.read_bytes()[:100])
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 50)
    np.savez(tmp_path / "evil.npz", np.array([object()], dtype=object))
    with pytest.raises(fp.InputError, match=words):
        fp.load_model(tmp_path / name, model())


def test_names_of_files_and_other_models_are_refused(tmp_path):
    quadratic = fp.Quadratic.random(2, 2, 2, seed=0)
    for case, message in (
        (lambda: fp.save_model(tmp_path / "model.pt", network()), r"\.npz or \.safetensors"),
        (lambda: fp.Best(mlp_problem(), tmp_path / "model.pt"), r"\.npz or \.safetensors"),
        (lambda: fp.Best(quadratic, "x.pt"), "must end in .npz"),
        (lambda: fp.Best("quadratic", "x.npz"), "is not a problem"),
        (lambda: mlp_problem().from_module(nn.Linear(6, 3)), "has no 0.weight"),
    ):
        with pytest.raises(fp.InputError, match=message):
            case()


def test_best_refuses_a_column_that_is_not_recorded(tmp_path):
    problem = mlp_problem()
    best = fp.Best(problem, tmp_path / "b.npz", "accuracy")
    with pytest.raises(fp.InputError, match="no column 'accuracy'; there are"):
        fp.simulate(problem, FEDAVG, rounds=2, seed=0, callbacks=[best])


class DictOutputs(nn.Module):
    """Return a dict; `file` is also the name of an argument of np.savez."""

    def __init__(self):
        super().__init__()
        self.file = nn.Parameter(torch.zeros(3))
        self.inner = network()

    def forward(self, x):
        return {"scores": self.inner(x) + self.file, "sums": x.sum(1)}


def test_dict_outputs_have_metrics_and_files(tmp_path):
    problem = fp.TorchProblem(
        DictOutputs(), lambda outputs, targets: F.cross_entropy(outputs["scores"], targets),
        rows(SIZES),
        metrics={"share": lambda outputs, targets: accuracy(outputs["scores"], targets)},
    )  # fmt: skip
    history = fp.simulate(problem, FEDAVG, rounds=2, seed=0)
    problem.save(tmp_path / "b.npz", history.x)
    assert 0 <= history.last("share") <= 1
    loaded = fp.load_model(tmp_path / "b.npz", DictOutputs())
    assert torch.equal(loaded.file, problem.to_module(history.x).file)


def test_later_changes_of_the_users_tensors_have_no_effect():
    X, y = (torch.tensor(part) for part in rows([13], seed=9)[0])
    problem = mlp_problem(held_out=(X, y))
    before = problem.evaluate(problem.x0)["held_out_loss"]
    X += 100
    assert problem.evaluate(problem.x0)["held_out_loss"] == before


def run_robust(**options):
    problem = mlp_problem("float32", deterministic=True)
    return fp.simulate(problem, FEDAVG, rounds=10, seed=1, options=fp.RunOptions(**options))


@pytest.mark.parametrize(
    "text", ["trimmed:share=0.3", "clipped:bound=0.05", "private:clip=0.05,noise=0.1"]
)
def test_networks_train_with_other_means(text):
    if text.startswith("private"):
        pytest.importorskip("dp_accounting", reason="the extra 'privacy' is not installed")
    history = run_robust(aggregation=Aggregation.from_text(text))
    assert history.x.dtype == np.float32
    assert history.last("loss") < 1.1 * history["loss"][0]
    assert history.same(run_robust(aggregation=Aggregation.from_text(text), chunk=2))
    assert not history.same(run_robust())


def test_wrong_replies_of_networks_are_found():
    attacked, honest = run_robust(faults=fp.Faults(huge=0.1)), run_robust()
    assert attacked.last("rejected") > 0
    assert attacked.x.tobytes() == honest.x.tobytes()
