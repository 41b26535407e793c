"""Mutants of SVRP, SABER, DANE, S-DANE and I-CGM-RG-SAGA."""

from __future__ import annotations

from mutant_tables.edit import Edit

LAWS = "test_similarity.py"

PROX = [
    Edit("proximal steps: no proximal term", "ProximalSteps.solve",
         "mu=0.0 if self.gamma is None else 1 / self.gamma", "mu=0.0"),
    Edit("proximal steps: weight gamma instead of 1/gamma", "ProximalSteps.solve",
         "1 / self.gamma", "self.gamma"),
    Edit("proximal steps: correction never applied", "ProximalSteps.solve",
         "shift=shift", "shift=None"),
    Edit("proximal steps: reply has the wrong sign", "ProximalSteps.solve",
         "-(self.K * self.eta_l)", "self.K * self.eta_l"),
    Edit("proximal steps: with_step leaves gamma", "ProximalSteps.with_step",
         "self.gamma * factor", "self.gamma"),
    Edit("proximal steps: the effective step ignores gamma", "ProximalSteps.effective_step",
         "r**k", "1.0"),
]  # fmt: skip

SVRP = [
    Edit("SVRP: correction has the wrong sign", "SVRP.client",
         "h - oracle.grad(w, oracle.batch(None))", "oracle.grad(w, oracle.batch(None)) - h"),
    Edit("SVRP: correction at x instead of w", "SVRP.client",
         "oracle.grad(w, oracle.batch(None))", "oracle.grad(x, oracle.batch(None))"),
    Edit("SVRP: h is left out", "SVRP.client",
         "h - oracle.grad(w, oracle.batch(None))", "-oracle.grad(w, oracle.batch(None))"),
    Edit("SVRP: a refresh keeps the old w", "SVRP.server", "w=state.x", "w=state.w"),
    Edit("SVRP: a refresh keeps the old h", "SVRP.server", "h=mean.g", "h=state.h"),
    Edit("SVRP: coin ignored", "SVRP.call", "state.stepped and draws.coin(p)", "state.stepped"),
]  # fmt: skip

SABER = [
    Edit("SABER: v is left out of v_i", "SABER.client", "message.v + g", "g"),
    Edit("SABER: the gradient at x_prev is left out", "SABER.client",
         "message.v + g - oracle.grad(message.x_prev, all_rows)", "message.v + g"),
    Edit("SABER: recursive steps use the old v", "SABER.client", "v - g", "message.v - g"),
    Edit("SABER: fresh steps are not corrected by the own gradient", "SABER.client",
         "self.solve(oracle, message.x, message.v - g)", "self.solve(oracle, message.x, message.v)"),
    Edit("SABER: v is stale", "SABER.server",
         "mean.g if isinstance(mean, MoveAndGradient) else state.v", "state.v"),
    Edit("SABER: x_prev is stale", "SABER.server", "x_prev=state.x", "x_prev=state.x_prev"),
    Edit("SABER: full rounds without steps after them", "SABER.server", "fresh=True", "fresh=False"),
    Edit("SABER: coin inverted", "SABER.call", "not draws.coin(p)", "draws.coin(p)"),
]  # fmt: skip

SDANE = [
    Edit("DANE: correction has the wrong sign", "DANE.client", "message.G - g", "g - message.G"),
    Edit("DANE: the own gradient is left out", "DANE.client", "message.G - g", "message.G"),
    Edit("DANE: no proximal term", "DANE.client", "mu=self.lam", "mu=0.0"),
    Edit("DANE: eta_l as the gradient step", "DANE.client",
         "eta=self.gradient_step", "eta=self.eta_l"),
    Edit("DANE: other clients take the steps", "DANE.call",
         "draws.clients(state.N, S, ago=1)", "draws.clients(state.N, S)"),
    Edit("DANE: the step starts at an old model", "DANE.server", "v=x", "v=state.v"),
    Edit("S-DANE: G has the wrong sign", "SDANE.server",
         "mu * t * x + state.v - t * mean.g", "mu * t * x + state.v + t * mean.g"),
    Edit("S-DANE: v moves along the gradient at z", "SDANE.server",
         "t * mean.g", "t * state.G"),
    Edit("S-DANE: the gradient is that at z", "SDANE.reply",
         "oracle.grad(z + dy, oracle.batch(None))", "oracle.grad(z + 0.0 * dy, oracle.batch(None))"),
    Edit("S-DANE: mu is left out", "SDANE.server",
         "(mu * t * x + state.v - t * mean.g) / (mu * t + 1)", "state.v - t * mean.g"),
    Edit("S-DANE: mu pulls to v instead of x", "SDANE.server", "mu * t * x", "mu * t * state.v"),
    Edit("S-DANE: x is not the mean of the y_K", "SDANE.server",
         "self.centre(state) + mean.dy", "state.x + mean.dy"),
    Edit("public: mlolab/S-DANE averages iterates of clients sampled earlier", "SDANE.server",
         "self.centre(state) + mean.dy",
         "state.x + (replies.count / state.N) * (self.centre(state) + mean.dy - state.x)"),
    Edit("Acc-S-DANE: A does not grow", "SDANE.server", "A=A", "A=state.A"),
    Edit("Acc-S-DANE: A without B", "SDANE.server",
         "(state.A + t) / (mu * t + 1)", "state.A + t"),
    Edit("Acc-S-DANE: weights of x and v exchanged", "AccSDANE.centre",
         "state.A * state.x + t * state.v", "t * state.x + state.A * state.v"),
    Edit("Acc-S-DANE: t without A", "AccSDANE.weight",
         "half * half + state.A / self.lam", "half * half"),
]  # fmt: skip

ICGM = [
    Edit("I-CGM: correction has the wrong sign", "ICGM.client", "message.g - g", "g - message.g"),
    Edit("I-CGM: the own gradient is left out", "ICGM.client", "message.g - g", "message.g"),
    Edit("I-CGM: no proximal term", "ICGM.client", "mu=self.lam", "mu=0.0"),
    Edit("I-CGM: one step whatever K", "ICGM.client", "K=K", "K=1"),
    Edit("I-CGM: SAGA's estimate without h", "ICGM.server",
         "mean.drift + state.h", "mean.drift"),
    Edit("I-CGM: SAGA's estimate has the new h", "ICGM.server",
         "mean.drift + state.h", "state.h + (replies.count / state.N) * mean.drift"),
    Edit("I-CGM: the change is left out", "ICGM.server",
         "mean.change + (1 - beta) * state.g + beta * saga", "(1 - beta) * state.g + beta * saga"),
    Edit("I-CGM: g is not damped", "ICGM.server", "(1 - beta) * state.g", "state.g"),
    Edit("I-CGM: h moves by the mean, not by count/N of it", "ICGM.server",
         "(replies.count / state.N) * mean.drift", "mean.drift"),
    Edit("I-CGM: h moves by S/N, whoever answered", "ICGM.server",
         "(replies.count / state.N) * mean.drift", "(self.S / state.N) * mean.drift"),
    Edit("I-CGM: h is not set at the start", "ICGM.server", "h=mean.g", "h=state.h"),
    Edit("I-CGM: b_i is the gradient at x", "ICGM.update_client_state",
         "client_state.b + sent.drift", "client_state.b + sent.drift + sent.change"),
    Edit("I-CGM: b_i never changes", "ICGM.update_client_state", "client_state.b + sent.drift", "client_state.b"),
    Edit("I-CGM: x_prev is stale", "ICGM.server", "x_prev=state.x", "x_prev=state.x_prev"),
    Edit("I-CGM: client 0 whoever is the delegate", "ICGM.call",
         "everyone[self.delegate : self.delegate + 1]", "everyone[:1]"),
    Edit("I-CGM: a lost delegate ends the run", "ICGM.call", "fallback=others", "fallback=None"),
]  # fmt: skip

STEPS = [
    Edit("SVRP: theory's gamma without the 2", "svrp", "mu / (2 * delta**2)", "mu / delta**2"),
    Edit("SVRP: theory's gamma with delta instead of its square", "svrp",
         "mu / (2 * delta**2)", "mu / (2 * delta)"),
    Edit("I-CGM: theory's lam without the factor 113", "icgm", "113", "1"),
    Edit("S-DANE: theory's lam is too small", "s_dane", "2 * delta", "0.2 * delta"),
    Edit("S-DANE: theory's steps do not solve", "_steps_to",
         "math.ceil(math.log(factor) / math.log1p(-mu / L))", "1"),
]  # fmt: skip

TABLES = {
    "methods/steps.py": STEPS,
    "methods/local.py": PROX,
    "methods/svrp.py": SVRP,
    "methods/saber.py": SABER,
    "methods/sdane.py": SDANE,
    "methods/icgm.py": ICGM,
}
