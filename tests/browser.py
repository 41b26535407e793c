"""Open pages in a headless Chromium."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
DARK = "--blink-settings=preferredColorScheme=0"
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--allow-file-access-from-files", "--enable-logging=stderr",
)  # fmt: skip


def chromium(address: str, folder: Path, *options: str) -> tuple[str, str]:
    """Run Chromium with a profile in a folder, and return its output and its messages."""
    if BROWSER is None:
        pytest.skip("no chromium here; Debian's package `chromium` has it")
    command = [BROWSER, *QUIET, f"--user-data-dir={folder / 'profile'}", *options, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    return done.stdout, done.stderr


def browse(address: str, folder: Path, *options: str) -> tuple[Any, list[str]]:
    """Return what a page's script wrote as JSON into the element "probe", and console messages."""
    time = "--virtual-time-budget=20000"
    out, err = chromium(address, folder, time, "--dump-dom", *options)
    (found,) = re.findall(r'<pre id="probe"[^>]*>(.*?)</pre>', out, flags=re.DOTALL)
    return json.loads(html.unescape(found)), [
        line for line in err.splitlines() if "CONSOLE" in line
    ]
