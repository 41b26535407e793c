"""Mutants of the kernels of softmax regression."""

from __future__ import annotations

from mutant_tables.edit import Edit

LAWS = "test_softmax.py"

ROWS = [
    Edit("softmax, nonconvex regulariser: a factor 2 is missing", "_reg_slope",
         "2.0 * alpha * x", "alpha * x"),
    Edit("softmax, l2 regulariser: wrong sign", "_reg_slope",
         "return alpha * x", "return -alpha * x"),
    Edit("softmax margins: the second entry takes the first one's value", "_row_margins",
         "two * x[j + c]", "one * x[j + c]"),
    Edit("softmax margins: the second entry takes the first one's weights", "_row_margins",
         "two * x[j + c]", "two * x[i + c]"),
    Edit("softmax margins: the last entry of an odd row is left out", "_row_margins",
         "e < end", "e + _1 < end - _1"),
    Edit("softmax margins: classes before features", "_row_margins",
         "_feature(idx, e + _1) * C", "_feature(idx, e + _1)"),
    Edit("softmax gradient: every class takes the first derivative", "_add_row",
         "one * v[c]", "one * v[0]"),
    Edit("softmax gradient: every entry is 1", "_add_row",
         "_entry(val, row, e)", "1.0"),
    Edit("softmax gradient: the row's class is missing", "_slopes",
         "t[b] - weight", "t[b]"),
    Edit("softmax gradient: the class after the row's", "_slopes",
         "t[b] = -rest * unit if b == k else t[b] - weight",
         "t[(b + 1) % len(t)] -= weight"),
    Edit("softmax gradient: a certain class cancels", "_slopes",
         "-rest * unit", "unit - weight"),
    Edit("softmax gradient: probabilities are not normalised", "_slopes",
         "weight / (1.0 + rest)", "weight"),
    Edit("softmax: the largest margin is not subtracted", "_slopes",
         "math.exp(t[c] - top)", "math.exp(t[c])"),
    Edit("softmax: the first margin is taken for the largest", "_slopes",
         "t[c] > t[k]", "False"),
    Edit("softmax loss: the distance to the largest margin is missing", "objective",
         "math.log1p(rest) + gap", "math.log1p(rest)"),
    Edit("softmax loss: not weighted", "objective",
         "weight * (math.log1p(rest) + gap)", "math.log1p(rest) + gap"),
    Edit("softmax held-out loss: the row's class has the wrong sign", "mean_loss",
         "math.log1p(rest) + gap", "math.log1p(rest) - gap"),
]  # fmt: skip

STEPS = [
    Edit("softmax minibatch: the first rows instead of those drawn", "batch_grad",
         "j if every else rows[i, j]", "j"),
    Edit("softmax minibatch: the weight of the client is missing", "batch_grad",
         "scale[c] / count", "1.0 / count"),
    Edit("softmax local_sgd: the batch of the first step again", "local_sgd",
         "label, v = (np.int64(target[row]), slopes[j])",
         "label, v = (np.int64(target[np.uint64(first)]), slopes[j])"),
    Edit("softmax local_svrg: the gradient at w is added", "local_sgd",
         "v[m] -= then[m]", "v[m] += then[m]"),
    Edit("softmax local_svrg: the regulariser at w is added", "local_sgd",
         "g[l] -= scale[c] * _reg_slope(reg, alpha, W[own_w, l])",
         "g[l] += scale[c] * _reg_slope(reg, alpha, W[own_w, l])"),
    Edit("softmax local_sgd: proximal sign", "local_sgd",
         "mu * (y[l] - x[l])", "mu * (x[l] - y[l])"),
    Edit("softmax local_sgd: shift never applied", "local_sgd",
         "eta * shift[own_shift, l]", "0.0 * shift[own_shift, l]"),
    Edit("softmax local_sgd: a sparse step has the wrong sign", "local_sgd",
         "v[m] *= -eta", "v[m] *= eta"),
    Edit("softmax local_page: the old gradient is missing", "local_page",
         "now[m] -= then[m]", "pass"),
    Edit("softmax local_page: the regulariser at the old point is missing", "local_page",
         "_reg_slope(reg, alpha, y[l]) - _reg_slope(reg, alpha, before[l])",
         "_reg_slope(reg, alpha, y[l])"),
    Edit("softmax local_page: the old point is stale", "local_page",
         "before[l] = y[l]", "pass"),
    Edit("softmax local_page: the first batch at every step", "local_page",
         "j if rest.shape[2] == 0 else rest[i, k - 1, j]",
         "j if rest.shape[2] == 0 else rest[i, 0, j]"),
]  # fmt: skip

TABLES = {"problems/softmax_kernels.py": ROWS + STEPS}
