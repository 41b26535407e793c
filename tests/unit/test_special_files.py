"""Pipes, sockets, devices, files of /proc and broken links: refused at once by every reader."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import fedpage as fp
from fedpage.core.errors import InputError
from fedpage.runs.import_class import import_class

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes and devices in the file system")

READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "method": (".py", lambda path: import_class(path, "Own", "method")),
    "devices": (".csv", lambda path: fp.Devices.from_text(str(path))),
}


def make_special(kind, path):
    """Create a special file, or a link to one."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        bound = socket.socket(socket.AF_UNIX)
        bound.bind(str(path))
        bound.close()
    elif kind == "broken link":
        path.symlink_to("nowhere")
    else:
        path.symlink_to(kind)


@pytest.mark.parametrize("kind", ["pipe", "socket", "broken link", "/dev/zero", "/proc/kmsg"])
@pytest.mark.parametrize("reader", READERS)
def test_special_files_are_refused_at_once(reader, kind, tmp_path):
    suffix, read = READERS[reader]
    if kind.startswith("/") and not Path(kind).exists():
        pytest.skip(f"there is no {kind} here")
    path = tmp_path / f"file{suffix}"
    make_special(kind, path)
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
