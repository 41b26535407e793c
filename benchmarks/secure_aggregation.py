"""Measure the processor time and the bytes of secure aggregation, for cohorts and model sizes.

The nodes and the server run in one process, so the seconds are those of all of them together.

    python benchmarks/secure_aggregation.py
"""

from __future__ import annotations

import tempfile
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import RecordDict

from fedpage.flower import messages
from fedpage.flower.config import parse_app_config, parse_node_config
from fedpage.flower.secure_aggregation import node, protocol
from fedpage.flower.secure_aggregation.server import SecureSum

CONFIG: dict[str, Any] = {"rounds": 1, "aggregation": "secure:bound=100"}
HANDLERS = {
    protocol.KEYS: node.send_keys,
    protocol.SHARES: node.send_shares,
    protocol.UNMASK: node.unmask,
}


class Office:
    """Nodes in this process that reply with the same numbers."""

    def __init__(self, clients: int, d: int, folder: str) -> None:
        self.config = parse_app_config({**CONFIG, "clients": clients})
        self.nodes = {client: SimpleNamespace(node_id=client) for client in range(clients)}
        self.folder, self.numbers = folder, np.linspace(-1.0, 1.0, d)
        self.wait = SimpleNamespace(clock=time.monotonic)
        self.backoff = SimpleNamespace(pause=lambda *_: None, note=lambda *_: None)
        self.up = self.down = 0

    def find_new_nodes(self, now: int) -> None:
        pass

    def make_message(self, client: int, kind: str, content: RecordDict, now: int) -> Any:
        return kind, content

    def train(self, message: Any, *_: object) -> Any:
        header = messages.TrainReply(0, 0, 0, 0)
        return SimpleNamespace(content=messages.encode_arrays({"v": self.numbers}, header))

    def exchange(self, sent: Any, arrivals: dict[int, float]) -> dict[int, Any]:
        replies = {}
        for client, (kind, content) in sent.items():
            self.down += size(content)
            message: Any = SimpleNamespace(
                content=content, metadata=SimpleNamespace(message_type=kind)
            )
            table = {"partition-id": client, "client-state-dir": f"{self.folder}/{client}"}
            own = parse_node_config(table)
            if kind == protocol.TRAIN:
                reply = node.mask_reply(self.train, message, self.config, own)
            else:
                reply = HANDLERS[kind](message, self.config, own)
            self.up += size(reply.content)
            replies[client] = SimpleNamespace(content=reply.content, has_error=lambda: False)
            arrivals[client] = 0.0
        return replies


def size(content: RecordDict) -> int:
    """Return the bytes of keys and shares, and of arrays."""
    total = 0
    for record in content.values():
        for value in record.values():
            data = getattr(value, "data", value)
            total += len(data) if isinstance(data, (bytes, str)) else 8
    return total


def main() -> None:
    node.Message = lambda content, reply_to: SimpleNamespace(content=content)  # type: ignore
    print("clients  numbers  seconds  bytes up  bytes down  (of a round, per client)")
    for clients, d in ((5, 1000), (10, 1000), (30, 1000), (5, 10**6)):
        with tempfile.TemporaryDirectory() as folder:
            office = Office(clients, d, folder)
            header = messages.TrainReply(0, 0, 0, 0)
            contents = {
                client: messages.encode_arrays({"x": np.zeros(d)}, header)
                for client in range(clients)
            }
            sums = SecureSum(office, least=3, retries=0)  # type: ignore[arg-type]
            for now in range(2):  # the first round also writes files
                office.up = office.down = 0
                start = time.process_time()
                found = sums.request(
                    protocol.TRAIN, contents, d, lambda *_: None,
                    run="run", round=now, message="Model", require_all=False,
                )  # fmt: skip
                seconds = time.process_time() - start
            assert found.total is not None
            extra_up, extra_down = office.up / clients - 8 * d, office.down / clients - 8 * d
            print(
                f"{clients:7}  {d:7}  {seconds / clients:7.3f}  {extra_up:8.0f}  {extra_down:10.0f}"
            )


if __name__ == "__main__":
    main()
