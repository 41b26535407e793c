"""Build the wheel, install it for every Python that is here, and run `fedpage demo` with it.

    python tools/wheels.py               # needs `pip install build`

Python 3.11 to 3.14 are looked for on the PATH and in ~/.pyenv/versions. Each gets an empty
environment. A version that is not found is named.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def python(version: str) -> str | None:
    """Find a Python of this version."""
    for home in sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*"), reverse=True):
        if (home / "bin" / "python").exists():
            return str(home / "bin" / "python")
    return shutil.which(f"python{version}")


def main() -> int:
    """Build, install and run; return the number of Pythons that failed."""
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
                print(f"Python {version}: not found")
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
                f"Python {version}: installed in {installed:.0f} s, "
                f"fedpage demo {verdict} in {seconds:.0f} s"
            )
    return failed


if __name__ == "__main__":
    sys.exit(main())
