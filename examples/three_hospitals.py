"""Fit odds ratios and hazard ratios over three hospitals, exactly, in simulation and on Flower.

Each hospital has a CSV file with its own patients, who are invented, and sends sums over its rows
only. The estimates are those of the pooled rows, which no one has seen. On three real machines you
would submit the same settings with `flwr run` (see docs/fit.md); here the script starts a SuperLink
and three SuperNodes on this machine.
"""

import json
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

import fedpage as fp
from fedpage.flower.config import change_app
from fedpage.flower.deploy.local_federation import LocalFederation

SIZES = {"Bern": 320, "Oslo": 410, "Rome": 230}


def patients(hospital: str, seed: int) -> pl.DataFrame:
    """Return invented patients: covariates, a complication, and the days until death."""
    rng, n = np.random.default_rng(seed), SIZES[hospital]
    age = np.round(rng.normal(62 + 2 * seed, 11, n))
    stage = rng.choice(["I", "II", "III"], n, p=[0.5, 0.3, 0.2])
    smoker = rng.choice(["no", "yes"], n, p=[0.7, 0.3])
    risk = 0.03 * (age - 65) + 0.7 * (stage == "III") + 0.5 * (smoker == "yes")
    days = rng.exponential(1500 * np.exp(-risk))
    return pl.DataFrame(
        {
            "hospital": [hospital] * n,
            "age": age,
            "stage": stage,
            "smoker": smoker,
            "complication": rng.binomial(1, 1 / (1 + np.exp(1 - risk))),
            "days": np.ceil(np.minimum(days, 1000)),
            "died": (days < 1000).astype(int),
        }
    )


def fit_on_flower(home: Path, tables: dict[str, pl.DataFrame], models: dict) -> dict:
    """Fit models over a federation of processes on this machine, and return their tables."""
    nodes = []
    for number, (hospital, table) in enumerate(tables.items()):
        path = home / f"{hospital}.csv"
        table.drop("hospital").write_csv(path)
        state = str(home / f"{hospital}-state")
        nodes.append({"partition-id": number, "data": str(path), "client-state-dir": state})
    with LocalFederation(home / "flower", nodes) as federation:
        for name, settings in models.items():
            app = home / f"app-{name}"
            app.mkdir()
            (app / "pyproject.toml").write_text(change_app(settings))
            federation.submit(app, out=str(home / name), poll=0.05)
        end = time.monotonic() + 300
        while not all((home / name / "model.json").exists() for name in models):
            if time.monotonic() > end:
                raise SystemExit(federation.log("superlink"))
            time.sleep(0.2)
    return {name: json.loads((home / name / "fit.json").read_text()) for name in models}


SHARED = [
    "clients=3",
    "data=",
    "columns=age,stage,smoker",
    "extra_columns=ignore",
    "categories=stage; smoker",  # the hospitals agree on the values
]
MODELS = {
    "complications": ["family=logistic", "label=complication", "classes=0,1", *SHARED],
    "survival": ["family=cox", "label=days", "event=died", *SHARED],
}
tables = {name: patients(name, seed) for seed, name in enumerate(SIZES)}
pooled = pl.concat(tables.values())

simulated = {
    "complications": fp.fit(pooled.drop("days", "died"), label="complication", client="hospital"),
    "survival": fp.fit(
        pooled.drop("complication"), "cox", label=("days", "died"), client="hospital"
    ),
}
for result in simulated.values():
    print(result.summary(ratios=True))
simulated["complications"].plot().savefig("three_hospitals.png", dpi=150)

with tempfile.TemporaryDirectory() as scratch:
    deployed = fit_on_flower(Path(scratch), tables, MODELS)
for name, result in simulated.items():
    found = deployed[name]
    estimates = np.array([row["coef"] for row in found["coefficients"]])
    digits = "six" if np.allclose(estimates, result.params, rtol=1e-6, atol=0) else "FEWER THAN SIX"
    print(
        f"{name} on Flower: equal to {digits} digits, {found['exchanges']} exchanges, "
        f"{found['bytes up']:,} bytes up, {found['bytes down']:,} bytes down"
    )
