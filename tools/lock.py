"""Write constraints.txt: the exact versions of all packages that fedpage and its extras need.

    make lock            # in a new environment with the newest versions that pyproject.toml allows

The versions are those of the environment that runs this, which needs all extras. CI installs them
(PIP_CONSTRAINT in .ci/run), because bits depend on the versions of numpy, numba and torch. Users
do not need the file: pyproject.toml has the ranges that fedpage accepts.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
HEAD = "# Versions that CI installs, written by `make lock`. Python {}.{}.\n"


def roots() -> list[str]:
    """List the requirements in pyproject.toml of the core, all extras and the build."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = table["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    return [*table["build-system"]["requires"], *project["dependencies"], *extras]


def needed(requirements: list[str]) -> dict[str, Version]:
    """Follow requirements through installed packages; return their names and versions."""
    found: dict[str, Version] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(line) for line in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            installed = distribution(requirement.name)
        except PackageNotFoundError:
            sys.exit(f"{requirement} is not installed here: install all extras first (make lock)")
        found[name] = Version(installed.version)
        waiting += dependencies(installed.requires or [], requirement.extras)
    return found


def dependencies(lines: list[str], extras: set[str]) -> Iterator[Requirement]:
    """Yield the requirements of a package whose markers hold here."""
    for line in lines:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def main() -> None:
    """Write the file; a build such as 2.13.0+cpu is written as 2.13.0, which admits every build."""
    lines = [f"{name}=={version.public}" for name, version in sorted(needed(roots()).items())]
    text = HEAD.format(*sys.version_info[:2]) + "\n".join(lines) + "\n"
    assert not re.search(r"[/@]", text), "a path or an address instead of a version"
    (ROOT / "constraints.txt").write_text(text, encoding="utf-8")
    print(f"constraints.txt: {len(lines)} packages")


if __name__ == "__main__":
    main()
