"""Tables: CSV, parquet, npz and frames become data sets, and bad cells are named."""

import bz2
import gzip
import lzma
import random
import struct
import sys

import numpy as np
import pytest
from support import refusal

import fedpage as fp
from fedpage.data import frames

PATIENTS = """age,smoker,city,hospital,outcome
30,yes,Rome,7,ill
41.5,no,Oslo,12,well
35,no,Rome,7,well
60,yes,Bern,3,ill
"""


def write(folder, text, name="t.csv"):
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.fixture
def load(tmp_path):
    """Load a table from its text."""
    return lambda text, name="t.csv", **options: fp.load(
        write(tmp_path, text, name), **{"label": "outcome", **options}
    )


def from_frame(frame, label="y", **options):
    return fp.Dataset.from_frame(frame, label=label, **options)


def same(one, other):
    assert one.columns == other.columns
    assert one.classes == other.classes
    assert one.digest == other.digest
    assert np.array_equal(one.clients, other.clients)
    assert one.encoding == other.encoding


def patients():
    """Make the data set of PATIENTS without a file."""
    names, *rows = [line.split(",") for line in PATIENTS.split()]
    frame: dict = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    frame["age"] = [float(age) for age in frame["age"]]
    return from_frame(frame, "outcome", client="hospital")


def test_a_csv_becomes_a_data_set(load):
    data = load(PATIENTS, client="hospital")
    assert data.columns == (
        "age", "smoker=no", "smoker=yes", "city=Bern", "city=Oslo", "city=Rome",
    )  # fmt: skip
    assert data.to_dense().tolist() == [
        [30, 0, 1, 0, 0, 1],
        [41.5, 1, 0, 0, 1, 0],
        [35, 1, 0, 0, 0, 1],
        [60, 0, 1, 1, 0, 0],
    ]
    assert (data.classes, data.y.tolist()) == (("ill", "well"), [-1, 1, 1, -1])
    assert data.clients.tolist() == [7, 12, 7, 3]
    assert (data.name, load(PATIENTS, name="u.csv").name) == ("t.csv", "u.csv")
    assert data.is_dense
    assert "client ids 'hospital'; one-hot: 'smoker', 'city'" in data.note


@pytest.mark.parametrize(
    "text",
    [
        *(PATIENTS.replace(",", delimiter) for delimiter in (";", "\t", "|", " , ")),
        "\ufeff" + PATIENTS,
        PATIENTS.replace("\n", "\r\n"),
        PATIENTS.replace("\n", "\r"),
        PATIENTS.replace("\n", "\n\n"),
        "\n\n" + PATIENTS + "\n \n",
        PATIENTS.rstrip("\n"),
        PATIENTS.replace("Rome", '"Rome"').replace("30", '"30"'),
        PATIENTS.replace("30", "+30.0").replace("35", "3.5e1"),
    ],
)
def test_ways_to_write_the_same_table(load, text):
    same(load(text, client="hospital"), patients())


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_compressed_files(load, suffix, pack):
    packed = pack(PATIENTS.encode())
    same(load(packed, name=f"patients.csv{suffix}", client="hospital"), patients())
    assert "not a complete" in refusal(load, packed[:-9], name=f"cut.csv{suffix}")


def test_quotes(load):
    """Quotes protect delimiters, quotes and line ends; one within a cell is a character."""
    data = load('\ufeff"a, b",c,outcome\n"x, y",1,0\n"say ""no""\nplease",2,1\n"x, y",3,0\n')
    assert data.columns == ('a, b=say "no"\nplease', "a, b=x, y", "c")
    assert data.to_dense().tolist() == [[0, 1, 1], [1, 0, 2], [0, 1, 3]]
    inches = load('size,outcome\n15" screen,0\n17" screen,1\n15" screen,1\n')
    assert inches.columns == ('size=15" screen', 'size=17" screen')


@pytest.mark.parametrize("row", [b"\xe9,1,x,1", b"1,\xe9,x,1", b"1,1,\xe9,1"])
def test_bytes_that_are_not_utf8_are_refused_in_any_column(load, row):
    text = b"a,b,c,outcome\n" + b"1,1,x,0\n" * 3000 + row + b"\n1,2,x,1\n"
    assert "t.csv, row 3002: the byte 0xe9 is not UTF-8" in refusal(load, text, drop="a")


def test_numbers_that_become_text_after_the_first_rows(load, monkeypatch):
    monkeypatch.setattr(frames, "_SAMPLE", 2)
    data = load("code,x,outcome\n" + "1,2,0\n" * 5 + "V1,2.5,1\n" * 5)
    assert data.columns == ("code=1", "code=V1", "x")
    assert data.to_dense()[0].tolist() == [1, 0, 2]


def test_quoted_line_ends_and_blank_lines_lose_nothing(load):
    rows = [f'{i},"c{i % 3}{chr(10) if i % 7 == 0 else ""}",é{i % 2}' for i in range(200)]
    text = "x,c,outcome\n" + "\n".join(rows) + "\n"
    whole = load(text)
    assert whole.to_dense()[:, 0].tolist() == list(range(200))
    same(load(text.replace(",é1\n", ",é1\n \n")), whole)
    same(load(text.replace("\n", "\r\n").rstrip()), whole)


def test_numbers_of_a_csv_are_those_of_python(load):
    """Every number is correctly rounded, also extremes, subnormals and ties of two floats."""
    rng, cells = random.Random(0), ["5e-324", "1e-400", "1.7976931348623157e308", "-0", "+.5", "5."]
    cells += [repr(struct.unpack("<d", rng.randbytes(8))[0]) for _ in range(3000)]
    cells = [cell for cell in cells if "nan" not in cell and "inf" not in cell]
    for digits in range(1, 31):
        for _ in range(100):
            point, whole = rng.randint(0, digits), rng.randrange(10**digits)
            text = f"{whole:0{digits}}"
            cells.append(f"{text[:point]}.{text[point:]}e{rng.randint(-330, 270)}")
    for _ in range(1000):
        tie = rng.randrange(2**53, 2**54) | 1
        cells += [str(tie), f"{tie}1e-1", f"{tie - 1}9e-1", f"{tie // 8}.{tie % 8 * 125:03}"]
    found = load("x,outcome\n" + "".join(f"{cell},{i}\n" for i, cell in enumerate(cells)))
    assert found.to_dense().tobytes() == np.array([float(cell) for cell in cells]).tobytes()


def make_frame(library, columns):
    module = pytest.importorskip(library, reason="frames of this library are an extra")
    return (module.table if library == "pyarrow" else module.DataFrame)(columns)


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_frames_give_the_data_set_of_the_csv(load, library):
    names, *rows = [line.split(",") for line in PATIENTS.split()]
    columns: dict = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    columns["age"] = [float(age) for age in columns["age"]]
    columns["hospital"] = [int(number) for number in columns["hospital"]]
    frame = make_frame(library, columns)
    for given in ({}, {"standardise": True}, {"columns": ["city", "age"]}, {"drop": "smoker"}):
        options: dict = {"client": "hospital", **given}
        found = from_frame(frame, "outcome", **options)
        same(found, load(PATIENTS, **options))
        assert found.name == "frame"


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_missing_values_of_frames(library):
    columns = {
        "x": [1.0, None, 3.0, 2.0], "k": [1, 2, None, 4], "b": [True, None, False, True],
        "c": ["u", "v", "u", None], "y": ["n", "p", "p", "p"],
    }  # fmt: skip
    frame = make_frame(library, columns)
    data = from_frame(frame, missing="mean")
    assert data.columns == ("x", "k", "b", "c=u", "c=v", "c=(missing)")
    filled = [
        [1, 1, 1, 1, 0, 0],
        [2, 2, 2 / 3, 0, 1, 0],
        [3, 7 / 3, 0, 1, 0, 0],
        [2, 4, 1, 0, 0, 1],
    ]
    np.testing.assert_allclose(data.to_dense(), filled)
    dropped = from_frame(frame, missing="drop", categorical=["k"], drop=["c"])
    assert dropped.columns == ("x", "k=1.0" if library == "pandas" else "k=1", *dropped.columns[2:])
    assert dropped.rows == dropped.encoding.dropped_rows == 2
    assert "2 rows with missing values left out" in dropped.note
    for at, name, given in ((1, "x", {"drop": ["c"]}), (3, "c", {"columns": ["c"]})):
        said = refusal(from_frame, frame, **given)
        assert f"frame, row {at} (the first is 0), column {name!r}: the value is missing" in said


def test_columns_of_pandas(monkeypatch):
    """Categories, dates, nullable and large whole numbers, without pyarrow."""
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    columns = {
        "zip": pd.Categorical([1, 2, 1]),
        "grade": pd.Categorical(["b", "a", "b"], categories=["b", "a", "z"]),
        "odd": [1, "x", 2.5],
        "c": ["u", None, "v"],
        "seen": pd.to_datetime(["2026-01-01"] * 3),
        "y": [True, False, True],
        "id": [2**53 + 1, 2**53, 2**53 + 1],
    }
    frame = pd.DataFrame(columns).assign(n=pd.array([1, 2, 3], dtype="Int64"))
    data = from_frame(frame, client="id", drop=["seen"], missing="mean")
    assert data.columns[:4] == ("zip=1", "zip=2", "grade=a", "grade=b")
    assert data.columns[-4:] == ("c=u", "c=v", "c=(missing)", "n")
    assert data.classes == (False, True)
    assert data.clients.tolist() == [2**53 + 1, 2**53, 2**53 + 1]
    for wrong, word in (
        (frame, "column 'seen': it holds dates"),
        (pd.DataFrame([[1, 2, 3]], columns=["a", "a", "y"]), "occurs twice"),
        (pd.DataFrame([[1, 2]]), "column name 0 is not a string"),
        (pd.DataFrame(), "there is no column 'y'"),
    ):
        assert word in refusal(from_frame, wrong)


def test_whole_numbers_that_a_frame_holds_as_floats():
    """A column of pandas has floats where some of its whole numbers are missing."""
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    frame = pd.DataFrame({"zip": [1, 2, 1], "who": [7, None, 8], "y": [0, 1, 1]})
    data = from_frame(frame, client="who", missing="drop", categorical="zip")
    assert data.clients.tolist() == [7, 8]
    assert data.encoding.transform(pd.DataFrame({"zip": [1.0]})).tolist() == [[1.0]]
    trained = from_frame({"zip": ["1.0", "2.5"], "y": [0, 1]})
    assert trained.encoding.transform({"zip": [1, 2.5]}).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_rows_columns_and_frames_of_the_interchange_protocols():
    rows = [{"a": 1, "b": "u", "y": 0}, {"a": 2, "b": "v", "y": 1}]
    same(from_frame(rows), from_frame({"a": np.array([1, 2]), "b": ["u", "v"], "y": (0, 1)}))
    pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    frame = pa.table({"x": [1.5, 2.0, None], "c": ["u", "v", "u"], "y": [0, 1, 1]})

    class Arrow:
        def __arrow_c_stream__(self, schema=None):
            return frame.__arrow_c_stream__(schema)

    class Protocol:
        def __dataframe__(self, *_, **__):
            return frame.__dataframe__()

    whole = from_frame(frame, missing="mean")
    for other in (Arrow(), Protocol()):
        same(from_frame(other, missing="mean"), whole)


def test_frames_that_cannot_be_used():
    import polars as pl

    y = [0, 1]
    for frame, word in (
        (pl.LazyFrame({"x": [1], "y": [0]}), "call .collect() first"),
        (pl.DataFrame({"x": [[1, 2]], "y": [0]}), "column 'x': values of type List(Int64)"),
        (3, "expected a frame"),
        ([{"a": 1, "b": "u", "y": 0}, {"a": 2, "y": 1}], "row 1 (the first is 0)"),
        ({"a": [1], "y": y}, "columns of different lengths"),
        ({"a": [[1], [2]], "y": y}, "is a list, neither a number nor text"),
        ({"a": [1, -(10**400)], "y": y}, "column 'a': a number is too large"),
        ({"a": [None, None], "y": y}, "column 'a' has no value in any row"),
        ({"x": [f"{k}.5" for k in range(40)], "y": y * 20}, "as by astype(float)"),
        ({"height, cm": [1.0, 2.0], "z": y}, "the columns are 'height, cm', z"),
    ):
        assert word in refusal(from_frame, frame)


NUMBERS = "age,x,outcome\n" + "".join(f"{30 + i},{i},{i % 2}\n" for i in range(40))


LINES = 'a,b,outcome\n\n"two\nlines",3,1\n' + '"x",2,0\n' * 30 + '"x",,1\n'


def cell(row):
    """Return NUMBERS with another row 17."""
    return NUMBERS.replace("45,15,1", row)


@pytest.mark.parametrize(
    ("text", "place", "word"),
    [
        (cell("abc,15,1"), "row 17, column 'age'", "97.5 % of the column"),
        (cell('"1,234",15,1'), "row 17, column 'age'", "without a comma"),
        (cell("inf,15,1"), "row 17, column 'age'", "inf is not a finite number"),
        (cell("1e999,15,1"), "row 17, column 'age'", "inf is not a finite number"),
        (cell("1_000,15,1"), "row 17, column 'age'", "'1_000' is not a number"),
        (cell("45,15,abc"), "row 17, column 'outcome'", "'abc' is not a number"),
        (cell("45,15,inf"), "row 17, column 'outcome'", "inf is not a finite number"),
        (cell("45,15,"), "row 17, column 'outcome'", 'or give missing="drop"'),
        (cell("NA,15,1"), "row 17, column 'age'", '"mean" to fill them in'),
        (cell("45,1").replace("\n30", "\n\n\n30"), "row 19", "2 cells"),
        (cell("45,15,3,4,1"), "row 17", "5 cells"),
        (cell('45,"15,1'), "row 17", "quotes are wrong"),
        (cell('45,"1"5,1'), "row 17", "quotes are wrong"),
        (NUMBERS.encode().replace(b"45,15", b"\xe9t\xe9,15"), "row 17", "0xe9 is not UTF-8"),
        (NUMBERS.encode("utf-16"), "row 1", "0xff is not UTF-8"),
        (LINES, "row 35, column 'b'", "missing"),
        ("", "", "it is empty"),
        ("\n \n", "", "it is empty"),
        ("age,outcome\n", "", "no rows"),
        ("1.5,2,0\n3,4,1\n", "row 1", "holds numbers"),
        ("a,b,a,outcome\n1,2,3,0\n", "", "'a' occurs twice"),
        ("id,x,outcome\n" + "".join(f"n{i},1,{i % 2}\n" for i in range(30)), "", "drop=('id',)"),
        ("x,outcome\n" + "".join(f"1,n{i}\n" for i in range(30)), "", "choose another label"),
        ("x,outcome\n1,a\n2,a\n", "", "is 'a' in every row"),
        ("outcome\n1\n2\n", "", "no column is left"),
        ("d,x,outcome\n2026-01-02,1,0\n2026-01-03,2,1\n", "column 'd'", "dates or times"),
        ("d,x,outcome\n2026-01-02T10:30:00.5+01:00,1,0\n", "column 'd'", "dates or times"),
        ("a,outcome,\n1,0,\n3,1,\n", "", "column 'column 3' has no value in any row"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_in_one_line(load, text, place, word):
    said = refusal(load, text)
    assert said.startswith(f"t.csv{', ' if place else ''}{place}")
    assert word in said


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"label": None}, "label='outcome'"),
        ({"label": "outcom"}, "did you mean 'outcome'?"),
        ({"drop": ["Age"]}, "did you mean 'age'?"),
        ({"client": "outcome"}, "'outcome' is the label"),
        ({"columns": ["age"], "drop": "age"}, "'age' is the label, the client ids or left out"),
        ({"missing": "median"}, "missing"),
        ({"drop": 3}, "drop"),
        ({"label": 4}, "label"),
        ({"standardise": "yes"}, "standardise"),
        ({"skew": 1}, "has no option skew"),
    ],
)
def test_options_that_do_not_fit_the_table(load, options, word):
    assert word in refusal(load, PATIENTS, **options)


def test_left_out_columns_are_not_read(load):
    rows = "".join(f"2026-01-0{1 + i % 9},{i}b,{i},{i % 2}\n" for i in range(30))
    text = "when,id,x,outcome\n" + rows
    data = load(text, drop=("when", "id"))
    assert (data.columns, data.encoding.left_out) == (("x",), ("when", "id"))
    same(load(text, columns=["x"]), data)
    assert load("d,outcome\n2026-01-02,0\n2026-01-03,1\n", categorical="d").features == 2


@pytest.mark.parametrize("first", [0, 1])
def test_row_numbers_without_a_name_are_no_feature(load, first):
    text = ",age,outcome\n" + "".join(f"{first + i},{i % 7},{i % 2}\n" for i in range(30))
    assert "counts the rows, as the index of a frame does" in refusal(load, text)
    assert load(text, drop=["column 1"]).columns == ("age",)
    assert load(text.replace("\n3,", "\n5,")).columns == ("column 1", "age")


def test_booleans_labels_and_ids_as_written(load):
    text = "b,id,outcome\nTrue,007,1.5\nfalse,08,2\nTRUE,007,3\n"
    data = load(text, client="id")
    assert data.columns == ("b",)
    assert data.encoding.columns[0].is_bool
    assert data.to_dense().tolist() == [[1], [0], [1]]
    assert data.clients.tolist() == ["007", "08", "007"]
    assert (data.classes, data.y.tolist()) == (None, [1.5, 2, 3])
    assert load(text, label="b", columns=["outcome"]).classes == (False, True)
    numbers = load(text, categorical="outcome", label="b").columns[1:]
    assert numbers == ("outcome=1.5", "outcome=2", "outcome=3")
    ids = "x,who,outcome\n1,1.0,0\n2,1,1\n"
    assert load(ids, client="who").clients.tolist() == ["1.0", "1"]
    assert load(ids.replace(",1,", ",2.0,"), client="who").clients.tolist() == [1, 2]


def test_missing_values_of_a_csv(load):
    text = "x,c,id,outcome\n1,u,a,0\nNA,v,a,1\n3, NaN ,b,1\n5,u,b,0\n"
    data = load(text, client="id", missing="mean")
    assert data.columns == ("x", "c=u", "c=v", "c=(missing)")
    assert data.to_dense().tolist() == [[1, 1, 0, 0], [3, 0, 1, 0], [3, 0, 0, 1], [5, 1, 0, 0]]
    assert "missing values filled in" in data.note
    dropped = load(text, client="id", missing="drop")
    assert dropped.columns == ("x", "c=u")
    assert dropped.to_dense().tolist() == [[1, 1], [5, 1]]
    assert dropped.clients.tolist() == ["a", "b"]
    said = refusal(load, text.replace(",a,", ",,"), client="id", missing="mean")
    assert said.startswith("t.csv, row 2, column 'id': the value is missing")
    short = 'a,b,outcome\n"x, y",1,\n2,0\nx,4,1\nx,5,0\n'  # as many commas as if it had all cells
    assert "row 3: it has 2 cells" in refusal(load, short, missing="drop")
    empty = "x,c,outcome\n,1,0\n2,,1\n"
    assert "no rows without a missing value" in refusal(load, empty, missing="drop")
    empty = empty.replace("\n2,,", "\n,2,")
    assert "column 'x' has no value in any row" in refusal(load, empty, missing="mean")
    assert load(empty, drop="x").columns == ("c",)


def test_standardising(load):
    text = "x,same,b,c,outcome\n1,0.1,true,u,0\n2,0.1,false,v,1\n6,0.1,true,u,1\n"
    data = load(text, standardise=True)
    X = data.to_dense()
    np.testing.assert_allclose(X[:, 0], (np.array([1, 2, 6]) - 3) / np.std([1, 2, 6]))
    assert X[:, 1].tolist() == [0, 0, 0]
    assert X[:, 2:].tolist() == [[1, 1, 0], [0, 0, 1], [1, 1, 0]]
    assert "numbers standardised" in data.note
    huge = "x,outcome\n-1e308,0\n1e308,1\n"
    assert "column 'x' cannot be standardised" in refusal(load, huge, standardise=True)


def test_parquet(load, tmp_path):
    import polars as pl

    pl.read_csv(PATIENTS.encode()).write_parquet(tmp_path / "patients.parquet")
    options = {"label": "outcome", "client": "hospital"}
    same(fp.load(tmp_path / "patients.parquet", **options), patients())
    assert "bad.parquet: not a parquet file (" in refusal(load, "no parquet", name="bad.parquet")


def test_npz(load, tmp_path):
    from scipy.sparse import csr_array

    path = tmp_path / "arrays.npz"
    X = np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
    np.savez(path, X=X, y=["a", "b", "a"], clients=[1, 1, 2])
    data = fp.load(path)
    assert (data.name, data.classes, data.clients.tolist()) == ("arrays.npz", ("a", "b"), [1, 1, 2])
    assert data.X.tolist() == X.tolist()
    csr = csr_array(X)
    parts = {"data": csr.data, "indices": csr.indices, "indptr": csr.indptr, "shape": X.shape}
    np.savez(path, **parts, y=[0, 1, 1])
    assert not fp.load(path).is_dense
    assert fp.load(path).to_dense().tolist() == X.tolist()
    for arrays in (
        {"A": X},
        {"X": X, "y": np.array([None, 1, 2], dtype=object)},
        {"data": [1.0], "indices": [7], "indptr": [0, 1], "shape": (1, 2), "y": [0]},
    ):
        np.savez(path, allow_pickle=True, **arrays)
        assert "not an .npz file" in refusal(fp.load, path)
    with path.open("wb") as file:
        np.save(file, np.eye(2))
    assert "not an .npz file" in refusal(fp.load, path)
    assert "not an .npz file" in refusal(load, b"PK\x03\x04 broken", name="b.npz", label=None)
