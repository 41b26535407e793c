"""The report in a real browser: no error, the switch works, nothing overflows, dark mode is readable."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

import fedpage as fp
from fedpage.report import page

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
PROBE = """<pre id="probe"></pre><script>
const errors = [];
window.addEventListener("error", e => errors.push(String(e.message)));
window.addEventListener("load", () => setTimeout(() => {
  const wide = () => document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const xs = () => [...document.querySelectorAll(".panel")].map(p => p.data ? Math.max(...p.data[1].x) : null);
  const titles = () => [...document.querySelectorAll(".panel")].map(p => p.layout ? p.layout.xaxis.title.text : null);
  const seen = {before: xs(), overflow: wide(), images: document.querySelectorAll("img.axis:not([hidden])").length,
    ink: getComputedStyle(document.body).color, paper: getComputedStyle(document.body).backgroundColor};
  const select = document.getElementById("axis");
  select.value = "bytes_up";
  select.dispatchEvent(new Event("change"));
  document.querySelectorAll("details").forEach(d => d.open = true);
  setTimeout(() => {
    seen.after = xs(); seen.titles = titles(); seen.overflowOpen = wide(); seen.errors = errors;
    seen.shown = [...document.querySelectorAll("img.axis:not([hidden])")].map(i => i.dataset.axis);
    document.getElementById("probe").textContent = JSON.stringify(seen);
  }, 400);
}, 400));
</script></body>"""


@pytest.fixture(scope="module")
def runs():
    problem = fp.RobustRegression(fp.load("census", rows=500), clients=50)
    return fp.sweep(problem, [fp.FedPAGE(S=5), fp.FedAvg(S=10)], rounds=60, seeds=3)


def figures(runs):
    panels = tuple(
        page.PanelRuns(f"panel {i}", {"FedPAGE": runs[:3], "FedAvg": runs[3:]}) for i in range(3)
    )
    return [page.FigureRuns("a/b", "A figure with a title", "Figure 0", 3, panels)]


def look(path, tmp_path, width, dark=False):
    """What the probe saw in the page at this width."""
    if BROWSER is None:
        pytest.skip("no chromium here; Debian's package `chromium` has it")
    page = tmp_path / f"probed-{width}.html"
    page.write_text(path.read_text(encoding="utf-8").replace("</body>", PROBE), encoding="utf-8")
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
        f"--user-data-dir={tmp_path / f'profile-{width}-{dark}'}", f"--window-size={width},900",
        "--virtual-time-budget=8000", "--enable-logging=stderr", "--dump-dom",
    ]  # fmt: skip
    if dark:
        command.append("--blink-settings=preferredColorScheme=0")
    done = subprocess.run(
        [*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=False
    )
    (found,) = re.findall(r'<pre id="probe">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    seen = json.loads(found.replace("&lt;", "<").replace("&amp;", "&"))
    seen["console"] = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return seen


def brightness(colour):
    return sum(int(v) for v in re.findall(r"\d+", colour)[:3]) / 3


@pytest.mark.parametrize(
    "width", [500, 1400]
)  # a headless window is at least 500 wide; 400 is tested in a frame
def test_interactive(runs, tmp_path, width):
    pytest.importorskip("plotly", reason="plotly is an extra: pip install 'fedpage[plotly]'")
    path = page.write(
        tmp_path / "r.html", title="A <page>", figures=figures(runs), settings={"a": 1}
    )
    seen = look(path, tmp_path, width)
    assert seen["errors"] == []
    assert seen["console"] == []
    assert seen["before"] == [60, 60, 60]
    assert seen["after"][0] == pytest.approx(max(run.last("bytes_up") for run in runs[:3]), rel=0.6)
    assert seen["titles"] == ["bytes up"] * 3
    assert seen["overflow"] <= 0
    assert seen["overflowOpen"] <= 0


@pytest.mark.parametrize("width", [500, 1400])
def test_images_without_plotly(runs, tmp_path, width):
    path = page.write(
        tmp_path / "r.html", title="T", figures=figures(runs), settings={"a": 1}, interactive=False
    )
    assert "Plotly.react" in path.read_text()
    seen = look(path, tmp_path, width)
    assert seen["errors"] == []
    assert seen["console"] == []
    assert seen["images"] == 1
    assert seen["shown"] == ["bytes_up"]
    assert seen["overflow"] <= 0
    assert seen["overflowOpen"] <= 0


@pytest.mark.parametrize("interactive", [False, True])
def test_at_400_pixels(runs, tmp_path, interactive):
    """In a frame of 400 pixels, because a headless window cannot be that narrow."""
    if interactive:
        pytest.importorskip("plotly", reason="plotly is an extra: pip install 'fedpage[plotly]'")
    table = "<div class=wide><table><tr>" + "<td>cell</td>" * 40 + "</tr></table></div>"
    path = page.write(
        tmp_path / "r.html", title="A longer title that must break", figures=figures(runs),
        interactive=interactive, settings={"long": "x" * 300}, tables=table,
    )  # fmt: skip
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<!doctype html><body><iframe id="f" src="{path.name}" style="width:400px;height:900px;border:0"></iframe>'
        '<script>window.addEventListener("load", () => { const d = document.getElementById("f").contentDocument;'
        'd.querySelectorAll("details").forEach(e => e.open = true);'
        "const p = document.createElement('pre'); p.id = 'probe';"
        "p.textContent = JSON.stringify([d.documentElement.scrollWidth, d.documentElement.clientWidth]);"
        "document.body.append(p); });</script></body>",
        encoding="utf-8",
    )
    if BROWSER is None:
        pytest.skip("no chromium here; Debian's package `chromium` has it")
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'p'}", "--virtual-time-budget=8000",
        "--dump-dom",
    ]  # fmt: skip
    done = subprocess.run(
        [*command, frame.as_uri()], capture_output=True, text=True, timeout=120, check=False
    )
    (found,) = re.findall(r'<pre id="probe">(.*?)</pre>', done.stdout)
    scroll, client = json.loads(found)
    assert client <= 400
    assert scroll <= client


def test_dark_mode_is_readable(runs, tmp_path):
    path = page.write(
        tmp_path / "r.html", title="T", figures=figures(runs), settings={"a": 1}, interactive=False
    )
    light, dark = look(path, tmp_path, 1000), look(path, tmp_path, 1001, dark=True)
    assert brightness(light["paper"]) - brightness(light["ink"]) > 150
    assert brightness(dark["ink"]) - brightness(dark["paper"]) > 150


def test_the_page_is_whole_and_safe(runs, tmp_path):
    bad = page.FigureRuns(
        "x", "</script><b>T</b>", "p", 1, (page.PanelRuns("</script>", {"<i>": runs[:3]}),)
    )
    text = page.write(
        tmp_path / "r.html", title="<&>", figures=[bad], settings={"a": "</pre>"}, interactive=False
    ).read_text()
    assert "<title>&lt;&amp;&gt;</title>" in text
    assert "</script><b>" not in text
    assert "&lt;/pre&gt;" in text
    assert not re.search(r'(src|href)="(https?:)?//', text)  # opens offline
    if not page._plotly():
        with pytest.raises(fp.InputError, match="plotly"):
            page.write(tmp_path / "i.html", title="T", figures=[bad], settings={}, interactive=True)


def test_users_runs_get_the_same_page(run, tmp_path):
    words = ("--data", "census:rows=500", "--clients", "50", "--rounds", "40", "--S", "5")
    assert run("run", "fedpage", *words, "--report", "one.html")[0] == 0
    assert run("compare", *words, "--seeds", "1", "--out", "c", "--report", "two.html")[0] == 0
    tuned = run("tune", "page", *words, "--seeds", "1", "--fresh", "2", "--search", "eta_g=0.1,0.2", "--out", "t",
                "--report", "three.html")  # fmt: skip
    assert tuned[0] == 0
    for name, words_in_it in (
        ("one.html", "FedPAGE"),
        ("two.html", "SCAFFOLD"),
        ("three.html", "costs over the grid"),
    ):
        text = (tmp_path / name).read_text()
        assert words_in_it in text
        assert 'id="axis"' in text
    assert (tmp_path / "c" / "report.html").exists()
