"""Write the parts of the documentation that follow from registries.

    python tools/docs/tables.py

These are the table of docs/methods.md, the methods in the navigation of mkdocs.yml, and the list of
docs/mistakes.md, and the code that pages show after a comment `code` (see `sources.py`). A test
fails while one of them is out of date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import fill

import sources

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [path for path in (str(ROOT / "tests"),) if path not in sys.path]

PUBLIC = "public: "
"""How the names of mutants begin that are mistakes of public code."""


def methods_table() -> str:
    """Return the table of methods, as `fedpage methods --markdown` prints it."""
    from fedpage.report.methods import markdown

    return f"\n{markdown()}\n"


def navigation() -> str:
    """Return the entries of the methods' pages, by group; pages of no method come last."""
    from fedpage.report.methods import by_group

    lines, pages = [], {path.stem for path in (ROOT / "docs" / "methods").glob("*.md")}
    for title, entries in by_group().items():
        names = [entry.page for entry in entries.values() if entry.page in pages]
        pages -= set(names)
        lines += [f"      - {title}:"] if names else []
        lines += [f"          - {_title(name)}: methods/{name}.md" for name in dict.fromkeys(names)]
    lines += [f"      - {_title(name)}: methods/{name}.md" for name in sorted(pages)]
    return "".join(f"{line}\n" for line in lines)


def _title(page: str) -> str:
    text = (ROOT / "docs" / "methods" / f"{page}.md").read_text(encoding="utf-8")
    title = text.splitlines()[0].removeprefix("# ").strip()
    return f'"{title}"' if ":" in title else title


def mistakes() -> dict[str, list[str]]:
    """Return the mistakes of public code that are mutants, by the file they are put into."""
    from mutants import MUTANTS

    found: dict[str, list[str]] = {}
    for mutant in MUTANTS:
        if mutant.name.startswith(PUBLIC):
            found.setdefault(mutant.file, []).append(mutant.name.removeprefix(PUBLIC))
    return dict(sorted(found.items()))


def mistakes_list() -> str:
    """Return the list of docs/mistakes.md: a heading for each subject, a line for each mistake."""
    subjects: dict[str, list[str]] = {}
    for file, names in mistakes().items():
        subjects.setdefault(_subject(file), []).extend(names)
    parts = []
    for subject, names in subjects.items():
        lines = [fill(f"- {_sentence(name)}.", 100, subsequent_indent="  ") for name in names]
        parts.append("\n".join([f"### {subject}", "", *lines]))
    return "".join(f"\n{part}\n" for part in parts) + "\n"


def _sentence(name: str) -> str:
    """Begin with a capital, but not in the name of a project."""
    return name[0].upper() + name[1:] if name.startswith(("a ", "an ", "the ")) else name


def _subject(file: str) -> str:
    """Return the names of the methods in a file, with a link to their page, or the file."""
    from fedpage.methods import METHODS

    if file.startswith("codecs/"):
        return "[Codecs](codecs.md)"
    if file.endswith(("steps.py", "from_theory.py")):
        return "Step sizes of theorems"
    module = "fedpage." + file.removesuffix(".py").replace("/", ".")
    entries = [e for e in METHODS.values() if e.cls.__module__ == module and not e.preset]
    names = list(dict.fromkeys(entry.label for entry in entries))
    if not names or not (ROOT / "docs" / "methods" / f"{entries[0].page}.md").exists():
        return f"`{file}`"
    return f"[{', '.join(names)}](methods/{entries[0].page}.md)"


class Part:
    """A generated part of a file, between two lines with markers.

    Args:
        file: The file.
        name: The part's name in its markers.
        make: Returns its text.
        comment: What a marker begins and ends with.
    """

    def __init__(
        self,
        file: str,
        name: str,
        make: Callable[[], str],
        comment: tuple[str, str] = ("<!-- ", " -->"),
    ) -> None:
        self.path, self.make = ROOT / file, make
        left, right = comment
        first, last = f"{left}{name}: generated{right}\n", f"{left}end of {name}{right}\n"
        self._pattern = re.compile(
            f"({re.escape(first)})(.*?)([ ]*{re.escape(last)})", flags=re.DOTALL
        )

    def read(self) -> str:
        """Return the part as it is in the file.

        Raises:
            LookupError: The file does not have the markers.
        """
        found = self._pattern.search(self.path.read_text(encoding="utf-8"))
        if found is None:
            raise LookupError(f"{self.path}: the markers are missing")
        return found[2]

    def write(self) -> bool:
        """Write the part; return whether it has changed."""
        old, new = self.read(), self.make()
        if old != new:
            text = self.path.read_text(encoding="utf-8")
            text = self._pattern.sub(lambda found: found[1] + new + found[3], text)
            self.path.write_text(text, encoding="utf-8")
        return old != new


PARTS = {
    "methods": Part("docs/methods.md", "methods", methods_table),
    "navigation": Part("mkdocs.yml", "methods", navigation, ("      # ", "")),
    "mistakes": Part("docs/mistakes.md", "mistakes", mistakes_list),
}


def main() -> None:
    """Write all parts and print what has changed."""
    for part in PARTS.values():
        changed = "written" if part.write() else "up to date"
        print(f"{part.path.relative_to(ROOT)}: {changed}")
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if text != sources.write_code(text):
            path.write_text(sources.write_code(text), encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: written")


if __name__ == "__main__":
    main()
