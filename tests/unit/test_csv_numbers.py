"""The compiled parser of CSV files: every number is the one that Python's float reads."""

from __future__ import annotations

import io
import random
import struct

import numpy as np
import pytest

from fedpage.data import csv_blocks
from fedpage.data.columns import Numbers
from fedpage.data.delimited import _parse_number


def read(cells):
    """Read a column of cells, and return its numbers and the cells that Python parsed."""
    left_over = []

    def parse(cell):
        left_over.append(cell)
        return _parse_number(cell)

    text = "a,b\n" + "".join(f"{cell},x\n" for cell in cells)
    (column,) = csv_blocks.read_blocks(io.BytesIO(text.encode()), ",", 2, [0], set(), parse)
    assert isinstance(column, Numbers)
    return column.to_array(), left_over


def bits(numbers):
    return [struct.pack("<d", number) for number in numbers]


def check(cells):
    """Compare numbers with Python's bit by bit, and return the cells that Python parsed."""
    numbers, left_over = read(cells)
    pairs = zip(cells, bits(numbers), bits(map(float, cells)), strict=True)
    assert [cell for cell, ours, python in pairs if ours != python] == []
    return left_over


def write_number(rng, digits):
    """Write a number of so many digits with a point and an exponent somewhere."""
    text = "".join(rng.choice("0123456789") for _ in range(digits))
    point = rng.randint(0, digits)
    exponent = rng.choice(("", "", f"e{rng.randint(-230, 230)}", f"E+{rng.randint(0, 25)}"))
    sign, mark = rng.choice(("+", "-", "")), rng.choice((".", ""))
    return sign + text[:point] + mark + text[point:] + exponent


def test_small_blocks_are_joined():
    blocks = csv_blocks._Blocks()
    for row in range(3000):
        blocks.add(np.full((2, 1), float(row)))
    blocks.join()
    assert len(blocks) == 3
    column = blocks.column(1)
    assert column.to_array().tolist() == list(range(3000))
    assert column.read(1023, 1025).tolist() == [1023, 1024]
    assert column.read(3000, 3000).tolist() == []


@pytest.mark.parametrize("digits", [1, 4, 8, 15, 16, 17, 18, 19])
def test_random_decimals_are_parsed_without_python(digits):
    rng = random.Random(digits)
    cells = [write_number(rng, digits) for _ in range(5000)]
    assert len(check(cells)) < 0.05 * len(cells)  # ties, as of whole numbers of 17 digits


def test_floats_as_python_writes_them():
    rng = random.Random(0)
    floats = [struct.unpack("<d", rng.randbytes(8))[0] for _ in range(20_000)]
    check([repr(number) for number in floats if number == number])
    assert check([repr(rng.gauss(0, 1)) for _ in range(20_000)]) == []


def test_few_digits_with_all_powers_of_ten():
    left_over = check([f"{m}e{e}" for e in range(-260, 261) for m in range(1, 40)])
    assert len(left_over) < 800  # those beyond 10**250, and ties


def test_numbers_halfway_between_two_floats():
    rng, cells = random.Random(1), []
    for _ in range(3000):
        tie = rng.randrange(2**53, 2**54) | 1  # 54 bits
        cells += [str(tie), f"{tie}.0", f"{tie}e0", f"{tie}1e-1", f"{tie - 1}9e-1"]
        cells.append(f"{tie // 8}.{tie % 8 * 125:03}")
    assert len(check(cells)) >= 3000


@pytest.mark.parametrize(
    "cell",
    [
        "18446744073709551616", "18446744073709551615", "9999999999999999999", "9007199254740993",
        "0.00000000000000000000012345678901234567", "000000000000000000000000000001.5",
        "0.0000000000000000000000000", "-0", "-0.0", "+.5", "5.", "1e22", "1e23", "9e-250", "9e250",
        "1e308", "1.7976931348623157e308", "2.2250738585072014e-308", "5e-324", "1e-400", "1e400",
        "0e99999", "1e0000000000000000001", "8.5e+5", "123456789012345678901234567890", " 7", "7 ",
        "1e-22", "1e-23", "9007199254740992e22", "9007199254740993e-22",
    ],
)  # fmt: skip
def test_numbers_at_the_edges(cell):
    check([cell, f"-{cell.strip().lstrip('+-')}"])


@pytest.mark.parametrize(
    "cell",
    [".", "-", "+", "e5", "1e", "1e+", "1.2.3", "--1", "1-", "1 2", "0x10", "1_0", ".e1", "1f"],
)
def test_what_is_no_number_is_text(cell):
    text = f"a,b\n1,x\n{cell},x\n"
    found = csv_blocks.read_blocks(io.BytesIO(text.encode()), ",", 2, [0], set(), _parse_number)
    assert found == [None]
