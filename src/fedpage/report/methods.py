"""Describe methods: their messages, the state of clients, and their assumptions.

Everything is derived from the registry, the declared messages and the docstrings. `fedpage methods`
and the table of docs/methods.md show it.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields
from typing import Any, NamedTuple, get_args

import numpy as np

from fedpage.codecs.message_codec import Compressible
from fedpage.core.errors import InputError
from fedpage.core.messages import field_names, layout_of
from fedpage.methods.registry import GROUPS, METHODS, MethodEntry
from fedpage.methods.schedules import Constant, Schedule
from fedpage.runs.config import field_types

_PROBES = ("randk:1", "topk:1")
"""One codec is unbiased, the other contractive; a method is tried with both."""
_EXAMPLES = {"any": "natural", "unbiased": "natural or randk:0.1", "contractive": "topk:0.1"}
"""A codec of each class."""


class Exchange(NamedTuple):
    """A message and the reply to it.

    Attributes:
        message: The type of the message.
        down: The names of the fields that a called client receives, such as "x, c".
        up: The names of the fields that it sends.
        vectors: Vectors down and up, such as "2/1"; a triangle is as long as (d+1)/2 of them.
        compressed: The fields of the reply that pass through the codec `up`.
    """

    message: type
    down: str
    up: str
    vectors: str
    compressed: tuple[str, ...]


def _count_fields(type_: type) -> tuple[str, str]:
    """Return the fields of a NamedTuple, vectors first, and their size in vectors."""
    sizes = layout_of(type_, 2, np.dtype(np.float64)).sizes
    vector, number, triangle = 2, 1, 3  # their lengths in two dimensions
    each = list(zip(field_names(type_), sizes, strict=True))
    names = [name for kind in (vector, number, triangle) for name, size in each if size == kind]
    return ", ".join(names), f"{sizes.count(vector)}{' + (d+1)/2' * sizes.count(triangle)}"


def exchanges(entry: MethodEntry, *, every: bool = False) -> list[Exchange]:
    """List what a method exchanges with its clients.

    Args:
        entry: The method.
        every: Include messages that are sent only where called clients fail to answer.
    """
    rare = () if every else getattr(entry.cls, "fallback_messages", ())
    compressible: Compressible = {}
    if has_codec(entry, "up"):
        compressible = getattr(entry(), "compressible", {})
    found = []
    for message, reply in entry.cls.messages.items():  # type: ignore[attr-defined]
        if message not in rare:
            (down, received), (up, sent) = _count_fields(message), _count_fields(reply)
            compressed = tuple(compressible.get(message, ()))
            found.append(Exchange(message, down, up, f"{received}/{sent}", compressed))
    return found


def traffic(entry: MethodEntry) -> str:
    """Return the vectors down and up of each message, such as "1/1, 2/1"."""
    return ", ".join(dict.fromkeys(each.vectors for each in exchanges(entry)))


def has_codec(entry: MethodEntry, field: str) -> bool:
    """Return whether a method takes a codec as `up` or `down`."""
    names = {each.name for each in fields(entry.cls)}
    return field in names and field not in entry.preset


def codecs_of(entry: MethodEntry) -> str:
    """Say which codecs a method takes for its replies: "any", "unbiased", ... or "-"."""
    if not has_codec(entry, "up"):
        return "-"
    unbiased, contractive = (_accepts(entry, codec) for codec in _PROBES)
    if unbiased:
        return "any" if contractive else "unbiased"
    return "contractive" if contractive else "casts"


def _accepts(entry: MethodEntry, codec: str) -> bool:
    try:
        entry(up=codec)
    except InputError:
        return False
    return True


def kept(entry: MethodEntry) -> str:
    """Return the vectors that a client keeps between rounds, such as "delta, y", or "-"."""
    state = entry.cls.client_state
    return "-" if state is None else _count_fields(state)[0]  # type: ignore[arg-type]


def first_sentence(documented: type | None) -> str:
    """Return the first sentence of a docstring, without its full stop; "" if there is none."""
    text = " ".join((inspect.getdoc(documented) or "").split("\n\n")[0].split())
    return re.split(r"\.(?:\s|$)", text)[0]


def explain_fields(entry: MethodEntry) -> dict[str, str]:
    """Return what each hyper-parameter means, from the docstrings of the class and its bases."""
    found: dict[str, str] = {}
    for cls in entry.cls.__mro__:
        arguments = (inspect.getdoc(cls) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
        for name, text in re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", arguments, re.MULTILINE):
            found.setdefault(name, " ".join(text.split()))
    return found


def purpose(entry: MethodEntry) -> str:
    """Return the docstring of a method without its arguments."""
    return (inspect.getdoc(entry.cls) or "").partition("\nArgs:\n")[0].strip()


def defaults(entry: MethodEntry) -> dict[str, str]:
    """Return the defaults of the hyper-parameters that can be set, as words."""
    words = {
        name: f"{value:g}" if isinstance(value, float) else str(value)
        for name, value in entry.hyper_parameters.items()
    }
    unset = {each.name for each in fields(entry.cls) if each.default is MISSING}
    return words | dict.fromkeys(unset & set(words), "required")


def scheduled(entry: MethodEntry) -> list[str]:
    """List the step sizes that may be schedules."""
    found = []
    for name, kind in field_types(entry.cls).items():
        if Schedule in get_args(kind) and name not in entry.preset:
            default = entry.hyper_parameters[name]
            try:
                entry(**{name: Constant(0.01 if default is None else default)})
            except InputError:
                continue
            found.append(name)
    return found


def describe(name: str, entry: MethodEntry) -> dict[str, Any]:
    """Return what the list of methods says of a method, for `--json`."""
    return {
        "name": name,
        "label": entry.label,
        "group": entry.group,
        "traffic": traffic(entry),
        "keeps": kept(entry),
        "codecs": codecs_of(entry),
        "assumes": entry.assumes,
        "paper": entry.cls.paper,
        "purpose": purpose(entry),
        "defaults": defaults(entry),
    }


def sections(entry: MethodEntry) -> dict[str, list[tuple[str, ...]]]:
    """Explain a method: hyper-parameters, messages, client state and codecs, as rows by title."""
    found: dict[str, list[tuple[str, ...]]] = {}
    meanings = explain_fields(entry)
    values = [(name, value, meanings.get(name, "")) for name, value in defaults(entry).items()]
    if values:
        found["Hyper-parameters, and their defaults"] = list(values)
    if entry.preset:
        fixed = ", ".join(f"{name} = {value}" for name, value in entry.preset.items())
        found[f"Fixed by this name: {fixed}."] = []
    sizes = scheduled(entry)
    if sizes:
        found[f"{' and '.join(sizes)} may follow a schedule, such as cosine:0.1:200."] = []
    usual = {each.message for each in exchanges(entry)}
    messages = found["Messages: vectors down/up, fields sent → sent back"] = []
    for each in exchanges(entry, every=True):
        rare = "" if each.message in usual else " (only if clients fail to answer)"
        sent = f"{each.down} → {each.up}"
        messages.append((each.vectors, sent, first_sentence(each.message) + rare))
    state = entry.cls.client_state
    stored = "Nothing." if state is None else f"{first_sentence(state)}."  # type: ignore[arg-type]
    found["A client keeps"] = [(stored,)]
    if has_codec(entry, "up"):
        passing = {name for each in exchanges(entry, every=True) for name in each.compressed}
        kind, which = codecs_of(entry), "casts such as float32"
        if kind != "casts":
            which = f"{kind} codecs, such as {_EXAMPLES[kind]}, and {which},"
        found["Codecs"] = [(f"--up takes {which} for {', '.join(sorted(passing)) or 'replies'}.",)]
    return found


def by_group() -> dict[str, dict[str, MethodEntry]]:
    """Return the registered methods by the title of their group, in the order of `GROUPS`."""
    groups = {
        title: {name: entry for name, entry in METHODS.items() if entry.group == group}
        for group, title in GROUPS.items()
    }
    return {title: entries for title, entries in groups.items() if entries}


def markdown() -> str:
    """Write the table of the documentation: a heading and a table for each group."""
    headings = ("method", "paper", "sent → sent back", "clients keep", "codecs", "assumes")
    parts = []
    for title, entries in by_group().items():
        lines = [f"### {title}", "", f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
        for name, entry in entries.items():
            if not entry.preset:
                presets = [other for other, e in entries.items() if e.preset and e.cls is entry.cls]
                cells = _describe_row([name, *presets], entry)
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _describe_row(names: list[str], entry: MethodEntry) -> tuple[str, ...]:
    pairs = {(each.down, each.up): each.vectors for each in exchanges(entry)}
    sent = "; ".join(
        f"`{down or 'nothing'}` → `{up or 'nothing'}` ({vectors})"
        for (down, up), vectors in pairs.items()
    )
    keeps = "nothing"
    if entry.cls.client_state is not None:
        keeps = first_sentence(entry.cls.client_state)  # type: ignore[arg-type]
        word = keeps.split(" ")[0]
        if word.isalpha() and not word.isupper():  # no symbol such as Delta_i
            keeps = keeps[0].lower() + keeps[1:]
    words = ", ".join(f"`{name}`" for name in names)
    link = f"[{entry.label}](methods/{entry.page}.md) {words}"
    return (link, entry.cls.paper, sent, keeps, codecs_of(entry), entry.assumes or "-")
