"""Before round 0: find the node of every client, list what is wrong at any site, and agree."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from fedpage.core.errors import InputError
from fedpage.core.messages import layout_of
from fedpage.core.validate import is_finite
from fedpage.flower import messages
from fedpage.flower.agreement import (
    Agreement,
    Statistics,
    combine_statistics,
    compute_scales,
    read_names,
)
from fedpage.flower.exchange import Wait, check_sender, content_of, exchange
from fedpage.flower.nodes import (
    NO_NODE,
    Node,
    NodeRefusal,
    Requirements,
    compare,
    describe_nodes,
    make_problem,
    propose_agreement,
)
from fedpage.flower.schema import Schema

log = logging.getLogger("flwr")
_ASK_AGAIN = 30.0
"""Seconds after which a refused node is asked again; its owner may have corrected its file."""
_STATISTICS_ATTEMPTS = 4
_SHOWN = 5
"""The number of problems that the run's status has."""


class StartFailed(InputError):
    """Too few clients can take part.

    Args:
        text: the summary.
        problems: one line for each client that cannot.
    """

    def __init__(self, text: str, problems: Sequence[str]) -> None:
        super().__init__(text)
        self.problems = tuple(problems)


@dataclass
class Gathering:
    """Find the node of every client of a run, and what they agree on.

    Args:
        grid: Flower's Grid.
        requirements: what the server requires of every node.
        schema: what the run config says of columns.
        wait: how long replies may take and how they are waited for.
        seconds: how long to wait for all clients.
        min_clients: how many clients suffice after that time; 0: all.
        earlier: the nodes of the run that is resumed, by client.
        agreement: what the run that is resumed agreed on; None for a new run.
        report: is told again and again how many clients are there, and what is wrong.
    """

    grid: Grid
    requirements: Requirements
    schema: Schema
    wait: Wait
    seconds: float
    min_clients: int = 0
    earlier: Mapping[int, Node] = field(default_factory=dict)
    agreement: Agreement | None = None
    report: Callable[[str], None] = field(default=lambda _: None)
    _answers: dict[int, tuple[int, Node]] = field(default_factory=dict)
    _refused: dict[int, NodeRefusal] = field(default_factory=dict)
    _asked: dict[int, float] = field(default_factory=dict)
    _online: int = 0
    _unfit: set[int] = field(default_factory=set)
    _told: set[str] = field(default_factory=set)

    def run(self) -> tuple[dict[int, Node], Agreement]:
        """Wait for the nodes, and return the node of every client and the agreement.

        A node that does not fit is refused with a line in the log, and asked again from time to
        time. The run starts when every client has a node that fits. When the time is over it
        starts without the missing clients if it is resumed and they took part before, or if
        `min_clients` have nodes.

        Raises:
            StartFailed: too few clients can take part; each problem is in the log.
        """
        clients = range(self.requirements.clients)
        end = self.wait.clock() + self.seconds
        while True:
            late = self.wait.clock() > end
            self._ask(late)
            nodes, agreement, problems = self._match()
            self._told &= {problem.key for problem in problems}  # forget nodes that left
            for problem in problems:
                if problem.key not in self._told:
                    self._told.add(problem.key)
                    log.warning("fedpage: refused: %s", problem.text)
            if set(nodes) == set(clients) or late:
                break
            self.report(self._describe(len(nodes), problems))
            self.wait.sleep(self.wait.poll)
        missing = [client for client in clients if client not in nodes]
        if missing:
            nodes |= self._start_without(missing, len(nodes), problems)
        nodes = {client: nodes[client] for client in clients}
        if self.agreement is None and (self.schema.shares_statistics or self.schema.open_columns):
            agreement = self._settle(nodes, agreement)
        return nodes, agreement

    def _describe(self, present: int, problems: Sequence[NodeRefusal]) -> str:
        """Return how many nodes are there and fit, and a line for each of the first problems."""
        lines = [f"waiting for the nodes of {self.requirements.clients} clients"]
        lines[0] += f": {self._online} connected" + f", {present} that fit" * bool(self._asked)
        lines += [problem.text for problem in problems[:_SHOWN]]
        if len(problems) > _SHOWN:
            lines.append(f"and {len(problems) - _SHOWN} more, in the log")
        return "\n".join(lines)

    def _ask(self, late: bool) -> None:
        """Ask nodes that are new, and refused ones again after a while."""
        online, now = set(self.grid.get_node_ids()), self.wait.clock()
        self._online = len(online)
        for table in (self._answers, self._refused, self._asked):
            for node in set(table) - online:
                del table[node]
        due = [
            node
            for node in online - (set(self._answers) - self._unfit)
            if late or now - self._asked.get(node, -_ASK_AGAIN) >= _ASK_AGAIN
        ]
        if not due or not (late or len(online) >= self.requirements.clients):
            return
        answers = describe_nodes(self.grid, due, self.requirements, self.wait)
        for node in due:
            self._refused.pop(node, None)
            self._answers.pop(node, None)
        self._answers |= answers.found
        self._refused |= answers.refused
        self._asked |= dict.fromkeys([*answers.found, *answers.refused], self.wait.clock())

    def _match(self) -> tuple[dict[int, Node], Agreement, list[NodeRefusal]]:
        """Return the nodes that fit together by client, what they agree on, and the problems."""
        holders: dict[int, list[int]] = {}
        for number, (client, _) in sorted(self._answers.items()):
            holders.setdefault(client, []).append(number)
        problems = list(self._refused.values())
        nodes: dict[int, Node] = {}
        self._unfit = set()
        for client, numbers in sorted(holders.items()):
            if len(numbers) > 1:
                text = (
                    f"nodes {numbers[0]} and {numbers[1]} both say they hold it; neither is used; "
                    "give each its own partition-id"
                )
                problems.append(make_problem(numbers[0], client, text))
                self._unfit.update(numbers)
            else:
                nodes[client] = self._answers[numbers[0]][1]
        columns = self.schema.columns
        agreement = self.agreement
        if agreement is None:
            agreement = propose_agreement(nodes, columns) if nodes else Agreement(columns)
        for client, node in list(nodes.items()):
            text = compare(node, agreement, is_named=bool(columns))
            before = self.earlier.get(client, NO_NODE).digest
            if not text and before and before != node.digest:
                text = "its rows are not those with which this run began; restore its file"
            if text:
                problems.append(make_problem(node.node_id, client, text))
                self._unfit.add(node.node_id)
                del nodes[client]
        return nodes, agreement, problems

    def _start_without(
        self, missing: Sequence[int], present: int, problems: Sequence[NodeRefusal]
    ) -> dict[int, Node]:
        """Return what stands for the nodes of missing clients, or refuse to start."""
        if present and set(missing) <= set(self.earlier):
            log.warning("fedpage: resuming without clients %s", _list(missing))
            return {client: self.earlier[client] for client in missing}
        if self.min_clients and present >= self.min_clients:
            log.warning("fedpage: starting without clients %s", _list(missing))
            return {client: self.earlier.get(client, NO_NODE) for client in missing}
        named = {problem.client for problem in problems}
        lines = [problem.text for problem in problems]
        lines += [f"client {c}: no node is connected" for c in missing if c not in named]
        for line in lines:
            log.error("fedpage: %s", line)
        count = self.requirements.clients
        more = f"; and {len(lines) - 1} more, in the log" if len(lines) > 1 else ""
        raise StartFailed(
            f"waited {self.seconds:g} s for {count} clients; {len(missing)} cannot take part: "
            f"{lines[0]}{more}",
            lines,
        )

    def _settle(self, nodes: Mapping[int, Node], agreement: Agreement) -> Agreement:
        """Return the agreement with the categories and the means and scales of all sites."""
        categories = dict(self.schema.categories)
        numbers = [p for p, name in enumerate(agreement.columns) if name not in categories]
        numbers = numbers if self.schema.standardises else []
        rows, parts, answers = self._collect(nodes, agreement, len(numbers))
        constants = (
            math.fsum(answer.log_factorials for answer in answers),
            math.fsum(answer.logs for answer in answers),
        )
        tables = [_read_levels(answer.levels) for answer in answers]
        levels = {
            name: tuple(sorted({value for table in tables for value in table.get(name, ())}))
            for name in self.schema.open_columns
        }
        for name, values in levels.items():
            if not values:
                raise InputError(
                    f"no site has enough rows of any category of {name!r}; leave the column out"
                )
        agreement = replace(agreement, levels=tuple(levels.items()))
        features = self.schema.resolve(agreement).count_features(agreement.columns)
        intercept = self.requirements.intercept
        outputs = agreement.d // (agreement.features + intercept)
        agreement = replace(agreement, features=features, d=(features + intercept) * outputs)
        if self.schema.has_counts:
            agreement = replace(agreement, constants=constants)
        if not self.schema.standardises:
            return agreement
        total = combine_statistics(rows, parts)
        if not all(map(is_finite, total)):
            raise InputError("the statistics of all sites together are not finite numbers")
        means, scales = np.zeros(len(agreement.columns)), np.ones(len(agreement.columns))
        means[numbers] = total.means
        scales[numbers] = compute_scales(sum(rows), total.squares)
        return replace(agreement, means=tuple(means.tolist()), scales=tuple(scales.tolist()))

    def _collect(
        self, nodes: Mapping[int, Node], agreement: Agreement, count: int
    ) -> tuple[list[int], list[Statistics], list[messages.StatisticsReply]]:
        """Ask every node for its statistics; return rows, statistics and headers by client."""
        layout = layout_of(Statistics, count, np.dtype(np.float64))
        text = agreement.to_text()
        wanted = [client for client, node in nodes.items() if node.node_id]
        found: dict[int, Statistics] = {}
        answers: dict[int, messages.StatisticsReply] = {}
        reasons: dict[int, str] = {}
        for _ in range(_STATISTICS_ATTEMPTS):
            sent = {
                client: Message(
                    messages.encode_header(messages.StatisticsRequest(client, text)),
                    nodes[client].node_id,
                    messages.STATISTICS,
                    ttl=self.wait.deadline,
                    group_id="statistics",
                )
                for client in wanted
                if client not in found
            }
            for client, reply in exchange(self.grid, sent, self.wait).items():
                try:
                    answer = messages.decode_header(content_of(reply), messages.StatisticsReply)
                    check_sender(client, answer.client)
                    statistics = messages.decode_fields(reply.content, layout)
                    if answer.rows != nodes[client].rows:
                        raise messages.ProtocolError("it has another number of rows than before")
                    if not all(map(is_finite, statistics)) or (statistics.squares < 0).any():
                        raise messages.ProtocolError("its statistics are not finite or negative")
                    _read_levels(answer.levels)
                    if not is_finite(np.array([answer.log_factorials, answer.logs])):
                        raise messages.ProtocolError("its sums of counts are not finite")
                    found[client], answers[client] = statistics, answer
                except messages.ProtocolError as error:
                    reasons[client] = str(error)
            if len(found) == len(wanted):
                rows = [nodes[c].rows for c in wanted]
                return rows, [found[c] for c in wanted], [answers[c] for c in wanted]
        lines = [
            f"client {client}: {reasons.get(client, 'no statistics in time')}"
            for client in wanted
            if client not in found
        ]
        for line in lines:
            log.error("fedpage: %s", line)
        raise StartFailed(f"the sites' statistics are incomplete: {lines[0]}", lines)


def _read_levels(text: str) -> dict[str, tuple[str, ...]]:
    """Read the categories that a site has told, without trusting it."""
    try:
        table = json.loads(text)
        return {str(name): read_names(json.dumps(own)) for name, own in table.items()}
    except (ValueError, AttributeError, RecursionError):
        raise messages.ProtocolError("its list of categories cannot be read") from None


def _list(clients: Sequence[int]) -> str:
    return f"{', '.join(map(str, clients[:10]))}{' ...' if len(clients) > 10 else ''}"
