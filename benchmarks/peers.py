"""The programs: mpired, and what else people combine files with, where it is installed."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

Words = Callable[[Sequence[str], str], list[str]]

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
        The ending of that file; empty for a program that writes none.
    needs
        What must be installed: programs, and modules as `import name`.
    prepare
        Called once with the directory of the benchmark, where all commands run.
    """

    title: str
    words: Words
    suffix: str = ""
    needs: tuple[str, ...] = ()
    prepare: Callable[[Path], None] = nothing

    @property
    def missing(self) -> str:
        """The first thing that is not installed, empty if all is."""
        return next((need for need in self.needs if not _is_installed(need)), "")


def _is_installed(need: str) -> bool:
    _, _, module = need.partition("import ")
    return importlib.util.find_spec(module) is not None if module else find(need) is not None


def mpired(*options: str, suffix: str = ".npy") -> Program:
    """Return `mpired reduce` with some options."""

    def words(files: Sequence[str], output: str) -> list[str]:
        return [find("mpired") or "mpired", "reduce", "-q", *options, "-o", output, *files]

    return Program("mpired", words, suffix)


def under_mpi(program: Program, nprocesses: int) -> Program:
    """Return mpired as a job of MPI, with one process less for workers."""

    def words(files: Sequence[str], output: str) -> list[str]:
        launcher = [find("mpiexec") or "mpiexec", "-n", str(nprocesses)]
        return [*launcher, *program.words(files, output), "--engine", "mpi"]

    return program._replace(words=words)


def script(title: str, source: str, suffix: str, *modules: str) -> Program:
    """Return a Python program that takes the output and the ranks."""

    def words(files: Sequence[str], output: str) -> list[str]:
        return [sys.executable, "-c", source, output, *files]

    return Program(title, words, suffix, tuple(f"import {module}" for module in modules))


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
IMPORTS = Program("import numpy, click", lambda _, __: [sys.executable, "-c", "import numpy, click"])
