"""Errors at a node: the server learns a code and a reference, the node's own log has the details.

An error's text may quote a cell, a label, a path or a row number of a node. So the ClientApp sends
none of it. It replies with `messages.Refusal`: a code of this module, which stands for a fixed
sentence, and a random reference, under which the node's log has the text and the traceback.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Sequence
from enum import StrEnum

from fedpage.core.errors import InputError
from fedpage.engine.fixed_point import RAISE_BOUND
from fedpage.flower.agreement import read_names, write_names
from fedpage.flower.messages import ProtocolError, Refusal

log = logging.getLogger("flwr")
"""Flower's log; in the process of a ClientApp it is the node's own."""
_REFERENCE_BYTES = 4
_REFERENCE = re.compile(rf"[0-9a-f]{{{2 * _REFERENCE_BYTES}}}")
_MAX_NAMES = 10
"""Names of columns of each kind that a refusal carries; further ones are left out."""
_MAX_NAME = 40
"""Characters of a name that a refusal carries."""


class Code(StrEnum):
    """What went wrong at a node, in a word that a node may send; `sentence` is what it means."""

    sentence: str

    def __new__(cls, word: str, sentence: str) -> Code:
        """Build a code of its word and its sentence."""
        code = str.__new__(cls, word)
        code._value_ = word
        code.sentence = sentence
        return code

    BAD_CONFIG = "bad-config", "a value of the run's or the node's configuration cannot be used"
    NO_DATA = "no-data", "the node's configuration names no data"
    NO_FILE = "no-file", "its data file cannot be read"
    BAD_FILE = "bad-file", "its data file is not in a format that can be used"
    COLUMNS = "columns", "its columns are not those agreed"
    NO_NAMES = "no-names", "its file has no column names, which this run needs"
    NO_LABEL = "no-label", "its file is a table, and the run config names no label column"
    NO_CLASSES = "no-classes", "its file has labels, and the run config names no classes"
    BAD_CLIENT = "bad-client", "its partition-id is not the number of a client of this run"
    NO_STATISTICS = "no-statistics", "its owner has not set share-statistics, which the run needs"
    CHANGED = "changed", "its rows are not those that were agreed; restore its file"
    BAD_CATEGORY = "bad-category", "a category in its data is not one of those agreed"
    BAD_CELL = "bad-cell", "a cell of its data is empty or not a finite number"
    BAD_LABEL = "bad-label", "a label is not one of the agreed classes"
    BAD_SIZE = "bad-size", "its data have another number of features than agreed"
    NO_METRIC = "no-metric", "its problem does not compute a metric of the run"
    EVALUATION = "evaluation", "the run asks for more of an evaluation than the node's owner allows"
    NOT_FINITE = "not-finite", "its numbers are not finite or too large"
    BOUND = "bound", f"a number of its reply is beyond the bound; {RAISE_BOUND}, or lower the steps"
    BAD_INPUT = "bad-input", "its data or its configuration cannot be used"
    PROTOCOL = "protocol", "the request is not one that the protocol allows"
    NOT_ALLOWED = "not-allowed", "the run names something that the node's owner did not allow"
    DISCLOSURE = "disclosure", "what the run asks for could reveal its rows"
    STATE_LOST = "state-lost", "it no longer has the client state of this round"
    STATE_UNSAFE = "state-unsafe", "other users of its machine can change its state directory"
    AUDIT = "audit", "its audit log cannot be written, so it sends nothing"
    MEMORY = "memory", "it ran out of memory"
    INTERNAL = "internal", "an unexpected error"


class NodeError(InputError):
    """Report an error at a node: the server learns the code, the node's log has the detail.

    Args:
        code: What went wrong.
        detail: One line for the node's own log; it may quote data and paths.
        missing: Names of agreed columns that the node's file lacks; the server learns some.
        extra: Names of columns of the file that are not agreed; the server learns some.
    """

    def __init__(
        self, code: Code, detail: str, *, missing: Sequence[str] = (), extra: Sequence[str] = ()
    ) -> None:
        super().__init__(detail)
        self.code, self.missing, self.extra = code, tuple(missing), tuple(extra)


def refuse(error: Exception, client: int = -1) -> Refusal:
    """Write an error to the node's log and return what the server may know of it.

    Args:
        error: Any exception. Errors that no input explains are logged with their traceback.
        client: The number of the node's client; -1 if it is not known.

    Returns:
        The refusal, with no text of the error.
    """
    code = code_of(error)
    reference = secrets.token_hex(_REFERENCE_BYTES)
    # An exception of somebody else's code may fail to format, and memory may have run out.
    try:
        is_unexpected = code in (Code.INTERNAL, Code.MEMORY) or error.__cause__ is not None
        trace = error if is_unexpected else None
        log.error("fedpage: refused %s (%s): %s", reference, code.value, error, exc_info=trace)
    except Exception:
        log.error("fedpage: refused %s (%s): the error cannot be shown", reference, code.value)
    names = (error.missing, error.extra) if isinstance(error, NodeError) else ((), ())
    missing, extra = (
        write_names(list(dict.fromkeys(name[:_MAX_NAME] for name in part))[:_MAX_NAMES])
        for part in names
    )
    return Refusal(code.value, reference, client, missing, extra)


def code_of(error: Exception) -> Code:
    """Return the code of any exception."""
    if isinstance(error, NodeError):
        return error.code
    if isinstance(error, ProtocolError):
        return Code.PROTOCOL
    if isinstance(error, InputError):
        return Code.BAD_INPUT
    return Code.MEMORY if isinstance(error, MemoryError) else Code.INTERNAL


class NodeRefused(ProtocolError):
    """A node refused a request. The text is one sentence with the code and the reference."""

    def __init__(self, refusal: Refusal) -> None:
        codes = {code.value: code for code in Code}
        if refusal.code not in codes or not _REFERENCE.fullmatch(refusal.reference):
            raise ProtocolError("it refused with a code or a reference that is not one")
        missing, extra = read_names(refusal.missing), read_names(refusal.extra)
        if max(len(missing), len(extra)) > _MAX_NAMES:
            raise ProtocolError("it refused more columns than a refusal may name")
        self.code, self.reference = codes[refusal.code], refusal.reference
        self.client = refusal.client
        columns = describe_columns(missing, extra)
        super().__init__(
            f"{self.code.sentence}{columns} ({self.code.value}; details in its node's log under "
            f"{self.reference})"
        )


def describe_columns(missing: Sequence[str], extra: Sequence[str]) -> str:
    """Say which columns are missing or extra at a site, by names that are cleaned and bounded.

    >>> describe_columns(["bmi"], [])
    "; missing: 'bmi'"
    """
    parts = []
    for what, names in (("missing", missing), ("extra", extra)):
        if names:
            shown = ", ".join(_clean(name) for name in names[:_MAX_NAMES])
            more = " and more" if len(names) > _MAX_NAMES else ""
            parts.append(f"; {what}: {shown}{more}")
    return "".join(parts)


def _clean(name: str) -> str:
    return repr("".join(c if c.isprintable() else "?" for c in name[:_MAX_NAME]))
