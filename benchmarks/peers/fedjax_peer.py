"""Run FedJAX's fed_avg and fed_prox on its jit backend, with its shuffle_repeat_batch.

FedJAX has no SCAFFOLD.
"""

from __future__ import annotations

from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from common import Clients, Clock, NotInLibrary, main, versions
from fedjax.algorithms import fed_avg, fed_prox


def losses(clients: Clients) -> Any:
    """Return the function (params, batch, rng) -> losses of the rows."""

    def per_row(params: Any, batch: Any, rng: Any) -> Any:
        x = params["x"]
        if clients.kind == "quadratic":
            away = x - batch["b"]
            return 0.5 * jnp.einsum("ri,rij,rj->r", away, batch["A"], away)
        margins = batch["X"] @ x
        if clients.kind == "robust":
            return jnp.log1p(0.5 * (margins - batch["y"]) ** 2)
        return jax.nn.softplus(-batch["y"] * margins) + 0.5 * clients.alpha * x @ x

    return per_row


def run(job: dict[str, Any], clients: Clients, clock: Clock) -> dict[str, Any]:
    if job["method"] == "scaffold":
        raise NotInLibrary("has none (its controlled methods are Mime and MimeLite)")
    jax.config.update("jax_enable_x64", job["dtype"] == "float64")
    arrays = clients.dense(np.dtype(job["dtype"]))
    if clients.kind == "quadratic":
        arrays = {name: array[:, None] for name, array in arrays.items()}  # each client has one row
    sets = [
        fedjax.ClientDataset({name: array[i] for name, array in arrays.items()})
        for i in range(clients.N)
    ]
    whole = job["b"] is None
    batches = fedjax.ShuffleRepeatBatchHParams(
        batch_size=len(sets[0]) if whole else job["b"], num_epochs=None, num_steps=job["K"],
        seed=None, skip_shuffle=whole,
    )  # fmt: skip
    per_row, local, server = (
        losses(clients),
        fedjax.optimizers.sgd(job["eta"]),
        fedjax.optimizers.sgd(1.0),
    )
    if job["method"] == "fedprox":
        algorithm = fed_prox.fed_prox(per_row, local, server, batches, job["mu"])
    else:
        grad = jax.grad(lambda params, batch, rng: jnp.mean(per_row(params, batch, rng)))
        algorithm = fed_avg.federated_averaging(grad, local, server, batches)
    state = algorithm.init({"x": jnp.zeros(clients.d, dtype=job["dtype"])})
    key = jax.random.PRNGKey(job["seed"])
    np.random.seed(job["seed"])  # noqa: NPY002  # shuffle_repeat_batch draws from it
    clock.loaded()
    for called in job["schedule"]:
        key, *keys = jax.random.split(key, len(called) + 1)
        state, _ = algorithm.apply(
            state, [(i, sets[i], k) for i, k in zip(called, keys, strict=True)]
        )
        jax.block_until_ready(state.params)
        clock.tick(lambda: np.asarray(state.params["x"]))  # noqa: B023
    found = versions("fedjax", "jax", "jaxlib", "numpy")
    return {
        "versions": found,
        "label": found["fedjax"],
        "called": job["schedule"] if job.get("report_clients") else None,
    }


if __name__ == "__main__":
    main(run)
