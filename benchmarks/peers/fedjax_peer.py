"""Run FedJAX's fed_avg, fed_prox, mime and mime_lite on its jit backend.

Minibatches are those of its shuffle_repeat_batch. Server optimisers are its own, which wrap optax.
FedJAX has no SCAFFOLD.
"""

from __future__ import annotations

from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from common import Clients, Clock, NotInLibrary, main, versions
from fedjax.algorithms import fed_avg, fed_prox, mime, mime_lite


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


def build_optimiser(job: dict[str, Any]) -> Any:
    """Return the server's optimiser."""
    optimisers, method = fedjax.optimizers, job["method"]
    if method in ("fedavgm", "fednesterov"):
        return optimisers.sgd(job["eta_g"], job["beta"], nesterov=method == "fednesterov")
    if method == "fedadam":
        return optimisers.adam(job["eta_g"], job["beta1"], job["beta2"], job["tau"])
    if method == "fedyogi":
        return optimisers.yogi(job["eta_g"], job["beta1"], job["beta2"], job["tau"])
    if method == "fedadagrad":
        return optimisers.adagrad(job["eta_g"], job["tau"] ** 2, job["tau"])
    return optimisers.sgd(1.0)


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
        build_optimiser(job),
    )
    if job["method"] in ("mime", "mimelite"):
        build = mime.mime if job["method"] == "mime" else mime_lite.mime_lite
        base = fedjax.optimizers.sgd(job["eta"], job["beta"])
        grads = fedjax.PaddedBatchHParams(batch_size=len(sets[0]))
        algorithm = build(per_row, base, batches, grads, job["eta_g"])
    elif job["method"] == "fedprox":
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
