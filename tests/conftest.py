"""Fixtures of all tests. Real data comes from FEDPAGE_DATA, ../shared/data or the user's cache."""

import functools
import os
import sys
from pathlib import Path

import pytest

# Several processes share the cores, so one thread each: threads of torch that wait for each other
# use a core meanwhile. Tests of threads set their number.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

BESIDE = Path(__file__).resolve().parents[2] / "shared"

if "FEDPAGE_DATA" not in os.environ and (BESIDE / "data").is_dir():
    os.environ["FEDPAGE_DATA"] = str(BESIDE / "data")


@pytest.fixture(scope="session", autouse=True)
def _separate_cache(tmp_path_factory):
    """Keep parsed data sets, reference solutions and nodes' states out of the user's home."""
    from fedpage.data import registry

    folder = tmp_path_factory.mktemp("derived")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "derived_dir", lambda kind: folder / kind)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk():
    """Let files reach the disk when they do; processes that tests start and kill still wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_census_of_each_size():
    """Keep the generated rows, which most tests load."""
    from fedpage.data import registry

    entry = registry.DATASETS["census"]
    assert isinstance(entry, registry.Embedded)
    make, kept = entry.make, functools.lru_cache(64, typed=True)(entry.make)

    @functools.wraps(make)
    def census(**options):
        plain = all(type(value) in (int, float) for value in options.values())
        return (kept if plain else make)(**options)

    object.__setattr__(entry, "make", census)
    yield
    object.__setattr__(entry, "make", make)


@pytest.fixture(scope="session")
def real():
    """Load a registered data set, or skip the test where it is not here."""
    from fedpage.data import registry

    def load(name: str):
        if registry.find(registry.libsvm_file(name)) is None:
            pytest.skip(f"{name} is neither in FEDPAGE_DATA, ../shared/data nor the cache")
        return registry.load(name)

    return load


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Call the command line in an empty directory; return its exit code, stdout and stderr."""
    from fedpage.cli import main

    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedpage", *words])
        with pytest.raises(SystemExit) as end:
            main.main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return call


@pytest.fixture
def refused(run):
    """Check that the command line exits with 2 and one line that contains a text."""

    def check(words, what):
        code, _, err = run(*words)
        assert code == 2
        assert what in err
        assert err.startswith("fedpage: ")
        assert err.count("\n") == 1

    return check


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse to run a mutant's laws on anything but the mutant."""
    import fedpage

    where = os.environ.get("FEDPAGE_MUTANT")
    if where and not str(Path(fedpage.__file__)).startswith(where):
        pytest.exit(
            f"the mutant in {where} is not what was imported: {fedpage.__file__}", returncode=4
        )
