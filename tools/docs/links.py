"""Checks links: of the built site, of Markdown as GitHub shows it, and that the site loads nothing from elsewhere.

    python tools/docs/links.py site

Links to other hosts are listed, not opened.
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
    "script": ("src",), "img": ("src", "srcset"), "iframe": ("src",), "source": ("src", "srcset"), "video": ("src",),
    "audio": ("src",), "embed": ("src",), "object": ("data",), "image": ("href",), "use": ("href",), "track": ("src",),
}  # fmt: skip
"""What a browser fetches by itself, but for links to style sheets, icons and fonts."""
PASSIVE = {"canonical", "alternate", "next", "prev", "author", "license"}
"""Relations of <link> for which nothing is fetched."""


class Page(HTMLParser):
    """What a page links to, what it loads, and what can be linked to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = {"", "top"}
        self._style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element's links and its name."""
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
        """A style sheet within the page ends."""
        self._style = self._style and tag != "style"

    def handle_data(self, data: str) -> None:
        """What a style sheet within the page loads."""
        if self._style:
            self.loads += urls_of(data)


def urls_of(css: str) -> list[str]:
    """What a style sheet loads.

    >>> urls_of("@import 'a.css'; b { background: url(https://c/d.png) }")
    ['https://c/d.png', 'a.css']
    """
    return re.findall(r"url\(\s*['\"]?([^'\")]+)", css) + re.findall(
        r"@import\s+['\"]([^'\"]+)", css
    )


def remote(target: str) -> bool:
    """Whether a browser would ask another host for it."""
    return target.startswith("//") or urlsplit(target).scheme in (
        "http",
        "https",
        "ftp",
        "ws",
        "wss",
    )


def check_site(site: Path) -> tuple[list[str], list[str]]:
    """What is wrong with a built site, and the other hosts' pages that it links to."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    wrong: list[str] = []
    others: set[str] = set()
    for path, page in pages.items():
        here = path.relative_to(site)
        wrong += [
            f"{here}: loads {target} from another host" for target in page.loads if remote(target)
        ]
        others.update(link for link in page.links if remote(link))
        if path.name != "404.html":  # its links begin at the root of a server
            local = [
                link
                for link in page.links + page.loads
                if not remote(link) and not urlsplit(link).scheme
            ]
            wrong += [f"{here}: {fault}" for link in local if (fault := _fault(link, path, pages))]
    for path in sorted(site.rglob("*.css")):
        loads = urls_of(path.read_text(encoding="utf-8"))
        wrong += [
            f"{path.relative_to(site)}: loads {target} from another host"
            for target in loads
            if remote(target)
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
    """The anchor that GitHub gives a heading.

    >>> slug("Adding a method"), slug("What `x` is, and isn't")
    ('adding-a-method', 'what-x-is-and-isnt')
    """
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def prose(markdown: str) -> str:
    """Markdown without its code."""
    markdown = re.sub(r"^(```+|~~~+).*?^\1\s*$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", markdown)


def check_markdown(documents: Iterable[Path]) -> tuple[list[str], list[str]]:
    """What is wrong with links between documents as GitHub shows them, and the links to other hosts."""
    wrong: list[str] = []
    others: set[str] = set()
    for path in documents:
        text = path.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
            if remote(link):
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
    """The anchors of a document's headings, as GitHub numbers them."""
    seen: dict[str, int] = {}
    found = set()
    bare = re.sub(r"^(```+|~~~+).*?^\1\s*$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#{1,6} (.+)$", bare, flags=re.MULTILINE):
        name = slug(heading)
        found.add(name if name not in seen else f"{name}-{seen[name]}")
        seen[name] = seen.get(name, 0) + 1
    return found


def documents() -> list[Path]:
    """Every document of the project that GitHub shows."""
    return [
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
    ]


def main(site: Path) -> int:
    """Check everything, and say what was found."""
    wrong, others = check_site(site.resolve())
    more, elsewhere = check_markdown(documents())
    print("Links to other hosts, not opened:", *sorted({*others, *elsewhere}), sep="\n  ")
    print(
        *(wrong + more) or ["No link is broken, and nothing is loaded from another host."], sep="\n"
    )
    return bool(wrong + more)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
