"""Training as users know it: metrics, what is held out, the best model in a file."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nets import SIZES, network, rows
from torch import nn
from torch.nn import functional as F

import fedpage as fp
from fedpage.problems.torch.rows import accuracy

FEDAVG = fp.FedAvg(S=4, K=3, eta_l=0.3)


def problem(**options):
    return fp.TorchProblem(network(), F.cross_entropy, rows(SIZES), dtype="float64", **options)


def largest(outputs, targets):
    return outputs.abs().max()


@pytest.fixture(scope="module")
def trained():
    others = rows([7, 11], seed=5)
    made = problem(metrics={"accuracy": accuracy, "largest": largest}, held_out=rows([13], seed=9)[0],
                   held_out_clients=others)  # fmt: skip
    return made, fp.simulate(made, FEDAVG, rounds=6, seed=0, record_every=2), others


def test_metrics_are_in_every_record(trained):
    made, history, others = trained
    module = made.to_module(history.x)
    X, y = (np.concatenate(parts) for parts in zip(*rows(SIZES), strict=True))
    outputs = module(torch.tensor(X, dtype=torch.float64)).detach()
    assert history.last("accuracy") == float((outputs.argmax(1).numpy() == y).mean())
    assert history.last("largest") == pytest.approx(float(outputs.abs().max()), rel=1e-12)
    assert len(history["held_out_accuracy"]) == 4
    assert np.isfinite(history["held_out_largest"]).all()
    each = [made.evaluate_on(history.x, one) for one in others]
    for name in ("loss", "accuracy", "largest"):
        assert history.last(f"held_out_clients_{name}") == pytest.approx(
            np.mean([one[name] for one in each]), rel=1e-12
        )
    truth = F.cross_entropy(
        module(torch.tensor(others[0][0], dtype=torch.float64)), torch.tensor(others[0][1])
    )
    assert each[0]["loss"] == pytest.approx(truth.item(), rel=1e-12)


def test_what_is_held_out_changes_no_model(trained):
    _, history, _ = trained
    assert fp.simulate(problem(), FEDAVG, rounds=6, seed=0).x.tobytes() == history.x.tobytes()


def test_metrics_survive_the_file(trained, tmp_path):
    _, history, _ = trained
    again = fp.History.load(history.to_jsonl(tmp_path / "run.jsonl"))
    np.testing.assert_array_equal(
        again["held_out_clients_largest"], history["held_out_clients_largest"]
    )


def test_accuracy_of_one_output():
    outputs = torch.tensor([[2.0], [-1.0], [0.5]])
    assert accuracy(outputs, torch.tensor([1, 0, 0])) == accuracy(
        outputs[:, 0], torch.tensor([1, -1, -1])
    )
    assert accuracy(outputs, torch.tensor([1, 0, 0])) == pytest.approx(2 / 3)


@pytest.mark.parametrize("name", ["best.npz", "best.safetensors"])
def test_the_best_model_is_saved_and_loaded_in_three_lines(name, tmp_path):
    if name.endswith("safetensors"):
        pytest.importorskip("safetensors")
    made = problem(metrics=["accuracy"])
    seen = []

    class Watch(fp.Callback):
        def on_record(self, record, x):
            seen.append((record["accuracy"], x.copy()))

    best = fp.Best(made, tmp_path / name, "accuracy")
    fp.simulate(
        made,
        fp.FedAvg(S=4, K=3, eta_l=1.5),
        rounds=12,
        seed=0,
        record_every=1,
        callbacks=[best, Watch()],
    )
    top = max(value for value, _ in seen)
    x = next(x for value, x in seen if value == top)
    assert seen[-1][0] < top  # so that the last model is not the best
    model = fp.load_model(tmp_path / name, network(seed=9).double())
    X = torch.tensor(rows([3])[0][0], dtype=torch.float64)
    assert torch.equal(model(X), made.to_module(x)(X))
    assert not model.training
    assert made.about(tmp_path / name) == {
        "column": "accuracy",
        "value": repr(top),
        "round": str(best.round),
    }
    assert b"pickle" not in (tmp_path / name).read_bytes()


def test_best_goes_on_where_a_run_was_interrupted(tmp_path):
    made = problem(metrics=["accuracy"])
    options = {
        "rounds": 12,
        "seed": 0,
        "record_every": 1,
        "out": tmp_path / "run",
    }
    every_two = fp.RunOptions(checkpoint_every=2)

    class Stop(fp.Callback):
        def on_round_end(self, info):
            if info.round == 7:
                raise KeyboardInterrupt

    method = fp.FedAvg(S=4, K=3, eta_l=1.5)
    whole = fp.Best(made, tmp_path / "whole.npz")
    fp.simulate(made, method, rounds=12, seed=0, record_every=1, callbacks=[whole])
    with pytest.raises(KeyboardInterrupt):
        fp.simulate(
            made,
            method,
            callbacks=[fp.Best(made, tmp_path / "best.npz"), Stop()],
            options=every_two,
            **options,
        )
    parted = fp.Best(made, tmp_path / "best.npz")
    fp.simulate(
        made,
        method,
        callbacks=[parted],
        **options,
        options=fp.RunOptions(resume=True, checkpoint_every=2),
    )
    assert (parted.value, parted.round) == (whole.value, whole.round)
    assert (tmp_path / "best.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_losses_and_norms_are_best_when_small(tmp_path):
    made = problem(metrics=["accuracy"])
    names = {
        "loss": False,
        "held_out_loss": False,
        "grad_norm": False,
        "accuracy": True,
        "r2": True,
        "rmse": False,
    }
    assert {
        name: fp.Best(made, tmp_path / "b.npz", name).higher_is_better for name in names
    } == names
    with pytest.raises(fp.InputError, match="whether higher is better is not known"):
        fp.Best(made, tmp_path / "b.npz", "score")
    assert fp.Best(made, tmp_path / "b.npz", "score", higher_is_better=True).higher_is_better


def test_files_that_are_no_models(tmp_path):
    good = fp.save_model(tmp_path / "good.npz", network())
    (tmp_path / "bad.npz").write_bytes(good.read_bytes()[:100])
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 50)
    np.savez(tmp_path / "evil.npz", np.array([object()], dtype=object))
    for name in ("bad.npz", "bad.safetensors", "evil.npz"):
        if name.endswith("safetensors"):
            pytest.importorskip("safetensors")
        with pytest.raises(fp.InputError, match="not a model that was saved here"):
            fp.load_model(tmp_path / name, network())
    for case, words in (
        (lambda: fp.load_model(tmp_path / "none.npz", network()), "no such file"),
        (lambda: fp.load_model(good, nn.Linear(6, 3)), "no 0.bias in the model"),
        (
            lambda: fp.load_model(good, nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))),
            "is .* in the file",
        ),
        (lambda: fp.save_model(tmp_path / "model.pt", network()), r"\.npz or \.safetensors"),
        (lambda: fp.Best(problem(), tmp_path / "model.pt"), r"\.npz or \.safetensors"),
        (lambda: fp.Best(fp.Quadratic.random(2, 2, 2, seed=0), "x.npz"), "cannot save models"),
        (lambda: problem().from_module(nn.Linear(6, 3)), "has no 0.weight"),
    ):
        with pytest.raises(fp.InputError, match=words):
            case()


def test_a_column_that_is_not_there(tmp_path):
    made = problem()
    with pytest.raises(fp.InputError, match="no column 'accuracy'; there are"):
        fp.simulate(
            made,
            FEDAVG,
            rounds=2,
            seed=0,
            callbacks=[fp.Best(made, tmp_path / "b.npz", "accuracy")],
        )


class Pieces(nn.Module):
    """Outputs in a table, and a parameter with a name that np.savez would trip over."""

    def __init__(self):
        super().__init__()
        self.file = nn.Parameter(torch.zeros(3))
        self.inner = network()

    def forward(self, x):
        return {"scores": self.inner(x) + self.file, "also": x.sum(1)}


def test_outputs_of_several_parts_have_metrics_and_files(tmp_path):
    made = fp.TorchProblem(
        Pieces(), lambda outputs, targets: F.cross_entropy(outputs["scores"], targets), rows(SIZES),
        metrics={"share": lambda outputs, targets: (outputs["scores"].argmax(1) == targets).double().mean()},
    )  # fmt: skip
    history = fp.simulate(made, FEDAVG, rounds=2, seed=0)
    made.save(tmp_path / "b.npz", history.x)
    assert 0 <= history.last("share") <= 1
    again = fp.load_model(tmp_path / "b.npz", Pieces())
    assert torch.equal(again.file, made.to_module(history.x).file)


def test_what_the_user_changes_later_changes_nothing():
    X, y = (torch.tensor(part) for part in rows([13], seed=9)[0])
    made = problem(held_out=(X, y))
    before = made.evaluate(made.x0)["held_out_loss"]
    X += 100
    assert made.evaluate(made.x0)["held_out_loss"] == before
