"""Mutants of the methods that the paper compares."""

from __future__ import annotations

from mutant_tables.edit import Edit

FEDPAGE = [
    Edit("FedPAGE: server moves up the gradient", "FedPAGE.server",
         "state.x - self.eta_g * move", "state.x + self.eta_g * move"),
    Edit("FedPAGE: x_prev is stale", "FedPAGE.server", "x_prev=state.x", "x_prev=state.x_prev"),
    Edit("FedPAGE: g is stale", "FedPAGE.server", "g=g", "g=state.g"),
    Edit("FedPAGE: the first round may be sampled", "FedPAGE.call",
         "1.0 if draws.round == 0 else p", "p"),
    Edit("FedPAGE: client starts from x_prev", "FedPAGE.client",
         "x_prev - self.eta_g * g", "x_prev"),
    Edit("FedPAGE: b2 replaced by b3", "FedPAGE.client", "first=self.b2", "first=self.b3"),
    Edit("FedPAGE: b3 replaced by b2", "FedPAGE.client", "rest=self.b3", "rest=self.b2"),
    Edit("FedPAGE: full rounds ignore b1", "FedPAGE.client",
         "oracle.batch(self.b1)", "oracle.batch(self.b3)"),
    Edit("FedPAGE: coin inverted", "FedPAGE.call",
         "draws.coin(1.0 if draws.round == 0 else p)",
         "draws.round == 0 or not draws.coin(1.0 if draws.round == 0 else p)"),
    Edit("FedPAGE: no fallback of a full round", "FedPAGE.call", "fallback=fallback", "fallback=None"),
    Edit("FedPAGE: the first full round has a fallback", "FedPAGE.call",
         "draws.round != 0", "True"),
    Edit("FedPAGE periodic: one round late", "FedPAGE.call",
         "draws.round % max(1, round(1 / p))", "(draws.round + 1) % max(1, round(1 / p))"),
    Edit("FedPAGE leak-free: carries the damped g", "FedPAGE._leak_free_steps",
         "LeakFreeReply((g0 + (K - 1) * later) / K, g0)", "LeakFreeReply((g0 + (K - 1) * later) / K, later)"),
    Edit("FedPAGE leak-free: moves along g_0", "FedPAGE.server",
         "mean.move if isinstance(mean, LeakFreeReply) else g", "g"),
    Edit("FedPAGE leak-free: second part starts at x", "FedPAGE._leak_free_steps",
         "x - eta * g0", "x + 0.0 * g0"),
]  # fmt: skip

FEDAVG = [
    Edit("FedAvg: reply has the wrong sign", "FedAvg.local_move",
         "-(K * eta)", "K * eta"),
    Edit("FedAvg: eta_g ignored", "FedAvg.server",
         "self.eta_g * replies.mean.dy", "replies.mean.dy"),
]  # fmt: skip

FEDPROX = [
    Edit("FedProx: no proximal term", "FedProx.client", "mu=self.mu", "mu=0.0"),
]  # fmt: skip

VRLSGD = [
    Edit("VRL-SGD: correction has the wrong sign", "VRLSGD.client", "shift=-delta", "shift=delta"),
    Edit("VRL-SGD: correction never updated", "VRLSGD.client",
         "delta + (x - client_state.y) / (self.K * self.eta_l)", "delta + 0.0 * client_state.y"),
    Edit("VRL-SGD: update has the wrong sign", "VRLSGD.client",
         "x - client_state.y", "client_state.y - x"),
    Edit("VRL-SGD: the last y is not stored", "VRLSGD.keep",
         "ClientState(client_state.delta, message.x + sent.dy)", "client_state"),
    Edit("VRL-SGD: the old correction is stored", "VRLSGD.client",
         "ClientState(delta, client_state.y)", "client_state"),
]  # fmt: skip

SLOCALSVRG = [
    Edit("S-Local-SVRG: w not stored", "SLocalSVRG.client",
         "ClientState(0.0 * h + x, client_state.h)", "client_state"),
    Edit("S-Local-SVRG: h not stored", "SLocalSVRG.client",
         "ClientState(client_state.w, h)", "client_state"),
    Edit("S-Local-SVRG: a refresh keeps the old h", "SLocalSVRG.server",
         "h=mean.h", "h=state.h"),
    Edit("S-Local-SVRG: sampled clients do not receive h", "SLocalSVRG.server",
         "state.h_sent or replies.count == state.N", "True"),
    Edit("S-Local-SVRG: coin ignored", "SLocalSVRG.call",
         "state.stepped and draws.coin(q)", "state.stepped"),
    Edit("public: VR-ProxSkip's S-Local-SVRG refreshes with probability 1-q", "SLocalSVRG.call",
         "draws.coin(q)", "draws.coin(1 - q)"),
]  # fmt: skip

TABLES = {
    "methods/fedpage.py": FEDPAGE,
    "methods/fedavg.py": FEDAVG,
    "methods/fedprox.py": FEDPROX,
    "methods/vrlsgd.py": VRLSGD,
    "methods/slocalsvrg.py": SLOCALSVRG,
}
