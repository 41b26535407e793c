"""Wait before nodes that did not answer are asked again, longer each time."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from flwr.app import Message
from flwr.serverapp import Grid

from fedpage.flower.exchange import NOT_CONNECTED, Wait

LONGEST_PAUSE = 60.0
"""The longest pause in seconds: a node that was killed is back within a minute."""
_LOOK_EVERY = 1.0
"""Seconds between two looks at which nodes are connected."""


class Backoff:
    """Pause before clients whose nodes were silent are asked again.

    The first pause takes `wait.pause` seconds, and each further one twice as long, up to a minute.
    A pause ends early when the nodes that were gone are back. Clients that answered, but not
    validly, are asked again at once.

    Args:
        grid: Flower's Grid.
        wait: How long to wait.
    """

    def __init__(self, grid: Grid, wait: Wait) -> None:
        self._grid, self._wait = grid, wait
        self._key: Hashable = None
        self._silent: dict[int, int] = {}
        self._gone: set[int] = set()

    def pause(self, key: Hashable, nodes: Mapping[int, int]) -> None:
        """Pause if every one of these clients was asked before in vain, some of them silently.

        Args:
            key: The round, and what the clients are asked; another key starts anew.
            nodes: The node ids of the clients that are about to be asked.
        """
        if key != self._key:
            self._key, self._silent, self._gone = key, {}, set()
        if not nodes or any(client not in self._silent for client in nodes):
            return
        times = max(self._silent[client] for client in nodes)
        if times:
            seconds = self._wait.pause * 2.0 ** min(times - 1, 60)
            gone = {nodes[client] for client in nodes if client in self._gone}
            self._wait_for(set(nodes.values()), gone, min(seconds, LONGEST_PAUSE))

    def note(
        self, clients: Iterable[int], replies: Mapping[int, Message], valid: Iterable[int]
    ) -> None:
        """Note who answered.

        Args:
            clients: The clients that were asked.
            replies: What came back from them.
            valid: The clients whose replies are valid.
        """
        accepted = set(valid)
        self._gone = {
            client
            for client, reply in replies.items()
            if reply.has_error() and reply.error.code == NOT_CONNECTED
        }
        for client in clients:
            reply = replies.get(client)
            if client in accepted:
                self._silent.pop(client, None)
            else:
                is_silent = reply is None or reply.has_error()
                self._silent[client] = self._silent.get(client, 0) + is_silent

    def _wait_for(self, nodes: set[int], gone: set[int], seconds: float) -> None:
        """Wait some seconds, or until as many nodes are back as were gone."""
        wait, known = self._wait, set(self._grid.get_node_ids())
        end = wait.clock() + seconds
        while (left := end - wait.clock()) > 0:
            here = set(self._grid.get_node_ids())
            gone = gone | (nodes - here)
            if gone and len(gone - here) <= len(here - known - nodes):
                return
            wait.sleep(min(left, max(wait.poll, _LOOK_EVERY)))
