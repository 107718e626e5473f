"""The programs: mpired, and what else people combine files with, where it is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

Words = Callable[[Sequence[str], str], list[str]]
Prepare = Callable[[Path], object]

_HERE = Path(__file__).resolve().parent
_SCRIPTS = sysconfig.get_path("scripts")
_MPI_PROGRAM = "./mpi_reduce"

NUMPY_SCRIPT = """
import sys
import numpy as np
output, first, *others = sys.argv[1:]
acc = np.load(first)
for path in others:
    acc += np.load(path)
np.save(output, acc)
"""

DASK_SCRIPT = """
import sys
import dask.array as da
import numpy as np
output, *paths = sys.argv[1:]
ranks = [da.from_array(np.load(path, mmap_mode="r"), chunks=1 << 20) for path in paths]
np.save(output, da.stack(ranks).sum(axis=0).compute())
"""

LISTED_SCRIPT = """
import sys
import numpy as np
output, listing = sys.argv[1:3]
first, *others = open(listing).read().split()
acc = np.load(first)
for path in others:
    acc += np.load(path)
np.save(output, acc)
"""

SCAN_SCRIPT = """
import sys
import numpy as np
output, first, *others = sys.argv[1:]
acc = np.load(first)
np.save(output.format(rank=0), acc)
for rank, path in enumerate(others, 1):
    acc += np.load(path)
    np.save(output.format(rank=rank), acc)
"""

STACK_SCRIPT = """
import sys
import numpy as np
output, *paths = sys.argv[1:]
np.save(output, {call}(np.stack([np.load(path) for path in paths]){more}, axis=0))
"""

UPDATE_SCRIPT = """
import sys
import numpy as np
target, origin = (np.load(path, mmap_mode=mode) for path, mode in zip(sys.argv[1:], ("r+", "r")))
np.maximum(target[:len(origin)], origin, out=target[:len(origin)])
target.flush()
"""

UPDATE_COLUMN_SCRIPT = """
import sys
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
target, origin = sys.argv[1:]
columns = [pq.read_table(path).column("value").to_numpy() for path in (target, origin)]
pq.write_table(pa.table({"value": np.maximum(*columns)}), target)
"""

RECORDS_SCRIPT = """
import sys
import numpy as np
output, path = sys.argv[1:]
form = np.dtype([("value", "f8"), ("index", "i4")], align=True)
np.save(output, np.ascontiguousarray(np.fromfile(path, form)["value"]))
"""

POLARS_SCRIPT = """
import sys
import polars as pl
output, first, *others = sys.argv[1:]
acc = pl.read_parquet(first)["value"]
for path in others:
    acc = acc + pl.read_parquet(path)["value"]
acc.to_frame().write_parquet(output, compression="snappy")
"""

DUCKDB_SCRIPT = """
import sys
import duckdb
output, *paths = sys.argv[1:]
value = " + ".join(f"r{rank}.value" for rank in range(len(paths)))
ranks = " POSITIONAL JOIN ".join(f"'{path}' AS r{rank}" for rank, path in enumerate(paths))
duckdb.sql(f"COPY (SELECT {value} AS value FROM {ranks}) TO '{output}' (FORMAT parquet, COMPRESSION snappy)")
"""


def find(program: str) -> str | None:
    """Return the path of a program: that of this Python's environment before any other."""
    return shutil.which(program, path=_SCRIPTS) or shutil.which(program)


def nothing(_directory: Path) -> None:
    """Prepare nothing."""


class Program(NamedTuple):
    """A way to combine files.

    Parameters
    ----------
    title
        What the table calls it.
    words
        Gives the command for the ranks' files and the file to write.
    suffix
        The ending of that file; empty for a program that writes none, or changes one.
    stem
        What its name begins with; `{rank}` in it for a file a rank, of which the last is looked at.
    needs
        What must be installed: programs, and modules as `import name`.
    prepare
        Called once with the directory of the benchmark, where all commands run.
    """

    title: str
    words: Words
    suffix: str = ""
    needs: tuple[str, ...] = ()
    prepare: Prepare = nothing
    stem: str = "result"

    @property
    def missing(self) -> str:
        """The first thing that is not installed, empty if all is."""
        return next((need for need in self.needs if not _is_installed(need)), "")

    def version(self) -> str:
        """Return name and version of the first thing that it needs; empty if it needs none, or that does not say."""
        name, _, module = next(iter(self.needs), "").partition("import ")
        if module:
            return f"{module} {importlib.metadata.version(module)}"
        if not name:
            return ""
        done = subprocess.run([find(name) or name, "--version"], capture_output=True, text=True, check=False)
        words = (done.stdout + done.stderr).split() if not done.returncode else []
        return next((f"{name} {word}" for word in words if word[:1].isdigit() and "." in word), "")


def _is_installed(need: str) -> bool:
    _, _, module = need.partition("import ")
    return importlib.util.find_spec(module) is not None if module else find(need) is not None


def mpired(*options: str, command: str = "reduce", suffix: str = ".npy", stem: str = "result") -> Program:
    """Return a command of mpired with some options, which writes a result."""

    def words(files: Sequence[str], output: str) -> list[str]:
        return [find("mpired") or "mpired", command, "-q", *options, "-o", output, *files]

    return Program("mpired", words, suffix, stem=stem)


def listed(program: Program, listing: str) -> Program:
    """Return a program that finds the names of the ranks in a file, where they are too many for a command line."""
    option = [] if program.title != "mpired" else ["--files-from"]
    return program._replace(words=lambda _, output: program.words([*option, listing], output))


def updating(target: str, prepare: Prepare, *options: str, title: str = "mpired") -> Program:
    """Return `mpired accumulate` of a rank into a target, where a second run changes nothing."""

    def words(files: Sequence[str], _: str) -> list[str]:
        return [find("mpired") or "mpired", "accumulate", "-q", "--op", "max", *options, target, files[0]]

    return Program(title, words, prepare=prepare)


def target_of(count: int, name: str) -> Prepare:
    """Return what writes a target of so many doubles, without holes."""
    return lambda directory: np.save(directory / name, np.full(count, 0.25))


def copy_of(rank: str, name: str) -> Prepare:
    """Return what copies the file of a rank to a target."""
    return lambda directory: shutil.copyfile(directory / rank, directory / name)


def mapping(places: Callable[[int], np.ndarray], rank: str, name: str) -> Program:
    """Return the update of a target like a rank, each element of it at a place of its own."""

    def prepare(directory: Path) -> None:
        copy_of(rank, f"{name}.npy")(directory)
        count = len(np.load(directory / rank, mmap_mode="r"))
        np.save(directory / f"{name}_map.npy", places(count))

    return updating(f"{name}.npy", prepare, "--map", f"{name}_map.npy", title=f"mpired, {name}")


def under_mpi(program: Program, nprocesses: int) -> Program:
    """Return mpired as a job of MPI, with one process less for workers."""

    def words(files: Sequence[str], output: str) -> list[str]:
        launcher = [find("mpiexec") or "mpiexec", "-n", str(nprocesses)]
        return [*launcher, *program.words(files, output), "--engine", "mpi"]

    return program._replace(words=words)


def script(title: str, source: str, suffix: str, *modules: str, stem: str = "result") -> Program:
    """Return a Python program that takes the output and the ranks."""

    def words(files: Sequence[str], output: str) -> list[str]:
        return [sys.executable, "-c", source, output, *files]

    return Program(title, words, suffix, tuple(f"import {module}" for module in modules), stem=stem)


def stacked(call: str, more: str = "") -> Program:
    """Return a script that stacks all ranks, and lets NumPy make a statistic of them."""
    return script("NumPy, stacked", STACK_SCRIPT.format(call=call, more=more), ".npy", "numpy")


def update_script(target: str, source: str, *modules: str) -> Program:
    """Return a script that changes the target that mpired changes."""
    program = script("NumPy script", source, "", *modules)
    return program._replace(words=lambda files, _: program.words(files[:1], target))


def mpi(op: str) -> Program:
    """Return the C program with one MPI process a rank."""

    def words(files: Sequence[str], output: str) -> list[str]:
        return [find("mpiexec") or "mpiexec", "-n", str(len(files)), _MPI_PROGRAM, op, output, *files]

    return Program("MPI_Reduce in C", words, ".bin", ("mpiexec", "mpicc", "cc"), _compile)


def _compile(directory: Path) -> None:
    command = [find("mpicc") or "mpicc", "-O3", "-o", _MPI_PROGRAM, str(_HERE / "mpi_reduce.c")]
    subprocess.run(command, cwd=directory, check=True)


NUMPY = script("NumPy script", NUMPY_SCRIPT, ".npy", "numpy")
DASK = script("dask.array", DASK_SCRIPT, ".npy", "dask")
POLARS = script("polars", POLARS_SCRIPT, ".parquet", "polars")
DUCKDB = script("duckdb", DUCKDB_SCRIPT, ".parquet", "duckdb")
NCES = Program("nces -y ttl", lambda files, out: ["nces", "-O", "-y", "ttl", *files, out], ".nc", ("nces",))
CDO = Program("cdo enssum", lambda files, out: ["cdo", "-s", "-P", "2", "enssum", *files, out], ".nc", ("cdo",))
CAT = Program("cat to /dev/null", lambda files, _: ["cat", *files], "", ("cat",))
CATS = Program(
    "four cats",
    lambda files, _: ["sh", "-c", 'printf "%s\\n" "$@" | xargs -n 4 -P 4 cat', "sh", *files],
    "",
    ("sh", "xargs", "cat"),
)
IMPORTS = Program("import numpy, click", lambda _, __: [sys.executable, "-c", "import numpy, click"])
