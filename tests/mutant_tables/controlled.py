"""Mutants of SCAFFOLD, FedDyn and Scaffnew, and of the draw of a number of steps."""

from __future__ import annotations

from mutant_tables.edit import Edit

LAWS = "test_controlled.py"

SCAFFOLD = [
    Edit("SCAFFOLD: correction never applied", "SCAFFOLD.direction",
         "shift=c - client_state.c", "shift=None"),
    Edit("SCAFFOLD: correction has the wrong sign", "SCAFFOLD.direction",
         "shift=c - client_state.c", "shift=client_state.c - c"),
    Edit("SCAFFOLD: c is left out of the correction", "SCAFFOLD.direction",
         "shift=c - client_state.c", "shift=-client_state.c"),
    Edit("SCAFFOLD: c_i becomes the change", "SCAFFOLD.update_client_state",
         "ClientState(client_state.c + sent.v)", "ClientState(sent.v)"),
    Edit("SCAFFOLD option II: the reply still contains c", "SCAFFOLD.client",
         "direction - message.c", "direction"),
    Edit("SCAFFOLD option II: the server does not add c back", "SCAFFOLD.server",
         "v + state.c", "v"),
    Edit("SCAFFOLD option II: K is left out of the move", "SCAFFOLD.server",
         "self.K * self.eta_l", "self.eta_l"),
    Edit("SCAFFOLD option II: the move has the wrong sign", "SCAFFOLD.server",
         "-(self.K * self.eta_l)", "self.K * self.eta_l"),
    Edit("SCAFFOLD: c is never updated", "SCAFFOLD.move",
         "state.c + part * dc", "state.c"),
    Edit("SCAFFOLD: c moves by the mean, not by S/N of it", "SCAFFOLD.move",
         "part * dc", "dc"),
    Edit("SCAFFOLD: c moves by the planned share of clients", "SCAFFOLD.server",
         "replies.count / state.N", "self.S / state.N"),
    Edit("SCAFFOLD: eta_g ignored", "SCAFFOLD.move", "self.eta_g * dy", "dy"),
    Edit("public: FL_PyTorch's SCAFFOLD never stores c_i", "SCAFFOLD.update_client_state",
         "ClientState(client_state.c + sent.v)", "client_state"),
    Edit("public: pfl's SCAFFOLD has the sign of y - x in c_i", "SCAFFOLD.client",
         "Reply(direction - message.c)",
         "Reply(-direction - message.c)"),
]  # fmt: skip

VARIANTS = [
    Edit("SCAFFOLD option I: c_i moves by dy", "ScaffoldOptionI.update_client_state", "sent.dc", "sent.dy"),
    Edit("SCAFFOLD option I: batch size ignored", "ScaffoldOptionI.client",
         "oracle.batch(self.b0)", "oracle.batch(1)"),
    Edit("SCAFFOLD option I: dc has the wrong sign", "ScaffoldOptionI.client",
         "c_new - client_state.c", "client_state.c - c_new"),
    Edit("SCAFFOLD: momentum is not carried on", "ScaffoldMomentum.move", "m=m", "m=state.m"),
    Edit("SCAFFOLD: momentum is left out", "ScaffoldMomentum.move",
         "self.beta * state.m + self.eta_g * dy", "self.eta_g * dy"),
    Edit("SCAFFOLD: momentum averages instead of adding", "ScaffoldMomentum.move",
         "self.eta_g * dy", "(1 - self.beta) * self.eta_g * dy"),
    Edit("SCAFFOLD: the effective step ignores momentum", "ScaffoldMomentum",
         "heavy_ball = True", "heavy_ball = False"),
    Edit("public: Glebzok/ProxSkip's SCAFFOLD sends c_i+ - c", "ScaffoldOptionI.client",
         "MoveAndChange(dy, c_new - client_state.c)", "MoveAndChange(dy, c_new - message.c)"),
    Edit("public: Plato's SCAFFOLD sent c_i+ itself", "ScaffoldOptionI.client",
         "MoveAndChange(dy, c_new - client_state.c)", "MoveAndChange(dy, c_new)"),
]  # fmt: skip

FEDDYN = [
    Edit("FedDyn: no proximal term", "FedDyn.client", "mu=self.mu", "mu=0.0"),
    Edit("FedDyn: no linear term", "FedDyn.client", "shift=shift", "shift=None"),
    Edit("FedDyn: the linear term has the wrong sign", "FedDyn.client",
         "self.mu * client_state.a", "-self.mu * client_state.a"),
    Edit("FedDyn: the reply has the wrong sign", "FedDyn.client",
         "-(self.K * eta)", "self.K * eta"),
    Edit("FedDyn: client state not written", "FedDyn.update_client_state",
         "ClientState(client_state.a + sent.dy)", "client_state"),
    Edit("FedDyn: a_i forgets earlier moves", "FedDyn.update_client_state",
         "ClientState(client_state.a + sent.dy)", "ClientState(sent.dy)"),
    Edit("FedDyn: the default local step is 1/mu", "FedDyn.client",
         "0.5 / self.mu", "1.0 / self.mu"),
    Edit("FedDyn: a moves by the mean, not by S/N of it", "FedDyn.server",
         "(replies.count / state.N) * dy", "dy"),
    Edit("FedDyn: a moves by the planned share of clients", "FedDyn.server",
         "replies.count / state.N", "self.S / state.N"),
    Edit("FedDyn: a is not kept", "FedDyn.server", "a=a", "a=state.a"),
    Edit("FedDyn: x is corrected by the old a", "FedDyn.server",
         "state.x + dy + a", "state.x + dy + state.a"),
    Edit("FedDyn: x is corrected with the wrong sign", "FedDyn.server",
         "state.x + dy + a", "state.x + dy - a"),
    Edit("FedDyn: with_step leaves the local step alone", "FedDyn.with_step",
         "self.eta_l * (step * self.mu)", "self.eta_l"),
    Edit("public: FedML's and FedLab's FedDyn penalties have no gradient", "FedDyn.client",
         "local_sgd(oracle, message.x, K=self.K, eta=eta, b=self.b, shift=shift, mu=self.mu)",
         "local_sgd(oracle, message.x, K=self.K, eta=eta, b=self.b)"),
    Edit("public: FedML's FedDyn drops mu from the linear term", "FedDyn.client",
         "self.mu * client_state.a", "client_state.a"),
    Edit("public: fl-sim's FedDyn never corrects the server's model", "FedDyn.server",
         "state.x + dy + a", "state.x + dy"),
]  # fmt: skip

SCAFFNEW = [
    Edit("Scaffnew: correction has the wrong sign", "Scaffnew.client", "shift=-h", "shift=h"),
    Edit("Scaffnew: correction never applied", "Scaffnew.client", "shift=-h", "shift=None"),
    Edit("Scaffnew: update has the wrong sign", "Scaffnew.client",
         "x - client_state.y", "client_state.y - x"),
    Edit("Scaffnew: the update divides by the steps that were taken", "Scaffnew.client",
         "self.eta / self.p", "K * self.eta"),
    Edit("Scaffnew: the update leaves p out", "Scaffnew.client",
         "self.eta / self.p", "self.eta"),
    Edit("Scaffnew: the old h is stored", "Scaffnew.client",
         "ClientState(h, client_state.y)", "client_state"),
    Edit("Scaffnew: the last y is not stored", "Scaffnew.update_client_state",
         "ClientState(client_state.h, message.x + sent.dy)", "client_state"),
    Edit("Scaffnew: round 0 updates h from nothing", "Scaffnew.call",
         "Begin if draws.round == 0 else Continue", "Continue"),
    Edit("Scaffnew: some clients suffice", "Scaffnew.call",
         "require_all=True", "require_all=False"),
    Edit("public: fl-sim's ProxSkip sets y to x before it updates h", "Scaffnew.client",
         "x - client_state.y", "x - x"),
    Edit("public: fl-sim's ProxSkip throws the work of skipped rounds away", "Scaffnew.client",
         "geometric_steps(self.name, self.p, message.K[0])", "1"),
    Edit("public: fl-sim's ProxSkip communicates with probability 1-p", "Scaffnew.call",
         "draws.geometric(self.p)", "draws.geometric(1 - self.p)"),
    Edit("public: Glebzok/ProxSkip's Scaffnew samples cohorts", "Scaffnew.call",
         "draws.clients(state.N, state.N)", "draws.clients(state.N, max(1, state.N // 2))"),
]  # fmt: skip

RANDOM = [
    Edit("Draws: geometric counts failures only", "RoundDraws.geometric",
         "1 + math.floor(math.log1p(-u) / math.log1p(-p))",
         "max(1, math.floor(math.log1p(-u) / math.log1p(-p)))"),
    Edit("Draws: geometric is the same in all rounds", "RoundDraws.geometric",
         "_key(self._seed, STEPS, self.round)", "_key(self._seed, STEPS, 0)"),
]  # fmt: skip

BASE = [
    Edit("geometric: any number of steps is accepted", "geometric_steps",
         "not 1.0 <= K <= 1.0 + 37.0 / p or int(K) != K", "K < 0.0"),
]  # fmt: skip

TABLES = {
    "methods/scaffold.py": SCAFFOLD,
    "methods/scaffold_variants.py": VARIANTS,
    "methods/from_theory.py": [
        Edit("Scaffnew: the theorem's p is mu/L", "scaffnew",
             "(mu / L) ** 0.5", "mu / L"),
    ],
    "methods/feddyn.py": FEDDYN,
    "methods/scaffnew.py": SCAFFNEW,
    "core/random.py": RANDOM,
    "methods/base.py": BASE,
}  # fmt: skip
