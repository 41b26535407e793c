"""What nodes know a run by: a random token from its start, and a message at its end."""

from __future__ import annotations

import hashlib
import logging
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpage.core.errors import InputError
from fedpage.core.files import put
from fedpage.core.types import StopReason
from fedpage.flower import messages
from fedpage.flower.exchange import content_of, exchange
from fedpage.flower.grid_transport import GridTransport

log = logging.getLogger("flwr")
_FILE = "token"
_BYTES = 32
_FINISH_DEADLINE = 60.0
_ENDED = (StopReason.FINISHED, StopReason.TARGET, StopReason.BUDGET, StopReason.NO_PROGRESS)
"""How a run ends that is not resumed."""


def identify_server(folder: Path, *, needs_state: bool) -> str:
    """Return a digest of the random token of a run directory, which a new run creates.

    Flower gives a resumed run a new number and tells nodes nothing about the server. So a server
    chooses a token when a run first starts. A resumed run has the same one; another server cannot
    guess it. The token is removed with the nodes' client states, at the end of the run.

    Args:
        folder: The run directory, which this process has locked.
        needs_state: Whether the run resumes with client states that nodes keep.

    Returns:
        Hexadecimal digits.

    Raises:
        InputError: The nodes have removed the client states of this run, or the file is damaged.
    """
    path = folder / _FILE
    if not path.exists():
        if needs_state:
            raise InputError(
                f"{folder}: this run is finished; give another out for a new run "
                "(its nodes have removed their client states)"
            )
        put(path, secrets.token_hex(_BYTES).encode("ascii"), private=True)
    token = path.read_bytes()
    if len(token) != 2 * _BYTES:
        raise InputError(f"{path}: not the token of a run; restore it, or give another out")
    return hashlib.sha256(token).hexdigest()[:32]


def finish_run(
    folder: Path, transport: GridTransport[Any, Any, Any, Any], reason: StopReason | None
) -> None:
    """Ask the nodes of a run that has ended to remove their client states.

    Nodes that do not answer remove them after some days. Runs that can be resumed keep them.

    Args:
        folder: The run directory.
        transport: The connection to the nodes.
        reason: How the run ended.
    """
    if reason not in _ENDED or transport.method.client_state is None:
        return
    wait = replace(transport.wait, deadline=min(_FINISH_DEADLINE, transport.wait.deadline))
    content = messages.encode_header(messages.FinishRequest(transport.run_name))
    sent = {
        client: transport.make_message(client, messages.FINISH, content, -1)
        for client, node in transport.nodes.items()
        if node.node_id
    }
    done = 0
    for client, reply in exchange(transport.grid, sent, wait).items():
        try:
            answer = messages.decode_header(content_of(reply), messages.FinishReply)
            done += answer.client == client
        except messages.ProtocolError as error:
            log.warning("fedpage: client %s keeps its state for now: %s", client, error)
    log.info("fedpage: %s of %s nodes removed their client states", done, len(sent))
    (folder / _FILE).unlink(missing_ok=True)
