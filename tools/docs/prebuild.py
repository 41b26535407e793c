"""Write the documentation as a tree of plain Markdown, which a site generator then builds.

    python tools/docs/prebuild.py build/docs

The tree holds everything in docs/, and what is generated from the source:

- code from the package and from examples/ replaces the comments that ask for it (`sources.py`);
- formulas become MathML, so that no script and no font is needed to read them (`mathematics.py`);
- the gallery, the API reference, CONTRIBUTING.md and CHANGELOG.md become pages;
- links that lead out of docs/ on GitHub lead to the page that shows the same file.

The generator needs no plugin of ours: mkdocs.yml names the written tree as `docs_dir`.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import gallery
import mathematics
import reference
import sources

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES_OF_FILES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "index.md",
}
"""The page of the site that stands for a file outside docs/."""
WIDE_PAGES = ("methods/", "methods.md")
"""Pages without a table of contents, to leave width for tables and code beside mathematics."""


def write(folder: Path) -> list[Path]:
    """Write the tree, replacing what an earlier call wrote.

    Args:
        folder: The directory to write to. It is emptied first.

    Returns:
        The Markdown files that were written.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns("gallery", "*.md"))
    written = []
    for name, text in {**_own_pages(), **_generated_pages()}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(convert(name, text), encoding="utf-8")
        written.append(path)
    return written


def convert(name: str, markdown: str) -> str:
    """Return a page's Markdown with its code, its formulas and its links for the site."""
    markdown = mathematics.render(sources.include(markdown))
    markdown = _redirect_links(markdown, "../" * name.count("/"))
    if name.startswith(WIDE_PAGES):
        markdown = f"---\nhide: [toc]\n---\n\n{markdown}"
    return markdown


def _own_pages() -> dict[str, str]:
    return {
        path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(DOCS.rglob("*.md"))
    }


def _generated_pages() -> dict[str, str]:
    pages = {"gallery.md": gallery.page(), **reference.pages()}
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        pages[PAGES_OF_FILES[name]] = text.replace("](docs/", "](")
    return pages


def _redirect_links(markdown: str, up: str) -> str:
    for file, page in PAGES_OF_FILES.items():
        pattern = rf"\]\((?:\.\./)+{re.escape(file)}(#[^)]*)?\)"
        markdown = re.sub(pattern, rf"]({up}{page}\1)", markdown)
    # The site has no copy of the source, so a link to it becomes its text.
    markdown = re.sub(r"\[([^\]]+)\]\((?:\.\./)+src/[^)]*\)", r"\1", markdown)
    return re.sub(r"\]\((?:\.\./)+examples/(\w+)\.py\)", rf"]({up}gallery.md#\1)", markdown)


if __name__ == "__main__":
    print(f"{len(write(Path(sys.argv[1])))} pages in {sys.argv[1]}")
