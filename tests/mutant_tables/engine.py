"""Mutants of the engine: client states, rounds and the policy."""

from __future__ import annotations

from mutant_tables.edit import Edit

CLIENT_STATES = [
    Edit("engine: client states are read, never stored", "ClientStates.put",
         "table[clients] = rows", "table[clients] = 0.0 * rows + table[clients]"),
]  # fmt: skip

MEAN = [
    Edit("engine: divided by the wrong count", "Mean.combine",
         "mean_rows", "lambda part: mean_rows(part[1:] if len(part) > 1 else part)"),
]  # fmt: skip

COLLECT = [
    Edit("policy: g from a part of the clients", "Collector._ask",
         "call.require_all and policy.fall_back", "False"),
    Edit("policy: divided by the called, not the arrived", "_Total.mean",
         "self._accumulator.finish(len(clients))",
         "self._accumulator.finish(len(clients) + len(self.missing))"),
    Edit("policy: no retries", "Collector._add", "again is None", "True"),
    Edit("policy: full rounds are tried for a lost client", "Collector._collect_or_fall_back",
         "self.find_lost(call)", "[]"),
]  # fmt: skip

DELIVERY = [
    Edit("policy: a late reply counts", "deliver_late", "is_validated", "False"),
    Edit("policy: NaN counts", "validate", "delivered & ((outcomes == FINE) | (outcomes == HUGE))", "delivered"),
    Edit("policy: any shape counts", "validate",
         "_shape_fault(replies, reply) if outcomes[i] == WRONG_SHAPE else ''", "''"),
]  # fmt: skip

LOCAL_TRANSPORT = [
    Edit("policy: client states of replies that did not count", "LocalTransport._request_unreliable",
         "self.policy.commit == 'always' and len(able)", "len(able)"),
]  # fmt: skip

TABLES = {
    "engine/aggregation.py": MEAN,
    "engine/collect.py": COLLECT,
    "engine/local.py": [*CLIENT_STATES, *DELIVERY, *LOCAL_TRANSPORT],
}
