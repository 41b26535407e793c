"""Mutants of the engine: client states, rounds and the policy."""

from __future__ import annotations

from mutant_tables.edit import Edit

CLIENT_STATES = [
    Edit("engine: client states are read, never stored", "ClientStates.put",
         "table[clients] = rows", "table[clients] = 0.0 * rows + table[clients]"),
]  # fmt: skip

ROUND = [
    Edit("engine: divided by the wrong count", "Round._average",
         "mean_rows", "lambda part: mean_rows(part[1:] if len(part) > 1 else part)"),
    Edit("policy: g from a part of the clients", "Round._gather",
         "call.require_all and policy.fall_back", "False"),
    Edit("policy: divided by the called, not the arrived", "_Gathered.mean",
         "self._accumulator.finish(len(clients))",
         "self._accumulator.finish(len(clients) + len(self.missing))"),
    Edit("policy: no retries", "Round._gather_chunks", "not len(reachable)", "True"),
    Edit("policy: full rounds are tried for a lost client", "Round._gather_or_fall_back",
         "not missing", "True"),
]  # fmt: skip

DELIVERY = [
    Edit("policy: a late reply counts", "deliver_late", "is_validated", "False"),
    Edit("policy: NaN counts", "validate", "delivered & ((outcomes == FINE) | (outcomes == HUGE))", "delivered"),
    Edit("policy: any shape counts", "validate",
         "_shape_fault(replies, reply) if outcomes[i] == WRONG_SHAPE else ''", "''"),
]  # fmt: skip

LOCAL_TRANSPORT = [
    Edit("policy: client states of replies that did not count", "LocalTransport._request_unreliable",
         "self.policy.commit == 'always'", "True"),
]  # fmt: skip

TABLES = {
    "engine/client_states.py": CLIENT_STATES,
    "engine/round.py": ROUND,
    "engine/delivery.py": DELIVERY,
    "engine/local_transport.py": LOCAL_TRANSPORT,
}
