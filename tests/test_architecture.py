"""The order of the rooms: imports go downwards, one room writes files, and nothing is imported before it is needed."""

import ast
import functools
import graphlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import mpired
from mpired.formats import FORMATS

ROOT = Path(mpired.__file__).parent
TESTS = Path(__file__).parent
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))

# A room may import what stands before it.
ORDER = (
    "errors", "interrupts", "installed", "mpi4py_objects", "values", "options", "log", "context",
    "datatypes", "ops", "codecs", "files", "sources", "engines", "formats", "ranks", "provenance",
    "attempts", "collectives", "windows", "packing", "queries", "report", "api", "cli",
)  # fmt: skip
# They stand beside one another.
CHAPTERS = ("collectives", "windows", "packing")
# The API, which names the verbs, and `python -m mpired`, which runs the command.
DOORS = ("__init__.py", "__main__.py")
INSIDE = [module for module in MODULES if module not in DOORS]

# Calls that change the file system.
OS_WRITES = {
    "chmod", "chown", "copy_file_range", "fchmod", "fchown", "fdatasync", "fdopen", "fsync", "ftruncate", "lchown",
    "link", "makedirs", "mkdir", "mkfifo", "mknod", "posix_fallocate", "pwrite", "pwritev", "remove", "removedirs",
    "removexattr", "rename", "renames", "replace", "rmdir", "sendfile", "setxattr", "splice", "symlink", "truncate",
    "unlink", "utime", "write", "writev",
}  # fmt: skip
NUMPY_WRITES = {"memmap", "save", "savetxt", "savez", "savez_compressed"}
METHOD_WRITES = {
    "hardlink_to", "mkdir", "rmdir", "symlink_to", "tofile", "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip
WRITING_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND", "O_TMPFILE"}
# What is done outside of `files` all the same: filling closed standard descriptors with /dev/null, and
# giving a library the descriptor that `files` has opened.
ALLOWED_WRITES = {("cli/__init__.py", "os.open"), ("engines/worker.py", "os.open")}
ALLOWED_WRITES |= {(f"formats/{name}.py", "os.fdopen") for name in ("columns", "npz", "textual", "zarr")}


@functools.cache
def tree_of(module):
    return ast.parse((ROOT / module).read_text(encoding="utf-8"))


def room_of(module):
    return module.split("/")[0].removesuffix(".py")


@functools.cache
def imported_names(module):
    """Return the full name of everything that a module imports, wherever in it."""
    names = []
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def imported_rooms(module):
    """Return the rooms that a module imports from; `mpired.__version__` is in none."""
    parts = [name.split(".") for name in imported_names(module)]
    return {part[1] for part in parts if part[0] == "mpired" and len(part) > 1} - {"__version__"}


def imports_of(package):
    return {module for module in MODULES if any(name.split(".")[0] == package for name in imported_names(module))}


def writing_calls(module):
    """Yield the calls of a module that write, by name."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Call):
            yield from _writing_call(node)


def _writing_call(node):
    match node.func:
        case ast.Name(id="open") if _mode_of(node) != "r":
            yield "open"
        case ast.Attribute(value=ast.Name(id="os"), attr="open") if _may_write(node):
            yield "os.open"
        case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in OS_WRITES:
            yield f"os.{name}"
        case ast.Attribute(value=ast.Name(id="np"), attr=name) if name in NUMPY_WRITES:
            yield f"np.{name}"
        case ast.Attribute(value=ast.Name(id="os" | "np" | "calls")):
            return  # another function of these
        case ast.Attribute(attr=name) if name in METHOD_WRITES:
            yield f".{name}"


def _mode_of(node):
    given = [*node.args[1:2], *(keyword.value for keyword in node.keywords if keyword.arg == "mode")]
    return given[0].value.replace("b", "").replace("t", "") if given else "r"


def _may_write(node):
    flags = {name.attr for name in ast.walk(node.args[1]) if isinstance(name, ast.Attribute)}
    return bool(flags & WRITING_FLAGS) or "O_RDONLY" not in flags


def test_every_module_is_in_a_room():
    assert {*map(room_of, INSIDE)} == set(ORDER)


def test_imports_go_to_the_rooms_before():
    upwards = {module: imported_rooms(module) - {*ORDER[: ORDER.index(room_of(module)) + 1]} for module in INSIDE}
    assert {module: rooms for module, rooms in upwards.items() if rooms} == {}


def test_the_chapters_of_mpi_do_not_know_one_another():
    for chapter in CHAPTERS:
        imported = set().union(*(imported_rooms(module) for module in MODULES if room_of(module) == chapter))
        assert imported & set(CHAPTERS) <= {chapter}


def test_no_circle_of_files():
    """Not even for types: whoever reads a file can first read those that it imports."""
    dotted = {module.removesuffix(".py").removesuffix("/__init__").replace("/", "."): module for module in MODULES}
    names = {f"mpired.{name}": module for name, module in dotted.items()}
    imported = {
        module: {names.get(name) or names.get(name.rpartition(".")[0]) for name in imported_names(module)} - {None}
        for module in INSIDE
    }
    assert [*graphlib.TopologicalSorter(imported).static_order()]  # `CycleError` has the circle


def test_no_class_has_the_name_of_another():
    names = Counter(
        node.name for module in MODULES for node in ast.walk(tree_of(module)) if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_the_page_of_the_design_has_every_room_in_this_order():
    page = (ROOT.parent / "docs/design.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)(?:\.py|/)` \|", page, re.MULTILINE) == list(ORDER)


def test_no_room_has_the_name_of_a_function():
    # Importing it would put the module in the place of the function.
    assert set(ORDER) & set(mpired.__all__) == {"datatypes", "errors"}


def test_packages_are_imported_by_few():
    assert {room_of(module) for module in imports_of("click")} == {"cli"}
    assert imports_of("pyarrow") == {"formats/arrow.py", "formats/parquet.py", "codecs/arrow.py"}
    packages = ("matplotlib", "mpi4py", "distributed")
    modules = ("queries/drawing.py", "engines/mpi.py", "engines/futures.py")
    assert [imports_of(package) for package in packages] == [{module} for module in modules]
    # What would write in its own way.
    assert imports_of("shutil") | imports_of("tempfile") == {"cli/pages.py"}  # for the width of the terminal
    assert {room_of(module) for module in imports_of("mmap")} == {"files"}


def test_only_files_writes_to_the_file_system():
    found = {(module, call) for module in MODULES for call in writing_calls(module)}
    files = {each for each in found if room_of(each[0]) == "files"}
    assert found - files == ALLOWED_WRITES
    writing = {"os.open", "os.pwrite", "os.write", "os.replace", "os.link", "os.unlink", "os.fsync"}
    assert {call for _, call in files} >= writing


# A word of another table that is the name of a format too: of a datatype's text.
OTHER_WORDS = {("cli/reference.py", "text")}


def names_of_formats(module):
    """Yield the names of formats that stand in a module as a text, unless it is that of the format."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Constant) and node.value in FORMATS and module != f"formats/{node.value}.py":
            yield node.value


def test_names_of_formats_decide_nothing_outside_of_their_rows():
    found = {(module, name) for module in MODULES for name in names_of_formats(module)}
    assert found - OTHER_WORDS == {("formats/recognise.py", name) for name in FORMATS}


def test_only_warnings_are_collected_beside_the_arguments():
    """All else of a call is in its `Context`, which is passed down."""
    found = {module for module in MODULES if "ContextVar(" in (ROOT / module).read_text(encoding="utf-8")}
    assert found == {"log.py"}


def test_no_file_of_tests_is_long():
    """A file of tests has one theme, which its name says."""
    nlines = {path.relative_to(TESTS).as_posix(): len(path.read_text().splitlines()) for path in TESTS.rglob("*.py")}
    assert {name: number for name, number in nlines.items() if number > 420} == {}


def modules_after(code, *words, **environment):
    """Run code in a process of its own, and return the packages that it has imported."""
    program = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    words = [sys.executable, "-c", program, *map(str, words)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, env={**os.environ, **environment})
    return set(json.loads(done.stderr.splitlines()[-1]))


COMMAND = """
from mpired.cli import main
assert main(sys.argv[1:]) == 0
"""


@pytest.fixture
def npy_ranks(tmp_path):
    paths = [tmp_path / f"rank{i}.npy" for i in range(2)]
    for path in paths:
        np.save(path, np.arange(10.0))
    return paths


def test_import_mpired_imports_neither_numpy_nor_click():
    assert modules_after("import mpired") & {"numpy", "pyarrow", "click", "mpired.collectives.request"} == set()


def test_the_commands_help_does_not_wait_for_numpy():
    loaded = modules_after(f"{COMMAND}assert main(['--version']) == 0\n", "--help")
    assert "click" in loaded
    assert loaded & {"numpy", "pyarrow"} == set()


def test_the_api_does_not_import_click(npy_ranks):
    loaded = modules_after("import mpired\nmpired.reduce(sys.argv[1:], 'sum')", *npy_ranks)
    assert "numpy" in loaded
    assert loaded & {"click", "pyarrow", "mpired.cli"} == set()


# What few commands need, and the milliseconds of processor time that it would add to the start of each.
LATE = {
    "mpired.datatypes.text": 6, "mpired.datatypes.typemap": 3, "mpired.engines.mpi": 3,
    "mpired.files.stores": 12, "mpired.formats.spread": 5, "mpired.ops.clibrary": 10, "mpired.ops.user": 13,
    "mpired.provenance": 5, "mpired.queries.drawing": 351, "mpired.sources.remote": 9,
    "concurrent.futures": 3, "fractions": 2, "hashlib": 3, "logging": 2, "subprocess": 2, "tomllib": 3,
    "traceback": 0.6,
}  # fmt: skip
# Of extras.
OPTIONAL = {"boto3", "botocore.exceptions", "dask", "distributed", "distributed.scheduler", "mpi4py", "obstore"} | {
    "mpi4py.util", "obstore.auth.boto3",
}  # fmt: skip
# Where a start has to come first: of the command, of MPI, and of what needs neither NumPy nor an engine.
STARTS = {"__init__.py", "__main__.py", "cli/__init__.py", "engines/messages.py"}
# `importlib.metadata`, and what is not part of the interface of NumPy.
AT_USE = {"importlib", "numpy._core"}


def late_imports(module):
    """Yield the modules that a module imports within a function."""
    functions = [node for node in ast.walk(tree_of(module)) if isinstance(node, ast.FunctionDef)]
    for node in (each for function in functions for each in ast.walk(function)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if (ROOT.parent / f"{inner.replace('.', '/')}.py").exists() else node.module


def test_what_is_imported_within_functions_is_worth_it():
    found = {name for module in MODULES if module not in STARTS for name in late_imports(module)}
    assert found - AT_USE - OPTIONAL == {*LATE} - {"mpired.engines.mpi"}
    assert found >= OPTIONAL | AT_USE


OF_OTHER_FORMATS = {"pyarrow", "mpired.formats.columns", "mpired.formats.parquet", "mpired.formats.arrow"}
OF_POOLS = {"multiprocessing", "concurrent.futures.process"}


def test_replacing_a_result_imports_nothing_that_most_commands_do_not_need(npy_ranks, tmp_path):
    """Neither what reads other formats nor a pool, as the data is little."""
    result = tmp_path / "sum.npy"
    result.write_bytes(npy_ranks[0].read_bytes())
    loaded = modules_after(COMMAND, "reduce", "-q", "-f", "-j", "4", "--op", "sum", "-o", result, *npy_ranks)
    assert "numpy" in loaded
    assert loaded & {*LATE, "dataclasses"} == set()
    assert loaded & (OF_OTHER_FORMATS | OF_POOLS) == set()
    assert np.array_equal(np.load(result), 2 * np.arange(10.0))


def test_packages_are_not_searched_for_what_is_built_in(npy_ranks, tmp_path):
    words = ("-q", "--op", "sum", "--from", "npy", "--to", "parquet", "-o", tmp_path / "sum.parquet")
    assert "importlib.metadata" not in modules_after(COMMAND, "reduce", *words, *npy_ranks)
    (raw := tmp_path / "rank.0").write_bytes(bytes(16))
    words = ("-q", "--op", "sum", "--type", "double", "-o", tmp_path / "sum.0", raw)
    assert "importlib.metadata" not in modules_after(COMMAND, "reduce", *words)


def test_reading_columns_starts_no_thread(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "rank.parquet"
    pq.write_table(pa.table({"value": np.arange(10.0)}), path)
    # Workers are forked only from a process with one thread.
    code = "import os, mpired\nmpired.info(sys.argv[1])\nassert os.listdir('/proc/self/task') == [str(os.getpid())]"
    assert "pyarrow" in modules_after(code, path, OPENBLAS_NUM_THREADS="1")
