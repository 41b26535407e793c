"""Data: files, the registry, downloads and generated data."""

import bz2
import gzip
import http.server
import lzma
import threading
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from scipy.sparse import csr_array
from support import refusal

import fedpage as fp
from fedpage.data import download, libsvm, partition, registry

TEXT = b"+1 1:0.5 3:2\n-1 2:1e-3 # a comment 9:9\n\n-1\n+1 3:-4 \n"


PACK: dict[str, Any] = {".xz": lzma.compress, ".bz2": bz2.compress, ".gz": gzip.compress}


def test_files_are_read_plain_and_compressed(tmp_path):
    (tmp_path / "small").write_bytes(TEXT)
    plain = fp.load(tmp_path / "small", features=3)
    assert plain.to_dense().tolist() == [[0.5, 0, 2], [0, 1e-3, 0], [0, 0, 0], [0, 0, -4]]
    assert plain.y.tolist() == [1, -1, -1, 1]
    for suffix, pack in PACK.items():
        (tmp_path / f"small{suffix}").write_bytes(pack(TEXT))
        assert fp.load(tmp_path / f"small{suffix}", features=3).digest == plain.digest


def test_index_base_and_width(tmp_path):
    path = tmp_path / "zero"
    path.write_bytes(b"1 0:1 2:3\n0 1:5\n")
    assert fp.load(path, one_based=False).to_dense().tolist() == [[1, 0, 3], [0, 5, 0]]
    assert fp.load(path, one_based=False, features=9).features == 9
    assert "zero, line 1: the index in '0:1' is outside 1.." in refusal(fp.load, path)


NOT_A_PAIR = "expected index:value"
NOT_RISING = "'%s' does not rise above the one before it (2)"


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        (b"1 1:1\nx 1:1\n", 2, "the label 'x'"),
        (b"1 1:1\n\n1 1:1 2\n", 3, NOT_A_PAIR),
        (b"1 1:1\n1 a:1\n", 2, NOT_A_PAIR),
        (b"1 1:1 2:zwei\n", 1, NOT_A_PAIR),
        (b"1 1:1 2:nan\n", 1, NOT_A_PAIR),
        (b"1 1_0:1\n", 1, NOT_A_PAIR),
        (b"1 1:1_0\n", 1, NOT_A_PAIR),
        (b"1 qid:3 1:1\n", 1, NOT_A_PAIR),
        (b"1 1:1e999\n", 1, NOT_A_PAIR),
        (b"nan 1:1\n", 1, "the label 'nan'"),
        (b"1 2:1 1:1\n", 1, NOT_RISING % "1:1"),
        (b"1 2:1 2:1\n", 1, NOT_RISING % "2:1"),
        (b"1 1:1\n1 4:1\n", 2, "'4:1' is outside 1..3"),
        (b"1 -1:1\n", 1, "'-1:1' is outside 1..3"),
        (b"1 99999999999999999999:1\n", 1, "is outside 1..3"),
        (b"1,2,3\n", 1, "fp.Dataset.from_arrays"),
        (b"\xff\xfe\n", 1, "the label"),
        (b"", 0, "no row in it"),
    ],
)
def test_errors_name_the_line_and_the_token(tmp_path, text, line, fault):
    path = tmp_path / "bad"
    path.write_bytes(text)
    said = refusal(fp.load, path, features=3)
    assert said.startswith(f"{path}, line {line}: " if line else f"{path}: ")
    assert fault in said


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "huge").write_bytes(b"1 2000000000:1\n-1 1:1\n")
    for suffix, pack in PACK.items():
        (tmp_path / f"cut{suffix}").write_bytes(pack(TEXT)[:-9])
        assert f"not a complete {suffix[1:]} file" in refusal(fp.load, tmp_path / f"cut{suffix}")
    assert "is a directory" in refusal(fp.load, tmp_path)
    assert "largest index is 2,000,000,000" in refusal(fp.load, tmp_path / "huge")


def test_two_labels_become_signs_and_other_targets_stay():
    assert fp.Dataset.from_arrays(np.eye(3), [0, 1, 1]).y.tolist() == [-1, 1, 1]
    assert fp.Dataset.from_arrays(np.eye(3), [2, 1, 2]).y.tolist() == [1, -1, 1]
    assert fp.Dataset.from_arrays(np.eye(3), [0.5, 1.5, 2.5]).y.tolist() == [0.5, 1.5, 2.5]


ROW, DATES = [[1.0]], np.array(["2026"], dtype="M8[Y]")


@pytest.mark.parametrize(
    ("X", "y", "clients", "why"),
    [
        (np.eye(3), [1, 2], None, "3 rows but y has 2"),
        ([[np.nan]], [1], None, "finite"),
        (np.zeros((0, 2)), [], None, "no rows"),
        (DATES[:, None], [1.0], None, "dates or times"),
        (ROW, DATES, None, "dates or times"),
        (ROW * 2, [0, 1], ["a", None], "data set 'mine': 1 of 2 rows have no id"),
        (ROW * 2, [0, 1], [0.5, 1.0], "all strings or all whole numbers"),
        (ROW * 2, [0, 1], 3, "not shape ()"),
        (ROW * 2, [0, 1], [["a"], ["b"]], "not shape (2, 1)"),
    ],
)
def test_arrays_that_cannot_be_used(X, y, clients, why):
    assert why in refusal(fp.Dataset.from_arrays, X, y, clients=clients)


@pytest.mark.parametrize(
    ("clients", "ids", "message"),
    [
        ([], None, "0 clients have 0 different ids"),
        ([(ROW, [1])], ["a", "b"], "1 clients have 2 different ids"),
        ([(ROW, [1]), (ROW, [0])], ["a", "a"], "2 clients have 1 different ids"),
        ([(ROW, [1]), ([[2.0, 3.0]], [0])], None, "client 1 has X of shape"),
        ([(ROW, [1]), (ROW, [0, 1])], ["a", "b"], "client b has X of shape"),
        ([(ROW, [1]), (np.empty((0, 1)), [])], None, "client 1 has X of shape"),
    ],
)
def test_clients_whose_arrays_do_not_fit(clients, ids, message):
    assert message in refusal(fp.Dataset.from_clients, clients, ids=ids)


@pytest.mark.parametrize(
    "bad",
    [
        {"indices": np.array([0, 5], dtype=np.int32)},
        {"indices": np.array([0, -1], dtype=np.int32)},
        {"indptr": np.array([0, 3, 2])},
        {"indptr": np.array([0, 1, 9])},
        {"indptr": np.array([1, 1, 2])},
        {"values": np.array([1.0, np.nan])},
        {"y": np.array([1.0, np.inf])},
    ],
)
def test_sparse_arrays_that_cannot_be_used(bad):
    def make(y: Any, **arrays: Any) -> fp.Dataset:
        return fp.Dataset("d", fp.data.Sparse(**arrays, features=2), y)

    indices = np.array([0, 1], dtype=np.int32)
    good: dict[str, Any] = {"indptr": np.arange(3), "indices": indices, "values": np.ones(2)}
    good["y"] = np.ones(2)
    assert make(**good).rows == 2
    refusal(make, **(good | bad))


def test_points_of_another_shape_are_refused_by_an_oracle():
    problem = fp.RobustRegression(fp.load("census", rows=20), clients=4)
    oracle = problem.oracle(np.arange(3), fp.core.random.RoundDraws(0, 0))
    for shape in ((2, 123), (3, 122), (4, 123)):
        with pytest.raises(ValueError, match="points of shape"):
            oracle.grad(np.zeros(shape), oracle.batch(None))


def test_a_path_is_never_taken_for_a_name(tmp_path, monkeypatch):
    (tmp_path / "mine.xz").write_bytes(lzma.compress(TEXT))
    assert fp.load(tmp_path / "mine", features=3).rows == 4
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a9a").write_bytes(TEXT)
    assert fp.load(Path("a9a"), features=3).rows == 4


@pytest.mark.parametrize(
    ("name", "shape", "nonzeros", "positive"),
    [
        ("a9a", (32_561, 123), 451_592, 7_841),
        ("w8a", (49_749, 300), 579_586, 1_479),
        ("mushrooms", (8_124, 112), 170_604, 4_208),
    ],
)
def test_real_files_have_their_registered_content(real, name, shape, nonzeros, positive):
    data = real(name)
    assert (data.rows, data.features) == shape
    assert data.nonzeros == nonzeros == registry.libsvm_file(name).nonzeros
    assert int((data.y > 0).sum()) == positive
    assert data.digest == registry.libsvm_file(name).digest
    assert set(np.unique(data.y)) == {-1.0, 1.0}


def test_digests_depend_on_the_content_only(tmp_path):
    a, b, c = (tmp_path / n for n in "abc")
    a.write_bytes(b"1 1:1 2:2\n0 2:1\n")
    b.write_bytes(b"+1   1:1.0 2:2   \n0.0 2:1\t\n\n")
    c.write_bytes(b"1 1:1 2:3\n0 2:1\n")
    assert fp.load(a).digest == fp.load(b).digest != fp.load(c).digest


def test_a_damaged_or_stale_cache_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "derived_dir", lambda kind: tmp_path / "cache")
    path = tmp_path / "small"
    path.write_bytes(TEXT)
    first = fp.load(path, features=3)
    (copy,) = (tmp_path / "cache").iterdir()
    with monkeypatch.context() as inner:
        inner.setattr(libsvm, "parse", lambda *a, **k: pytest.fail("the stored copy was not used"))
        assert fp.load(path, features=3).digest == first.digest
    copy.write_bytes(copy.read_bytes()[:-40])
    assert fp.load(path, features=3).digest == first.digest
    path.write_bytes(TEXT.replace(b"0.5", b"0.75"))
    assert fp.load(path, features=3).X[0, 0] == 0.75


def test_files_are_searched_in_order_and_missing_ones_explained(tmp_path, monkeypatch):
    given, cache = tmp_path / "given", tmp_path / "cache" / "fedpage"
    given.mkdir()
    cache.mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDPAGE_DATA", str(given))
    item = registry.libsvm_file("ijcnn1")
    assert item.address in refusal(fp.load, "ijcnn1")
    (cache / "ijcnn1.bz2").touch()
    assert registry.find(item) == cache / "ijcnn1.bz2"
    (given / "ijcnn1.xz").touch()
    assert registry.find(item) == given / "ijcnn1.xz"
    (given / "ijcnn1").touch()
    assert registry.find(item) == given / "ijcnn1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a LIBSVM file, arrays, and folders that are named like tables."""
    place = tmp_path_factory.mktemp("data")
    (place / "rows.svm").write_bytes(TEXT)
    np.savez(place / "a.npz", X=np.eye(2), y=[0, 1])
    for suffix in ("csv", "parquet", "npz"):
        (place / f"folder.{suffix}").mkdir()
    return place


LINES = Path(__file__).with_name("refused_data.txt").read_text(encoding="utf-8").splitlines()
"""Names with options in TOML, and the words that matter, a line each."""


@pytest.mark.parametrize("line", LINES)
def test_names_files_and_settings_that_cannot_be_loaded(folder, monkeypatch, line):
    monkeypatch.chdir(folder)
    given, _, words = line.partition(" -> ")
    name, _, options = given.partition("; ")
    table = tomllib.loads(f"options = {{ {options} }}")["options"]
    assert words in refusal(fp.load, name, **table)


# Fetching, from a server on this machine

ENTRY = registry.LibsvmFile("tiny", "tiny", 4, 3, (-1, 1))


class Server(http.server.BaseHTTPRequestHandler):
    body = TEXT
    cut: int | None = None

    def do_GET(self):
        if self.path != "/tiny":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(Server.body)))
        self.end_headers()
        self.wfile.write(Server.body[: Server.cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def mirror(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    Server.body, Server.cut = TEXT, None
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_download_is_complete_or_leaves_nothing(tmp_path, mirror):
    Server.cut = 20
    assert "the download failed" in refusal(download.fetch, ENTRY, folder=tmp_path, mirror=mirror)
    assert list(tmp_path.iterdir()) == []
    Server.cut = None
    bar = Mock()
    path = download.fetch(ENTRY, folder=tmp_path, mirror=mirror, progress=bar)
    assert path.read_bytes() == TEXT
    assert [p.name for p in tmp_path.iterdir()] == ["tiny"]
    assert bar.total == len(TEXT)
    bar.close.assert_called_once_with()


def test_a_download_of_other_content_is_removed(tmp_path, mirror):
    Server.body = b"1 1:1\n"
    said = refusal(download.fetch, ENTRY, folder=tmp_path, mirror=mirror)
    assert "file was not used: " in said
    assert "rows of tiny must be 4, not 1" in said
    assert list(tmp_path.iterdir()) == []
    other = registry.LibsvmFile("no", "no", 1, 1, (0, 1))
    assert "answered 404" in refusal(download.fetch, other, folder=tmp_path, mirror=mirror)


# Sparse rows


def test_sparse_rows_are_taken_in_any_order():
    rng = np.random.default_rng(0)
    X = csr_array(rng.random((30, 6)) * (rng.random((30, 6)) < 0.4) * (rng.random((30, 1)) < 0.7))
    data = fp.Dataset.from_arrays(X, np.arange(30.0))
    rows = rng.integers(0, 30, 50)
    taken = data[rows]
    assert taken.X.toarray().tolist() == X.toarray()[rows].tolist()
    assert taken.y.tolist() == rows.tolist()


def test_a_sparse_matrix_is_shared_but_never_changed():
    X = csr_array(np.eye(3))
    matrix: Any = fp.Dataset.from_arrays(X, [0, 1, 1]).matrix
    assert np.shares_memory(matrix.values, X.data)
    twice = csr_array((np.ones(3), np.array([2, 0, 0], np.int32), np.array([0, 3])), shape=(1, 3))
    matrix = fp.Dataset.from_arrays(twice, [1.5]).matrix
    assert (matrix.indices.tolist(), matrix.values.tolist()) == ([0, 2], [2.0, 1.0])
    assert (twice.indices.tolist(), twice.data.tolist()) == ([2, 0, 0], [1.0, 1.0, 1.0])


# One pair of arrays per client


def test_from_clients_joins_rows_and_keeps_ids():
    clients = [
        (np.array([[1.0, 2.0]]), ["no"]),
        (np.array([[3.0, 4.0], [5.0, 6.0]]), ["yes", "no"]),
    ]
    data = fp.Dataset.from_clients(clients, ids=["b", "a"], name="pair")
    assert data.X.tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert (data.clients.tolist(), data.classes) == (["b", "a", "a"], ("no", "yes"))
    sparse = fp.Dataset.from_clients([(csr_array(X), y) for X, y in clients])
    assert (sparse.is_dense, sparse.clients.tolist()) == (False, [0, 1, 1])
    assert sparse.X.toarray().tolist() == data.X.tolist()


# Generated and bundled data


def test_census_has_the_shape_of_a9a_and_a_note():
    data = fp.load("census")
    assert (data.rows, data.features, data.nonzeros) == (32_561, 123, 32_561 * 14)
    assert 0.23 < (data.y > 0).mean() < 0.25
    assert data.note.startswith("synthetic")
    assert (data.X.data == 1).all()
    assert data.digest[:16] == "d729bbe050bb82c6"  # of every version and machine
    assert data.digest != fp.load("census", seed=1).digest
    fields = np.searchsorted(
        np.cumsum(fp.data.builtin.FIELDS), data.X.indices.reshape(-1, 14), side="right"
    )
    assert (fields == np.arange(14)).all()  # one value of every field


def test_skew_makes_clients_of_every_size_differ():
    def spread(skew, clients):
        data = fp.load("census", skew=skew)
        M = data.rows // clients
        means = np.array([(data.y[i * M : (i + 1) * M] > 0).mean() for i in range(clients)])
        return means.var() / (0.24 * 0.76 / M)  # 1 if rows were exchangeable

    for clients in (3250, 325, 10):
        assert 0.3 < spread(0.0, clients) < 2.5
        assert spread(1.0, clients) > 2 * spread(0.0, clients)


def test_a_name_may_have_settings_as_on_the_command_line():
    assert fp.load("digits:classes=10").classes == tuple(range(10))
    assert fp.load("census:rows=50:skew=1").digest == fp.load("census", rows=50, skew=1).digest


def test_bundled_data_has_signed_labels():
    cancer, digits = fp.load("breast_cancer"), fp.load("digits")
    assert (cancer.rows, cancer.features) == (569, 30)
    assert (digits.rows, digits.features) == (1797, 64)
    assert cancer.binary
    assert digits.binary
    assert int((cancer.y > 0).sum()) == 357


def test_a_data_set_is_added_by_a_decorator_and_works_on_the_command_line(run):
    @registry.register_embedded("ones", rows=40, features=2, note="all ones")
    def ones(rows: int = 40, value: float = 1.0):
        return fp.Dataset.from_arrays(np.full((rows, 2), value), np.arange(rows) % 2, name="ones")

    try:
        assert "all ones" in run("data", "list")[1]
        words = ("--clients", "4", "--rounds", "3", "--S", "2")
        code, out, err = run("run", "fedavg", "--data", "ones:rows=20:value=0.5", *words)
        assert code == 0, err
        assert "FedAvg" in out
        code, _, err = run("run", "fedavg", "--data", "ones:row=20", *words)
        assert (code, "did you mean 'rows'?" in err) == (2, True)
    finally:
        del registry.DATASETS["ones"]


def test_registries_refuse_a_name_that_is_taken():
    taken = refusal(partition.PARTITIONS.register("iid"), partition.blocks)
    assert "partition 'iid' is registered already" in taken
    assert partition.PARTITIONS.get("nothing") is None
    assert "nothing" not in partition.PARTITIONS
