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
         "draws.coin(1.0 if draws.round == 0 else p)", "draws.round == 0 or not draws.coin(p)"),
    Edit("MARINA: sampled rounds call all clients", "PPMARINA._call_differences",
         "draws.clients(state.N, S)", "draws.clients(state.N, state.N)"),
    Edit("MARINA: compresses g and not its change", "PPMARINA",
         "{'g': 'g'}", "{'g': None}"),
    Edit("MARINA: p ignores what the codec saves", "full_probability", "S / N * share", "S / N"),
]  # fmt: skip

STEPS = [
    Edit("public: MiniFL's MARINA gives away the speed-up in N", "marina",
         "(1 - p) * V / (p * S)", "(1 - p) * V / p"),
    Edit("MARINA's step: sampling counts in full", "marina", "(N - S) / max(1, N - 1)", "1"),
    Edit("MARINA's step: sampling is free", "marina", "(N - S) / max(1, N - 1)", "0"),
    Edit("MARINA's step: rows are not compressed", "marina", "(1 + omega) * rows", "rows"),
]  # fmt: skip

FEDPAGE = [
    Edit("FedPAGE with a codec: compresses g and not its change", "FedPAGE",
         "{'g': 'g'}", "{'g': None}"),
]  # fmt: skip

LOCAL = [
    Edit("MARINA: fresh minibatches at the two points", "local_page",
         "oracle.grad(y_prev, batch)", "oracle.grad(y_prev, oracle.batch(first))"),
]  # fmt: skip

RANDK = [
    Edit("MARINA: a biased RandK, which converges too", "RandK.gain", "d / self.kept(d)", "1.0"),
]  # fmt: skip

BASE = [
    Edit("full rounds call S clients", "BaseMethod.call_all",
         "draws.clients(N, N)", "draws.clients(N, self.participants(N))"),
    Edit("full rounds take the replies that arrive", "BaseMethod.call_all",
         "require_all=True", "require_all=False"),
    Edit("full rounds have no fallback", "BaseMethod.call_all", "fallback=other", "fallback=None"),
    Edit("the first full round has a fallback", "BaseMethod.call_all", "draws.round > 0", "True"),
    Edit("codecs compress full rounds too", "BaseMethod.compressible",
         "self.gradients if codec.is_cast else {}", "self.gradients"),
    Edit("casts leave full rounds alone", "BaseMethod.compressible",
         "self.gradients if codec.is_cast else {}", "{}"),
    Edit("with_step ignores the factors of the step", "BaseMethod.with_step",
         "step * self._damping / self.step_factor", "step * self._damping"),
    Edit("with_step ignores momentum", "BaseMethod.with_step",
         "step * self._damping / self.step_factor", "step / self.step_factor"),
    Edit("with_step leaves the other step sizes", "BaseMethod.with_step", "eta * factor", "eta"),
    Edit("a fixed hyper-parameter may be set", "BaseMethod.__post_init__",
         "field.name in self.fixed and value != field.default", "False"),
]  # fmt: skip

TABLES = {
    "methods/base.py": BASE,
    "methods/from_theory.py": [
        Edit("public: burlachenkok/marina takes omega = 0 for dithering", "marina",
             "up.omega(d) or 0.0", "0.0"),
    ],
    "methods/fedpage_variants.py": [
        Edit("FedPAGE leak-free with a codec: g is uncompressed", "LeakFreeFedPAGE",
             "{'move': 'g', 'g': 'g'}", "{'move': 'g'}"),
    ],
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
        Edit("VRL-SGD with a cast: keeps y from the start", "VRLSGD.update_client_state",
             "message.x + sent.dy", "0.0 * sent.dy + message.x"),
    ],
    "methods/slocalsvrg.py": [
        Edit("S-Local-SVRG with a cast: gradients are not cast", "SLocalSVRG",
             "{'h': None}", "{}"),
    ],
}  # fmt: skip
