"""Mutants of MARINA's family and of methods with codecs."""

from __future__ import annotations

from mutant_tables.edit import Edit

LAWS = "test_marina.py"

MARINA = [
    Edit("MARINA: moves up the gradient", "PPMARINA.server",
         "state.x - self.eta_g * g", "state.x + self.eta_g * g"),
    Edit("MARINA: x_prev saved after the step, so that differences vanish", "PPMARINA.server",
         "x_prev=state.x", "x_prev=state.x - self.eta_g * g"),
    Edit("MARINA: g is stale", "PPMARINA.server", "g=g", "g=state.g"),
    Edit("MARINA: client starts from x_prev", "PPMARINA.client",
         "x_prev - self.eta_g * g", "x_prev"),
    Edit("MARINA: b ignored", "PPMARINA.client", "first=self.b", "first=None"),
    Edit("MARINA: full rounds use minibatches", "PPMARINA.client",
         "oracle.batch(None)", "oracle.batch(self.b)"),
    Edit("MARINA: the first round may be sampled", "PPMARINA.call",
         "1.0 if draws.round == 0 else p", "p"),
    Edit("MARINA: coin inverted", "PPMARINA.call",
         "not draws.coin(1.0 if draws.round == 0 else p)", "draws.round and draws.coin(p)"),
    Edit("MARINA: full rounds call S clients", "PPMARINA.call",
         "draws.clients(state.N, state.N)", "draws.clients(state.N, S)"),
    Edit("MARINA: sampled rounds call all clients", "PPMARINA._call_differences",
         "draws.clients(state.N, S)", "draws.clients(state.N, state.N)"),
    Edit("MARINA: compresses g and not its change", "PPMARINA.compressible",
         "{'g': 'g'}", "{'g': None}"),
    Edit("MARINA: compresses full rounds too", "PPMARINA.compressible", "self.up.is_cast", "True"),
    Edit("MARINA: casts leave full rounds alone", "PPMARINA.compressible",
         "self.up.is_cast", "False"),
    Edit("MARINA: p ignores what the codec saves", "full_probability", "S / N * share", "S / N"),
    Edit("public: burlachenkok/marina takes omega = 0 for dithering", "PPMARINA.from_theory",
         "up.omega(problem.d) or 0.0", "0.0"),
]  # fmt: skip

STEPS = [
    Edit("public: MiniFL's MARINA gives away the speed-up in N", "marina",
         "(1 - p) * V / (p * S)", "(1 - p) * V / p"),
    Edit("MARINA's step: sampling counts in full", "marina", "(N - S) / max(1, N - 1)", "1"),
    Edit("MARINA's step: sampling is free", "marina", "(N - S) / max(1, N - 1)", "0"),
    Edit("MARINA's step: rows are not compressed", "marina", "(1 + omega) * rows", "rows"),
]  # fmt: skip

FEDPAGE = [
    Edit("FedPAGE with a codec: compresses g and not its change", "FedPAGE.compressible",
         "{'g': 'g'}", "{'g': None}"),
    Edit("FedPAGE leak-free with a codec: g is uncompressed", "FedPAGE.compressible",
         "{'move': 'g', 'g': 'g'}", "{'move': 'g'}"),
    Edit("FedPAGE with a codec: compresses full rounds too", "FedPAGE.compressible",
         "self.up.is_cast", "True"),
]  # fmt: skip

LOCAL = [
    Edit("MARINA: fresh minibatches at the two points", "local_page",
         "oracle.grad(y_prev, batch)", "oracle.grad(y_prev, oracle.batch(first))"),
]  # fmt: skip

RANDK = [
    Edit("MARINA: a biased RandK, which converges too", "RandK.gain", "d / self.kept(d)", "1.0"),
]  # fmt: skip

TABLES = {
    "methods/marina.py": MARINA,
    "methods/steps.py": STEPS,
    "methods/fedpage.py": FEDPAGE,
    "core/local_steps.py": LOCAL,
    "codecs/sparse.py": RANDK,
    "methods/fedavg.py": [
        Edit("FedAvg with a codec: nothing is compressed", "FedAvg",
             "{Model: {'dy': None}}", "{Model: {}}"),
    ],
    "methods/vrlsgd.py": [
        Edit("VRL-SGD with a cast: keeps y from the start", "VRLSGD.keep",
             "message.x + sent.dy", "0.0 * sent.dy + message.x"),
    ],
    "methods/slocalsvrg.py": [
        Edit("S-Local-SVRG with a cast: gradients are not cast", "SLocalSVRG",
             "{'h': None}", "{}"),
    ],
}  # fmt: skip
