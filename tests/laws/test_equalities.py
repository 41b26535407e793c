"""Pairs of methods that are the same method where a hyper-parameter has a special value."""

from typing import Any

import numpy as np
import pytest
from support import after, quadratic, uneven

import fedpage as fp
from fedpage.methods import METHODS
from fedpage.methods.fedpage_variants import PassStartFedPAGE
from fedpage.methods.scaffold_variants import ScaffoldMomentum, ScaffoldOptionI

SGD: dict[str, Any] = {"S": 4, "K": 5, "eta_l": 0.05, "b": 2}
AVG: dict[str, Any] = {**SGD, "eta_g": 1.3}
SOME: dict[str, Any] = {"S": 3, "eta": 0.2, "b": 2}
PAGE: dict[str, Any] = {"S": 3, "eta_g": 0.1, "p": 0.3, "down": "float32"}
ALL: dict[str, Any] = {"K": 1, "b": None, "eta_l": 0.02}

BITS: dict[str, Any] = {
    "PAGE is FedPAGE with K = 1, any eta_l and b3": lambda N: (
        fp.PAGE(S=3, eta_g=0.2, p=0.2),
        fp.FedPAGE(S=3, K=1, eta_g=0.2, eta_l=0.7, p=0.2, b3=5),
    ),
    "FedPAGE-Full": lambda N: (
        METHODS["fedpage-full"](S=3, eta_g=0.2, K=4),
        fp.FedPAGE(S=3, eta_g=0.2, K=4, b3=None),
    ),
    "SCAFFOLD-Full": lambda N: (
        METHODS["scaffold-full"](S=3, eta_l=0.05),
        fp.SCAFFOLD(S=3, eta_l=0.05, b=10**6),
    ),
    "FedAvg-Full": lambda N: (
        METHODS["fedavg-full"](S=3, eta_l=0.05),
        fp.FedAvg(S=3, eta_l=0.05, b=None),
    ),
    "a pass of one round is a full round": lambda N: (
        fp.FedPAGE(S=N, K=3, p=0.3, eta_g=0.1),
        PassStartFedPAGE(S=N, K=3, p=0.3, eta_g=0.1),
    ),
    "FedProx without its term": lambda N: (fp.FedProx(**AVG, mu=0.0), fp.FedAvg(**AVG)),
    "FedAvgM without momentum": lambda N: (fp.FedAvgM(**AVG, beta=0.0), fp.FedAvg(**AVG)),
    "FedNesterov without momentum": lambda N: (fp.FedNesterov(**AVG, beta=0.0), fp.FedAvg(**AVG)),
    "SCAFFOLD without momentum": lambda N: (ScaffoldMomentum(**SGD, beta=0.0), fp.SCAFFOLD(**SGD)),
    "DIANA is COFIG of all": lambda N: (fp.DIANA(eta=0.2, b=2), fp.COFIG(S=N, eta=0.2, b=2)),
    "DIANA with a codec": lambda N: (
        fp.DIANA(eta=0.2, b=2, up="randk:0.5"),
        fp.COFIG(S=N, eta=0.2, b=2, up="randk:0.5"),
    ),
    "SAGA is COFIG": lambda N: (fp.SAGA(**SOME), fp.COFIG(**SOME)),
    "SAGA with casts": lambda N: (fp.SAGA(**SOME, up="float32"), fp.COFIG(**SOME, up="float32")),
    "MARINA is PP-MARINA of all": lambda N: (
        fp.MARINA(p=0.3, up="natural"),
        fp.PPMARINA(S=None, p=0.3, up="natural"),
    ),
    "VR-MARINA is FedPAGE of all": lambda N: (
        fp.VRMARINA(p=0.3, up="natural", b=2),
        fp.FedPAGE(S=N, K=1, p=0.3, up="natural", b2=2),
    ),
    **{
        f"PP-MARINA is FedPAGE with K = 1, {up}": lambda N, up=up, b=b: (
            fp.PPMARINA(b=b, up=up, **PAGE),
            fp.FedPAGE(K=1, b2=b, up=up, **PAGE),
        )
        for up, b in (("none", None), ("natural", 2), ("randk:2", None), ("float32", 2))
    },
}
"""Methods with the same history."""

CLOSE: dict[str, Any] = {
    "leak-free FedPAGE with K = 1 is PAGE": lambda N: (
        fp.LeakFreeFedPAGE(S=3, K=1, p=0.2),
        fp.PAGE(S=3, p=0.2),
    ),
    "MimeLite without momentum": lambda N: (fp.MimeLite(**AVG, beta=0.0), fp.FedAvg(**AVG)),
    "EF21-SGDM with m = 1": lambda N: (
        fp.EF21SGDM(m=1.0, eta=0.2, b=2, up="scaled(randk:0.3)"),
        fp.EF21(eta=0.2, b=2, up="scaled(randk:0.3)"),
    ),
    "EF21 is gradient descent": lambda N: (
        fp.EF21(eta=0.1),
        fp.FedAvg(**ALL | {"eta_l": 0.1}, S=N),
    ),
    "EF21-PP of all": lambda N: (fp.EF21PP(S=N, eta=0.1), fp.EF21(eta=0.1)),
    "EF21-BC without codecs": lambda N: (fp.EF21BC(eta=0.1), fp.EF21(eta=0.1)),
    "DASHA without a codec": lambda N: (fp.DASHA(eta=0.1), fp.EF21(eta=0.1)),
    "DASHA-PP of all": lambda N: (fp.DASHAPP(S=N, eta=0.1), fp.EF21(eta=0.1)),
    "SCALLION without a codec": lambda N: (fp.SCALLION(a=1.0, **AVG), fp.SCAFFOLD(**AVG)),
    "unbiased SCALLION": lambda N: (fp.SCALLION(unbiased=True, **AVG), fp.SCAFFOLD(**AVG)),
    "SCALLION with K = 1 is EF21": lambda N: (
        fp.SCALLION(S=N, **ALL, up="randk:0.25"),
        fp.EF21(eta=0.02, up="scaled(randk:0.25)"),
    ),
    "unbiased SCALLION with K = 1 is DIANA": lambda N: (
        fp.SCALLION(S=N, **ALL, unbiased=True, up="randk:0.5"),
        fp.DIANA(eta=0.02, up="randk:0.5"),
    ),
    "COFIG is ZeroSARAH with lam = 1": lambda N: (fp.COFIG(**SOME), fp.ZeroSARAH(**SOME, lam=1.0)),
}
"""Methods with the same iterates up to rounding, whose messages may differ."""

PROBLEMS = {
    "quadratic": lambda: quadratic(noise=1.0),
    "robust": uneven,
    "nonconvex": lambda: uneven("logistic-nonconvex"),
}


@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("name", BITS | CLOSE)
def test_a_special_case_is_the_other_method(name, kind):
    problem = PROBLEMS[kind]()
    one, other = (BITS | CLOSE)[name](problem.N)
    if name in BITS:
        histories = [fp.simulate(problem, m, rounds=30, seed=4) for m in (one, other)]
        assert histories[0].same(histories[1])
        assert histories[0].x.any()
    else:
        runs = [after(problem, m, 30, seed=4) for m in (one, other)]
        np.testing.assert_allclose(runs[0].x, runs[1].x, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "other",
    [
        fp.FedProx(**AVG, mu=0.1),
        fp.FedAvgM(**AVG, beta=0.1),
        fp.FedNesterov(**AVG, beta=0.1),
        ScaffoldMomentum(**AVG, beta=0.1),
        ScaffoldOptionI(**AVG),
        fp.ZeroSARAH(S=4, eta=0.25, b=2, lam=0.9),
    ],
    ids=str,
)
def test_other_values_make_another_method(other):
    problem, family = uneven(), (fp.FedAvg(**AVG), fp.SCAFFOLD(**AVG), fp.COFIG(S=4, eta=0.25, b=2))
    found = after(problem, other, 10).x
    assert min(np.abs(found - after(problem, m, 10).x).max() for m in family) > 1e-6


def test_labels_of_presets():
    names = ["fedpage-full", "scaffold-full", "fedavg-full"]
    assert [METHODS[name]().name for name in names] == [
        "FedPAGE-Full",
        "SCAFFOLD-Full",
        "FedAvg-Full",
    ]
    assert METHODS["fedpage-full"](S=3) == fp.FedPAGE(S=3, b3=None)
