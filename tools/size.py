"""Count the source: `python tools/size.py [SRC]` prints a row for each package and the totals.

Lines include docstrings; code is the rest without docstrings, comments and blank lines. A module
is imported once if exactly one other module of the package imports it.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

BUDGETS = {
    "core": 3400, "data": 3100, "problems": 3300, "problems/torch": 3000, "codecs": 1950,
    "methods": 5000, "theory": 1650, "runs": 2450, "callbacks": 760, "engine": 3600,
    "studies": 4300, "report": 2600, "flower": 5400, "cli": 2700, "inference": 900, "top": 430,
}  # fmt: skip
"""Lines that each package should have, by the plan for version 0.2."""


def package_of(path: Path, root: Path) -> str:
    """Return the package that a file counts for."""
    parts = path.relative_to(root).parts
    if parts[:2] == ("problems", "torch"):
        return "problems/torch"
    return parts[0] if len(parts) > 1 else "top"


def code_lines(text: str, tree: ast.Module) -> int:
    """Return the number of lines with code."""
    numbers: set[int] = set()
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped and token.type != tokenize.ENDMARKER:
            numbers.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for item in body if isinstance(body, list) else ():
            is_text = isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)
            if is_text and isinstance(item.value.value, str):
                numbers -= set(range(item.lineno, (item.end_lineno or item.lineno) + 1))
    return len(numbers)


def imported_modules(tree: ast.Module, known: set[str]) -> set[str]:
    """Return the modules of the package that a module imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found & known


def main(root: Path) -> None:
    """Print the table."""
    files = sorted([*root.rglob("*.py"), *root.rglob("*.pyi")])
    names = {
        ".".join(("fedpage", *path.relative_to(root).with_suffix("").parts)): path for path in files
    }
    rows: dict[str, Counter[str]] = {name: Counter() for name in BUDGETS}
    importers: Counter[str] = Counter()
    for path in files:
        text = path.read_text(encoding="utf-8")
        tree, row = ast.parse(text), rows[package_of(path, root)]
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        row["files"] += 1
        row["lines"] += text.count("\n")
        row["code"] += code_lines(text, tree)
        row["classes"] += sum(isinstance(node, ast.ClassDef) for node in ast.walk(tree))
        row["functions"] += sum(isinstance(node, functions) for node in ast.walk(tree))
        row["raises"] += sum(isinstance(node, ast.Raise) for node in ast.walk(tree))
        importers.update(imported_modules(tree, set(names)))
    for name, count in importers.items():
        rows[package_of(names[name], root)]["once"] += count == 1
    columns = ("lines", "code", "files", "classes", "functions", "raises", "once")
    print(f"{'':16}{'budget':>8}" + "".join(f"{column:>10}" for column in columns))
    for name, row in rows.items():
        print(f"{name:16}{BUDGETS[name]:8,}" + "".join(f"{row[c]:10,}" for c in columns))
    total = sum(rows.values(), Counter())
    print(f"{'total':16}{sum(BUDGETS.values()):8,}" + "".join(f"{total[c]:10,}" for c in columns))


if __name__ == "__main__":
    here = Path(__file__).resolve().parents[1] / "src" / "fedpage"
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else here)
