"""Check rounds whose vectors stay on a device, with tensors of the CPU in place of a device's.

No accelerator is needed: the engine, the methods and the oracle take the same paths as there, and a
test fails where a round copies a tensor to numpy.
"""

import numpy as np
import pytest
import torch
from nets import SIZES, assert_resumes, mlp_problem, network, rows
from support import methods
from torch.nn import functional as F

from fedpage.engine.simulate import Simulation
from fedpage.problems.torch.problem import TorchProblem
from fedpage.problems.torch.rows import TensorArrays

METHODS = {
    name: method
    for name, method in methods(4, 3, 0.1).items()
    if "+" not in name and name != "Newton"  # networks have no Hessians
}
READS = ("numpy", "cpu", "item", "tolist", "__array__", "__float__", "__int__", "__bool__")


class Resident(TorchProblem):
    """A problem that keeps the vectors of rounds as tensors, on a CPU too."""

    @property
    def device_arrays(self):
        return TensorArrays(self.device, self._torch_dtype)


def make(kind=Resident, deterministic=True):
    options = {"dtype": "float32", "deterministic": deterministic}
    return kind(network(), F.cross_entropy, rows(SIZES), **options)


@pytest.fixture(scope="module")
def both():
    return make(TorchProblem), make()


@pytest.mark.parametrize("name", METHODS)
def test_rounds_on_the_device_have_the_bits_of_those_in_numpy(name, both):
    host, device = (Simulation(problem, METHODS[name], seed=0) for problem in both)
    for _ in range(4):
        host.step()
        device.step()
    if isinstance(device.state.x, np.ndarray):  # codecs, and methods that need numpy
        assert host.x.tobytes() == device.x.tobytes()
        return
    # A square root on the device may be rounded otherwise than numpy's.
    np.testing.assert_allclose(device.x, host.x, rtol=0, atol=2e-7)
    if "Ada" not in name and "average" not in name:
        assert host.x.tobytes() == device.x.tobytes()
    assert vars(host.costs) == vars(device.costs)


def test_most_methods_stay_on_the_device(both):
    kept = [
        name
        for name, method in METHODS.items()
        if isinstance(Simulation(both[1], method, seed=0).state.x, torch.Tensor)
    ]
    assert {"FedAvg", "FedProx", "SCAFFOLD-II", "FedPAGE", "VRL-SGD", "FedAdam", "SAGA"} <= {*kept}
    assert "SecantPAGE" not in kept


@pytest.mark.parametrize("name", ["FedAvg", "SCAFFOLD-II", "FedPAGE", "FedAdam", "Mime"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_round_reads_no_tensor(name, deterministic, monkeypatch):
    run = Simulation(make(deterministic=deterministic), METHODS[name], seed=0)

    def refuse(tensor, *arguments):
        raise AssertionError("a round copies a tensor from the device")

    with monkeypatch.context() as patch:
        for read in READS:
            patch.setattr(torch.Tensor, read, refuse)
        with pytest.raises(AssertionError, match="copies a tensor"):
            torch.ones(1).item()
        for _ in range(3):
            run.step()
    assert np.isfinite(run.x).all()


@pytest.mark.parametrize("name", ["SCAFFOLD-II", "FedPAGE-average"])
def test_runs_on_the_device_resume_exactly(name, tmp_path, both):
    assert_resumes(both[1], METHODS[name], tmp_path)


def test_a_cpu_has_no_device_arrays():
    assert mlp_problem().device_arrays is None
