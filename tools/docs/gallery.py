"""The gallery: each file in examples/ with what it prints and draws.

What an example printed is kept in docs/gallery/NAME.txt, what it drew in docs/img/example-NAME.png. A test runs every
example and compares. To write both down again:

    python tools/docs/gallery.py quickstart
"""

from __future__ import annotations

import ast
import contextlib
import io
import math
import re
import runpy
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
OUTPUTS = ROOT / "docs" / "gallery"
IMAGES = ROOT / "docs" / "img"
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*\.?\d*(?:e[+-]?\d+)?")


class Example(NamedTuple):
    """One file of examples/."""

    path: Path

    @property
    def name(self) -> str:
        """The file's, without its ending."""
        return self.path.stem

    @property
    def about(self) -> str:
        """Its docstring."""
        return ast.get_docstring(ast.parse(self.path.read_text(encoding="utf-8"))) or ""

    @property
    def output(self) -> Path:
        """Where what it printed is kept."""
        return OUTPUTS / f"{self.name}.txt"

    @property
    def image(self) -> Path:
        """Where what it drew is kept, if it draws."""
        return IMAGES / f"example-{self.name}.png"

    @property
    def imports(self) -> set[str]:
        """Packages that it imports, anywhere in the file."""
        nodes = list(ast.walk(ast.parse(self.path.read_text(encoding="utf-8"))))
        names = [
            alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
        ]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        return {name.partition(".")[0] for name in names}


def everything() -> list[Example]:
    """Every example, the quickstart first."""
    paths = sorted(
        (ROOT / "examples").glob("*.py"), key=lambda path: (path.stem != "quickstart", path.stem)
    )
    return [Example(path) for path in paths]


def run(example: Example) -> str:
    """What an example prints; it is run in the current directory."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        runpy.run_path(str(example.path), run_name="__main__")
    return said.getvalue()


def alike(one: str, other: str, within: float = 0.02) -> bool:
    """Whether two outputs say the same: the same words, and numbers that differ by little.

    >>> alike("loss 0.1813, 500 rounds", "loss 0.1814, 500 rounds"), alike("loss 0.18", "loss 0.28")
    (True, False)
    """
    if _NUMBER.sub("#", one).split() != _NUMBER.sub("#", other).split():
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(math.isclose(_value(a), _value(b), rel_tol=within, abs_tol=1e-12) for a, b in pairs)


def _value(text: str) -> float:
    return float(text.replace(",", ""))


def page() -> str:
    """The gallery as Markdown."""
    parts = [
        "# Gallery\n\nEvery file in `examples/`, as it is, with what it printed. A test runs each and compares.\n"
    ]
    for example in everything():
        heading, _, rest = example.about.partition("\n\n")
        parts.append(f"## {example.name} {{ #{example.name} }}\n\n{heading}\n\n{rest}\n")
        parts.append(f"```\npython examples/{example.path.name}\n```\n")
        if example.output.exists():
            parts.append(f"```text\n{example.output.read_text(encoding='utf-8').rstrip()}\n```\n")
        if example.image.exists():
            parts.append(f"![What {example.path.name} draws](img/{example.image.name})\n")
        code = example.path.read_text(encoding="utf-8").rstrip()
        parts.append(f'```python title="examples/{example.path.name}"\n{code}\n```\n')
    for readme in sorted((ROOT / "examples").glob("*/README.md")):
        text = readme.read_text(encoding="utf-8").replace("](../../docs/", "](")
        parts.append(
            re.sub(r"^# .*$", f"## {readme.parent.name}", text, count=1, flags=re.MULTILINE)
        )
    return "\n".join(parts)


def record(names: list[str]) -> None:
    """Run examples and write down what they print and draw."""
    for example in everything():
        if example.name in names or not names:
            with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
                OUTPUTS.mkdir(exist_ok=True)
                example.output.write_text(run(example), encoding="utf-8")
                for picture in Path(scratch).glob("*.png"):
                    example.image.write_bytes(picture.read_bytes())
            print(example.output.relative_to(ROOT))


if __name__ == "__main__":
    record(sys.argv[1:])
