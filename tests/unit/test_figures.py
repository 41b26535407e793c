"""Figures for papers: sizes, fonts, legends, titles, axes, bands and files."""

import itertools
import math
import re
import zlib
from contextlib import suppress

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy import stats

import fedpage as fp
from fedpage.core.types import StopReason
from fedpage.report import figure_file, plots
from fedpage.report.bands import Summary
from fedpage.report.titles import describe_problem, describe_runs, shorten_partition

PROBLEM = {
    "objective": "logistic regression", "data": "made", "N": 1200, "partition": "blocks(1200)",
    "regulariser": "l2", "alpha": 0.1,
}  # fmt: skip


def make_run(name="FedPAGE", seed=0, *, rate=0.97, problem=None, diverged=False, **settings):
    """Make a run of 60 rounds whose gradient norm falls at a rate, with noise from the seed."""
    method = {"name": name, "class": name, **settings}
    run = fp.History({"method": method, "problem": problem or PROBLEM, "seed": seed})
    noise = np.random.default_rng(seed).uniform(0.8, 1.25, 61)
    for number in range(0, 61, 2):
        value = float(rate**number * noise[number])
        run.append(
            {
                "round": number, "clients": 10 * number, "bytes_up": 40_000 * number,
                "bytes_down": 80_000 * number, "gradients": 900 * number, "seconds": 0.1 * number,
                "loss": 0.4 + value / 5, "grad_norm": value, "accuracy": max(0.02, 1 - value),
            }
        )  # fmt: skip
    run.stop_reason = StopReason.DIVERGED if diverged else StopReason.FINISHED
    return run


@pytest.fixture(scope="module")
def grid():
    """Three methods, three steps, three seeds."""
    return [
        make_run(name, seed, rate=0.99 - eta * (1 + place) / 12, eta_g=eta)
        for place, name in enumerate(("FedPAGE", "SCAFFOLD", "FedAvg"))
        for eta in (0.1, 0.2, 0.4)
        for seed in range(3)
    ]


@pytest.fixture(scope="module")
def crowd():
    """Fourteen curves, some with long labels."""
    names = ("FedPAGE", "SCAFFOLD", "FedAvg", "FedProx", "PAGE", "SecantPAGE", "COFIG", "DIANA")
    variants = [{"K": 3, "up": "randk:0.1"}, {"K": 30, "up": "chain:topk:0.1,natural"}]
    return [
        *(make_run(name, rate=0.9 + 0.01 * i, K=10, up="none") for i, name in enumerate(names)),
        *(make_run(name, rate=0.95, **v) for name in names[:3] for v in variants),
    ]


def check_layout(figure):
    """Check that nothing is cut off or covered; return the boxes of the panels without text."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    visible = [ax for ax in figure.axes if ax.get_visible()]
    axes = [ax.get_window_extent(renderer) for ax in visible]
    tight = [ax.get_tightbbox(renderer) for ax in visible]
    titles = [text.get_window_extent() for text in figure.texts]
    legends = [legend.get_window_extent(renderer) for legend in figure.legends]
    page = figure.bbox
    for box in (*legends, *tight, *titles):
        assert -1 <= box.x0 < box.x1 <= page.x1 + 1
        assert -1 <= box.y0 < box.y1 <= page.y1 + 1
    assert not any(a.overlaps(b) for a, b in itertools.combinations([*legends, *tight], 2))
    assert not any(title.overlaps(box) for title in titles for box in axes)
    return axes


@pytest.mark.parametrize("width", ["single", "double", "screen"])
@pytest.mark.parametrize("runs", ["grid", "crowd"])
@pytest.mark.parametrize("x", ["bytes", ("round", "bytes")])
def test_legends_stand_outside_and_nothing_is_cut(request, runs, width, x):
    figure = fp.plot(request.getfixturevalue(runs), x=x, width=width)
    for box in check_layout(figure):  # panels keep their size, however long the legend is
        assert box.height / figure.dpi >= (1.1 if width != "screen" else 2.2)


@pytest.mark.parametrize("width", ["single", "double", "screen"])
def test_long_titles_and_labels_are_broken(width):
    name = "FedPAGE (partition=dirichlet(50, alpha=0.3, seed=0), up=chain:topk:0.1,natural, K=10)"
    curves = {name: [make_run()], name + " #2": [make_run()]}
    panel = plots.PanelRuns("a panel with a long title that must be broken somewhere", curves)
    columns = 1 if width == "single" else 2
    figure = plots.FigureRuns("f", "A long title " * 12, "", columns, (panel,) * columns)
    check_layout(plots.draw_figure(figure, width=width))


@pytest.mark.parametrize(("width", "inches"), [("single", 3.5), ("double", 7.16)])
def test_paper_widths_and_font_size(grid, tmp_path, width, inches):
    figure = fp.plot(grid, tmp_path / "f.pdf", width=width, title="")
    assert figure.get_figwidth() == inches
    (ax,) = figure.axes
    (legend,) = figure.legends
    texts = [ax.xaxis.label, ax.yaxis.label, *legend.get_texts(), *ax.get_xticklabels()]
    texts += [*ax.get_yticklabels(), legend.get_title()]
    assert {text.get_fontsize() for text in texts} == {8.0}
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ", (tmp_path / "f.pdf").read_bytes())
    assert float(box.group(1)) == pytest.approx(72 * inches, abs=0.01)
    fp.plot(grid, tmp_path / "f.png", width=width)
    header = (tmp_path / "f.png").read_bytes()[16:20]
    assert int.from_bytes(header, "big") == pytest.approx(300 * inches, abs=1)


def test_fonts_of_files(grid, tmp_path):
    for suffix in ("pdf", "svg", "eps"):
        fp.plot(grid[:3], tmp_path / f"f.{suffix}", width="single")
    data = (tmp_path / "f.pdf").read_bytes()
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", data, re.DOTALL):
        with suppress(zlib.error):
            data += zlib.decompress(stream)
    assert b"/Type3" not in data
    assert b"/CIDFontType2" in data or b"/TrueType" in data
    assert ">gradient norm</text>" in (tmp_path / "f.svg").read_text()
    assert "/FontType 42" in (tmp_path / "f.eps").read_text()


@pytest.mark.parametrize("suffix", ["pdf", "svg", "png"])
def test_equal_runs_give_equal_files(grid, tmp_path, suffix, monkeypatch):
    fp.plot(grid, tmp_path / f"a.{suffix}", x="bytes", width="double")
    monkeypatch.setattr("time.time", lambda: 2e9)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    fp.plot(grid, tmp_path / f"b.{suffix}", x="bytes", width="double")
    first, second = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in "ab")
    assert first == second
    assert not re.search(rb"CreationDate|<dc:date>", first)


def test_files_that_cannot_be_written_are_refused(grid, tmp_path, monkeypatch):
    def check(name, text):
        with pytest.raises(fp.InputError, match=text) as error:
            fp.plot(grid[:3], tmp_path / name)
        assert "\n" not in str(error.value)

    monkeypatch.setattr(figure_file, "which", lambda name: None)
    check("f.pgf", "needs xelatex")
    check("f.xyz", r"f\.xyz: no such format")
    check("figure", "no such format")
    monkeypatch.setattr(figure_file, "which", lambda name: "/nowhere/" + name)
    monkeypatch.setenv("PATH", "/nowhere")
    check("f.pgf", "xelatex failed")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"x": "byte"}, "'byte' is not a cost"),
        ({"x": "loss"}, "is not a cost"),
        ({"x": "full_rounds"}, "no column 'full_rounds'"),
        ({"x": ()}, "no column for an axis"),
        ({"y": "grad_nrm"}, "did you mean 'grad_norm'"),
        ({"width": "wide"}, "width"),
        ({"band": "std"}, "band"),
        ({"quantiles": (0.9, 0.1)}, "quantiles"),
        ({"panels": "dta"}, "no setting 'dta'; did you mean 'data'"),
        ({"columns": 0}, "columns"),
    ],
)
def test_names_that_do_not_exist_are_refused(grid, words, text):
    with pytest.raises(fp.InputError, match=text):
        fp.plot(grid, **words)


def test_scales(grid):
    def scale(y, runs=grid):
        return fp.plot(runs, y=y).axes[0].get_yscale()

    assert (scale("grad_norm"), scale("accuracy"), scale("loss")) == ("log", "linear", "linear")
    assert scale("grad_norm", [make_run(rate=0.999)]) == "linear"


@pytest.mark.parametrize(
    ("x", "label", "last"),
    [
        ("round", "communication rounds", "60"),
        ("bytes", "total bytes, up and down (MB)", "6"),
        ("bits", "total bits, up and down (Mbit)", "60"),
        ("contacts", "clients called", "600"),
        ("gradients", "row gradients, all clients (thousands)", "50"),
        ("seconds", "seconds in rounds", "6"),
        ("up+0.1*down", "bytes up + 0.1 bytes down (MB)", "3"),
    ],
)
def test_costs_and_their_units(x, label, last):
    figure = fp.plot(make_run(), x=x, width="single")
    figure.draw_without_rendering()
    (ax,) = figure.axes
    assert ax.get_xlabel() == label
    shown = [tick.label1.get_text() for tick in ax.xaxis.get_major_ticks()]
    low, high = ax.get_xlim()
    inside = [t for t, at in zip(shown, ax.get_xticks(), strict=True) if low <= at <= high]
    assert inside[-1] == last
    assert 3 <= len(inside) <= 8


def test_diverged_curves_do_not_flatten_the_others():
    away = make_run("FedAvg", rate=1e3, diverged=True)
    for y, scale, top in (("grad_norm", "log", 10.0), ("loss", "linear", 0.8)):
        (ax,) = fp.plot([make_run(rate=0.9), away], y=y).axes
        assert (ax.get_yscale(), ax.get_ylim()[1] < top) == (scale, True)
    alone = fp.plot([away]).axes[0]
    assert alone.get_ylim()[1] > 1e100


def test_titles():
    assert describe_runs([]) == ""
    assert shorten_partition("iid(50, seed=3)") == "iid"
    assert shorten_partition("label_shards(50, shards=2, seed=0)") == "label_shards(shards=2)"
    runs = [make_run(), make_run(problem=PROBLEM | {"data": "other"})]
    assert describe_runs(runs) == "Logistic regression, l2 regulariser (0.1), blocks, N = 1,200"
    assert fp.plot(runs, title="").get_suptitle() == ""
    assert fp.plot(runs, title="Mine").get_suptitle() == "Mine"
    data = fp.load("census", rows=100)
    real = fp.LogisticRegression(data, fp.iid(100, 5), reg="nonconvex", alpha=0.01)
    assert describe_problem(real.describe()) == (
        "Logistic regression, nonconvex regulariser (0.01), on census, iid, N = 5"
    )


def test_panels_by_settings(grid):
    runs = [
        make_run(name, problem=PROBLEM | {"data": data, "partition": f"iid(1200, seed={seed})"})
        for data in ("one", "two")
        for seed in (0, 1)
        for name in ("FedPAGE", "FedAvg")
    ]
    figure = fp.plot(runs, panels="data", width="double")
    assert [ax.get_title() for ax in figure.axes] == ["one", "two"]
    assert [len(ax.get_lines()) for ax in figure.axes] == [4, 4]
    figure = fp.plot(runs, panels=("data", "partition"), columns=2)
    assert [ax.get_title() for ax in figure.axes] == [
        f"{data}, iid(1200, seed={seed})" for data in ("one", "two") for seed in (0, 1)
    ]
    assert [ax.get_ylabel() for ax in figure.axes] == ["gradient norm", ""] * 2
    assert [ax.get_xlabel() for ax in figure.axes] == ["", "", *["communication rounds"] * 2]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedPAGE", "FedAvg"]
    figure = fp.plot({"a": runs[:2], "b": runs[2:4]}, y=("grad_norm", "accuracy"), width="single")
    assert [ax.get_title() for ax in figure.axes] == ["a", "a", "b", "b"]
    assert len({ax.get_subplotspec().colspan.start for ax in figure.axes}) == 1
    (label,) = {text.get_text() for text in fp.plot(runs[0]).legends[0].get_texts()}
    assert label == "FedPAGE"


def test_the_mean_and_its_interval():
    mean = Summary("mean-ci")
    runs = [make_run(seed=seed) for seed in range(5)]
    values = np.array([run["grad_norm"] for run in runs])
    costs, (low, middle, high) = mean.compute(runs, "round", "grad_norm", is_log=True)
    assert costs.tolist() == runs[0]["round"].tolist()
    logs = np.log(values)
    interval = stats.t.interval(0.95, 4, logs.mean(axis=0), stats.sem(logs, axis=0))
    np.testing.assert_allclose(middle, stats.gmean(values, axis=0))
    np.testing.assert_allclose([low, high], np.exp(interval))
    _, (low, middle, high) = mean.compute(runs, "round", "accuracy", is_log=False)
    values = np.array([run["accuracy"] for run in runs])
    interval = stats.t.interval(0.95, 4, values.mean(axis=0), stats.sem(values, axis=0))
    np.testing.assert_allclose([low, high], interval)
    _, (low, middle, high) = mean.compute(runs[:1], "round", "loss", is_log=True)
    np.testing.assert_allclose(low, high)
    runs[0].rows[-1]["grad_norm"] = math.nan
    runs[1].rows[-2]["grad_norm"] = 0.0
    _, band = mean.compute(runs, "round", "grad_norm", is_log=True)
    assert band[1, -1] == math.inf
    assert band[:, -2].tolist() == [0.0, 0.0, 0.0]


def test_the_legend_says_what_the_band_is(grid):
    def title(**words):
        return fp.plot(grid, **words).legends[0].get_title().get_text().replace("\n", " ")

    assert title() == "median and quartiles, 3 seeds"
    assert title(quantiles=(0.1, 0.9)) == "median, 10 % to 90 % quantiles, 3 seeds"
    assert title(band="mean-ci") == "geometric mean, 95 % t-interval of logarithms, 3 seeds"
    assert title(band="mean-ci", y="accuracy") == "mean, 95 % t-interval, 3 seeds"
    pair = {"a": grid[:3], "b": grid[:2], "c": []}
    assert Summary().describe(pair, is_log=True).endswith("2 to 3 seeds")
    assert fp.plot(grid[0]).legends[0].get_title().get_text() == ""


def test_compare_draws_a_figure(run, tmp_path):
    words = (
        "compare", "--data", "census:rows=300", "--clients", "30", "--rounds", "20", "--S", "3",
        "--seeds", "2", "--methods", "fedpage,fedavg", "--force",
    )  # fmt: skip
    code, out, _ = run(
        *words, "--out", "c", "--x", "contacts", "--figure", "f.svg", "--figure-width", "single"
    )
    assert code == 0
    assert "Figure: f.svg" in out
    svg = (tmp_path / "f.svg").read_text()
    assert ">clients called</text>" in svg
    assert float(re.search(r'width="([\d.]+)pt"', svg).group(1)) == pytest.approx(72 * 3.5)
    assert (tmp_path / "c" / "curves.png").is_file()
