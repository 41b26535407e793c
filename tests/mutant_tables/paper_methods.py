"""Mutants of the methods that the paper compares."""

from __future__ import annotations

from mutant_tables.edit import Edit

FEDPAGE = [
    Edit("FedPAGE: server moves up the gradient", "FedPAGE.server",
         "state.x - self.eta_g * g", "state.x + self.eta_g * g"),
    Edit("FedPAGE: x_prev is stale", "FedPAGE.server", "x_prev=state.x", "x_prev=state.x_prev"),
    Edit("FedPAGE: g is stale", "FedPAGE.server", "g=g", "g=state.g"),
    Edit("FedPAGE: the first round may be sampled", "FedPAGE.is_full",
         "1.0 if draws.round == 0 else p", "p"),
    Edit("FedPAGE: client starts from x_prev", "FedPAGE.client",
         "x_prev - self.eta_g * g", "x_prev"),
    Edit("FedPAGE: b2 replaced by b3", "FedPAGE.client", "first=self.b2", "first=self.b3"),
    Edit("FedPAGE: b3 replaced by b2", "FedPAGE.client", "rest=self.b3", "rest=self.b2"),
    Edit("FedPAGE: full rounds ignore b1", "FedPAGE.client",
         "oracle.batch(self.b1)", "oracle.batch(self.b3)"),
    Edit("FedPAGE: coin inverted", "FedPAGE.is_full",
         "draws.coin(1.0 if draws.round == 0 else p)",
         "draws.round == 0 or not draws.coin(1.0 if draws.round == 0 else p)"),
    Edit("FedPAGE: p given is ignored", "FedPAGE.is_full",
         "self.S / state.N if self.p is None else self.p", "self.S / state.N"),
]  # fmt: skip

VARIANTS = [
    Edit("FedPAGE periodic: one round late", "PeriodicFedPAGE.is_full",
         "draws.round % max(1, round(1 / p))", "(draws.round + 1) % max(1, round(1 / p))"),
    Edit("FedPAGE leak-free: carries the damped g", "LeakFreeFedPAGE.client",
         "LeakFreeReply((g0 + (K - 1) * later) / K, g0)", "LeakFreeReply((g0 + (K - 1) * later) / K, later)"),
    Edit("FedPAGE leak-free: moves along g_0", "LeakFreeFedPAGE.server", "mean.move", "mean.g"),
    Edit("FedPAGE leak-free: second part starts at x", "LeakFreeFedPAGE.client",
         "x - eta * g0", "x + 0.0 * g0"),
]  # fmt: skip

FEDAVG = [
    Edit("FedAvg: reply has the wrong sign", "FedAvg.client", "-(K * eta)", "K * eta"),
    Edit("FedAvg: eta_g ignored", "FedAvg.server",
         "self.eta_g * replies.mean.dy", "replies.mean.dy"),
]  # fmt: skip

FEDPROX = [
    Edit("FedProx: no proximal term", "FedProx.proximity", "self.mu", "0.0"),
    Edit("FedAvg with local training: reply has the wrong sign", "LocalTraining.client",
         "-(K * eta)", "K * eta"),
]  # fmt: skip

VRLSGD = [
    Edit("VRL-SGD: correction has the wrong sign", "VRLSGD.client", "shift=-delta", "shift=delta"),
    Edit("VRL-SGD: correction never updated", "VRLSGD.client",
         "delta + (x - client_state.y) / (self.K * self.eta_l)", "delta + 0.0 * client_state.y"),
    Edit("VRL-SGD: update has the wrong sign", "VRLSGD.client",
         "x - client_state.y", "client_state.y - x"),
    Edit("VRL-SGD: the last y is not stored", "VRLSGD.update_client_state",
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
    "methods/fedpage_variants.py": VARIANTS,
    "methods/fedavg.py": FEDAVG,
    "methods/fedavg_variants.py": FEDPROX,
    "methods/vrlsgd.py": VRLSGD,
    "methods/slocalsvrg.py": SLOCALSVRG,
}
