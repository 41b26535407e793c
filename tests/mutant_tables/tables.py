"""Mutants of methods whose clients keep a table of gradients, and of their step sizes."""

from __future__ import annotations

from mutant_tables.edit import Edit

LAWS = "test_tables.py"

COFIG = [
    Edit("COFIG: moves up the gradient", "COFIG.server",
         "state.x - self.eta * (state.h + u)", "state.x + self.eta * (state.h + u)"),
    Edit("COFIG: h is left out of the step", "COFIG.server", "state.h + u", "u"),
    Edit("COFIG: h is never updated", "COFIG.server",
         "h=state.h + self.rate(len(u)) * part * u", "h=state.h"),
    Edit("COFIG: the server's a is 1", "COFIG.server", "self.rate(len(u)) * part * u", "part * u"),
    Edit("COFIG: S/N although replies are missing", "COFIG.server",
         "replies.count / state.N", "(self.S or state.N) / state.N"),
    Edit("COFIG: reply has the wrong sign", "COFIG.client",
         "p - client_state.h", "client_state.h - p"),
    Edit("COFIG: the gradient itself is compressed", "COFIG.client", "p - client_state.h", "p"),
    Edit("COFIG: b ignored", "COFIG.client", "oracle.batch(self.b)", "oracle.batch(None)"),
    Edit("COFIG: the table is never written", "COFIG.update_client_state",
         "ClientState(client_state.h + self.rate(len(message.x)) * sent.u)", "client_state"),
    Edit("COFIG: the table keeps only the change", "COFIG.update_client_state",
         "client_state.h + self.rate(len(message.x)) * sent.u",
         "0.0 * client_state.h + self.rate(len(message.x)) * sent.u"),
    Edit("COFIG: the client's a is 1", "COFIG.update_client_state",
         "self.rate(len(message.x)) * sent.u", "sent.u"),
    Edit("COFIG: takes biased codecs", "COFIG",
         "up_codecs: ClassVar[Kind] = 'unbiased'", "up_codecs: ClassVar[Kind] = 'any'"),
    Edit("DIANA: not all clients are called", "COFIG.call",
         "self.participants(state.N)", "max(1, self.participants(state.N) - 1)"),
    Edit("public: FL_PyTorch's DIANA omits count/N under sampling", "COFIG.server",
         "self.rate(len(u)) * part * u", "self.rate(len(u)) * u"),
    Edit("public: the MARINA repository's DIANA steps along the new mean", "COFIG.server",
         "state.h + u", "state.h + self.rate(len(u)) * replies.count / state.N * u"),
]  # fmt: skip

ZEROSARAH = [
    Edit("ZeroSARAH: sign of the old gradient", "ZeroSARAH.client", "p - q", "p + q"),
    Edit("ZeroSARAH: another batch at x_prev", "ZeroSARAH.client",
         "oracle.grad(message.x_prev, batch)",
         "oracle.grad(message.x_prev, oracle.batch(self.b))"),
    Edit("ZeroSARAH: the table is compared at x", "ZeroSARAH.client",
         "q - client_state.y", "p - client_state.y"),
    Edit("ZeroSARAH: the table keeps the old gradient", "ZeroSARAH.update_client_state",
         "client_state.y + (sent.change + sent.drift)", "client_state.y + sent.drift"),
    Edit("ZeroSARAH: the table is not written in round 0", "ZeroSARAH.update_client_state",
         "ClientState(sent.g)", "client_state"),
    Edit("ZeroSARAH: the table keeps what was not sent", "ZeroSARAH.client",
         "ChangeAndDrift(p - q, q - client_state.y), client_state",
         "ChangeAndDrift(p - q, q - client_state.y), ClientState(client_state.y + 1e-9 * p)"),
    Edit("ZeroSARAH: v is not carried on", "ZeroSARAH.server",
         "A + (1 - lam) * v + lam * (E + h)", "A + lam * (E + h)"),
    Edit("ZeroSARAH: h is left out", "ZeroSARAH.server", "E + h", "E"),
    Edit("ZeroSARAH: lam is S/N", "ZeroSARAH.server", "self.S / (2 * N)", "self.S / N"),
    Edit("ZeroSARAH: lam given is ignored", "ZeroSARAH.server",
         "self.S / (2 * N) if self.lam is None else self.lam", "self.S / (2 * N)"),
    Edit("ZeroSARAH: h moves by the drift alone", "ZeroSARAH.server", "part * (A + E)", "part * E"),
    Edit("ZeroSARAH: S/N although replies are missing", "ZeroSARAH.server",
         "replies.count / N", "self.S / N"),
    Edit("ZeroSARAH: x_prev is stale", "ZeroSARAH.server", "x_prev=x", "x_prev=state.x_prev"),
    Edit("ZeroSARAH: takes codecs that do more than round", "ZeroSARAH",
         "codec_hint = 'use a cast such as float32, or FRECON'", "up_codecs = 'unbiased'"),
    Edit("public: a SILAGE baseline starts ZeroSARAH from a full table", "ZeroSARAH.call",
         "draws.clients(state.N, self.S)",
         "draws.clients(state.N, state.N if draws.round == 0 else self.S)"),
    Edit("public: FL_PyTorch's FRECON takes U at x", "ZeroSARAH.client",
         "q - client_state.y", "p - client_state.y"),
]  # fmt: skip

FRECON = [
    Edit("FRECON: the table moves by the change", "FRECON.update_client_state",
         "sent.g if isinstance(sent, Gradient) else sent.drift",
         "sent.g if isinstance(sent, Gradient) else sent.drift + sent.change"),
    Edit("FRECON: the client's a is 1", "FRECON.update_client_state",
         "self.rate(len(message[0])) * U", "U"),
    Edit("FRECON: g is not carried on", "FRECON.server",
         "mean.change + (1 - lam) * v + lam * (U + h)", "mean.change + lam * (U + h)"),
    Edit("FRECON: h is left out", "FRECON.server",
         "mean.change + (1 - lam) * v + lam * (U + h)", "mean.change + (1 - lam) * v + lam * U"),
    Edit("FRECON: h is never updated", "FRECON.server",
         "h + self.rate(len(x)) * part * U", "h"),
    Edit("FRECON: S/N although replies are missing", "FRECON.server",
         "replies.count / N", "self.S / N"),
    Edit("FRECON: x_prev is stale", "FRECON.server", "x_prev=x", "x_prev=state.x_prev"),
    Edit("FRECON: lam ignores the codec", "FRECON.weight", "2 * (1 + self.omega(d)) * N", "2 * N"),
    Edit("FRECON: takes biased codecs", "FRECON",
         "up_codecs = 'unbiased'", "up_codecs = 'any'"),
]  # fmt: skip

STEPS = [
    Edit("COFIG's step: N instead of N^(2/3)", "cofig_nonconvex", "math.pow(N, 2 / 3)", "N"),
    Edit("COFIG's convex step: 4 instead of 8", "cofig_convex", "8 * W / S", "4 * W / S"),
    Edit("DIANA's step: omega + 1", "diana_nonconvex", "omega + 2", "omega + 1"),
    Edit("DIANA's strongly convex step: omega, not omega/N", "diana_strongly_convex",
         "6 * omega / N", "6 * omega"),
    Edit("ZeroSARAH's step: 2 instead of 8", "zerosarah_nonconvex",
         "8 * lam * N ** 2 / S ** 3", "2 * lam * N ** 2 / S ** 3"),
    Edit("FRECON's step: without 1 + omega", "frecon_nonconvex",
         "(1 + omega) * math.sqrt(10 * N) / S", "math.sqrt(10 * N) / S"),
    Edit("public: FL_PyTorch writes (1+w)**3.0/2.0 for COFIG's power 3/2", "cofig_nonconvex",
         "math.pow(W, 1.5)", "(W ** 3.0 / 2.0)"),
    Edit("public: FL_PyTorch leaves L out of COFIG's convex step", "cofig_convex",
         "S / (W * math.sqrt(N) * L)", "S / (W * math.sqrt(N))"),
]  # fmt: skip

THEORY = [
    Edit("COFIG: a convex problem gets the nonconvex step", "cofig",
         "table_steps.cofig_convex if convex else table_steps.cofig_nonconvex",
         "table_steps.cofig_nonconvex"),
    Edit("COFIG: the step ignores the codec", "cofig",
         "method.omega(problem.d)", "0.0"),
    Edit("DIANA: the contraction ignores a", "diana", "method.rate(problem.d)", "1.0"),
    Edit("public: FL_PyTorch's DIANA takes L of f for its nonconvex step", "diana",
         "_smoothness(method, problem).client", "_smoothness(method, problem).whole"),
    Edit("ZeroSARAH: L of f in the step", "zerosarah",
         "_smoothness(method, problem).average", "_smoothness(method, problem).whole"),
    Edit("FRECON: the step ignores the codec", "frecon",
         "method.omega(problem.d)", "0.0"),
]  # fmt: skip

TABLES = {
    "methods/base.py": [
        Edit(
            "the scale a that was given is ignored",
            "BaseMethod.rate",
            "1 / (1 + self.omega(d)) if a is None else a",
            "1 / (1 + self.omega(d))",
        ),
        Edit(
            "the scale a is 1/omega",
            "BaseMethod.rate",
            "1 + self.omega(d)",
            "max(1.0, self.omega(d))",
        ),
        Edit("the scale a is 1 by default", "BaseMethod.rate", "1 / (1 + self.omega(d))", "1.0"),
    ],
    "methods/from_theory.py": THEORY,
    "methods/cofig.py": COFIG,
    "methods/zerosarah.py": ZEROSARAH,
    "methods/frecon.py": FRECON,
    "methods/table_steps.py": STEPS,
}
