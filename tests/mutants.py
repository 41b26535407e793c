"""Change the package in one place at a time and check that the laws fail: `make mutants`.

A mutant names a file, a function and one edit of that function's syntax tree: the old expression,
statement or keyword argument, and the new code. The old code is compared in the form that
`ast.unparse` writes, so line breaks, comments, quotes and redundant parentheses do not matter.
It must occur exactly once in the function.

The laws run in a fork of a process that has imported them, in which the function has the new code.
Kernels and classes are edited in a copy of the package instead. A mutant that survives is a hole in
the laws: the program prints a line for each mutant and exits with 1 if any survived.

To adapt a mutant after a change of the source, edit its line in tests/mutant_tables. A heading
names the file below src/fedpage and the function; each item is an edit, name: `old` -> `new`.
A table may name the file in tests/laws that catches most of its mutants and runs first.
`pytest tests/laws/test_mutants.py -k one_place` checks all lines in a second.
"""

import ast
import contextlib
import importlib
import io
import multiprocessing
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
from types import CodeType, FunctionType
from typing import Any, NamedTuple, cast

import pytest

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

    @property
    def source(self) -> str:
        """The text of the file."""
        return (ROOT / "src" / "fedpage" / self.file).read_text(encoding="utf-8")


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


FOR_ALL = ("test_hyper_parameters.py", "test_equalities.py", "test_laws.py")
"""Files of laws about all methods, which run before all files at once."""
MUTANTS = [
    mutant
    for path in sorted((ROOT / "tests" / "mutant_tables").glob("*.md"))
    for mutant in read_table(path.read_text(encoding="utf-8"))
]


def apply(mutant: Mutant, source: str) -> ast.Module:
    """Return the syntax tree of the mutant's file with the edit applied.

    Args:
        mutant: Which function to edit, and how.
        source: The text of the file.

    Returns:
        The tree, in which one node differs.

    Raises:
        ValueError: If the old code does not occur exactly once in the function.
    """
    tree = ast.parse(source)
    old, new = _parse(mutant.old), _parse(mutant.new)
    matches = [node for node in ast.walk(_find_function(tree, mutant)) if _is_same(node, old)]
    if len(matches) != 1:
        raise ValueError(
            f"{mutant}: {mutant.old!r} occurs {len(matches)} times "
            f"in {mutant.function} of {mutant.file}, not once"
        )
    if isinstance(matches[0], ast.keyword):
        new = _as_keyword(new) or new
    if isinstance(matches[0], ast.expr) != isinstance(new, ast.expr):
        raise ValueError(f"{mutant}: {mutant.new!r} cannot stand in the place of {mutant.old!r}")

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is matches[0] else self.generic_visit(node)

    Replace().visit(tree)  # in place
    return ast.fix_missing_locations(tree)


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


class Verdict(NamedTuple):
    """Whether a law failed on the mutant, after how many seconds, and which law."""

    caught: bool
    seconds: float
    law: str


def judge(mutant: Mutant) -> Verdict:
    """Run the laws on the mutant. This process cannot be used for anything else afterwards."""
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        source = None
        if not put_into_this_process(mutant):
            source = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "src"
            # numba's caches are copied too: only the edited file is compiled again
            shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("*.egg-info"))
            text = ast.unparse(apply(mutant, mutant.source))
            (source / "fedpage" / mutant.file).write_text(text, encoding="utf-8")
        for laws in dict.fromkeys((mutant.laws, *FOR_ALL, "")):
            code, output = _run_laws(laws, source)
            if code:
                break
    law = re.search(r"^FAILED [^:]+::(\S+)", output, re.MULTILINE)
    if code not in (0, 1) or (code == 1 and not law):
        raise RuntimeError(f"{mutant}: the laws did not run:\n{output}")
    return Verdict(code == 1, time.perf_counter() - began, law[1] if law else "")


def judge_in_fork(mutant: Mutant) -> Verdict:
    """Run `judge` in a fork of this process. A mutant that crashes the fork is caught."""
    began = time.perf_counter()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(judge(mutant)))
    process.start()
    sender.close()
    with contextlib.suppress(EOFError):
        return cast(Verdict, receiver.recv())
    process.join()
    if not process.exitcode or process.exitcode > 0:
        raise RuntimeError(f"{mutant}: the laws did not run")
    return Verdict(True, time.perf_counter() - began, f"signal {-process.exitcode}")


def put_into_this_process(mutant: Mutant) -> bool:
    """Give a function its new code, and return whether that is possible; kernels are compiled."""
    if "numba" in mutant.source or "compile_kernel" in mutant.source:
        return False
    found: Any = importlib.import_module("fedpage." + mutant.file[:-3].replace("/", "."))
    codes = [compile(tree, mutant.file, "exec", dont_inherit=True)
             for tree in (ast.parse(mutant.source), apply(mutant, mutant.source))]  # fmt: skip
    for part in mutant.function.split("."):
        found = vars(found).get(part)
        codes = [next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == part)
                 for code in codes]  # fmt: skip
    function = getattr(found, "fget", None) or getattr(found, "__func__", found)
    if not isinstance(function, FunctionType) or function.__code__ != codes[0]:
        return False  # a class, or a function that a decorator has replaced
    function.__code__ = codes[1]
    return True


def _run_laws(laws: str, source: Path | None) -> tuple[int, str]:
    """Run one file of the laws, or all of them, here or on the package in `source`."""
    words = ["-x", "-q", "-rf", "--no-header", "--tb=no", "-p", "no:xdist", "-p",
             "no:cacheprovider", str(ROOT / "tests" / "laws" / laws)]  # fmt: skip
    if source is None:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            return int(pytest.main(words)), output.getvalue()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(source), "FEDPAGE_MUTANT": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def main(words: list[str]) -> None:
    """Judge all mutants, or those whose file, function or name contains one of the words."""
    chosen = [
        m
        for m in MUTANTS
        if not words or any(word.lower() in f"{m.file} {m}".lower() for word in words)
    ]
    os.environ |= {"FEDPAGE_MUTANT": str(ROOT / "src"), "PYTEST_ADDOPTS": ""}
    with contextlib.redirect_stdout(io.StringIO()):  # import the laws, before processes are forked
        pytest.main(["--collect-only", "-q", "-p", "no:xdist", str(ROOT / "tests" / "laws")])
    survived = 0
    with ThreadPoolExecutor(2) as pool:
        for mutant, verdict in zip(chosen, pool.map(judge_in_fork, chosen), strict=True):
            survived += not verdict.caught
            outcome = "caught  " if verdict.caught else "SURVIVED"
            print(f"{outcome}  {mutant!s:60s} {verdict.seconds:5.1f} s  {verdict.law}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} mutants caught")
    sys.exit(1 if survived or not chosen else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
