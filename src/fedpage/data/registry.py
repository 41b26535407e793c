"""Data sets by name: where they come from, what they must contain, where they are kept."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from fedpage.core.atomic import put
from fedpage.core.errors import InputError
from fedpage.data import bundled, libsvm, synthetic
from fedpage.data.dataset import Dataset, signed

SITE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"


@dataclass(frozen=True)
class Entry:
    """A LIBSVM data set: its file at the site, its shape, its labels, and (where one was seen) its content's digest."""

    name: str
    file: str
    rows: int
    features: int
    labels: tuple[int, int]
    digest: str | None = None
    nonzeros: int | None = None

    @property
    def address(self) -> str:
        """Where it can be fetched."""
        return SITE + self.file

    @property
    def pinned(self) -> bool:
        """Whether the content is known to the last bit."""
        return self.digest is not None


REGISTRY: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "a9a",
            "a9a",
            32_561,
            123,
            (-1, 1),
            "a777ee0313153c7d86bf8d58bcc9ae95c59c592dd6b401e0c4b3ee6e1768b553",
            451_592,
        ),
        Entry(
            "w8a",
            "w8a",
            49_749,
            300,
            (-1, 1),
            "400415939385a06496be41e5b4d92345544ccaadef46ed194135726fefa2c793",
            579_586,
        ),
        Entry(
            "mushrooms",
            "mushrooms",
            8_124,
            112,
            (1, 2),
            "9ee1d77bc525ea0b84b13d294ad9b087b1122a5c998b0e50a467adad02b6291e",
            170_604,
        ),
        Entry("phishing", "phishing", 11_055, 68, (0, 1)),
        Entry("ijcnn1", "ijcnn1.bz2", 49_990, 22, (-1, 1)),
        Entry("covtype.binary", "covtype.libsvm.binary.bz2", 581_012, 54, (1, 2)),
        Entry("rcv1.binary", "rcv1_train.binary.bz2", 20_242, 47_236, (-1, 1)),
        Entry("real-sim", "real-sim.bz2", 72_309, 20_958, (-1, 1)),
    )
}

EMBEDDED: dict[str, Callable[..., Dataset]] = {
    "census": synthetic.census,
    "breast_cancer": bundled.breast_cancer,
    "digits": bundled.digits,
}
"""Data that needs no file."""


def cache_dir() -> Path:
    """The per-user directory for data: FEDPAGE_DATA, or the platform's cache directory."""
    given = os.environ.get("FEDPAGE_DATA")
    return Path(given) if given else platform_cache()


def platform_cache() -> Path:
    """fedpage's folder in the platform's cache directory."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "fedpage"


def parsed_dir() -> Path:
    """Where arrays of files that were parsed before are kept."""
    return platform_cache() / "parsed"


def known() -> list[str]:
    """Every name that `load` understands."""
    return [*EMBEDDED, *REGISTRY]


def entry(name: str) -> Entry:
    """The registry's entry, or an error that suggests a name."""
    if name in REGISTRY:
        return REGISTRY[name]
    if name in EMBEDDED:
        raise InputError(
            f"data set {name!r} is embedded: there is no file of it to fetch or verify"
        )
    raise InputError(unknown(name))


def unknown(name: str) -> str:
    """One line for a name nobody knows."""
    near = get_close_matches(name, known(), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown data set {name!r}: {hint}known are {', '.join(known())}, or give the path of a LIBSVM file"


def find(item: Entry) -> Path | None:
    """The file of a registered data set: FEDPAGE_DATA first, then the platform's cache; plain or compressed."""
    stems = list(dict.fromkeys((item.name, item.file, Path(item.file).stem)))
    for folder in dict.fromkeys((cache_dir(), platform_cache())):
        for stem in stems:
            for suffix in libsvm.SUFFIXES:
                path = folder / (stem + suffix)
                if path.is_file():
                    return path
    return None


def load(
    name: str | os.PathLike[str],
    *,
    features: int | None = None,
    one_based: bool = True,
    **options: Any,
) -> Dataset:
    """A data set by name ("a9a", "census", ...) or by the path of a LIBSVM file.

    Labels of two kinds become -1/+1, the larger positive. `features` and `one_based` describe a file given by path;
    other options go to an embedded data set, such as `load("census", skew=1.0)`.

    >>> load("census", rows=100).features
    123
    """
    text = os.fspath(name)
    if not isinstance(name, str):  # a Path is a path, whatever the registry knows
        return _from_path(Path(text), features, one_based)
    if text in EMBEDDED:
        try:
            return EMBEDDED[text](**options)
        except TypeError:
            known = ", ".join(signature(EMBEDDED[text]).parameters) or "no options"
            raise InputError(
                f"data set {text!r} has no option {', '.join(sorted(options))}; it has {known}"
            ) from None
    if options:
        raise InputError(f"data set {text!r} takes no option {', '.join(sorted(options))}")
    if text in REGISTRY:
        item = REGISTRY[text]
        path = find(item)
        if path is None:
            raise InputError(
                f"data set {text!r} is not here: run `fedpage data fetch {text}`, or put {item.address} into "
                f"{cache_dir()} by hand"
            )
        return _registered(item, path)
    if not text:
        raise InputError("no data set was named; `fedpage data list` shows them")
    name_only = text.partition(":")[0]
    if name_only in REGISTRY:
        raise InputError(
            f"data set {name_only!r} is read from a file and has no settings; leave {text!r} at its name"
        )
    path = Path(text)
    if (
        path.exists()
        or os.sep in text
        or path.suffix in {".txt", ".svm", ".libsvm", *libsvm.SUFFIXES[1:]}
    ):
        return _from_path(path, features, one_based)
    if any(path.with_name(path.name + suffix).is_file() for suffix in libsvm.SUFFIXES[1:]):
        return _from_path(path, features, one_based)
    raise InputError(unknown(text))


def _from_path(path: Path, features: int | None, one_based: bool) -> Dataset:
    """The file at a path, plain or compressed."""
    if path.is_dir():
        raise InputError(f"{path} is a directory; give the path of a LIBSVM file")
    for suffix in libsvm.SUFFIXES:
        found = path.with_name(path.name + suffix)
        if found.is_file():
            return _dataset(found.name, _parsed(found, features, one_based))
    raise InputError(f"{path}: there is no such file")


def verify(item: Entry, path: Path) -> Dataset:
    """Read the file anew, past any stored copy, and check it against the registry. An InputError says what differs."""
    parsed = libsvm.parse(libsvm.read_bytes(path), features=item.features, source=str(path))
    return _checked(item, path, parsed)


def _registered(item: Entry, path: Path) -> Dataset:
    return _checked(item, path, _parsed(path, item.features, True))


def _checked(item: Entry, path: Path, parsed: libsvm.Parsed) -> Dataset:
    if len(parsed.y) != item.rows:
        raise InputError(
            f"{path}: {item.name} has {item.rows:,} rows, this file {len(parsed.y):,}; fetch it again"
        )
    if set(np.unique(parsed.y)) != set(item.labels):
        raise InputError(
            f"{path}: {item.name}'s labels are {item.labels}, this file's are not; fetch it again"
        )
    data = _dataset(
        item.name,
        parsed,
        note=""
        if item.pinned
        else "unpinned: only rows, labels and the range of indices were checked",
    )
    if item.pinned and data.digest != item.digest:
        raise InputError(
            f"{path}: the content differs from the {item.name} that fedpage knows (digest {data.digest[:12]}, "
            f"expected {str(item.digest)[:12]}); fetch it again"
        )
    return data


def _dataset(name: str, parsed: libsvm.Parsed, note: str = "") -> Dataset:
    return Dataset(
        name=name,
        indptr=parsed.indptr,
        indices=parsed.indices,
        values=parsed.values,
        y=signed(parsed.y),
        features=parsed.features,
        note=note,
    )


def _parsed(path: Path, features: int | None, one_based: bool) -> libsvm.Parsed:
    """Parse the file, or take the arrays stored when these very bytes were parsed before.

    Importing scikit-learn takes longer than a thousand rounds; the stored copy spares it. It is named after the
    file's bytes and begins with a digest of the rest, so a stale or damaged copy is never used.
    """
    raw = libsvm.read_packed(path)
    key = hashlib.sha256(raw + f"|{path.suffix}|{features}|{one_based}|2".encode()).hexdigest()
    stored = parsed_dir() / f"{key}.npz"
    with contextlib.suppress(Exception):  # any damage to the copy only means reading the original
        kept = stored.read_bytes()
        if (
            hashlib.sha256(kept[32:]).digest() == kept[:32]
        ):  # before numpy allocates what a damaged header asks for
            with np.load(io.BytesIO(kept[32:]), allow_pickle=False) as box:
                return libsvm.Parsed(
                    box["y"], box["indptr"], box["indices"], box["values"], int(box["features"])
                )
    text = libsvm.unpack(raw, path.suffix, str(path))
    parsed = libsvm.parse(text, features=features, one_based=one_based, source=str(path))
    box = io.BytesIO()
    np.savez(box, **parsed._asdict())
    with contextlib.suppress(OSError):  # a read-only home costs speed, nothing else
        stored.parent.mkdir(parents=True, exist_ok=True)
        put(stored, hashlib.sha256(box.getbuffer()).digest() + box.getbuffer())
    return parsed
