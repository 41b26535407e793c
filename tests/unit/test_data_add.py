"""Check `fedpage data add`: files are recognised, verified and copied, or nothing changes."""

import bz2
import gzip
import lzma
from typing import Any

import pytest
from support import refusal

import fedpage as fp
from fedpage.data import download, registry

TEXT = b"1 1:0.5 3:2\n-1 2:1\n1 1:1\n-1 3:1.5\n"
OTHER = b"1 2:1\n-1 2:1\n1 2:1\n-1 2:1\n"
PACK: dict[str, Any] = {"": bytes, ".xz": lzma.compress, ".bz2": bz2.compress, ".gz": gzip.compress}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Register two small data sets, the first one pinned, and use an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    folder = tmp_path / "cache"
    monkeypatch.setenv("FEDPAGE_DATA", str(folder))
    (tmp_path / "probe").write_bytes(TEXT)
    digest = fp.load(tmp_path / "probe", features=3).digest
    items = (
        registry.LibsvmFile("tiny", "tiny.bz2", 4, 3, (-1, 1), digest),
        registry.LibsvmFile("tiny2.binary", "tiny2_train.binary.bz2", 4, 3, (-1, 1)),
    )
    for item in items:
        registry.DATASETS.add(item.name, item)
    yield folder
    for item in items:
        del registry.DATASETS[item.name]


def write(folder, name, content=TEXT, suffix=""):
    folder.mkdir(exist_ok=True)
    path = folder / (name + suffix)
    path.write_bytes(PACK[suffix](content))
    return path


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("suffix", PACK)
def test_a_file_is_copied_as_it_is_and_loads(cache, tmp_path, suffix):
    path = write(tmp_path / "downloads", "tiny", suffix=suffix)
    (added,) = download.add([path])
    assert (added.item.name, added.is_new, added.path) == ("tiny", True, cache / f"tiny{suffix}")
    assert added.path.read_bytes() == path.read_bytes()
    assert names(cache) == [f"tiny{suffix}"]
    assert fp.load("tiny").X.toarray()[0].tolist() == [0.5, 0.0, 2.0]


def test_a_name_of_the_site_and_a_name_of_the_users_own(cache, tmp_path):
    site = write(tmp_path, "tiny2_train.binary", suffix=".gz")
    own = write(tmp_path, "download (1)", suffix=".xz")
    assert download.add([site])[0].path == cache / "tiny2.binary.gz"
    assert "no registered data set has a file of this name" in refusal(download.add, [own])
    assert download.add([own], "tiny")[0].path == cache / "tiny.xz"
    assert "one file, not 2" in refusal(download.add, [own, site], "tiny")
    assert "did you mean 'tiny'" in refusal(download.add, [own], "tinny")
    assert "'census' is embedded" in refusal(download.add, [own], "census")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1 1:1\n", "rows of tiny must be 4, not 1"),
        (TEXT.replace(b"-1", b"2"), "the labels of tiny"),
        (OTHER, "the digest of tiny"),
        (b"<html>404</html>", "line 1"),
        (b"1 4:1\n", "nothing was copied, because this is not tiny: "),
        (lzma.compress(TEXT)[:-9], "line 1"),
        (None, "no such file"),
    ],
)
def test_with_a_wrong_file_nothing_changes(cache, tmp_path, content, message):
    good = write(tmp_path / "downloads", "tiny2.binary")
    bad = tmp_path / "downloads" / "tiny"
    if content is not None:
        bad.write_bytes(content)
    said = refusal(download.add, [good, bad])
    assert str(bad) in said
    assert message in said
    assert names(cache) == []


def test_what_is_there_already_stays(cache, tmp_path):
    first = download.add([write(tmp_path, "tiny", suffix=".xz")])[0]
    again = download.add([write(tmp_path, "tiny")])[0]
    assert (again.is_new, again.path) == (False, first.path)
    assert download.add([first.path])[0].is_new is False
    assert names(cache) == ["tiny.xz"]


def test_a_damaged_file_in_the_cache_is_reported(cache, tmp_path):
    write(cache, "tiny", OTHER)
    said = refusal(download.add, [write(tmp_path, "tiny", suffix=".xz")])
    assert said.startswith(f"remove the file that is there now: {cache}")
    assert names(cache) == ["tiny"]


def test_the_command_prints_where_the_files_are(cache, tmp_path, run):
    path = write(tmp_path, "mine", suffix=".bz2")
    code, out, _ = run("data", "add", str(path), "--as", "tiny")
    assert (code, out.strip()) == (0, f"tiny is in {cache / 'tiny.bz2'}")
    code, out, _ = run("data", "add", str(path), "--as", "tiny")
    assert (code, out.strip()) == (0, f"tiny is already in {cache / 'tiny.bz2'}")
    code, out, err = run("data", "add", str(path))
    assert (code, out, len(err.splitlines())) == (2, "", 1)


def test_without_a_network_the_error_explains_what_to_do(cache):
    item = registry.libsvm_file("rcv1.binary")
    fetched = refusal(download.fetch, item, mirror="http://127.0.0.1:1")
    assert "not an address" in refusal(download.fetch, item, mirror="nowhere")
    for said in (fetched, refusal(fp.load, "rcv1.binary")):
        assert item.address in said
        assert "`fedpage data add rcv1_train.binary.bz2`" in said
