"""Add seeds and methods to a study file, whose comments and layout stay."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fedpage.core.errors import InputError
from fedpage.core.files import put
from fedpage.core.spec import number
from fedpage.runs import toml
from fedpage.runs.build import split_settings
from fedpage.studies.grid import parse_study
from fedpage.studies.study import Study


def extend_file(file: Path, seeds: int, methods: Sequence[str], store: Path) -> None:
    """Add seeds and methods to a study file.

    Args:
        file: The study file. It is written only if the longer study can be read.
        seeds: How many seeds to add.
        methods: Methods such as "fedprox:S=20".
        store: The directory of the runs.

    Raises:
        InputError: The file, or what is added, cannot be used.
    """
    study = Study.load(file, store=store)
    text = file.read_text(encoding="utf-8")
    if seeds:
        text = _add_seeds(text, study.config.seeds, seeds)
    for words in methods:
        text = _add_method(text, words, study)
    where = str(file)
    try:
        config = parse_study(file, toml.loads(text, where))
        extended = Study.of(config, store=store, where=where)
    except InputError as error:
        raise InputError(f"nothing was added: {str(error).removeprefix(f'{where}, ')}") from None
    if len(extended.config.seed_list) != len(study.config.seed_list) + seeds:
        raise InputError(f"{file}: cannot find its seeds; edit the file by hand")
    put(file, text.encode("utf-8"))


def _add_seeds(text: str, old: int | list[int], more: int) -> str:
    """Change the line of the seeds in a study file, or add one before its first table."""
    if isinstance(old, int):
        new = str(old + more)
    else:
        new = str([*old, *range(max(old) + 1, max(old) + 1 + more)])
    head = re.search(r"^\s*\[", text, re.MULTILINE)
    end = len(text) if head is None else head.start()
    changed, count = re.subn(
        r"^(\s*seeds\s*=\s*)(\d+|\[[^\]]*\])", rf"\g<1>{new}", text[:end], count=1,
        flags=re.MULTILINE,
    )  # fmt: skip
    return (changed if count else f"seeds = {new}\n{text[:end]}") + text[end:]


def _add_method(text: str, words: str, study: Study) -> str:
    """Append the table of a method, such as "fedprox:S=20", to a study file."""
    name, settings = split_settings(words)
    label, count = name, 1
    while label in study.config.methods or f"[methods.{label}]" in text:
        count += 1
        label = f"{name}-{count}"
    table: dict[str, object] = {} if label == name else {"method": name}
    for key, value in settings.items():
        parsed = number(value)
        table[key] = value if parsed is None else parsed
    return text.rstrip() + "\n\n" + toml.dumps({"methods": {label: table}})
