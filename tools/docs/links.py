"""Check the links of the built site and of the Markdown files as GitHub shows them.

    python tools/docs/links.py site

The check also fails if a page of the site loads something from another host. Links to other hosts
are listed and not opened.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

ROOT = Path(__file__).resolve().parents[2]
LOADED = {
    "script": ("src",), "img": ("src", "srcset"), "iframe": ("src",), "source": ("src", "srcset"),
    "video": ("src",), "audio": ("src",), "embed": ("src",), "object": ("data",),
    "image": ("href",), "use": ("href",), "track": ("src",),
}  # fmt: skip
"""Attributes whose targets a browser fetches. Style sheets, icons and fonts are <link> elements."""
PASSIVE = {"canonical", "alternate", "next", "prev", "author", "license"}
"""Relations of <link> whose targets a browser does not fetch."""


class Page(HTMLParser):
    """Collect the links, the loaded resources and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = {"", "top"}
        self._style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the links and the anchor of an element."""
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(
            values[name] for name in ("id", "name") if name in values and tag != "meta"
        )
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and not set(values.get("rel", "").split()) & PASSIVE:
            self.loads.append(values.get("href", ""))
        self.loads += [values[name] for name in LOADED.get(tag, ()) if name in values]
        self.loads += urls_of(values.get("style", ""))
        self._style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        """Leave a style sheet within the page."""
        self._style = self._style and tag != "style"

    def handle_data(self, data: str) -> None:
        """Record what a style sheet within the page loads."""
        if self._style:
            self.loads += urls_of(data)


def urls_of(css: str) -> list[str]:
    """Return the addresses that a style sheet loads.

    >>> urls_of("@import 'a.css'; b { background: url(https://c/d.png) }")
    ['https://c/d.png', 'a.css']
    """
    return re.findall(r"url\(\s*['\"]?([^'\")]+)", css) + re.findall(
        r"@import\s+['\"]([^'\"]+)", css
    )


def is_remote(target: str) -> bool:
    """Return whether a browser would request the target from another host."""
    return target.startswith("//") or urlsplit(target).scheme in (
        "http",
        "https",
        "ftp",
        "ws",
        "wss",
    )


def check_site(site: Path) -> tuple[list[str], list[str]]:
    """Return the faults of a built site, and the links to other hosts."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    wrong: list[str] = []
    others: set[str] = set()
    for path, page in pages.items():
        here = path.relative_to(site)
        wrong += [
            f"{here}: loads {target} from another host"
            for target in page.loads
            if is_remote(target)
        ]
        others.update(link for link in page.links if is_remote(link))
        if path.name != "404.html":  # its links begin at the root of a server
            local = [
                link
                for link in page.links + page.loads
                if not is_remote(link) and not urlsplit(link).scheme
            ]
            wrong += [f"{here}: {fault}" for link in local if (fault := _fault(link, path, pages))]
    for path in sorted(site.rglob("*.css")):
        loads = urls_of(path.read_text(encoding="utf-8"))
        wrong += [
            f"{path.relative_to(site)}: loads {target} from another host"
            for target in loads
            if is_remote(target)
        ]
    return wrong, sorted(others)


def _fault(link: str, path: Path, pages: dict[Path, Page]) -> str:
    target, anchor = urldefrag(link)
    there = (path.parent / unquote(target)).resolve() if target else path
    if not there.is_file():
        return f"{link} leads nowhere"
    if (
        there in pages
        and unquote(anchor) not in pages[there].anchors
        and not anchor.startswith("__")
    ):
        return f"{link}: there is no such anchor"
    return ""


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives a heading.

    >>> slug("Adding a method"), slug("What `x` is, and isn't")
    ('adding-a-method', 'what-x-is-and-isnt')
    """
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def strip_code(markdown: str) -> str:
    """Return Markdown without its code."""
    markdown = re.sub(r"^(```+|~~~+).*?^\1\s*$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", markdown)


def check_markdown(documents: Iterable[Path]) -> tuple[list[str], list[str]]:
    """Return the broken links between documents on GitHub, and the links to other hosts."""
    wrong: list[str] = []
    others: set[str] = set()
    for path in documents:
        text = path.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)\s]+)\)", strip_code(text)):
            if is_remote(link):
                others.add(link)
                continue
            target, anchor = urldefrag(link)
            there = (path.parent / unquote(target)).resolve() if target else path
            if not there.exists() or not there.is_relative_to(ROOT):
                wrong.append(f"{path.relative_to(ROOT)}: {link} leads nowhere")
            elif (
                anchor
                and there.suffix == ".md"
                and anchor not in anchors(there.read_text(encoding="utf-8"))
            ):
                wrong.append(f"{path.relative_to(ROOT)}: {link}: there is no such heading")
    return wrong, sorted(others)


def anchors(markdown: str) -> set[str]:
    """Return the anchors that GitHub gives the headings of a document."""
    seen: dict[str, int] = {}
    found = set()
    bare = re.sub(r"^(```+|~~~+).*?^\1\s*$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#{1,6} (.+)$", bare, flags=re.MULTILINE):
        name = slug(heading)
        found.add(name if name not in seen else f"{name}-{seen[name]}")
        seen[name] = seen.get(name, 0) + 1
    return found


def documents() -> list[Path]:
    """Return the Markdown files of the project."""
    return [
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
    ]


def main(site: Path) -> int:
    """Check everything and print the faults."""
    wrong, others = check_site(site.resolve())
    more, elsewhere = check_markdown(documents())
    print("Links to other hosts, not opened:", *sorted({*others, *elsewhere}), sep="\n  ")
    print(
        *(wrong + more) or ["No link is broken, and nothing is loaded from another host."], sep="\n"
    )
    return bool(wrong + more)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
