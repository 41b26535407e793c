"""Copy code from the source into pages, so that it cannot go stale.

A page asks for code in a comment, which GitHub does not show. A pair of comments

    <!-- beside: fedpage.core.local_steps.local_page -->
    the mathematics
    <!-- end -->

puts the enclosed text to the left of the function's source when the site is built. A single comment

    <!-- code: examples/own_method.py -->

stands before a block with a file, a class or a function. The page in docs/ has this block too, so
that it can be read without the site: `tables.py` writes it, and building the site fails if it
differs from the source. Several names are separated by spaces.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BESIDE = re.compile(
    r"^<!-- beside: (.*?) -->\n(.*?)^<!-- end -->$", flags=re.DOTALL | re.MULTILINE
)
_CODE = re.compile(
    r"^<!-- code: ([^\n]*?) -->\n(?:\n(```python title=.*?^```\n))?",
    flags=re.DOTALL | re.MULTILINE,
)


def include(markdown: str) -> str:
    """Return a page's Markdown with the code that it asks for.

    Raises:
        ValueError: A block of code in the page differs from the source.
    """
    if markdown != write_code(markdown):
        raise ValueError("code of a page is out of date: run python tools/docs/tables.py")
    markdown = _BESIDE.sub(lambda match: _columns(match[2], fence(match[1])), markdown)
    return _CODE.sub(lambda match: match[2], markdown)


def write_code(markdown: str) -> str:
    """Return a page's Markdown with the present source after each comment `code`."""
    return _CODE.sub(lambda match: f"<!-- code: {match[1]} -->\n\n{fence(match[1])}\n", markdown)


def names_in(markdown: str) -> list[str]:
    """Return the names of the code that a page asks for."""
    asked = re.findall(r"^<!-- (?:beside|code): (.*?) -->$", markdown, flags=re.MULTILINE)
    return [name for names in asked for name in names.split()]


def fence(names: str) -> str:
    """Return the source of the named objects, one block of code for each file."""
    blocks: dict[str, list[str]] = {}
    for name in names.split():
        path, text = source(name)
        blocks.setdefault(path, []).append(text.strip("\n"))
    return "\n\n".join(
        f'```python title="{path}"\n' + "\n\n".join(texts) + "\n```"
        for path, texts in blocks.items()
    )


def source(name: str) -> tuple[str, str]:
    """Return the path and the source of `examples/file.py` or of `fedpage.module.Class.method`."""
    if name.endswith(".py"):
        return name, (ROOT / name).read_text(encoding="utf-8")
    value = resolve(name)
    if not (inspect.ismodule(value) or inspect.isclass(value) or inspect.isfunction(value)):
        raise TypeError(f"{name} has no source: it is a {type(value).__name__}")
    lines, _ = inspect.getsourcelines(value)
    path = Path(inspect.getsourcefile(value) or "").resolve().relative_to(ROOT)
    return path.as_posix(), textwrap.dedent("".join(lines))


def resolve(name: str) -> object:
    """Return the module, class or function of a dotted name.

    Raises:
        LookupError: No module of that name can be imported.
    """
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            value = getattr(value, part)
        value = getattr(value, "fget", value)  # the function of a property
        return getattr(value, "__func__", value)  # the function of a class method
    raise LookupError(f"{name}: there is no such module, class or function")


def _columns(text: str, code: str) -> str:
    return (
        f'<div class="beside" markdown>\n<div markdown>\n\n{text.strip()}\n\n</div>\n'
        f"<div markdown>\n\n{code}\n\n</div>\n</div>"
    )
