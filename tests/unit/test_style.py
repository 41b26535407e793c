"""Styles of curves: colour = method in every picture, dash = step, marker = variant."""

import itertools
import re
from importlib.resources import files

import pytest

from fedpage.methods import METHODS
from fedpage.report.style import (
    DASHES,
    MARKERS,
    METHOD_STYLES,
    assign_styles,
    base_style,
    factor_styles,
    method_of,
)

MAIN = ("fedpage", "scaffold", "fedavg", "fedprox", "page", "vrl-sgd", "s-local-svrg", "secantpage")


def test_every_registered_method_has_a_style():
    names = dict.fromkeys(method_of(entry.label) for entry in METHODS.values())
    bases = [base_style(name) for name in names]
    assert {marker for _, marker in bases} <= set(MARKERS)
    assert len({colour for colour, _ in bases}) >= 13
    main = {base_style(method_of(METHODS[name].label)) for name in MAIN}
    assert len({colour for colour, _ in main}) == len({marker for _, marker in main}) == len(MAIN)


@pytest.mark.parametrize("method", [*METHOD_STYLES, "Mine", "FedPAGEx", "a method of a user"])
def test_a_methods_colour_does_not_depend_on_the_picture(method):
    alone = assign_styles([method])[method]
    assert alone.dash == ()
    crowd = [f"other {number}" for number in range(8)]
    for labels in ([*METHOD_STYLES, *crowd, method], [method, *METHOD_STYLES], [*crowd, method]):
        among = assign_styles(labels)[method]
        assert among.colour == alone.colour
    variant = f"{method} (K=3, eta_g=0.1)"
    assert assign_styles([variant, method])[variant].colour == alone.colour


@pytest.mark.parametrize(
    "labels",
    [
        [*METHOD_STYLES, *(f"other {number}" for number in range(30))],
        [f"FedPAGE (K={K}, eta_g={eta:g})" for K in range(6) for eta in (0.1, 0.2, 0.4, 1, 2)],
        [f"Mine (K={K})" for K in range(30)],
        [f"DANE (eta={eta:g})" for eta in range(20)] + [f"FedPAGE (K={K})" for K in range(20)],
    ],
)
def test_styles_of_a_picture_are_pairwise_different(labels):
    styles = assign_styles(labels)
    assert list(styles) == labels
    assert len(set(styles.values())) == len(labels) >= 30


def test_the_dash_says_the_step_and_the_marker_the_variant():
    grid = list(itertools.product(("FedPAGE", "FedAvg"), (0.4, 0.1, 0.2), (1, 5)))
    styles = assign_styles(f"{name} (eta_g={eta}, K={K})" for name, eta, K in grid)
    for name, eta, K in grid:
        style = styles[f"{name} (eta_g={eta}, K={K})"]
        assert style.dash == DASHES[[0.1, 0.2, 0.4].index(eta)]  # the same for both methods
        shift = MARKERS.index(style.marker) - MARKERS.index(METHOD_STYLES[name][1])
        assert shift % len(MARKERS) == (0 if K == 1 else 1)
    words = assign_styles(["FedPAGE, step 1e-05", "FedPAGE, step 0.1"])
    assert [style.dash for style in words.values()] == [DASHES[0], DASHES[1]]


def test_variants_without_steps_differ_by_dash_too():
    styles = assign_styles(["FedPAGE", "FedPAGE-Full", "FedPAGE (up=natural)"]).values()
    assert len({style.dash for style in styles}) == len({style.marker for style in styles}) == 3
    tuned = assign_styles(["FedPAGE (eta_g=0.1)", "FedAvg (eta_g=0.3)"]).values()
    assert [style.dash for style in tuned] == [(), ()]  # each method has one step


def test_names_that_begin_alike():
    labels = ("EF21-PP", "EF21 (up=topk:0.1)", "FedAvgM", "FedAvg-Full", "PP-MARINA", "PAGE-2")
    assert [method_of(label) for label in labels] == [
        "EF21-PP", "EF21", "FedAvgM", "FedAvg", "PP-MARINA", "PAGE",
    ]  # fmt: skip


def test_a_product_of_methods_and_steps_has_a_short_legend():
    grid = [f"{name} (eta_g={eta})" for name in ("FedPAGE", "FedAvg") for eta in (0.1, 0.2, 0.4)]
    short = factor_styles(grid)
    assert list(short) == ["FedPAGE", "FedAvg", "eta_g=0.1", "eta_g=0.2", "eta_g=0.4"]
    styles = assign_styles(grid)
    assert short["FedAvg"].colour == styles[grid[-1]].colour
    assert short["eta_g=0.4"].dash == styles[grid[-1]].dash
    for other in (grid[:-1], [*grid, "SCAFFOLD"], ["FedPAGE", "FedAvg"], grid[:3]):
        assert factor_styles(other) is None
    assert factor_styles([label.replace(")", ", K=1)") for label in grid]) is None


def test_the_page_can_draw_every_marker():
    script = files("fedpage.report").joinpath("chart.js").read_text(encoding="utf-8")
    known = re.findall(r'"(.)": ?"M', script)
    assert set(MARKERS) <= set(known)
