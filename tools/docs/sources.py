"""Code that pages show is taken from the source when the site is built, so that it cannot go stale.

A page asks for it in comments, which GitHub does not show:

    <!-- beside: fedpage.core.local_steps.local_page -->
    the mathematics
    <!-- end -->

puts the text to the left and the function's source to the right of it, and

    <!-- code: examples/own_method.py -->

puts a file, or a thing of a module, in its place. Several things are separated by spaces.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_BESIDE = re.compile(
    r"^<!-- beside: (.*?) -->\n(.*?)^<!-- end -->$", flags=re.DOTALL | re.MULTILINE
)
_CODE = re.compile(r"^<!-- code: (.*?) -->$", flags=re.MULTILINE)


def included(markdown: str) -> str:
    """A page's Markdown with the code that it asks for."""
    markdown = _BESIDE.sub(lambda match: _beside(match[2], fenced(match[1])), markdown)
    return _CODE.sub(lambda match: fenced(match[1]), markdown)


def wanted(markdown: str) -> list[str]:
    """What a page asks for."""
    asked = re.findall(r"^<!-- (?:beside|code): (.*?) -->$", markdown, flags=re.MULTILINE)
    return [name for names in asked for name in names.split()]


def fenced(names: str) -> str:
    """The source of things, each file's in one block under its name."""
    blocks: dict[str, list[str]] = {}
    for name in names.split():
        path, text = source(name)
        blocks.setdefault(path, []).append(text.strip("\n"))
    return "\n\n".join(
        f'```python title="{path}"\n' + "\n\n".join(texts) + "\n```"
        for path, texts in blocks.items()
    )


def source(name: str) -> tuple[str, str]:
    """The file that a thing is in, and its text: `examples/file.py`, or `fedpage.module.Class.method`."""
    if name.endswith(".py"):
        return name, (ROOT / name).read_text(encoding="utf-8")
    thing = found(name)
    lines, _ = inspect.getsourcelines(thing)
    path = Path(inspect.getsourcefile(thing) or "").resolve().relative_to(ROOT)
    return path.as_posix(), textwrap.dedent("".join(lines))


def found(name: str) -> Any:
    """The thing of a dotted name."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            thing = getattr(thing, part)
        return getattr(thing, "fget", thing)
    raise LookupError(f"{name}: no such thing")


def _beside(text: str, code: str) -> str:
    return (
        f'<div class="beside" markdown>\n<div markdown>\n\n{text.strip()}\n\n</div>\n'
        f"<div markdown>\n\n{code}\n\n</div>\n</div>"
    )
