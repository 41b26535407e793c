"""Mutants of local steps, random numbers and kernels."""

from __future__ import annotations

from mutant_tables.edit import Edit

LOCAL_STEPS = [
    Edit("local_page: sign of the old gradient", "local_page",
         "g + oracle.grad(y, batch) - oracle.grad(y_prev, batch)",
         "g + oracle.grad(y, batch) + oracle.grad(y_prev, batch)"),
    Edit("local_page: another batch for the old point", "local_page",
         "oracle.grad(y_prev, batch)", "oracle.grad(y_prev, oracle.batch(rest))"),
    Edit("local_page: y_prev is stale", "local_page",
         "(y - eta * g, y, total + g)", "(y - eta * g, y_prev, total + g)"),
    Edit("local_page: g is not carried on", "local_page",
         "g + oracle.grad(y, batch)", "oracle.grad(y, batch)"),
    Edit("local_page: returns the last estimator", "local_page", "total + g", "g * (k + 1)"),
    Edit("local_sgd: shift subtracted", "local_sgd", "direction + shift", "direction - shift"),
    Edit("local_sgd: a step is missing", "local_sgd", "range(K)", "range(K - 1)"),
    Edit("local_sgd: proximal sign", "local_sgd",
         "direction + mu * (y - x)", "direction - mu * (y - x)"),
    Edit("local_sgd: the same batch at every step", "local_sgd", "oracle.batch(b)",
         "(batch := oracle.batch(b) if isinstance(total, float) else batch)"),
    Edit("local_svrg: gradient at w added", "local_svrg",
         "oracle.grad(y, batch) - oracle.grad(w, batch)",
         "oracle.grad(y, batch) + oracle.grad(w, batch)"),
    Edit("local_svrg: h is missing", "local_svrg",
         "oracle.grad(y, batch) - oracle.grad(w, batch) + h",
         "oracle.grad(y, batch) - oracle.grad(w, batch)"),
    Edit("local_svrg: another batch at w", "local_svrg",
         "oracle.grad(w, batch)", "oracle.grad(w, oracle.batch(b))"),
]  # fmt: skip

RANDOM = [
    Edit("draws: minibatches repeat within a round", "_minibatches",
         "_fold(mine, np.uint64(first + draw))", "_fold(mine, np.uint64(first))"),
]  # fmt: skip

KERNELS = [
    Edit("local_page, fused: the old gradient is missing", "_change_of_one",
         "_margin_slope(loss, t, b) - _margin_slope(loss, u, b)", "_margin_slope(loss, t, b)"),
    Edit("local_sgd, fused: shift never applied", "local_sgd",
         "eta * shift[own_shift, l]", "0.0 * shift[own_shift, l]"),
    Edit("local_sgd, fused: proximal sign", "local_sgd",
         "mu * (y[0, l] - x[l])", "mu * (x[l] - y[0, l])"),
    Edit("local_svrg, fused: gradient at w added", "_change_of_one",
         "_margin_slope(loss, t, b) - _margin_slope(loss, u, b)",
         "_margin_slope(loss, t, b) + _margin_slope(loss, u, b)"),
]  # fmt: skip

TABLES = {
    "core/local_steps.py": LOCAL_STEPS,
    "core/random.py": RANDOM,
    "problems/kernels.py": KERNELS,
}
