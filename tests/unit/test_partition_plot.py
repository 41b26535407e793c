"""Pictures of partitions, and `fedpage data show`."""

import itertools
from typing import Any

import numpy as np
import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.report import data_summary
from fedpage.report.data_summary import count_labels

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 2))
TOWNS = np.array(["Bern", "Oslo", "Rome"])[np.arange(600) % 3]
SICK = fp.Dataset.from_arrays(X, np.where(np.arange(600) < 150, "sick", "healthy"), "patients")
DIGITS = fp.Dataset.from_arrays(X, np.arange(600) % 10, "digits")
TARGETS = fp.Dataset.from_arrays(X, X[:, 0] + 5, "targets")
VISITS = fp.Dataset.from_arrays(X, np.arange(600) % 2, "visits", clients=TOWNS)


def texts(figure):
    """Return all texts of a figure that are drawn."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    hidden = set()
    for ax in figure.axes:
        for number, axis in enumerate((ax.xaxis, ax.yaxis)):
            low, high = axis.get_view_interval()
            for label in (*axis.get_majorticklabels(), *axis.get_minorticklabels()):
                if not low <= label.get_position()[number] <= high:
                    hidden.add(label)
    drawn = [text for text in figure.findobj(Text) if text.get_visible() and text not in hidden]
    return [text for text in drawn if text.get_text().strip()]


def test_rows_are_counted_by_label_and_client():
    labels, counts = count_labels(SICK, fp.blocks(600, 3))
    assert labels == ["healthy", "sick"]
    assert counts.tolist() == [[50, 200, 200], [150, 0, 0]]
    labels, counts = count_labels(DIGITS, fp.by_id(np.arange(600) % 10))
    assert labels == [str(digit) for digit in range(10)]
    assert (counts == 60 * np.eye(10)).all()
    assert count_labels(TARGETS, fp.blocks(600, 3)) is None


@pytest.mark.parametrize("split", [fp.dirichlet(DIGITS.y, 12, 1.0), fp.by_id(TOWNS)])
def test_cells_are_numbers_of_rows_below_the_clients_sizes(split):
    sizes, content, scale = fp.plot_partition(DIGITS, split).axes
    (image,) = content.images
    cells = np.ma.filled(image.get_array(), 0)
    assert (cells == count_labels(DIGITS, split)[1]).all()
    assert image.origin == "lower"
    shades = image.to_rgba(np.ma.masked_equal([0, 1, 10], 0))
    assert shades[0, 3] == 0
    assert shades[1, :3].mean() > shades[2, :3].mean()
    bars: Any = sizes.patches
    assert [bar.get_height() for bar in bars] == split.sizes.tolist()
    centres = [bar.get_x() + bar.get_width() / 2 for bar in bars]
    assert centres == pytest.approx(range(split.N))
    assert sizes.get_xlim() == content.get_xlim()
    assert scale.get_ylabel() == "rows"


@pytest.mark.parametrize("clients", [1, 10, 50, 150])
@pytest.mark.parametrize("data", [SICK, DIGITS, TARGETS], ids=lambda data: data.name)
def test_no_text_of_a_picture_is_cut_off_or_covers_another(data, clients):
    figure = fp.plot_partition(data, fp.iid(600, clients))
    boxes = [text.get_window_extent() for text in texts(figure)]
    page = figure.bbox
    for box in boxes:
        assert -1 <= box.x0 <= box.x1 <= page.x1 + 1
        assert -1 <= box.y0 <= box.y1 <= page.y1 + 1
    for box, other in itertools.combinations([box.padded(-0.5) for box in boxes], 2):
        assert not box.overlaps(other)


def test_many_clients_are_sorted_by_their_labels_below_their_sizes():
    split = fp.dirichlet_hsu(SICK.y, 100, 0.5)
    sizes, content, _ = fp.plot_partition(SICK, split).axes
    cells = np.ma.filled(content.images[0].get_array(), 0)
    shares = cells[1] / cells.sum(axis=0)
    assert (np.diff(shares) >= 0).all()
    counts = count_labels(SICK, split)[1]
    assert sorted(map(tuple, cells.T)) == sorted(map(tuple, counts.T))
    steps: Any = sizes.patches[0]
    assert (steps.get_data().values == cells.sum(axis=0)).all()
    assert "sorted by their labels" in content.get_xlabel()


def test_long_names_stay_distinct_and_a_dollar_is_no_formula(tmp_path):
    towns = [f"Hospital of the Holy Spirit in {town}" for town in TOWNS]
    labels = np.where(np.arange(600) < 150, r"$\frac$", "a$b")
    data = fp.Dataset.from_arrays(X, labels, "$x$ " * 30, clients=towns)
    figure = fp.plot_partition(data, path=tmp_path / "p.png")
    names = [text.get_text() for text in figure.axes[1].get_xticklabels()]
    assert len(set(names)) == 3
    assert all(name.startswith("Hospital") and len(name) == 22 for name in names)
    title = figure.get_suptitle()
    assert len(title) < 130
    assert r"\$x\$" in title


def test_ids_are_on_the_axis_where_they_are_few():
    figure = fp.plot_partition(VISITS)
    assert {"Bern", "Oslo", "Rome"} <= {text.get_text() for text in texts(figure)}
    many = fp.plot_partition(DIGITS, fp.by_id([f"site {i % 40:02}" for i in range(600)]))
    names = {text.get_text() for text in texts(many)}
    assert "client, in the order of ids" in names
    assert not any(name.startswith("site") for name in names)


def test_problems_bring_their_partition_and_files_are_written(tmp_path):
    path = tmp_path / "new" / "clients.svg"
    figure = fp.plot_partition(fp.LogisticRegression(SICK, fp.iid(600, 5)), path=path)
    assert "<svg" in path.read_text()
    assert any("iid(5, seed=0)" in text.get_text() for text in texts(figure))
    problem = fp.LogisticRegression(VISITS, fp.by_id(VISITS.clients))
    fp.plot_partition(problem, tmp_path / "a.png")  # a file may follow the problem
    fp.plot_partition(VISITS, str(tmp_path / "b.png"))
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((SICK,), "has no client ids; give a partition"),
        ((SICK, fp.blocks(700, 2)), "names rows that"),
        ((SICK, TOWNS, "c.png"), "give a partition, such"),
        ((3,), "give a Dataset or a problem"),
        ((VISITS, None, "x.foo"), "no such format of figures"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, text):
    with pytest.raises(InputError, match=text) as error:
        fp.plot_partition(*arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "sizes", [[5], range(1, 30), [1, 1, 2, 900, 40_000], [3] * 9], ids=lambda sizes: str(sizes[-1])
)
def test_histograms_count_every_client(sizes):
    found = data_summary.size_histogram(np.array(sizes))
    assert sum(count for _, count, _ in found) == len(sizes)
    assert max(len(bar) for _, _, bar in found) == 40


def test_show_writes_a_picture(run, tmp_path):
    """What it prints is in tests/frozen."""
    words = ("data", "show", "census:rows=400", "--clients", "30", "--figure", "new/clients.png")
    assert run(*words)[0] == 0
    assert (tmp_path / "new" / "clients.png").stat().st_size > 5000
