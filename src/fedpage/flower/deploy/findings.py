"""Results of the checks before a deployment, and how a check fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedpage.core.errors import InputError
from fedpage.core.files import check_path

_SHOWN = 6
"""Names of a directory's files that are shown where one is missing."""


class CheckResult(NamedTuple):
    """The result of one check."""

    ok: bool
    text: str
    """What was found."""
    advice: str = ""
    """What to do about it."""
    is_missing: bool = False
    """Whether the check failed because something is not there, not because it is wrong."""

    @property
    def word(self) -> str:
        """The result in a word."""
        if self.ok:
            return "ok"
        return "MISSING" if self.is_missing else "FAILED"


class CheckFailed(Exception):
    """A check failed.

    Args:
        text: what is wrong.
        advice: what to do about it.
        is_missing: whether something is not there.
    """

    def __init__(self, text: str, advice: str, *, is_missing: bool = False) -> None:
        super().__init__(text)
        self.advice, self.is_missing = advice, is_missing


def run_check(check: Callable[[], str]) -> CheckResult:
    """Return what a check found, or how it failed."""
    try:
        return CheckResult(True, check())
    except CheckFailed as failure:
        return CheckResult(False, str(failure), failure.advice, failure.is_missing)
    except InputError as error:
        return CheckResult(False, str(error))


def require_file(path: Path) -> None:
    """Refuse a path at which there is no file, and say what is there instead.

    Raises:
        CheckFailed: There is none.
        InputError: It is a pipe, a device or the like.
    """
    check_path(path)
    if path.is_file():
        return
    if path.is_dir():
        raise CheckFailed(f"{path}: is a directory", "give the file's path")
    folder = path.parent
    try:
        if not folder.is_dir():
            advice = f"there is no directory {folder}"
        else:
            found = sorted(each.name for each in folder.iterdir())
            names = ", ".join(found[:_SHOWN]) + " ..." * (len(found) > _SHOWN)
            where = "this directory" if folder == Path() else str(folder)
            advice = f"{where} holds {names or 'nothing'}"
    except OSError as error:
        advice = f"{folder} cannot be read ({error.strerror})"
    raise CheckFailed(f"{path}: there is no such file", advice, is_missing=True)


def read_file(path: Path) -> bytes:
    """Return the bytes of a small file.

    Raises:
        CheckFailed: There is none, or it cannot be read.
        InputError: It is a pipe, a device or the like.
    """
    require_file(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckFailed(
            f"{path}: cannot be read ({error.strerror})", "let this user read it"
        ) from None
