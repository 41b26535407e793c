"""Check the wheel's contents, versions, the shell's completion, the lock file and the Makefile."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import fedpage as fp

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_wheel_has_what_it_needs_and_nothing_else(tmp_path):
    pytest.importorskip(
        "setuptools", reason="building a wheel without a network needs setuptools here"
    )
    pytest.importorskip("build", reason="needs build: pip install 'fedpage[test]'")
    source = tmp_path / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = [name for name in listed.stdout.split("\0") if name] if listed.returncode == 0 else []
    if not names:
        pytest.skip("not a git checkout: the files of the package are not known")
    for name in names:
        if name.startswith("src/") or "/" not in name:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    words = ("--wheel", "--no-isolation", "--skip-dependency-check", "--outdir")
    done = subprocess.run(
        [sys.executable, "-m", "build", *words, str(tmp_path / "dist"), str(source)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-500:]
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name == f"fedpage-{fp.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
        about = f"fedpage-{fp.__version__}.dist-info"
        metadata = archive.read(f"{about}/METADATA").decode()
        assert archive.read(f"{about}/entry_points.txt").decode().split() == [
            "[console_scripts]", "fedpage", "=", "fedpage.cli.main:main",
        ]  # fmt: skip
    wanted = {
        name.removeprefix("src/") for name in names
        if name.startswith("src/")
        and name.endswith((".py", ".pyi", ".toml", ".html", ".css", ".js", "py.typed"))
    }  # fmt: skip
    assert wanted <= shipped
    assert {"fedpage/py.typed", f"{about}/licenses/LICENSE"} <= shipped
    assert {name.partition("/")[0] for name in shipped} == {"fedpage", about}
    core = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", metadata, flags=re.MULTILINE)
    assert core == [
        "numpy", "scipy", "numba", "scikit-learn", "matplotlib", "jinja2", "joblib",
        "typer", "rich", "polars", "msgspec", "tomli-w", "filelock", "platformdirs", "pooch",
        "tabulate",
    ]  # fmt: skip
    assert "Classifier: Typing :: Typed" in metadata


def test_versions_agree(run):
    version = fp.__version__
    assert run("--version")[:2] == (0, f"fedpage {version}\n")
    assert re.search(
        rf"^version: {re.escape(version)}$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE
    )
    assert (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1].startswith(version)


def test_the_citation_file_is_valid():
    yaml = pytest.importorskip("yaml", reason="needs pyyaml, which comes with 'fedpage[docs]'")
    about = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert about["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "license"} <= set(about)
    authors = [author["family-names"] for author in about["preferred-citation"]["authors"]]
    assert authors == ["Zhao", "Li", "Richtárik"]


@pytest.mark.parametrize(
    ("words", "place", "expected"),
    [
        ("fedpage re", 1, {"resume", "reproduce"}),
        ("fedpage run scaffold-", 2, {"scaffold-full", "scaffold-momentum", "scaffold-option-i"}),
        ("fedpage run fedavg --data w", 4, {"w8a", "wine"}),
        (
            "fedpage run fedavg --objective logistic-",
            4,
            {"logistic-l2", "logistic-nonconvex", "logistic-smoothed-l1"},
        ),
    ],
)
def test_the_shell_completes(words, place, expected):
    asked = {"_FEDPAGE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(place)}
    done = subprocess.run(
        [sys.executable, "-m", "fedpage"], capture_output=True, text=True, env=os.environ | asked,
        check=False,
    )  # fmt: skip
    assert set(done.stdout.split()) == expected, done.stderr


def test_the_locked_versions_are_allowed():
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("#")
    locked = dict(line.split("==") for line in lines[1:])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for requirement in (Requirement(line) for group in groups for line in group):
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), requirement
    assert not [line for line in lines[1:] if re.search(r"[/@ ]", line)]


def test_every_imported_package_is_declared():
    """A package that only comes with a dependency is missing when that dependency changes."""
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {Requirement(line).name.lower() for group in groups for line in group}
    declared = {{"scikit-learn": "sklearn"}.get(name, name.replace("-", "_")) for name in names}
    declared |= {"fedpage", "mlflow", "_typeshed"}  # of mlflow-skinny and of mypy
    declared |= {"markupsafe", "llvmlite"}  # of jinja2 and numba
    declared |= {"cryptography", "Crypto"}  # of flwr
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module]
            top = {module.split(".")[0] for module in modules} - sys.stdlib_module_names
            assert top <= declared, path


def test_every_make_target_is_phony():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", text, flags=re.MULTILINE))
    (phony,) = re.findall(r"^\.PHONY: ((?:.*\\\n)*.*)$", text, flags=re.MULTILINE)
    assert set(phony.replace("\\", " ").split()) == targets


def test_a_public_class_name_has_one_meaning():
    """State, messages and replies have the same names in the files of methods/."""
    places: dict[str, set[str]] = {}
    for path in (ROOT / "src" / "fedpage").rglob("*.py"):
        place = "methods" if path.parent.name == "methods" else path.as_posix()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, set()).add(place)
    twice = {name for name, found in places.items() if len(found) > 1}
    assert twice <= {"State"}  # the bound of a method's state in core/types.py
