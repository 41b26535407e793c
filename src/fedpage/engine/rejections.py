"""Count the rejected replies of a round, so that equal ones make one event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fedpage.engine.transport import Event

_NAMES = 20
"""The most clients that an event about rejected replies names."""


class Rejections:
    """Count what was rejected in a round, by client and reason.

    >>> rejections = Rejections("reply", "replies")
    >>> for client in (3, 7, 3, 7, 5):
    ...     rejections.add(client, "no reply in time" if client != 5 else "not finite")
    >>> [event.text for event in rejections.list_events(round=4)]
    ['replies of clients 3, 7: no reply in time (x2)', 'reply of client 5: not finite']

    Args:
        singular: What was rejected, such as "reply".
        plural: Its plural.
    """

    def __init__(self, singular: str, plural: str) -> None:
        self._singular, self._plural = singular, plural
        self._counts: Counter[tuple[int, str]] = Counter()

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, client: int, reason: str) -> None:
        """Count a rejection."""
        self._counts[client, reason] += 1

    def list_events(self, round: int) -> list[Event]:
        """Return an event for each reason and number of times, in the order of the first client.

        The order and the texts do not depend on the order in which replies were rejected.
        """
        groups: dict[tuple[str, int], list[int]] = {}
        for (client, reason), times in sorted(self._counts.items()):
            groups.setdefault((reason, times), []).append(client)
        events = []
        for (reason, times), clients in groups.items():
            what = self._singular if len(clients) == 1 else self._plural
            count = f" (x{times})" if times > 1 else ""
            text = f"{what} of {name_clients(clients, _NAMES)}: {reason}{count}"
            events.append(Event("rejected", round, text))
        return events


def name_clients(clients: Sequence[int], limit: int = 5) -> str:
    """Name some clients, and the number of the others.

    >>> name_clients([3]), name_clients([0, 1, 2, 3, 4, 5, 6])
    ('client 3', 'clients 0, 1, 2, 3, 4 and 2 more')
    """
    few = ", ".join(str(client) for client in clients[:limit])
    more = f" and {len(clients) - limit} more" if len(clients) > limit else ""
    return f"client{'' if len(clients) == 1 else 's'} {few}{more}"
