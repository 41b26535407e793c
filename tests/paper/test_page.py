"""Open the report in a real browser: no errors, menus work, nothing overflows, dark is readable."""

from __future__ import annotations

import html
import json
import math
import re
import shlex
import shutil
import subprocess
from xml.etree import ElementTree

import pytest

import fedpage as fp
from fedpage.core.columns import AXES, COLUMNS, DERIVED
from fedpage.engine.collect import TimedCosts
from fedpage.report import page, plots
from fedpage.report.style import METHOD_STYLES, assign_styles
from fedpage.report.tables import Table
from fedpage.studies import claims
from fedpage.studies.paper import book

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
PROBE = """<pre id="probe"></pre><script>
const errors = [];
window.addEventListener("error", e => errors.push(String(e.message)));
window.addEventListener("load", () => setTimeout(() => {
  const wide = () => document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const all = selector => [...document.querySelectorAll(selector)];
  const labels = name => all(".plot ." + name).map(node => node.textContent);
  const choose = (id, value) => {
    const menu = document.getElementById(id);
    menu.value = value;
    menu.dispatchEvent(new Event("change"));
  };
  const cut = () => all(".plot text").filter(text => {
    const a = text.getBoundingClientRect(), b = text.closest("svg").getBoundingClientRect();
    return a.left < b.left - 1 || a.right > b.right + 1
      || a.top < b.top - 1 || a.bottom > b.bottom + 1;
  }).map(text => text.textContent);
  const fonts = () => Math.min(...all(".plot text").map(t => t.getBoundingClientRect().height));
  const colours = () => all(".plot .median").map(path => path.getAttribute("stroke"));
  const seen = {overflow: wide(), x: labels("xlabel"), y: labels("ylabel"), colours: colours(),
    cut: cut(), font: fonts(), ink: getComputedStyle(document.body).color,
    paper: getComputedStyle(document.body).backgroundColor, cuts: []};
  for (const option of [...document.getElementById("x").options].map(o => o.value)) {
    choose("x", option);
    seen.cuts.push(...cut());
  }
  choose("x", "round");
  const count = selector => all(selector).length;
  const costs = all(".costs").map(node => node.textContent);
  seen.target = [count(".plot .target"), count(".plot .reached"), costs];
  seen.bands = count(".plot .band");
  if (document.getElementById("seeds")) {
    document.getElementById("seeds").click();
    seen.seeds = [count(".plot .seed"), count(".plot .band")];
    document.getElementById("seeds").click();
  }
  const ticks = () => all(".plot svg")[0].textContent, before = ticks();
  choose("yscale", "linear");
  const linear = ticks();
  choose("xscale", "log");
  seen.scales = [before !== linear, linear !== ticks()];
  seen.cuts.push(...cut());
  choose("yscale", ""); choose("xscale", "linear");
  const file = figureSvg(report.figures[0]), host = document.createElement("div");
  host.append(file); document.body.append(host);
  const edge = file.getBoundingClientRect(), titles = [...file.querySelectorAll(".title")];
  seen.file = {title: titles.map(t => t.textContent).join(" "), xml: file.outerHTML,
    whole: [...file.querySelectorAll("text")].every(t => {
      const box = t.getBoundingClientRect();
      return box.left >= edge.left && box.right <= edge.right + 1 && box.bottom <= edge.bottom;
    })};
  host.remove();
  seen.csv = csv(report.figures[0]).split(/\\s+/).length;
  const svg = document.querySelector(".plot svg"), box = svg.getBoundingClientRect();
  svg.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + box.width / 2}));
  seen.hover = document.querySelector(".values").textContent;
  const paper = theme().paper, contrast = colour => {
    const pair = [luminance(colour), luminance(paper)].sort((a, b) => b - a);
    return (pair[0] + 0.05) / (pair[1] + 0.05);
  };
  seen.contrast = Math.min(...[...colours(), visible("#882255", paper)].map(contrast));
  seen.text = contrast(theme().soft);
  choose("x", "bytes");
  choose("y", "loss");
  seen.xAfter = labels("xlabel"); seen.yAfter = labels("ylabel");
  document.querySelector(".legend button").click();
  seen.coloursAfter = colours();
  all("details").forEach(d => d.open = true);
  seen.overflowOpen = wide(); seen.errors = errors;
  document.getElementById("probe").textContent = JSON.stringify(seen);
}, 300));
</script></body>"""


@pytest.fixture(scope="module")
def runs():
    problem = fp.RobustRegression(fp.load("census", rows=500), clients=50)
    return fp.sweep(problem, [fp.FedPAGE(S=5), fp.FedAvg(S=10)], rounds=60, seeds=3)


@pytest.mark.parametrize(("count", "fold"), [(3, "<details open>"), (4, "<details>")])
def test_many_sentences_about_pairs_are_folded(runs, tmp_path, count, fold):
    said = [f"method {i} needs < 2 times the bytes" for i in range(count)]
    path = page.write_runs(runs, tmp_path / "r.html", title="t", target=0.1, sentences=said)
    text = path.read_text(encoding="utf-8")
    folded = text.partition(f"{fold}<summary>Pairs of methods")[2].partition("</details>")[0]
    assert folded.count('<p class="note">method') == folded.count("needs &lt; 2") == count


def figures(runs):
    panels = tuple(
        plots.PanelRuns(f"panel {i}", {"FedPAGE": runs[:3], "FedAvg": runs[3:]}) for i in range(3)
    )
    return [plots.FigureRuns("a/b", "A figure with a title", "Figure 0", 3, panels)]


def open_page(path, tmp_path, width, *, dark=False):
    """Return what the probe saw in the page at this width."""
    if BROWSER is None:
        pytest.skip("no chromium here; Debian's package `chromium` has it")
    probed = tmp_path / f"probed-{width}.html"
    probed.write_text(path.read_text(encoding="utf-8").replace("</body>", PROBE), encoding="utf-8")
    shown = probed
    if width < 500:  # a headless window cannot be that narrow, a frame can
        shown = tmp_path / "frame.html"
        shown.write_text(
            f'<!doctype html><body><iframe id="f" src="{probed.name}" '
            f'style="width:{width}px;height:900px;border:0"></iframe><script>'
            'window.addEventListener("load", () => setTimeout(() => document.body.append('
            'document.getElementById("f").contentDocument.getElementById("probe")), 900));'
            "</script></body>",
            encoding="utf-8",
        )
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--hide-scrollbars", "--allow-file-access-from-files",
        f"--user-data-dir={tmp_path / f'profile-{width}-{dark}'}",
        f"--window-size={max(width, 500)},900", "--virtual-time-budget=8000",
        "--enable-logging=stderr", "--dump-dom",
    ]  # fmt: skip
    if dark:
        command.append("--blink-settings=preferredColorScheme=0")
    done = subprocess.run(
        [*command, shown.as_uri()], capture_output=True, text=True, timeout=120, check=False
    )
    (found,) = re.findall(r'<pre id="probe">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    seen = json.loads(found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    seen["console"] = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return seen


def brightness(colour):
    return sum(int(value) for value in re.findall(r"\d+", colour)[:3]) / 3


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 700, 1300])
def test_menus_and_layout(runs, tmp_path, width):
    table = Table.of_texts(["cell"] * 40, [["0.123456"] * 40], "A note.")
    path = page.write(
        tmp_path / "r.html", title="A longer <title> that must break on a narrow page",
        figures=figures(runs), settings={"long": "x" * 300}, tables=[table],
    )  # fmt: skip
    seen = open_page(path, tmp_path, width)
    assert seen["errors"] == []
    assert seen["console"] == []
    assert seen["x"] == ["communication rounds"] * 3
    assert seen["y"] == ["gradient norm"] * 3
    assert seen["xAfter"] == ["total bytes, up and down"] * 3
    assert seen["yAfter"] == ["loss"] * 3
    assert seen["colours"] == [METHOD_STYLES["FedPAGE"][0], METHOD_STYLES["FedAvg"][0]] * 3
    assert seen["coloursAfter"] == [METHOD_STYLES["FedAvg"][0]] * 3  # the legend hides a curve
    assert (seen["cut"], seen["cuts"]) == ([], [])
    assert seen["font"] >= 13
    assert seen["overflow"] <= 0
    assert seen["overflowOpen"] <= 0
    assert seen["target"][0] == 0  # there is none


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_target_seeds_scales_and_files(runs, tmp_path, dark):
    title = "A title of a comparison that is longer than the width of its picture by far " * 2
    path = page.write_runs(runs, tmp_path / "r.html", title=title.strip(), target=0.05)
    assert "<h2>Curves</h2>" in path.read_text()
    seen = open_page(path, tmp_path, 1000, dark=dark)
    assert (seen["errors"], seen["console"], seen["cuts"]) == ([], [], [])
    reached = [
        sum(r.reached("grad_norm:0.05,hold=0") for r in group) for group in (runs[:3], runs[3:])
    ]
    lines, circles, costs = seen["target"]
    assert (lines, circles) == (1, sum(count >= 2 for count in reached))
    median = sorted(run.cost_to(0.05, "round") for run in runs[:3])[1]
    words = "not reached" if math.isinf(median) else f"{median:g}"
    assert costs[0].startswith(
        f"Communication rounds to gradient norm 0.05: FedPAGE {words}; FedAvg "
    )
    assert seen["bands"] == 2
    assert seen["seeds"] == [6, 0]
    assert seen["scales"] == [True, True]
    assert seen["file"]["title"] == title.strip()
    assert seen["file"]["whole"]
    drawn = ElementTree.fromstring(seen["file"]["xml"])
    assert drawn.get("viewBox")
    assert "class=" not in re.sub(r'class="(title|ylabel|xlabel|median|band|target|reached)"', "",
                                  seen["file"]["xml"])  # fmt: skip
    points = len({row["round"] for row in runs[0].rows})
    assert seen["csv"] > 2 * 2 * points
    assert re.search(r"FedPAGE: [\d.e-]+ \([\d.e-]+ to [\d.e-]+\)", seen["hover"])
    assert seen["contrast"] >= 3
    assert seen["text"] >= 4.5


@pytest.mark.slow
def test_print_layout(runs, tmp_path):
    if BROWSER is None or shutil.which("pdftotext") is None:
        pytest.skip("needs chromium and pdftotext (Debian's poppler-utils)")
    table = Table.of_texts(["heading"] * 10, [["not reached"] * 10], "A note.")
    title = "A title that must be whole on paper, however long it is and whatever it says"
    path = page.write(
        tmp_path / "r.html", title=title, figures=figures(runs), settings={}, tables=[table],
        command="fedpage compare " + "--clients 100 " * 30,
    )  # fmt: skip
    pdf = tmp_path / "r.pdf"
    subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer",
            f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=4000",
            f"--print-to-pdf={pdf}", path.as_uri(),
        ],
        capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    text = subprocess.run(
        ["pdftotext", "-layout", pdf, "-"], capture_output=True, text=True, check=True
    ).stdout
    words = " ".join(text.split())
    assert title in words
    assert words.count("not reached") == 10  # no cell is cut off
    assert words.count("100") == 30
    assert words.count("communication rounds") == 3
    assert "Horizontal axis" not in words
    assert "Save:" not in words


def test_runs_have_pages_of_their_own(runs, tmp_path):
    runs[0].events.append({"event": "lost", "round": 3, "text": "client <7> is away"})
    folders = [tmp_path / "all" / f"run {number}" for number in range(6)]
    path = page.write_runs(
        runs, tmp_path / "all" / "report.html", title="T", target=0.1, folders=folders
    )
    runs[0].events.clear()
    links = re.findall(r'<td><a href="(.*?)">', path.read_text())
    assert links == [f"run {number}/report.html" for number in range(6)]
    for link in links:
        own = path.parent / link
        (home,) = re.findall(r'<a href="(.*?)">All runs</a>', own.read_text())
        assert (own.parent / home).resolve() == path.resolve()
    text = (folders[0] / "report.html").read_text()
    assert "round 3, lost: client &lt;7&gt; is away" in text
    assert "&#34;K&#34;: 10" in text  # its settings
    alone = page.write_runs(runs, tmp_path / "alone.html", title="T", target=0.1).read_text()
    assert alone.count('<details id="run-') == 6  # a page that may be moved has no links
    assert "<a href" not in alone


def test_many_runs_leave_out_the_seeds(runs, tmp_path, monkeypatch):
    few = page.write_runs(runs, tmp_path / "f.html", title="T", target=0.1).read_text()
    monkeypatch.setattr(page, "_SEED_CURVES", 5)
    many = page.write_runs(runs, tmp_path / "m.html", title="T", target=0.1).read_text()
    assert ('id="seeds"' in few, 'id="seeds"' in many) == (True, False)
    assert len(many) < len(few)


def test_the_command_repeats_the_comparison(run, tmp_path):
    words = ("--data", "census:rows=500", "--clients", "50", "--rounds", "20", "--seeds", "2")
    more = ("--methods", "fedavg,fedpage:b3=2", "--target", "loss:0.3", "--out", "c")
    assert run("compare", *words, *more)[0] == 0
    (text,) = re.findall(
        r'<pre class="command">(.*?)</pre>', (tmp_path / "c/report.html").read_text()
    )
    command = shlex.split(html.unescape(text))
    assert command[0] == "fedpage"
    assert run(*command[1:], "--out", "d")[0] == 0
    for name in sorted(path.name for path in (tmp_path / "c" / "runs").iterdir()):
        first, second = (fp.History.load(tmp_path / d / "runs" / name) for d in "cd")
        assert first.same(second)
        assert (tmp_path / "c" / "runs" / name / "report.html").is_file()


def test_the_command_repeats_the_run(run, tmp_path):
    words = ("--data", "census:rows=500", "--clients", "50", "--rounds", "20", "--seed", "3")
    assert run("run", "fedpage", *words, "--S", "5", "--eta-g", "0.2", "--out", "a")[0] == 0
    (text,) = re.findall(
        r'<pre class="command">(.*?)</pre>', (tmp_path / "a/report.html").read_text()
    )
    assert run(*shlex.split(html.unescape(text))[1:], "--out", "b")[0] == 0
    assert fp.History.load(tmp_path / "a").same(fp.History.load(tmp_path / "b"))


def test_every_recorded_cost_has_a_label():
    costs = {name for name, column in COLUMNS.items() if column.is_cost}
    assert costs == {*vars(TimedCosts()), *DERIVED, "seconds"}
    assert set(AXES) < costs


def test_every_cost_is_on_the_menu(runs, tmp_path):
    text = page.write_runs(runs, tmp_path / "r.html", title="T", target=0.1).read_text()
    for name in AXES:
        assert f'<option value="{name}">{COLUMNS[name].label}</option>' in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S).group(1))
    (curve, _) = data["figures"][0]["panels"][0]["curves"]
    assert set(curve["costs"]) == set(AXES)
    assert set(curve["values"]) == {"grad_norm", "loss"}
    assert curve["costs"]["bytes"][-1] == pytest.approx(
        sorted(run.last("bytes_up") + run.last("bytes_down") for run in runs[:3])[1], rel=1e-4
    )


def test_any_recorded_column_is_on_the_menu(runs, tmp_path):
    copies = []
    for run in runs:
        copy = fp.History(run.meta)
        for number, row in enumerate(run.rows):
            copy.append(row | {"accuracy": 0.5 + 0.01 * number})
        copies.append(copy)
    path = page.write_runs(copies, tmp_path / "r.html", title="T", target="accuracy:0.52")
    text = path.read_text()
    assert "The target is accuracy 0.52" in text
    values = re.findall(r'<option value="(\w+)">', text.partition('id="y"')[2])
    assert values == ["accuracy", "grad_norm", "loss"]
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S).group(1))
    assert data["figures"][0]["panels"][0]["log"]["accuracy"] is False


@pytest.mark.slow
def test_dark_mode_is_readable(runs, tmp_path):
    path = page.write(tmp_path / "r.html", title="T", figures=figures(runs), settings={"a": 1})
    light, dark = open_page(path, tmp_path, 1000), open_page(path, tmp_path, 1001, dark=True)
    assert brightness(light["paper"]) - brightness(light["ink"]) > 150
    assert brightness(dark["ink"]) - brightness(dark["paper"]) > 150


def test_the_page_is_whole_and_safe(runs, tmp_path):
    bad = plots.FigureRuns(
        "x", "</script><b>T</b>", "p", 1, (plots.PanelRuns("</script>", {"<i>": runs[:3]}),)
    )
    text = page.write(
        tmp_path / "r.html", title="<&>", figures=[bad], settings={"a": "</pre>"}
    ).read_text()
    assert "<title>&lt;&amp;&gt;</title>" in text
    assert "</script><b>" not in text
    assert "<i>" not in text
    assert "&lt;/pre&gt;" in text
    assert not re.search(r'(src|href)="(https?:)?//', text)  # opens offline
    assert "<img" not in text
    (static,) = re.findall(r"<noscript>(.*?)</noscript>", text, re.S)
    assert static.startswith("<svg")
    assert "communication rounds" in static


def test_claims_show_what_was_needed(runs, tmp_path):
    one = next(claim for claim in book.claims() if claim.name == "order")
    finding = claims.Finding(
        "p", "A >= B", claims.WITHIN, "0.92x [0.85, 1.00]", "at least 0.67x (tolerance 1.5x)"
    )
    verdict = claims.Verdict(one, claims.WITHIN, (finding,))
    text = page.write(
        tmp_path / "r.html", title="T", figures=figures(runs), settings={}, claims=[verdict]
    ).read_text()
    assert "<b>holds within tolerance</b>" in text
    assert "<td>0.92x [0.85, 1.00]</td><td>at least 0.67x (tolerance 1.5x)</td>" in text


def test_a_method_has_one_colour_everywhere():
    alone = assign_styles(["SCAFFOLD"])["SCAFFOLD"]
    among = assign_styles(["Mine", "FedAvg", "FedPAGE (K=5)", "SCAFFOLD", "Yours"])
    assert among["SCAFFOLD"] == alone
    assert among["FedPAGE (K=5)"].colour == METHOD_STYLES["FedPAGE"][0]
    names = [*METHOD_STYLES, *(f"other {number}" for number in range(20))]
    every = assign_styles(names)
    assert all(every[name].colour == METHOD_STYLES[name][0] for name in METHOD_STYLES)


def test_pages_of_the_commands(run, tmp_path):
    words = ("--data", "census:rows=500", "--clients", "50", "--rounds", "40", "--S", "5")
    assert run("run", "fedpage", *words, "--report", "one.html")[0] == 0
    assert run("compare", *words, "--seeds", "1", "--out", "c", "--report", "two.html")[0] == 0
    tuned = run(
        "tune", "page", *words, "--seeds", "1", "--held-out-seeds", "2", "--out", "t",
        "--search", "eta_g=0.1,0.2", "--report", "three.html",
    )  # fmt: skip
    assert tuned[0] == 0
    for name, words_in_it in (
        ("one.html", "FedPAGE"),
        ("two.html", "SCAFFOLD"),
        ("three.html", "costs over the searched values"),
    ):
        text = (tmp_path / name).read_text()
        assert words_in_it in text
        assert 'id="x"' in text
    assert (tmp_path / "c" / "report.html").exists()
