"""Change the package in one place at a time and check that the laws fail: `make mutants`.

A mutant names a file, a function and one edit of that function's syntax tree: the old expression,
statement or keyword argument, and the new code. The old code is compared in the form that
`ast.unparse` writes, so line breaks, comments, quotes and redundant parentheses do not matter.
It must occur exactly once in the function.

The laws run on a copy of the package with that edit. A mutant that survives is a hole in the laws:
the program prints a line for each mutant and exits with 1 if any survived.

To adapt a mutant after a change of the source, edit its line in tests/mutant_tables. A heading
names the file below src/fedpage and the function; each item is an edit, name: `old` -> `new`.
A table may name the file in tests/laws that catches most of its mutants and runs first.
`pytest tests/laws/test_mutants.py -k one_place` checks all lines in a second.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Mutant(NamedTuple):
    """An edit of one file below src/fedpage."""

    name: str
    file: str
    function: str
    old: str
    new: str
    laws: str = ""
    """The file in tests/laws to run first; if empty, run all of them at once."""

    def __str__(self) -> str:
        return f"{self.function}: {self.name}"


def read_table(text: str) -> list[Mutant]:
    """Return the mutants of a file in tests/mutant_tables."""
    first, *sections = text.split("\n## ")
    laws = re.search(r"^Laws: (\S+)$", first, re.MULTILINE)
    found = []
    for section in sections:
        heading, *items = section.rstrip().split("\n- ")
        file, function = heading.split(": ")
        for item in items:
            edit = re.fullmatch("(.+): `(.+)` -> `(.+)`", re.sub(r"\n +", " ", item))
            if edit is None:
                raise ValueError(f"not of the form name: `old` -> `new`: {item}")
            name, old, new = edit.groups()
            found.append(Mutant(name, file, function, old, new, laws[1] if laws else ""))
    return found


FOR_ALL = ("test_equalities.py", "test_hyper_parameters.py")
"""Files of laws about all methods, which run before all files at once."""
MUTANTS = [
    mutant
    for path in sorted((ROOT / "tests" / "mutant_tables").glob("*.md"))
    for mutant in read_table(path.read_text(encoding="utf-8"))
]


def apply(mutant: Mutant, source: str) -> str:
    """Return the source of the mutant's file with the edit applied.

    Args:
        mutant: Which function to edit, and how.
        source: The text of the file.

    Returns:
        The text in which only the matched node's own segment differs.

    Raises:
        ValueError: If the old code does not occur exactly once in the function.
    """
    tree = ast.parse(source)
    function = _find_function(tree, mutant)
    old, new = _parse(mutant.old), _parse(mutant.new)
    matches = [node for node in ast.walk(function) if _is_same(node, old)]
    if len(matches) != 1:
        raise ValueError(
            f"{mutant}: {mutant.old!r} occurs {len(matches)} times "
            f"in {mutant.function} of {mutant.file}, not once"
        )
    (node,) = matches
    assert isinstance(node, ast.expr | ast.stmt | ast.keyword)
    before, after = _cut(source, node)
    indent = " " * node.col_offset
    code = textwrap.indent(mutant.new, indent).lstrip() if isinstance(new, ast.stmt) else mutant.new
    wanted = _replace(tree, node, new)
    for text in (before + code + after, f"{before}({code}){after}"):
        try:
            if ast.dump(ast.parse(text)) == wanted:
                return text
        except SyntaxError:
            continue
    raise ValueError(f"{mutant}: {mutant.new!r} cannot stand in the place of {mutant.old!r}")


def _find_function(tree: ast.Module, mutant: Mutant) -> ast.AST:
    """Find the function by its qualified name."""
    node: ast.Module | ast.ClassDef | ast.FunctionDef = tree
    for part in mutant.function.split("."):
        kinds = (ast.ClassDef, ast.FunctionDef)
        found = [child for child in node.body if isinstance(child, kinds) and child.name == part]
        if len(found) != 1:
            raise ValueError(f"{mutant}: {mutant.file} does not have one {mutant.function}")
        node = found[0]
    return node


def _parse(code: str) -> ast.AST:
    """Parse an expression, or else a single statement."""
    try:
        return ast.parse(code, mode="eval").body
    except SyntaxError:
        (statement,) = ast.parse(textwrap.dedent(code)).body
        return statement


def _as_keyword(node: ast.AST) -> ast.keyword | None:
    """Return the keyword argument that `name=value` may also mean."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return ast.keyword(arg=name, value=value)
    return None


def _is_same(node: ast.AST, old: ast.AST) -> bool:
    """Compare by what `ast.unparse` writes; a name that is assigned to is not an expression."""
    if isinstance(node, ast.keyword):
        keyword = _as_keyword(old)
        return keyword is not None and ast.unparse(node) == ast.unparse(keyword)
    if isinstance(old, ast.expr):
        stored = isinstance(getattr(node, "ctx", None), ast.Store)
        return isinstance(node, ast.expr) and not stored and ast.unparse(node) == ast.unparse(old)
    return isinstance(node, ast.stmt) and ast.unparse(node) == ast.unparse(old)


def _cut(source: str, node: ast.expr | ast.stmt | ast.keyword) -> tuple[str, str]:
    """Return the text before and after the node; columns of the syntax tree count bytes."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    lines = source.encode().splitlines(keepends=True)
    begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    return source.encode()[:begin].decode(), source.encode()[end:].decode()


def _replace(tree: ast.Module, node: ast.AST, new: ast.AST) -> str:
    """Dump the tree with the node replaced."""

    class Replace(ast.NodeTransformer):
        def visit(self, child: ast.AST) -> ast.AST:
            if child is not node:
                return self.generic_visit(child)
            return (_as_keyword(new) or new) if isinstance(node, ast.keyword) else new

    return ast.dump(Replace().visit(tree))


class Verdict(NamedTuple):
    """Whether a law failed on the mutant, after how many seconds, and which law."""

    caught: bool
    seconds: float
    law: str


def judge(mutant: Mutant) -> Verdict:
    """Run the laws on a copy of the package that has the mutant's edit."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        # numba's caches are copied too: only the edited file is compiled again
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("*.egg-info"))
        path = source / "fedpage" / mutant.file
        path.write_text(apply(mutant, path.read_text(encoding="utf-8")), encoding="utf-8")
        began = time.perf_counter()
        for laws in dict.fromkeys((mutant.laws, *FOR_ALL, "")):
            done = _run_laws(source, laws)
            if done.returncode:
                break
    seconds = time.perf_counter() - began
    law = _first_failure(done.stdout)
    if done.returncode not in (0, 1) or (done.returncode == 1 and not law):
        raise RuntimeError(f"{mutant}: the laws did not run:\n{done.stdout}{done.stderr}")
    return Verdict(done.returncode == 1, seconds, law)


def _run_laws(source: Path, laws: str) -> subprocess.CompletedProcess[str]:
    """Run one file of the laws, or all of them, on the package in `source`."""
    words = ["-x", "-q", "-rf", "--no-header", "--tb=no", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", str(ROOT / "tests" / "laws" / laws), *words]
    variables = {"PYTHONPATH": str(source), "FEDPAGE_MUTANT": str(source), "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def _first_failure(output: str) -> str:
    """Return the name of the first failed test in pytest's output."""
    for line in output.splitlines():
        if line.startswith("FAILED"):
            return line.split("::")[1].split(" ")[0]
    return ""


def main(words: list[str]) -> None:
    """Judge all mutants, or those whose file, function or name contains one of the words."""
    chosen = [
        m
        for m in MUTANTS
        if not words or any(word.lower() in f"{m.file} {m}".lower() for word in words)
    ]
    survived = 0
    with ThreadPoolExecutor(2) as pool:
        for mutant, verdict in zip(chosen, pool.map(judge, chosen), strict=True):
            survived += not verdict.caught
            outcome = "caught  " if verdict.caught else "SURVIVED"
            print(f"{outcome}  {mutant!s:60s} {verdict.seconds:5.1f} s  {verdict.law}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} mutants caught")
    sys.exit(1 if survived or not chosen else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
