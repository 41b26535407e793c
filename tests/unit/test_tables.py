"""Tables: CSV, parquet, npz and frames become data sets, and bad cells are named."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import struct
import sys

import numpy as np
import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.data import frames
from fedpage.data.tables import encode_file

PATIENTS = """age,smoker,city,hospital,outcome
30,yes,Rome,7,ill
41.5,no,Oslo,12,well
35,no,Rome,7,well
60,yes,Bern,3,ill
"""


def write(tmp_path, text, name="patients.csv"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def load(tmp_path, text, name="patients.csv", **options):
    return fp.load(write(tmp_path, text, name), **{"label": "outcome", **options})


def refusal(tmp_path, text, **options):
    with pytest.raises(InputError) as error:
        load(tmp_path, text, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def same(one, other):
    assert one.columns == other.columns
    assert one.classes == other.classes
    assert one.to_dense().tolist() == other.to_dense().tolist()
    assert one.y.tolist() == other.y.tolist()
    assert one.digest == other.digest
    if one.clients is not None:
        assert one.clients.tolist() == other.clients.tolist()
    assert one.encoding == other.encoding


def test_a_csv_becomes_a_data_set(tmp_path):
    data = load(tmp_path, PATIENTS, client="hospital")
    assert data.columns == (
        "age", "smoker=no", "smoker=yes", "city=Bern", "city=Oslo", "city=Rome",
    )  # fmt: skip
    assert data.to_dense().tolist() == [
        [30, 0, 1, 0, 0, 1],
        [41.5, 1, 0, 0, 1, 0],
        [35, 1, 0, 0, 0, 1],
        [60, 0, 1, 1, 0, 0],
    ]
    assert data.classes == ("ill", "well")
    assert data.y.tolist() == [-1, 1, 1, -1]
    assert data.clients.tolist() == [7, 12, 7, 3]
    assert data.name == "patients.csv"
    assert data.is_dense
    assert fp.load(tmp_path / "patients.csv", label="outcome", name="p").name == "p"
    assert "hospital" in data.note
    assert "'smoker', 'city'" in data.note


@pytest.mark.parametrize(
    "text",
    [
        PATIENTS.replace(",", ";"),
        PATIENTS.replace(",", "\t"),
        PATIENTS.replace(",", "|"),
        "\ufeff" + PATIENTS,
        PATIENTS.replace("\n", "\r\n"),
        PATIENTS.replace("\n", "\n\n"),
        "\n\n" + PATIENTS + "\n \n",
        PATIENTS.rstrip("\n"),
        PATIENTS.replace(",", " , "),
        PATIENTS.replace("Rome", '"Rome"').replace("30", '"30"'),
        PATIENTS.replace("30", "+30.0").replace("35", "3.5e1"),
    ],
)
def test_ways_to_write_the_same_table(tmp_path, text):
    same(load(tmp_path, text, client="hospital"), fp_from(PATIENTS))


def fp_from(text):
    """Make the data set of a table of text without a file."""
    names, *rows = [line.split(",") for line in text.split()]
    frame = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    frame["age"] = [float(age) for age in frame["age"]]
    return fp.Dataset.from_frame(frame, label="outcome", client="hospital")


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_compressed_files(tmp_path, suffix, pack):
    data = load(tmp_path, pack(PATIENTS.encode()), f"patients.csv{suffix}", client="hospital")
    same(data, fp_from(PATIENTS))
    with pytest.raises(InputError, match="not a complete"):
        load(tmp_path, pack(PATIENTS.encode())[:-9], f"cut.csv{suffix}")


def test_quotes_protect_delimiters_quotes_and_line_ends(tmp_path):
    text = 'a,"b, c",outcome\n"x, y",1,0\n"say ""no""\nplease",2,1\n"x, y",3,0\n'
    data = load(tmp_path, text)
    assert data.columns == ('a=say "no"\nplease', "a=x, y", "b, c")
    assert data.to_dense().tolist() == [[0, 1, 1], [1, 0, 2], [0, 1, 3]]


def test_a_quote_within_an_unquoted_cell(tmp_path):
    data = load(tmp_path, 'size,outcome\n15" screen,0\n17" screen,1\n15" screen,1\n')
    assert data.columns == ('size=15" screen', 'size=17" screen')


def test_quotes_around_the_first_name_after_a_byte_order_mark(tmp_path):
    assert load(tmp_path, '\ufeff"a, b",outcome\n1,0\n2,1\n').columns == ("a, b",)


@pytest.mark.parametrize("row", [b"\xe9,1,x,1", b"1,\xe9,x,1", b"1,1,\xe9,1"])
def test_bytes_that_are_not_utf8_are_refused_in_any_column(tmp_path, row):
    text = b"a,b,c,outcome\n" + b"1,1,x,0\n" * 3000 + row + b"\n1,2,x,1\n"
    said = refusal(tmp_path, text, drop="a")
    assert said.startswith("patients.csv, row 3002: the byte 0xe9 is not UTF-8")


def test_numbers_that_become_text_after_the_first_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(frames, "_SAMPLE", 2)
    text = "code,x,outcome\n" + "1,2,0\n" * 5 + "V1,2.5,1\n" * 5
    data = load(tmp_path, text)
    assert data.columns == ("code=1", "code=V1", "x")
    assert data.to_dense()[0].tolist() == [1, 0, 2]


def test_quoted_line_ends_and_blank_lines_lose_nothing(tmp_path):
    rows = [f'{i},"c{i % 3}{chr(10) if i % 7 == 0 else ""}",é{i % 2}' for i in range(200)]
    text = "x,c,outcome\n" + "\n".join(rows) + "\n"
    whole = load(tmp_path, text)
    assert whole.to_dense()[:, 0].tolist() == list(range(200))
    same(load(tmp_path, text.replace(",é1\n", ",é1\n \n")), whole)
    same(load(tmp_path, text.replace("\n", "\r\n").rstrip()), whole)


def test_numbers_of_a_csv_are_those_of_python(tmp_path):
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
    path = write(tmp_path, "x,outcome\n" + "".join(f"{cell},{i}\n" for i, cell in enumerate(cells)))
    found = fp.load(path, label="outcome").to_dense().ravel()
    assert found.tobytes() == np.array([float(cell) for cell in cells]).tobytes()


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_frames_give_the_data_set_of_the_csv(tmp_path, library):
    frames = pytest.importorskip(library, reason="frames of this library are an extra")
    path = write(tmp_path, PATIENTS)
    if library == "pyarrow":
        from pyarrow import csv

        frame = csv.read_csv(path)
    else:
        frame = frames.read_csv(path)
    for given in ({}, {"standardise": True}, {"columns": ["city", "age"]}, {"drop": "smoker"}):
        options: dict = {"label": "outcome", "client": "hospital", **given}
        from_frame = fp.Dataset.from_frame(frame, **options)
        same(from_frame, fp.load(path, **options))
        assert from_frame.name == "frame"


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_missing_values_of_frames(library):
    frames = pytest.importorskip(library, reason="frames of this library are an extra")
    columns = {
        "x": [1.0, None, 3.0, 2.0],
        "k": [1, 2, None, 4],
        "b": [True, None, False, True],
        "c": ["u", "v", "u", None],
        "y": ["n", "p", "p", "p"],
    }
    make = frames.table if library == "pyarrow" else frames.DataFrame
    frame = make(columns)
    data = fp.Dataset.from_frame(frame, label="y", missing="mean")
    assert data.columns == ("x", "k", "b", "c=u", "c=v", "c=(missing)")
    np.testing.assert_allclose(
        data.to_dense(),
        [
            [1, 1, 1, 1, 0, 0],
            [2, 2, 2 / 3, 0, 1, 0],
            [3, 7 / 3, 0, 1, 0, 0],
            [2, 4, 1, 0, 0, 1],
        ],
    )
    dropped = fp.Dataset.from_frame(frame, label="y", missing="drop", categorical=["k"], drop=["c"])
    assert dropped.columns == ("x", "k=1.0" if library == "pandas" else "k=1", *dropped.columns[2:])
    assert dropped.rows == 2
    assert dropped.encoding.dropped_rows == 2
    assert "2 rows with missing values left out" in dropped.note
    with pytest.raises(InputError, match=r"frame, row 1 \(the first is 0\), column 'x': the value"):
        fp.Dataset.from_frame(frame, label="y", drop=["c"])
    with pytest.raises(InputError, match=r"row 3 .*column 'c': the value is missing"):
        fp.Dataset.from_frame(frame, label="y", columns=["c"])


def test_categories_and_dates_of_pandas():
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    frame = pd.DataFrame(
        {
            "zip": pd.Categorical([1, 2, 1]),
            "grade": pd.Categorical(["b", "a", "b"], categories=["b", "a", "z"]),
            "odd": [1, "x", 2.5],
            "seen": pd.to_datetime(["2026-01-01"] * 3),
            "y": [True, False, True],
            "id": [2**53 + 1, 2**53, 2**53 + 1],
        }
    )
    data = fp.Dataset.from_frame(frame, label="y", client="id", drop=["seen"])
    assert data.columns[:4] == ("zip=1", "zip=2", "grade=a", "grade=b")
    assert data.classes == (False, True)
    assert data.clients.tolist() == [2**53 + 1, 2**53, 2**53 + 1]
    with pytest.raises(InputError, match="column 'seen': it holds dates or times; leave it out"):
        fp.Dataset.from_frame(frame, label="y")
    doubled = pd.DataFrame([[1, 2, 3]], columns=["a", "a", "y"])
    with pytest.raises(InputError, match="occurs twice; rename it"):
        fp.Dataset.from_frame(doubled, label="y")
    with pytest.raises(InputError, match="column name 0 is not a string"):
        fp.Dataset.from_frame(pd.DataFrame([[1, 2]]), label="y")


def test_a_lazy_frame_and_other_things_are_refused():
    import polars as pl

    with pytest.raises(InputError, match=r"the frame is lazy; call \.collect\(\) first"):
        fp.Dataset.from_frame(pl.LazyFrame({"x": [1], "y": [0]}), label="y")
    with pytest.raises(InputError, match=r"expected a frame .*, not int"):
        fp.Dataset.from_frame(3, label="y")
    nested = pl.DataFrame({"x": [[1, 2]], "y": [0]})
    with pytest.raises(InputError, match=r"column 'x': values of type List\(Int64\) cannot be"):
        fp.Dataset.from_frame(nested, label="y")


def test_rows_and_columns_of_python():
    rows = [{"a": 1, "b": "u", "y": 0}, {"a": 2, "b": "v", "y": 1}]
    columns = {"a": np.array([1, 2]), "b": ["u", "v"], "y": (0, 1)}
    same(fp.Dataset.from_frame(rows, label="y"), fp.Dataset.from_frame(columns, label="y"))
    with pytest.raises(InputError, match=r"row 1 .* different: \['b'\]"):
        fp.Dataset.from_frame([rows[0], {"a": 2, "y": 1}], label="y")
    with pytest.raises(InputError, match="columns of different lengths"):
        fp.Dataset.from_frame({"a": [1], "y": [0, 1]}, label="y")
    with pytest.raises(InputError, match="is a list, neither a number nor text"):
        fp.Dataset.from_frame({"a": [[1], [2]], "y": [0, 1]}, label="y")


NUMBERS = "age,x,outcome\n" + "".join(f"{30 + i},{i},{i % 2}\n" for i in range(40))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            NUMBERS.replace("45,15", "abc,15"),
            "patients.csv, row 17, column 'age': 'abc' is not a number, as 97.5 % of the column "
            "are; correct the cell, give categorical=('age',) (--categorical), or leave the column "
            "out with drop=('age',) (--drop)",
        ),
        (
            NUMBERS.replace("45,15", '"1,234",15'),
            "patients.csv, row 17, column 'age': '1,234' is not a number, as 100 % of the column "
            "are; write 1234.5 without a comma",
        ),
        (
            NUMBERS.replace("45,15", "inf,15"),
            "patients.csv, row 17, column 'age': inf is not a finite number; correct it",
        ),
        (
            NUMBERS.replace("45,15", "1e999,15"),
            "patients.csv, row 17, column 'age': inf is not a finite number; correct it",
        ),
        (
            NUMBERS.replace("45,15", "1_000,15"),
            "patients.csv, row 17, column 'age': '1_000' is not a number",
        ),
        (
            NUMBERS.replace("45,15,1", "45,15,abc"),
            "patients.csv, row 17, column 'outcome': 'abc' is not a number",
        ),
        (
            NUMBERS.replace("45,15,1", "45,15,inf"),
            "patients.csv, row 17, column 'outcome': inf is not a finite number",
        ),
        (
            NUMBERS.replace("45,15,1", "45,15,"),
            "patients.csv, row 17, column 'outcome': the value is missing; correct the cell, or "
            'give missing="drop"',
        ),
        (
            NUMBERS.replace("45,15", "NA,15"),
            "patients.csv, row 17, column 'age': the value is missing; correct the cell, or give "
            'missing="drop" (--missing drop) to leave such rows out, or "mean" to fill them in',
        ),
        (
            NUMBERS.replace("45,15", "45").replace("\n30", "\n\n\n30"),
            "patients.csv, row 19: it has 2 cells, and the first line 3 column names; correct the "
            "row (a comma within a cell needs quotes around the cell)",
        ),
        (NUMBERS.replace("45,15", "45,15,3,4"), "patients.csv, row 17: it has 5 cells"),
        (NUMBERS.replace("45,15", '45,"15'), "patients.csv, row 17: the quotes are wrong"),
        (
            NUMBERS.replace("45,15", '45,"1"5'),
            "patients.csv, row 17: the quotes are wrong",
        ),
        (
            NUMBERS.encode().replace(b"45,15", b"\xe9t\xe9,15"),
            "patients.csv, row 17: the byte 0xe9 is not UTF-8; save the file in the encoding UTF-8",
        ),
        (NUMBERS.encode("utf-16"), "patients.csv, row 1: the byte 0xff is not UTF-8"),
        ("", "patients.csv: it is empty; a table begins with its column names"),
        ("\n \n", "patients.csv: it is empty; a table begins with its column names"),
        ("age,outcome\n", "patients.csv: there are column names but no rows"),
        (
            "1.5,2,0\n3,4,1\n",
            "patients.csv, row 1: it holds numbers ('1.5', ...) where column names are expected; "
            "add a first line with a name for each column",
        ),
        (
            "a,b,a,outcome\n1,2,3,0\n",
            "patients.csv: the column name 'a' occurs twice",
        ),
        (
            "id,x,outcome\n" + "".join(f"n{i},1,{i % 2}\n" for i in range(30)),
            "patients.csv: column 'id' has 30 different texts in 30 rows, as an id or free text "
            "does; leave it out with drop=('id',)",
        ),
        (
            "x,outcome\n" + "".join(f"1,n{i}\n" for i in range(30)),
            "patients.csv: column 'outcome' has 30 different texts in 30 rows, as an id or free "
            "text does; choose another label",
        ),
        (
            "x,outcome\n1,a\n2,a\n",
            "patients.csv: the label 'outcome' is 'a' in every row",
        ),
        ("outcome\n1\n2\n", "patients.csv: no column is left to be a feature"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path, text, message):
    assert refusal(tmp_path, text).startswith(message)


def test_rows_are_counted_as_an_editor_does(tmp_path):
    text = '"the\nage",x,outcome\n1,"two\nlines",0\n\n2,b,1\n3,"",0\n'
    assert refusal(tmp_path, text).startswith("patients.csv, row 7, column 'x': the value is missi")


def test_labels_and_columns_are_named(tmp_path):
    assert refusal(tmp_path, PATIENTS, label=None) == (
        "patients.csv: say which column is the label, as in label='outcome' (--label on the "
        "command line); the columns are age, smoker, city, hospital, outcome"
    )
    assert refusal(tmp_path, PATIENTS, label="outcom") == (
        "patients.csv: there is no column 'outcom'; did you mean 'outcome'? the columns are age, "
        "smoker, city, hospital, outcome"
    )
    assert "no column 'Age'; did you mean 'age'?" in refusal(tmp_path, PATIENTS, drop=["Age"])
    assert "'outcome' is the label, the client ids" in refusal(tmp_path, PATIENTS, client="outcome")
    assert "'age' is the label, the client ids or left out" in refusal(
        tmp_path, PATIENTS, columns=["age"], drop="age"
    )
    for option, value in (("missing", "median"), ("drop", 3), ("label", 4), ("standardise", "yes")):
        assert option in refusal(tmp_path, PATIENTS, **{option: value})
    assert "has no option skew" in refusal(tmp_path, PATIENTS, skew=1)


def test_left_out_columns_are_not_read(tmp_path):
    text = "when,id,x,outcome\n" + "".join(
        f"2026-01-0{1 + i % 9},{i}b,{i},{i % 2}\n" for i in range(30)
    )
    data = load(tmp_path, text, drop=("when", "id"))
    assert data.columns == ("x",)
    assert data.encoding.left_out == ("when", "id")
    same(load(tmp_path, text, columns=["x"]), data)


def test_an_index_written_by_pandas_has_a_name_to_drop(tmp_path):
    data = load(tmp_path, ",x,outcome\n0,1.5,0\n1,2.5,1\n", drop=["column 1"])
    assert data.columns == ("x",)


def test_booleans_labels_and_ids_as_written(tmp_path):
    text = "b,id,outcome\nTrue,007,1.5\nfalse,08,2\nTRUE,007,3\n"
    data = load(tmp_path, text, client="id")
    assert data.columns == ("b",)
    assert data.encoding.columns[0].is_bool
    assert data.to_dense().tolist() == [[1], [0], [1]]
    assert data.clients.tolist() == ["007", "08", "007"]
    assert data.classes is None
    assert data.y.tolist() == [1.5, 2, 3]
    assert load(tmp_path, text, label="b", columns=["outcome"]).classes == (False, True)
    assert load(tmp_path, text, categorical="outcome", label="b").columns[1:] == (
        "outcome=1.5", "outcome=2", "outcome=3",
    )  # fmt: skip


def test_missing_values_of_a_csv(tmp_path):
    text = "x,c,id,outcome\n1,u,a,0\nNA,v,a,1\n3, NaN ,b,1\n5,u,b,0\n"
    data = load(tmp_path, text, client="id", missing="mean")
    assert data.columns == ("x", "c=u", "c=v", "c=(missing)")
    assert data.to_dense().tolist() == [[1, 1, 0, 0], [3, 0, 1, 0], [3, 0, 0, 1], [5, 1, 0, 0]]
    dropped = load(tmp_path, text, client="id", missing="drop")
    assert dropped.columns == ("x", "c=u")
    assert dropped.to_dense().tolist() == [[1, 1], [5, 1]]
    assert dropped.clients.tolist() == ["a", "b"]
    assert refusal(tmp_path, text.replace(",a,", ",,"), client="id", missing="mean").startswith(
        "patients.csv, row 2, column 'id': the value is missing; correct the cell"
    )
    assert "no rows without a missing value" in refusal(
        tmp_path, "x,c,outcome\n,1,0\n2,,1\n", missing="drop"
    )
    assert "column 'x' has no value in any row" in refusal(
        tmp_path, "x,c,outcome\n,1,0\n,2,1\n", missing="mean"
    )


def test_standardising(tmp_path):
    text = "x,same,b,c,outcome\n1,0.1,true,u,0\n2,0.1,false,v,1\n6,0.1,true,u,1\n"
    data = load(tmp_path, text, standardise=True)
    X = data.to_dense()
    np.testing.assert_allclose(X[:, 0], (np.array([1, 2, 6]) - 3) / np.std([1, 2, 6]))
    assert X[:, 1].tolist() == [0, 0, 0]
    assert X[:, 2:].tolist() == [[1, 1, 0], [0, 0, 1], [1, 1, 0]]
    assert "numbers standardised" in data.note
    huge = "x,outcome\n-1e308,0\n1e308,1\n"
    assert "column 'x' cannot be standardised" in refusal(tmp_path, huge, standardise=True)


def test_many_categories_are_sparse(tmp_path):
    text = "x,c,outcome\n" + "".join(f"{i % 2},v{i % 9},{i % 2}\n" for i in range(90))
    data = load(tmp_path, text)
    assert not data.is_dense
    assert data.nonzeros == 90 + 45
    assert data.features == 10
    dense = np.zeros((90, 10))
    dense[:, 0] = np.arange(90) % 2
    dense[np.arange(90), 1 + np.arange(90) % 9] = 1
    assert data.to_dense().tolist() == dense.tolist()
    assert load(tmp_path, text, standardise=True, drop="c").is_dense


def test_parquet(tmp_path):
    import polars as pl

    path = tmp_path / "patients.parquet"
    pl.read_csv(PATIENTS.encode()).write_parquet(path)
    (tmp_path / "bad.parquet").write_bytes(b"not parquet")
    same(fp.load(path, label="outcome", client="hospital"), fp_from(PATIENTS))
    with pytest.raises(InputError, match=r"bad\.parquet: not a parquet file \("):
        fp.load(tmp_path / "bad.parquet", label="outcome")
    with pytest.raises(InputError, match="there is no such file"):
        fp.load(tmp_path / "none.parquet", label="outcome")


def test_pandas_needs_no_pyarrow(monkeypatch):
    pd = pytest.importorskip("pandas", reason="pandas is an extra")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    columns = {"x": [1, 2, 3], "c": ["u", None, "v"], "k": [True, False, True], "y": [0, 1, 1]}
    frame = pd.DataFrame(columns)
    frame["x"] = frame["x"].astype("Int64")
    frame["g"] = pd.Categorical(["b", "a", "b"])
    data = fp.Dataset.from_frame(frame, label="y", missing="mean")
    assert data.columns == ("x", "c=u", "c=v", "c=(missing)", "k", "g=a", "g=b")


def test_frames_of_the_interchange_protocols():
    pa = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    frame = pa.table({"x": [1.5, 2.0, None], "c": ["u", "v", "u"], "y": [0, 1, 1]})

    class Arrow:
        def __arrow_c_stream__(self, schema=None):
            return frame.__arrow_c_stream__(schema)

    class Protocol:
        def __dataframe__(self, *_, **__):
            return frame.__dataframe__()

    whole = fp.Dataset.from_frame(frame, label="y", missing="mean")
    for other in (Arrow(), Protocol()):
        same(fp.Dataset.from_frame(other, label="y", missing="mean"), whole)


def test_npz(tmp_path):
    from scipy.sparse import csr_array

    path = tmp_path / "arrays.npz"
    X = np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
    np.savez(path, X=X, y=["a", "b", "a"], clients=[1, 1, 2])
    data = fp.load(path)
    assert data.X.tolist() == X.tolist()
    assert data.classes == ("a", "b")
    assert data.clients.tolist() == [1, 1, 2]
    assert data.name == "arrays.npz"
    csr = csr_array(X)
    np.savez(
        path, data=csr.data, indices=csr.indices, indptr=csr.indptr, shape=X.shape, y=[0, 1, 1]
    )
    assert not fp.load(path).is_dense
    assert fp.load(path).to_dense().tolist() == X.tolist()
    with pytest.raises(InputError, match=r"arrays\.npz: label is for tables"):
        fp.load(path, label="y")
    np.savez(path, A=X)
    with pytest.raises(InputError, match=r"arrays X and y"):
        fp.load(path)
    np.savez(path, data=[1.0], indices=[7], indptr=[0, 1], shape=(1, 2), y=[0])
    with pytest.raises(InputError, match="CSR matrix"):
        fp.load(path)
    np.savez(path, X=X, y=np.array([None, 1, 2], dtype=object))
    with pytest.raises(InputError, match=r"not an \.npz file"):
        fp.load(path)
    path.write_bytes(b"PK\x03\x04 broken")
    with pytest.raises(InputError, match=r"not an \.npz file"):
        fp.load(path)


def test_options_of_tables_are_refused_elsewhere(tmp_path):
    (tmp_path / "rows.svm").write_text("1 1:2\n0 1:1\n")
    with pytest.raises(InputError, match=r"label is for tables .*, not for LIBSVM files"):
        fp.load(tmp_path / "rows.svm", label="y")
    with pytest.raises(InputError, match=r"client is for tables .*, not for this data set"):
        fp.load("census", client="y")
    assert fp.load(tmp_path / "rows.svm", name="mine").name == "mine"
    with pytest.raises(InputError, match=r"save it as CSV, or read it by pandas"):
        fp.load("patients.xlsx")
    for name in ("none.csv", tmp_path / "none.csv.gz"):
        with pytest.raises(InputError, match="there is no such file"):
            fp.load(name, label="y")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="is a directory"):
        fp.load(tmp_path / "folder.csv", label="y")


def test_new_rows_of_a_file(tmp_path):
    data = load(tmp_path, PATIENTS, client="hospital", standardise=True)
    path = write(tmp_path, PATIENTS, "new.csv")
    assert encode_file(path, data.encoding).tolist() == data.to_dense().tolist()
    assert encode_file(write(tmp_path, "city,smoker,age\nOslo,no,30\n", "one.csv"), data.encoding)[
        0, 1:
    ].tolist() == [1, 0, 0, 1, 0]
    for text, message in (
        ("age,smoker\n1,no\n", "new.csv: there is no column 'city'; the columns are age, smoker"),
        (
            "age,smoker,city\nold,no,Oslo\n",
            "new.csv, row 2, column 'age': 'old' is not a number; correct it",
        ),
        (
            "age,smoker,city\n,no,Oslo\n",
            "new.csv, row 2, column 'age': the value is missing; correct the cell or leave the row",
        ),
        (
            "age,smoker,city\n1,no,Paris\n",
            "new.csv, row 2, column 'city': 'Paris' is not one of the known values (Bern, Oslo, ",
        ),
    ):
        with pytest.raises(InputError) as error:
            encode_file(write(tmp_path, text, "new.csv"), data.encoding)
        assert str(error.value).startswith(message)


@pytest.mark.parametrize("first", [0, 1])
def test_row_numbers_without_a_name_are_no_feature(tmp_path, first):
    path = tmp_path / "indexed.csv"
    path.write_text(",age,y\n" + "".join(f"{first + i},{i % 7},{i % 2}\n" for i in range(30)))
    with pytest.raises(InputError, match="counts the rows, as the index of a frame does"):
        fp.load(path, label="y")
    assert fp.load(path, label="y", drop=["column 1"]).columns == ("age",)
    path.write_text(path.read_text().replace("\n3,", "\n5,"))
    assert fp.load(path, label="y").columns == ("column 1", "age")
