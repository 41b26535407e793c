"""Clients by the ids of their rows."""

from __future__ import annotations

import numpy as np
import pytest

import fedpage as fp
from fedpage.core.errors import InputError

IDS = ["a"] * 10 + ["b"] * 2 + ["c"] * 5 + ["d"]


def test_clients_are_in_the_order_of_sorted_ids():
    split = fp.by_id(["Rome", "Bern", "Rome", "Oslo"])
    assert split.ids == ("Bern", "Oslo", "Rome")
    assert [split.rows(i).tolist() for i in range(3)] == [[1], [3], [0, 2]]
    assert split.name == "by_id(3)"
    numbers = fp.by_id(np.array([10, 9, 10, 2]))
    assert numbers.ids == (2, 9, 10)
    assert all(type(i) is int for i in numbers.ids)
    assert fp.blocks(10, 2).ids is None


def test_ids_come_as_lists_arrays_and_series():
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    for ids in (
        ["x", "y", "x"],
        ("x", "y", "x"),
        np.array(["x", "y", "x"]),
        np.array(["x", "y", "x"], dtype=object),
        pd.Series(["x", "y", "x"]),
        pd.Series(["x", "y", "x"], dtype="category"),
        pd.Series(["x", "y", "x"], dtype="string"),
    ):
        assert fp.by_id(ids).ids == ("x", "y")
    for numbers in ([7, 3, 7], [7.0, 3.0, 7.0], pd.Series([7, 3, 7], dtype="Int64")):
        assert fp.by_id(numbers).ids == (3, 7)


def test_missing_ids_are_counted_and_the_first_is_named():
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    for ids in (
        ["x", None, "y", ""],
        [float("nan"), "x", "y", None],
        np.array(["", "x", "", "y"]),
        np.array([1.0, np.nan, 2.0, np.nan]),
        pd.Series([1, None, 2, None], dtype="Int64"),
        pd.Series(["x", None, "y", None]),
        pd.Series(pd.to_datetime(["2026-01-01", None, "2026-01-02", None])),
    ):
        with pytest.raises(InputError, match=r"2 of 4 rows have no id \(the first is row [01]\)"):
            fp.by_id(ids)


@pytest.mark.parametrize(
    "ids", [[1, "a"], [True, False], [1.5, 2.0], [["a"], ["b"]], [], 5, [b"a"], [(1, 2)]]
)
def test_other_ids_are_refused_in_one_line(ids):
    with pytest.raises(InputError, match="by_id: ") as error:
        fp.by_id(ids)
    assert "\n" not in str(error.value)


def test_small_clients_are_refused_dropped_or_merged():
    with pytest.raises(InputError, match=r"2 of 4 clients .* \(such as 'b' with 2\); lower min_ro"):
        fp.by_id(IDS, min_rows=3)
    dropped = fp.by_id(IDS, min_rows=3, small="drop")
    assert (dropped.ids, dropped.sizes.tolist()) == (("a", "c"), [10, 5])
    assert dropped.name == "by_id(2, min_rows=3: 2 ids with 3 rows dropped)"
    assert dropped.order.tolist() == [*range(10), *range(12, 17)]
    merged = fp.by_id(IDS, min_rows=3, small="merge")
    assert (merged.ids, merged.sizes.tolist()) == (("a", "c", "(other)"), [10, 5, 3])
    assert merged.rows(2).tolist() == [10, 11, 17]
    assert "2 ids with 3 rows merged" in merged.name
    for options, text in (
        ({"min_rows": 4, "small": "merge"}, "lower min_rows$"),
        ({"min_rows": 11, "small": "drop"}, "lower min_rows$"),
        ({"min_rows": 2.5}, "whole number"),
        ({"small": "keep"}, "error, drop, merge"),
    ):
        with pytest.raises(InputError, match=text):
            fp.by_id(IDS, **options)
