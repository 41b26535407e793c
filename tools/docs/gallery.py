"""Write the gallery: each file of examples/ with its output and its picture.

docs/gallery/NAME.txt contains what an example printed, docs/img/example-NAME.png what it drew. A
test runs every example and compares; of an example that takes `--rounds`, it runs one round, and
`make examples` runs it in full. This command writes both again:

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

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
OUTPUTS = ROOT / "docs" / "gallery"
IMAGES = ROOT / "docs" / "img"
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*\.?\d*(?:e[+-]?\d+)?")


class Example(NamedTuple):
    """Describe a file of examples/."""

    path: Path

    @property
    def name(self) -> str:
        """The name of the file without its suffix."""
        return self.path.stem

    @property
    def about(self) -> str:
        """The docstring of the file."""
        return ast.get_docstring(ast.parse(self.path.read_text(encoding="utf-8"))) or ""

    @property
    def output(self) -> Path:
        """The file that contains what the example printed."""
        return OUTPUTS / f"{self.name}.txt"

    @property
    def image(self) -> Path:
        """The file that contains what the example drew, if it draws."""
        return IMAGES / f"example-{self.name}.png"

    @property
    def is_long(self) -> bool:
        """Whether the example takes `--rounds`, because a full run is too long for a test."""
        return '"--rounds"' in self.path.read_text(encoding="utf-8")

    @property
    def imports(self) -> set[str]:
        """The packages that the file imports."""
        nodes = list(ast.walk(ast.parse(self.path.read_text(encoding="utf-8"))))
        names = [
            alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
        ]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        return {name.partition(".")[0] for name in names}


def find_examples() -> list[Example]:
    """Return every example, the quickstart first."""
    paths = sorted(
        (ROOT / "examples").glob("*.py"), key=lambda path: (path.stem != "quickstart", path.stem)
    )
    return [Example(path) for path in paths]


def run(example: Example, *arguments: str) -> str:
    """Run an example in the current directory and return what it prints."""
    output = io.StringIO()
    before = sys.argv
    sys.argv = [str(example.path), *arguments]
    try:
        with contextlib.redirect_stdout(output):
            runpy.run_path(str(example.path), run_name="__main__")
    finally:
        sys.argv = before
    return output.getvalue()


def is_similar(first: str, second: str, tolerance: float = 0.02) -> bool:
    """Compare two outputs: the words must be equal, the numbers nearly so.

    Args:
        first: An output.
        second: Another output.
        tolerance: The largest relative difference between two numbers.

    >>> is_similar("loss 0.1813, 500 rounds", "loss 0.1814, 500 rounds")
    True
    >>> is_similar("loss 0.18", "loss 0.28")
    False
    """
    if _NUMBER.sub("#", first).split() != _NUMBER.sub("#", second).split():
        return False
    pairs = zip(_NUMBER.findall(first), _NUMBER.findall(second), strict=True)
    return all(
        math.isclose(_value(a), _value(b), rel_tol=tolerance, abs_tol=1e-12) for a, b in pairs
    )


def _value(text: str) -> float:
    return float(text.replace(",", ""))


def page() -> str:
    """Return the Markdown of the gallery."""
    parts = [
        "# Gallery\n\nThis page shows every file of `examples/` with its output. "
        "Tests run each file and compare the output.\n"
    ]
    for example in find_examples():
        heading, _, rest = example.about.partition("\n\n")
        parts.append(f"## {example.name} {{ #{example.name} }}\n\n{heading}\n\n{rest}\n")
        parts.append(f"```sh\npython examples/{example.path.name}\n```\n")
        if example.output.exists():
            parts.append(f"```text\n{example.output.read_text(encoding='utf-8').rstrip()}\n```\n")
        if example.image.exists():
            parts.append(f"![The plot of {example.path.name}](img/{example.image.name})\n")
        code = example.path.read_text(encoding="utf-8").rstrip()
        parts.append(f'```python title="examples/{example.path.name}"\n{code}\n```\n')
    for readme in sorted((ROOT / "examples").glob("*/README.md")):
        text = readme.read_text(encoding="utf-8").replace("](../../docs/", "](")
        parts.append(
            re.sub(r"^# .*$", f"## {readme.parent.name}", text, count=1, flags=re.MULTILINE)
        )
    return "\n".join(parts)


def record(names: list[str]) -> None:
    """Run the named examples, or all, and write what they print and draw to docs/."""
    for example in find_examples():
        if example.name in names or not names:
            with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
                OUTPUTS.mkdir(exist_ok=True)
                example.output.write_text(run(example), encoding="utf-8")
                for picture in Path(scratch).glob("*.png"):
                    with Image.open(picture) as drawn:  # 64 colours take a quarter of the bytes
                        drawn.convert("RGB").quantize(64).save(example.image, optimize=True)
            print(example.output.relative_to(ROOT))


def table_of(output: str) -> list[str]:
    """Return the lines up to the first empty one: what follows is text that a model wrote."""
    return output.partition("\n\n")[0].splitlines()


def check_long() -> None:
    """Run the long examples in full and compare their tables with the gallery."""
    for example in filter(lambda each: each.is_long, find_examples()):
        with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
            own, shown = run(example), example.output.read_text(encoding="utf-8")
        same = zip(table_of(own), table_of(shown), strict=True)
        if not all(is_similar(first, second, tolerance=0.25) for first, second in same):
            sys.exit(f"{example.name} prints another table than the gallery:\n{own}")
        print(f"{example.name}: as in the gallery")


if __name__ == "__main__":
    check_long() if sys.argv[1:] == ["--check"] else record(sys.argv[1:])
