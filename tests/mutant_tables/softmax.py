"""Mutants of the kernels that the laws of softmax regression catch."""

from __future__ import annotations

from mutant_tables.edit import Edit

LAWS = "test_softmax.py"

ROWS = [
    Edit("nonconvex regulariser: a factor 2 is missing", "_reg_slope",
         "2.0 * alpha * x", "alpha * x"),
    Edit("l2 regulariser: wrong sign", "_reg_slope",
         "return alpha * x", "return -alpha * x"),
    Edit("softmax margins: the second entry takes the first one's value", "_margin_classes",
         "two * x[m + c]", "one * x[m + c]"),
    Edit("softmax margins: the second entry takes the first one's weights", "_margin_classes",
         "two * x[m + c]", "two * x[l + c]"),
    Edit("softmax margins: the last entry of an odd row is left out", "_margin_classes",
         "e < end", "e + _1 < end - _1"),
    Edit("softmax margins: classes before features", "_margin_classes",
         "_feature(idx, e + _1) * C", "_feature(idx, e + _1)"),
    Edit("softmax gradient: every class takes the first derivative", "_add_classes",
         "one * t[c]", "one * t[0]"),
    Edit("softmax gradient: every entry is 1", "_add_classes",
         "_entry(val, row, e)", "1.0"),
    Edit("softmax gradient: the row's class is missing", "_softmax",
         "t[b] - weight", "t[b]"),
    Edit("softmax gradient: the class after the row's", "_softmax",
         "t[b] = -rest * unit if b == k else t[b] - weight",
         "t[(b + 1) % len(t)] -= weight"),
    Edit("softmax gradient: a certain class cancels", "_softmax",
         "-rest * unit", "unit - weight"),
    Edit("softmax gradient: probabilities are not normalised", "_softmax",
         "weight / (1.0 + rest)", "weight"),
    Edit("softmax: the largest margin is not subtracted", "_softmax",
         "math.exp(t[c] - top)", "math.exp(t[c])"),
    Edit("softmax: the first margin is taken for the largest", "_softmax",
         "t[c] > t[k]", "False"),
    Edit("softmax loss: the distance to the largest margin is missing", "_slopes_of_classes",
         "return (gap, rest, t)", "return (0.0, rest, t)"),
    Edit("objective: the term beside the logarithm is not weighted", "objective",
         "total += weight * u", "total += u"),
    Edit("objective: a factor of a product is missing", "objective",
         "s + product * s", "s"),
    Edit("softmax held-out loss: the row's class has the wrong sign", "_value_of_classes",
         "math.log1p(rest) + gap", "math.log1p(rest) - gap"),
]  # fmt: skip

STEPS = [
    Edit("fused minibatch: the first rows instead of those drawn", "batch_grad",
         "np.uint64(rows[i, j])", "np.uint64(j)"),
    Edit("fused minibatch: the weight of the client is missing", "batch_grad",
         "scale[c] / count", "1.0 / count"),
    Edit("fused local_sgd: the label of the client's first row", "local_sgd",
         "_slopes(loss, t, T, target[row], weight, False)",
         "_slopes(loss, t, T, target[np.uint64(first)], weight, False)"),
    Edit("softmax local_svrg and local_page: the old gradient is added", "_change_of_classes",
         "T[t, c] -= T[u, c]", "T[t, c] += T[u, c]"),
    Edit("softmax local_svrg and local_page: the old gradient is missing", "_change_of_classes",
         "T[t, c] -= T[u, c]", "pass"),
    Edit("fused local_svrg: the regulariser at w is added", "local_sgd",
         "g[0, l] -= scale[c] * _reg_slope(reg, alpha, W[own_w, l])",
         "g[0, l] += scale[c] * _reg_slope(reg, alpha, W[own_w, l])"),
    Edit("softmax local_sgd: a sparse step has the wrong sign", "_step_classes",
         "T[np.int64(v), c] *= -eta", "T[np.int64(v), c] *= eta"),
    Edit("fused local_page: the regulariser at the old point is missing", "local_page",
         "_reg_slope(reg, alpha, y[0, l]) - _reg_slope(reg, alpha, before[0, l])",
         "_reg_slope(reg, alpha, y[0, l])"),
    Edit("fused local_page: the old point is stale", "local_page",
         "before[0, l] = y[0, l]", "pass"),
    Edit("fused local_page: the first batch at every step", "local_page",
         "np.uint64(rest[i, k - 1, j])", "np.uint64(rest[i, 0, j])"),
]  # fmt: skip

TABLES = {"problems/kernels.py": ROWS + STEPS}
