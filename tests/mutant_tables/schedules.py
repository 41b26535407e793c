"""Mutants of schedules: values of a round, and where a round takes them from."""

from __future__ import annotations

from mutant_tables.edit import Edit

LAWS = "test_schedules.py"

SCHEDULED = [
    Edit("schedules: every round has the numbers of round 0", "at_round",
         "each.at(round)", "each.at(0)"),
    Edit("schedules: another effective step replaces a schedule", "with_step",
         "return replace(moved, **found) if found else moved", "return moved"),
    Edit("schedules: another effective step leaves a schedule", "with_step",
         "each.scaled(getattr(moved, name) / getattr(peak, name))", "each.scaled(1.0)"),
]  # fmt: skip
ROUND = [
    Edit("schedules: the server has the numbers of the next round", "Engine.step",
         "method.server(self.state, replies)",
         "at_round(self.method, draws.round + 1).server(self.state, replies)"),
]  # fmt: skip
TRANSPORT = [
    Edit("schedules: clients have the numbers of the next round", "LocalTransport._compute",
         "at_round(self.method, draws.round)", "at_round(self.method, draws.round + 1)"),
]  # fmt: skip

TABLES = {
    "methods/schedules.py": SCHEDULED,
    "engine/round.py": ROUND,
    "engine/local.py": TRANSPORT,
}
