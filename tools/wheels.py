"""Builds the wheel and tries it: in an empty environment of each Python that is here, `fedpage demo` must pass.

    python tools/wheels.py               # needs `pip install build`

Looks for python3.11, python3.12 and python3.13 on the PATH and below ~/.pyenv/versions; says which it did not find.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13")


def python(version: str) -> str | None:
    """A Python of this version."""
    for home in sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*"), reverse=True):
        if (home / "bin" / "python").exists():
            return str(home / "bin" / "python")
    return shutil.which(f"python{version}")


def main() -> int:
    """Build, install and try; the number of Pythons that failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        subprocess.run(
            [sys.executable, "-m", "build", "--outdir", folder, ROOT],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (wheel,) = folder.glob("*.whl")
        print(wheel.name, *(path.name for path in folder.glob("*.tar.gz")))
        for version in VERSIONS:
            found = python(version)
            if found is None:
                print(f"Python {version}: not here")
                continue
            place, began = folder / version, time.monotonic()
            subprocess.run([found, "-m", "venv", place], check=True)
            pip = [
                place / "bin" / "python",
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                wheel,
            ]
            subprocess.run(pip, check=True, stderr=subprocess.DEVNULL)
            installed, began = time.monotonic() - began, time.monotonic()
            done = subprocess.run(
                [place / "bin" / "fedpage", "demo"], cwd=folder, capture_output=True, text=True
            )
            good = done.returncode == 0 and (folder / "demo-report").is_dir()
            shutil.rmtree(folder / "demo-report", ignore_errors=True)
            failed += not good
            verdict = "passed" if good else f"FAILED: {done.stderr.strip()[-300:]}"
            seconds = time.monotonic() - began
            print(
                f"Python {version}: installed in {installed:.0f} s, fedpage demo {verdict} in {seconds:.0f} s"
            )
    return failed


if __name__ == "__main__":
    sys.exit(main())
