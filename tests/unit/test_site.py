"""Check the built site: links, formulas, code, reference, search, no requests elsewhere."""

import functools
import html
import http.server
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import links
import pytest
from browser import DARK, browse

import fedpage as fp

ROOT = Path(__file__).resolve().parents[2]
PROBES = Path(__file__).with_name("site_probes")
"""Scripts that are added to pages, and write what they see into the element "probe"."""
pytestmark = pytest.mark.slow  # builds the site and opens it in a browser


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Build the site once, as `make docs` does, in a directory of its own."""
    for package in ("zensical", "griffe", "latex2mathml"):
        pytest.importorskip(package, reason="pip install 'fedpage[docs]'")
    import prebuild

    folder = tmp_path_factory.mktemp("site")
    prebuild.write(folder / "docs")
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "\ndocs_dir: build/docs\n" in config
    (folder / "mkdocs.yml").write_text(
        config.replace("\ndocs_dir: build/docs\n", "\ndocs_dir: docs\n"), encoding="utf-8"
    )
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture
def pages(site):
    return {
        path.relative_to(site).as_posix(): path.read_text(encoding="utf-8")
        for path in site.rglob("*.html")
    }


def test_no_link_is_broken_and_nothing_is_loaded_from_another_host(site):
    wrong, others = links.check_site(site)
    assert not wrong
    assert all(link.startswith("https://") for link in others)


def test_faults_of_a_site_are_found(tmp_path):
    (tmp_path / "other.html").write_text('<h1 id="here"></h1>', encoding="utf-8")
    (tmp_path / "style.css").write_text("a { background: url(//x.org/a.png) }", encoding="utf-8")
    page = """<a href="other.html#here"></a><a href="other.html#gone"></a>
    <a href="gone.html"></a><a href="#up"></a><script src="https://x.org/a.js"></script>
    <link rel="stylesheet" href="http://x.org/a.css"><img src="gone.png">
    <a href="https://x.org/fine"></a>"""
    (tmp_path / "index.html").write_text(page, encoding="utf-8")
    wrong, others = links.check_site(tmp_path)
    for fault in ("#gone", "gone.html", "#up", "a.js", "a.css", "gone.png", "//x.org/a.png"):
        assert any(fault in line for line in wrong), fault
    assert len(wrong) == 7
    assert others == ["https://x.org/fine"]


def test_formulas_are_mathml(pages):
    assert pages["methods/fedpage.html"].count("<math") > 40
    for name, page in pages.items():
        prose = re.sub(r"<(pre|code|script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
        assert "$$" not in prose, name
        assert not re.search(r"\\(frac|nabla|eta|sum|quad)\b", prose), name


def test_code_stands_beside_the_mathematics(pages):
    for name in {entry.page for entry in fp.METHODS.values()}:
        assert 'class="beside"' in pages[f"methods/{name}.html"], name
    shown = html.unescape(re.sub(r"<[^>]+>", "", pages["methods/scaffold.html"]))
    assert "Reply(direction - message.c), client_state" in shown
    assert "<!-- beside" not in "".join(pages.values())


def test_the_reference_shows_every_public_name_and_its_docstring(pages):
    import reference

    anchors = links.Page("".join(pages[f"api/{name}.html"] for name in reference.PAGES)).anchors
    for name, home in fp._MODULE_OF.items():
        is_package = home in ("fedpage", "fedpage._version", "fedpage.report")
        assert is_package or f"{home}.{name}" in anchors, name
    text = re.sub(r"<[^>]+>", "", pages["api/running.html"])
    assert "&gt;&gt;&gt; import fedpage as fp" in text
    assert "<blockquote>" not in pages["api/running.html"]


def serve(site, body):
    """Return a handler that serves the site, and at /probe a page with a script."""

    class SiteHandler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            if self.path != "/probe":
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(f'<!doctype html><body><pre id="probe"></pre>{body}'.encode())

        def log_message(self, *words):
            pass

    return functools.partial(SiteHandler, directory=site)


WIDE = [
    "methods/scaffold.html", "paper.html", "deploy.html", "gallery.html", "theory.html",
    "api/methods.html",
]  # fmt: skip
"""Pages with the widest tables, formulas, pictures and code."""


@pytest.mark.parametrize(
    ("names", "width", "options"), [(WIDE, 400, ()), (["index.html"], 1400, (DARK,))]
)
def test_pages_fit_and_load_nothing_from_elsewhere(site, tmp_path, names, width, options):
    script = (PROBES / "frames.js").read_text(encoding="utf-8")
    script = script.replace("PAGES", json.dumps(names)).replace("WIDTH", str(width))
    probe = f"<script>\n{script}</script>"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve(site, probe)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"http://127.0.0.1:{server.server_port}"
        seen, _ = browse(f"{host}/probe", tmp_path, "--window-size=1500,900", *options)
        server.shutdown()
    assert set(seen["wide"]) == set(names)
    assert {name: much for name, much in seen["wide"].items() if much > 0} == {}
    assert len(seen["loaded"]) > len(names)
    assert all(name.startswith((host, "data:")) for name in seen["loaded"])
    brightness = sum(int(v) for v in re.findall(r"\d+", seen["paper"])[:3]) / 3
    assert brightness < 60 if options else brightness > 240


@pytest.mark.parametrize("name", ["fedpage", "fedavg", "scaffold", "s-local-svrg"])
def test_code_beside_the_mathematics_has_no_scroll_bar(site, tmp_path, name):
    assert browse_copy(site / "methods" / f"{name}.html", "cut_code.js", tmp_path) == []


def test_search_works_in_a_page_that_is_opened_from_the_file_system(site, tmp_path):
    hits = browse_copy(site / "index.html", "search.js", tmp_path)
    assert any("methods/fedpage.html" in hit for hit in hits)


def browse_copy(page, script, tmp_path):
    """Open a copy of a page, to which a script was added, from the file system."""
    copy, code = page.with_name("probed.html"), (PROBES / script).read_text(encoding="utf-8")
    probe = f'<pre id="probe"></pre><script>\n{code}</script></body>'
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", probe), encoding="utf-8")
    try:
        return browse(copy.as_uri(), tmp_path, "--window-size=1500,900")[0]
    finally:
        copy.unlink()
