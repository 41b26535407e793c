"""Open the report in a real browser: no errors, menus work, nothing overflows, dark is readable."""

import html
import json
import math
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from browser import DARK, browse, chromium

import fedpage as fp
from fedpage.core.columns import AXES, COLUMNS, DERIVED
from fedpage.engine.collect import TimedCosts
from fedpage.report import page, plots
from fedpage.report.style import METHOD_STYLES
from fedpage.report.tables import Table
from fedpage.studies import claims
from fedpage.studies.paper import book

SCRIPT = Path(__file__).with_name("probe.js").read_text(encoding="utf-8")
PROBE = f'<pre id="probe"></pre><script>\n{SCRIPT}</script></body>'


@pytest.fixture(scope="module")
def runs():
    problem = fp.RobustRegression(fp.load("census", rows=500), clients=50)
    return fp.sweep(problem, [fp.FedPAGE(S=5), fp.FedAvg(S=10)], rounds=60, seeds=3)


def write(runs, path, **parts):
    """Write a page with a figure of three panels."""
    curves = {"FedPAGE": runs[:3], "FedAvg": runs[3:]}
    panels = tuple(plots.PanelRuns(f"panel {i}", curves) for i in range(3))
    figure = plots.FigureRuns("a/b", "A figure with a title", "Figure 0", 3, panels)
    parts = {"title": "T", "figures": [figure], "settings": {}} | parts
    return page.Page(**parts).write(path)


def write_runs(runs, path, **options):
    """Write a page about runs, and return its text."""
    options = {"title": "T", "target": 0.1} | options
    return page.write_runs(runs, path, **options).read_text(encoding="utf-8")


def read_data(text):
    """Return the first panel of the data that a page holds."""
    data = re.search(r'id="data">(.*?)</script>', text, re.S).group(1)
    return json.loads(data)["figures"][0]["panels"][0]


def open_page(path, tmp_path, width, *options):
    """Return what the probe saw in the page at this width."""
    shown = tmp_path / f"probed-{width}.html"
    shown.write_text(path.read_text(encoding="utf-8").replace("</body>", PROBE), encoding="utf-8")
    if width < 500:  # a headless window cannot be that narrow, a frame can
        frame = tmp_path / "frame.html"
        frame.write_text(
            f'<!doctype html><body><iframe id="f" src="{shown.name}" '
            f'style="width:{width}px;height:900px;border:0"></iframe><script>'
            'window.addEventListener("load", () => setTimeout(() => document.body.append('
            'document.getElementById("f").contentDocument.getElementById("probe")), 900));'
            "</script></body>",
            encoding="utf-8",
        )
        shown = frame
    size = f"--window-size={max(width, 500)},900"
    seen, console = browse(shown.as_uri(), tmp_path, size, *options)
    assert (seen["errors"], console, seen["cut"], seen["cuts"]) == ([], [], [], [])
    return seen


def brightness(colour):
    return sum(int(value) for value in re.findall(r"\d+", colour)[:3]) / 3


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 700, 1300])
def test_menus_and_layout(runs, tmp_path, width):
    table = Table.of_texts(["cell"] * 40, [["0.123456"] * 40], "A note.")
    title = "A longer <title> that must break on a narrow page"
    path = write(
        runs, tmp_path / "r.html", title=title, settings={"long": "x" * 300}, tables=[table]
    )
    seen = open_page(path, tmp_path, width)
    assert seen["x"] == ["communication rounds"] * 3
    assert seen["y"] == ["gradient norm"] * 3
    assert seen["xAfter"] == ["total bytes, up and down"] * 3
    assert seen["yAfter"] == ["loss"] * 3
    assert seen["colours"] == [METHOD_STYLES["FedPAGE"][0], METHOD_STYLES["FedAvg"][0]] * 3
    assert seen["coloursAfter"] == [METHOD_STYLES["FedAvg"][0]] * 3  # the legend hides a curve
    assert seen["font"] >= 13
    assert max(seen["overflow"], seen["overflowOpen"]) <= 0
    assert seen["target"][0] == 0  # there is none


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), (DARK,)], ids=["light", "dark"])
def test_target_seeds_scales_and_files(runs, tmp_path, options):
    title = "A title of a comparison that is longer than the width of its picture by far " * 2
    path = tmp_path / "r.html"
    assert "<h2>Curves</h2>" in write_runs(runs, path, title=title.strip(), target=0.05)
    seen = open_page(path, tmp_path, 1000, *options)
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
    assert (seen["bands"], seen["seeds"], seen["scales"]) == (2, [6, 0], [True, True])
    file = seen["file"]
    assert (file["title"], file["whole"]) == (title.strip(), True)
    assert ElementTree.fromstring(file["xml"]).get("viewBox")
    known = r'class="(title|ylabel|xlabel|median|band|target|reached)"'
    assert "class=" not in re.sub(known, "", file["xml"])
    assert seen["csv"] > 2 * 2 * len({row["round"] for row in runs[0].rows})
    assert re.search(r"FedPAGE: [\d.e-]+ \([\d.e-]+ to [\d.e-]+\)", seen["hover"])
    assert seen["contrast"] >= 3
    assert seen["text"] >= 4.5
    sign = -1 if options else 1
    assert sign * (brightness(seen["paper"]) - brightness(seen["ink"])) > 150


@pytest.mark.slow
def test_print_layout(runs, tmp_path):
    if shutil.which("pdftotext") is None:
        pytest.skip("needs pdftotext (Debian's poppler-utils)")
    title = "A title that must be whole on paper, however long it is and whatever it says"
    path = write(
        runs, tmp_path / "r.html", title=title, command="fedpage compare " + "--clients 100 " * 30,
        tables=[Table.of_texts(["heading"] * 10, [["not reached"] * 10], "A note.")],
    )  # fmt: skip
    pdf = tmp_path / "r.pdf"
    options = ("--no-pdf-header-footer", "--virtual-time-budget=4000", f"--print-to-pdf={pdf}")
    chromium(path.as_uri(), tmp_path, *options)
    command = ["pdftotext", "-layout", pdf, "-"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = " ".join(text.split())
    assert title in words
    counts = {"not reached": 10, "100": 30, "communication rounds": 3}  # no cell is cut off
    assert {word: words.count(word) for word in counts} == counts
    assert "Horizontal axis" not in words
    assert "Save:" not in words


@pytest.mark.parametrize(("count", "fold"), [(3, "<details open>"), (4, "<details>")])
def test_many_sentences_about_pairs_are_folded(runs, tmp_path, count, fold):
    said = [f"method {i} needs < 2 times the bytes" for i in range(count)]
    text = write_runs(runs, tmp_path / "r.html", sentences=said)
    folded = text.partition(f"{fold}<summary>Pairs of methods")[2].partition("</details>")[0]
    assert folded.count('<p class="note">method') == folded.count("needs &lt; 2") == count


def test_runs_have_pages_of_their_own(runs, tmp_path):
    runs[0].events.append({"event": "lost", "round": 3, "text": "client <7> is away"})
    folders = [tmp_path / "all" / f"run {number}" for number in range(6)]
    path = tmp_path / "all" / "report.html"
    text = write_runs(runs, path, folders=folders)
    runs[0].events.clear()
    links = re.findall(r'<td><a href="(.*?)">', text)
    assert links == [f"run {number}/report.html" for number in range(6)]
    for link in links:
        own = path.parent / link
        (home,) = re.findall(r'<a href="(.*?)">All runs</a>', own.read_text())
        assert (own.parent / home).resolve() == path.resolve()
    text = (folders[0] / "report.html").read_text()
    assert "round 3, lost: client &lt;7&gt; is away" in text
    assert "&#34;K&#34;: 10" in text  # its settings
    alone = write_runs(runs, tmp_path / "alone.html")
    assert alone.count('<details id="run-') == 6  # a page that may be moved has no links
    assert "<a href" not in alone


def test_many_runs_leave_out_the_seeds(runs, tmp_path, monkeypatch):
    few = write_runs(runs, tmp_path / "f.html")
    monkeypatch.setattr(page, "_SEED_CURVES", 5)
    many = write_runs(runs, tmp_path / "m.html")
    assert ('id="seeds"' in few, 'id="seeds"' in many) == (True, False)
    assert len(many) < len(few)


WORDS = ("--data", "census:rows=500", "--clients", "50", "--rounds", "20")
COMPARE = (
    "compare", *WORDS, "--seeds", "2", "--methods", "fedavg,fedpage:b3=2", "--target", "loss:0.3",
)  # fmt: skip
RUN = ("run", "fedpage", *WORDS, "--seed", "3", "--S", "5", "--eta-g", "0.2")


@pytest.mark.parametrize(("words", "count"), [(COMPARE, 4), (RUN, 1)])
def test_the_command_of_a_page_repeats_its_runs(run, tmp_path, words, count):
    assert run(*words, "--out", "c")[0] == 0
    (text,) = re.findall(
        r'<pre class="command">(.*?)</pre>', (tmp_path / "c/report.html").read_text()
    )
    command = shlex.split(html.unescape(text))
    assert command[0] == "fedpage"
    assert run(*command[1:], "--out", "d")[0] == 0
    folders = [path.parent.relative_to(tmp_path / "c") for path in tmp_path.glob("c/**/run.toml")]
    assert len(folders) == count
    for name in folders:
        first, second = (fp.History.load(tmp_path / d / name) for d in "cd")
        assert first.same(second)
        assert (tmp_path / "c" / name / "report.html").is_file()


def test_every_recorded_cost_has_a_label():
    costs = {name for name, column in COLUMNS.items() if column.is_cost}
    assert costs == {*vars(TimedCosts()), *DERIVED, "seconds"}
    assert set(AXES) < costs


def test_every_cost_is_on_the_menu(runs, tmp_path):
    text = write_runs(runs, tmp_path / "r.html")
    for name in AXES:
        assert f'<option value="{name}">{COLUMNS[name].label}</option>' in text
    (curve, _) = read_data(text)["curves"]
    assert set(curve["costs"]) == set(AXES)
    assert set(curve["values"]) == {"grad_norm", "loss"}
    assert curve["costs"]["bytes"][-1] == pytest.approx(
        sorted(run.last("bytes_up") + run.last("bytes_down") for run in runs[:3])[1], rel=1e-4
    )


def test_the_menu_has_no_cost_that_a_history_lacks(runs, tmp_path):
    bare = fp.History(runs[0].meta)
    for row in runs[0].rows:
        bare.append({name: value for name, value in row.items() if "gradients" not in name})
    text = fp.report([bare, runs[1]], tmp_path / "r.html").read_text()
    curve = read_data(text)["curves"][0]
    assert set(curve["costs"]) == set(AXES) - {"gradients", "gradients_per_client"}


def test_any_recorded_column_is_on_the_menu(runs, tmp_path):
    copies = []
    for run in runs:
        copy = fp.History(run.meta)
        for number, row in enumerate(run.rows):
            copy.append(row | {"accuracy": 0.5 + 0.01 * number})
        copies.append(copy)
    text = write_runs(copies, tmp_path / "r.html", target="accuracy:0.52")
    assert "The target is accuracy 0.52" in text
    values = re.findall(r'<option value="(\w+)">', text.partition('id="y"')[2])
    assert values == ["accuracy", "grad_norm", "loss"]
    assert read_data(text)["log"]["accuracy"] is False


def test_the_page_is_whole_and_safe(runs, tmp_path):
    bad = plots.FigureRuns(
        "x", "</script><b>T</b>", "p", 1, (plots.PanelRuns("</script>", {"<i>": runs[:3]}),)
    )
    path = write(runs, tmp_path / "r.html", title="<&>", figures=[bad], settings={"a": "</pre>"})
    text = path.read_text()
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
    verdict = claims.CheckedClaim(one, claims.WITHIN, (finding,))
    text = write(runs, tmp_path / "r.html", claims=[verdict]).read_text()
    assert "<b>holds within tolerance</b>" in text
    assert "<td>0.92x [0.85, 1.00]</td><td>at least 0.67x (tolerance 1.5x)</td>" in text


def test_the_page_of_a_tuning_has_the_picture_of_its_search(run, tmp_path):
    tuned = run(
        "tune", "page", *WORDS, "--S", "5", "--seeds", "1", "--held-out-seeds", "2", "--out", "t",
        "--search", "eta_g=0.1,0.2", "--report", "three.html",
    )  # fmt: skip
    assert tuned[0] == 0
    text = (tmp_path / "three.html").read_text()
    assert "costs over the searched values" in text
    assert 'id="x"' in text
