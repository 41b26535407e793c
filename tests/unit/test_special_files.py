"""Check that every reader refuses a pipe or a device at once, instead of waiting for its end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.core.files import import_object

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes and devices in the file system")

READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "method": (".py", lambda path: import_object(path, "Own", "method")),
    "devices": (".csv", lambda path: fp.Devices.from_text(str(path))),
}


@pytest.mark.parametrize("kind", ["pipe", "/dev/zero"])
@pytest.mark.parametrize("reader", READERS)
def test_special_files_are_refused_at_once(reader, kind, tmp_path):
    suffix, read = READERS[reader]
    path = tmp_path / f"file{suffix}"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(kind)
    found = []

    def try_to_read():
        try:
            found.append(read(path))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=try_to_read, daemon=True)
    thread.start()
    thread.join(20)
    assert found, "the reader waits"
    assert isinstance(found[0], InputError), found[0]
    assert str(path) in str(found[0])
    assert "\n" not in str(found[0])
