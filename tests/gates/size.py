"""Print the size of the program beside its budget: `make size`.

Lines have at most 120 columns, which ruff holds. Generated code, tables in other files and the kernels in C count too;
`.pyi` files do not. The functions of a call are those of mpired that the second call in a process enters.
"""

import ast
import contextlib
import itertools
import os
import sys
import tempfile
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

import mpired

PROGRAM = Path(mpired.__file__).parent
TESTS = Path(__file__).parent.parent
BUDGET = {
    "lines": 25_000,
    "code lines": 16_500,
    "docstring lines": 3_250,
    "files": 145,
    "functions": 1_650,
    "classes": 190,
    "ContextVars": 1,
    "imports inside functions": 40,
    "lines of tests": 26_000,
    "functions of a reduce": 100,
    "files of a reduce": 20,
    "depth of a reduce": 10,
    "functions of an accumulate": 130,
    "files of an accumulate": 24,
    "depth of an accumulate": 12,
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (ast.Module, ast.ClassDef, *_FUNCTIONS)
_NOT_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


def docstrings(tree: ast.AST) -> Iterator[ast.Expr]:
    """Yield the docstrings of a module, and the strings behind its names."""
    for node in ast.walk(tree):
        for statement in getattr(node, "body", ()) if isinstance(node, _DOCUMENTED) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield statement


def figures_of_files() -> dict[str, int]:
    """Count the lines, functions and classes of the program."""
    paths = sorted(PROGRAM.rglob("*.py"))
    figures = dict.fromkeys(list(BUDGET)[:9], 0)
    for path in paths:
        source = path.read_text()
        tree = ast.parse(source)
        documented = {
            line for each in docstrings(tree) for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
        }
        with path.open("rb") as file:
            code = {
                line
                for token in tokenize.tokenize(file.readline)
                if token.type not in _NOT_CODE
                for line in range(token.start[0], token.end[0] + 1)
            }
        nodes = list(ast.walk(tree))
        inside = [each for node in nodes if isinstance(node, _FUNCTIONS) for each in ast.walk(node)]
        figures["lines"] += source.count("\n")
        figures["code lines"] += len(code - documented)
        figures["docstring lines"] += len(documented)
        figures["functions"] += sum(isinstance(node, _FUNCTIONS) for node in nodes)
        figures["classes"] += sum(isinstance(node, ast.ClassDef) for node in nodes)
        calls = (node.func for node in nodes if isinstance(node, ast.Call))
        figures["ContextVars"] += sum(ast.unparse(call).split("[")[0].endswith("ContextVar") for call in calls)
        figures["imports inside functions"] += len(
            {id(each) for each in inside if isinstance(each, (ast.Import, ast.ImportFrom))}
        )
    figures["files"] = len(paths)
    figures["lines of tests"] = sum(path.read_text().count("\n") for path in TESTS.rglob("*.py"))
    return figures


class Walk(NamedTuple):
    """The functions of mpired that a call enters."""

    functions: int
    files: int
    depth: int


def walk(call: Callable[[], object]) -> Walk:
    """Follow the second call in this process."""
    entered: set[tuple[str, int]] = set()
    depth = deepest = 0

    def watch(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal depth, deepest
        path = frame.f_code.co_filename
        if not path.startswith(f"{PROGRAM}{os.sep}") or event not in {"call", "return"}:
            return
        if frame.f_code.co_name.startswith("<"):  # a comprehension or a lambda is a part of its function
            return
        depth += 1 if event == "call" else -1
        deepest = max(deepest, depth)
        entered.add((path, frame.f_code.co_firstlineno))

    call()
    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Walk(len(entered), len({path for path, _ in entered}), deepest)


def walks() -> dict[str, int]:
    """Return the figures of a reduce of two npy files to a file, and of an accumulate of one, both in one process."""
    figures, numbers = {}, itertools.count()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name in ("a.npy", "b.npy"):
            np.save(name, np.arange(12.0))
        np.save("target.npy", np.zeros(12))
        calls = {
            "a reduce": lambda: mpired.reduce(["a.npy", "b.npy"], "sum", output=f"out{next(numbers)}.npy", jobs=1),
            "an accumulate": lambda: mpired.Window("target.npy").accumulate(["a.npy"], "sum"),
        }
        for name, call in calls.items():
            for what, figure in walk(call)._asdict().items():
                figures[f"{what} of {name}"] = figure
    return figures


def main() -> None:
    """Print a row a figure."""
    figures = figures_of_files() | walks()
    print(f"{'':28}{'now':>8}{'budget':>8}")
    for name, budget in BUDGET.items():
        print(f"{name:28}{figures[name]:8,}{budget:8,}")


if __name__ == "__main__":
    main()
