"""What mkdocs does beyond its configuration: pages from the source, code beside mathematics, formulas as MathML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gallery
import mathematics
import reference
import sources
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
OPTIONAL = ("benchmarks.md", "torch.md")
"""Pages that the navigation shows as soon as they are there."""
OUTSIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "index.md",
}
"""Where links that lead out of docs/ on GitHub lead to on the site."""


def on_config(config: Any) -> Any:
    """Leave out of the navigation what is not there yet."""
    config.nav = _present(config.nav, Path(config.docs_dir))
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made of the source."""
    made = {"gallery.md": gallery.page(), **reference.pages()}
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        made[OUTSIDE[name]] = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put code where a page asks for it, and turn links to files outside docs/ inwards."""
    if page.file.src_uri.startswith("methods/"):
        page.meta["hide"] = ["toc"]  # room for code beside the mathematics
    up = "../" * page.file.src_uri.count("/")
    return _inwards(sources.included(markdown), up)


def on_page_content(html: str, **_: Any) -> str:
    """Formulas, and tables that may be wider than a telephone."""
    return mathematics.rendered(html)


def _inwards(markdown: str, up: str) -> str:
    for there, here in OUTSIDE.items():
        markdown = re.sub(
            rf"\]\((?:\.\./)+{re.escape(there)}(#[^)]*)?\)", rf"]({up}{here}\1)", markdown
        )
    markdown = re.sub(
        r"\[([^\]]+)\]\((?:\.\./)+src/[^)]*\)", r"\1", markdown
    )  # the site has no copy of the source
    return re.sub(r"\]\((?:\.\./)+examples/(\w+)\.py\)", rf"]({up}gallery.md#\1)", markdown)


def _present(nav: list[Any], docs: Path) -> list[Any]:
    kept: list[Any] = []
    for entry in nav:
        title, target = next(iter(entry.items())) if isinstance(entry, dict) else (None, entry)
        if isinstance(target, list):
            kept.append({title: _present(target, docs)})
        elif target not in OPTIONAL or (docs / target).exists():
            kept.append(entry)
    return kept
