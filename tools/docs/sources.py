"""Copy code from the source into pages when the site is built, so that it cannot go stale.

A page asks for code in a comment, which GitHub does not show. A pair of comments

    <!-- beside: fedpage.core.local_steps.local_page -->
    the mathematics
    <!-- end -->

puts the enclosed text to the left of the function's source. A single comment

    <!-- code: examples/own_method.py -->

is replaced by a file, or by a class or function. Several names are separated by spaces.
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
_CODE = re.compile(r"^<!-- code: (.*?) -->$", flags=re.MULTILINE)


def include(markdown: str) -> str:
    """Return a page's Markdown with the code that it asks for."""
    markdown = _BESIDE.sub(lambda match: _columns(match[2], fence(match[1])), markdown)
    return _CODE.sub(lambda match: fence(match[1]), markdown)


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
