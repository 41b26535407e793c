"""Mutants of client optimisers and of the local steps that use them."""

from __future__ import annotations

from mutant_tables.edit import Edit

LAWS = "test_optimizers.py"

OPTIMIZERS = [
    Edit("optimisers: the momentum is not multiplied by beta", "Momentum.update",
         "self.beta * moments[0] + g", "moments[0] + g"),
    Edit("optimisers: Nesterov extrapolates without beta", "Momentum.update",
         "g + self.beta * m", "g + m"),
    Edit("optimisers: the momentum is not kept", "Momentum.update", "(m,)", "(g,)"),
    Edit("optimisers: Adam does not correct the bias of m", "Adam.update",
         "m / (1 - self.beta1**step)", "m"),
    Edit("optimisers: Adam does not correct the bias of v", "Adam.update",
         "v / (1 - self.beta2**step)", "v"),
    Edit("optimisers: Adam keeps the corrected v", "Adam.update",
         "return m / (1 - self.beta1**step) / (root + self.eps), (m, v)",
         "return m / (1 - self.beta1**step) / (root + self.eps), (m, root**2)"),
    Edit("optimisers: Adam's eps inside the root", "Adam.update",
         "root + self.eps", "(root**2 + self.eps) ** 0.5"),
    Edit("optimisers: decay is subtracted", "Optimizer.direction",
         "gradient + self.weight_decay * y", "gradient - self.weight_decay * y"),
    Edit("optimisers: decoupled decay is forgotten", "Optimizer.direction",
         "u + self.weight_decay * y", "u"),
    Edit("optimisers: short gradients are stretched", "clip_rows",
         "is_long * (clip / norms) + ~is_long * 1.0", "clip / norms"),
    Edit("optimisers: the last of an odd number of squares is lost", "row_norms",
         "squares + rest", "squares"),
]  # fmt: skip
STEPS = [
    Edit("optimisers: every step is the first", "local_training", "k + 1", "1"),
    Edit("optimisers: the proximal term is not in the gradient", "local_training",
         "gradient + mu * (y - x)", "gradient"),
    Edit("optimisers: moments are lost between steps", "local_training",
         "optimizer.direction(gradient, y, moments, step)",
         "optimizer.direction(gradient, y, (), step)"),
    Edit("optimisers: decay towards the start", "local_training",
         "optimizer.direction(gradient, y, moments, step)",
         "optimizer.direction(gradient, x, moments, step)"),
    Edit("optimisers: the move has another sign", "local_training", "-eta * total", "eta * total"),
]  # fmt: skip

TABLES = {"core/optimizers.py": OPTIMIZERS, "core/local_steps.py": STEPS}
