"""mpired beside its peers: the same ranks, whole processes, ratios.

    python benchmarks/run.py [--case NAME ...] [--quick] [--runs N] [--dir DIRECTORY] [--keep]

Each case runs mpired and one peer in turn (A B A B), after one run of each that is not counted. The
ratio is the median over the pairs, with the least and the greatest beside it: other load on the
machine changes the times, but both halves of a pair alike. Only where a core is busy all the time
mpired lacks its second worker, and the ratios rise. Every result of mpired must have the bits of the
left fold that `data.py` computes with NumPy; a peer's may differ from it by rounding ("close").

The full set needs 9 GB of disk, as much page cache, and 4 GB of memory for MPI's processes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from data import (
    DOUBLE_INT,
    NETCDF_HEADER,
    Ranks,
    compare,
    located,
    maxloc,
    read_result,
    write_netcdf,
    write_parquet,
    write_raw,
)
from peers import CAT, CDO, DASK, DUCKDB, IMPORTS, NCES, NUMPY, POLARS, Program, mpi, mpired, under_mpi

_MEASURE = Path(__file__).resolve().parent / "measure.py"
_LEAST_RUNS = 5
_QUICK_RUNS = 3

DOUBLES = Ranks("doubles", 64, 8 << 20)
DOUBLES_16 = replace(DOUBLES, nranks=16)
RAW = Ranks("raw", 16, 8 << 20, write_raw, ".bin")
PAIRS = Ranks("pairs", 16, 4 << 20, write_raw, ".bin", located, maxloc, DOUBLE_INT)
COLUMNS = Ranks("columns", 16, 8 << 20, write_parquet, ".parquet")
NETCDF = Ranks("netcdf", 16, 8 << 20, write_netcdf, ".nc", stored=np.dtype(">f8"))
SMALL = Ranks("small", 5000, 512)
TINY = Ranks("tiny", 2, 10)


class Case(NamedTuple):
    """A row of the table.

    Parameters
    ----------
    name
        The word for --case.
    ranks
        What is combined.
    ours, peer
        The two programs.
    targets
        The ratio of their times that is wanted at most, and later; none if the data is too small for it.
    descriptors
        The limit of open files, 0 for the usual one.
    """

    name: str
    ranks: Ranks
    ours: Program
    peer: Program
    targets: tuple[float, ...]
    descriptors: int = 0


_SUM = mpired("--op", "sum")
_RAW_SUM = mpired("--op", "sum", "--type", "double", suffix=".bin")
_MAXLOC = mpired("--op", "maxloc", "--type", "double_int", suffix=".bin")
_PARQUET_SUM = mpired("--op", "sum", suffix=".parquet")
# Any file of elements without gaps is a raw file; so both read the very same bytes.
_NETCDF_SUM = mpired("--op", "sum", "--from", "raw", "--type", ">f8", "--offset", str(NETCDF_HEADER), suffix=".bin")
_TWO_WORKERS = mpired("--op", "sum", "-j", "2")._replace(title="mpired -j 2")
_ONE_WORKER = mpired("--op", "sum", "-j", "1")._replace(title="mpired -j 1")

CASES = (
    Case("start", TINY, _SUM, IMPORTS, (1.5,)),
    Case("small", SMALL, _SUM, NUMPY, (1.5,), descriptors=64),
    Case("sum16-numpy", DOUBLES_16, _SUM, NUMPY, (0.9,)),
    Case("sum16-dask", DOUBLES_16, _SUM, DASK, (0.16,)),
    Case("sum64-numpy", DOUBLES, _SUM, NUMPY, (0.35,)),
    Case("sum64-cat", DOUBLES, _SUM, CAT, (1.6, 1.25)),
    Case("sum64-jobs", DOUBLES, mpired("--op", "sum", "-j", "2"), _ONE_WORKER, (0.75,)),
    Case("sum64-engine", DOUBLES, under_mpi(_SUM, 3), _TWO_WORKERS, (1.15,)),
    Case("sum16-mpi", RAW, _RAW_SUM, mpi("sum"), (0.25,)),
    Case("maxloc16-mpi", PAIRS, _MAXLOC, mpi("maxloc"), (0.08, 0.04)),
    Case("sum16-polars", COLUMNS, _PARQUET_SUM, POLARS, (1.0,)),
    Case("sum16-duckdb", COLUMNS, _PARQUET_SUM, DUCKDB, (0.5,)),
    Case("sum16-nces", NETCDF, _NETCDF_SUM, NCES, (0.3,)),
    Case("sum16-cdo", NETCDF, _NETCDF_SUM, CDO, (0.06,)),
)


class Run(NamedTuple):
    """What one run took, and how its result compares: "same", "close", "wrong", or "" for none."""

    seconds: float
    peak_mb: float
    bits: str


class BenchmarkError(Exception):
    """A program failed, or gave a wrong result."""


def environment(directory: Path) -> dict[str, str]:
    """Return an environment in which Python compiles modules once, as if they had been installed by pip."""
    without = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return without | {"PYTHONPYCACHEPREFIX": str(directory / "pycache")}


def run_once(case: Case, program: Program, directory: Path, expected: np.ndarray) -> Run:
    """Run a program, compare its result and remove it.

    Raises
    ------
    BenchmarkError
        If it fails.
    """
    output = f"result{program.suffix}"
    words = program.words(case.ranks.files, output)
    measure = [sys.executable, "-I", "-S", str(_MEASURE), str(case.descriptors)]
    done = subprocess.run(
        [*measure, *words], cwd=directory, env=environment(directory), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BenchmarkError(f"{program.title} could not be started: {done.stderr.strip()}")
    seconds, peak, status = json.loads(done.stdout)
    if status:
        raise BenchmarkError(f"{program.title} ended with {status}: {done.stderr.strip().rpartition(chr(10))[2]}")
    bits = ""
    if program.suffix:
        bits = compare(read_result(directory / output, case.ranks), expected)
        (directory / output).unlink()
    return Run(seconds, peak * 1024 / 1e6, bits)


def run_pairs(case: Case, directory: Path, runs: int) -> Iterator[tuple[Run, Run]]:
    """Yield the runs of both programs in turn, after one of each that does not count."""
    expected = case.ranks.make(directory)
    for program in (case.ours, case.peer):
        program.prepare(directory)
    for number in range(runs + 1):
        pair = (run_once(case, case.ours, directory, expected), run_once(case, case.peer, directory, expected))
        if number:
            yield pair


def row_of(case: Case, pairs: list[tuple[Run, Run]]) -> str:
    """Return the line of the table.

    Raises
    ------
    BenchmarkError
        If a result is wrong.
    """
    ours, peers = zip(*pairs, strict=True)
    if any(run.bits not in ("same", "") for run in ours) or any(run.bits == "wrong" for run in peers):
        raise BenchmarkError(f"{case.name}: the result is not the left fold: {[pair[0].bits for pair in pairs]}")
    ratios = sorted(our.seconds / peer.seconds for our, peer in pairs)
    ratio = statistics.median(ratios)
    times = f"{_times(ours)}  {case.peer.title:19} {_times(peers)}  {peers[0].bits:5}"
    spread = f"({ratios[0]:.3f} to {ratios[-1]:.3f})"
    targets = "; ".join(map(str, case.targets)) + ("  missed" if any(ratio > most for most in case.targets[:1]) else "")
    return f"{case.name:13} {times}  {ratio:6.3f} {spread:22}  {targets}".rstrip()


def _times(runs: tuple[Run, ...]) -> str:
    return f"{statistics.median(run.seconds for run in runs):7.3f} s {max(run.peak_mb for run in runs):5.0f} MB"


def run_case(case: Case, directory: Path, runs: int) -> bool:
    """Run a case and print its line; tell whether it went well."""
    if missing := case.peer.missing:
        print(f"{case.name:13} skipped: {missing.removeprefix('import ')} is not installed")
        return True
    try:
        print(row_of(case, list(run_pairs(case, directory, runs))), flush=True)
    except BenchmarkError as error:
        print(f"{case.name:13} FAILED: {error}", flush=True)
        return False
    return True


def print_head(directory: Path, runs: int) -> None:
    """Print what the figures were measured on, and the names of the columns."""
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, Linux {platform.release()}, Python {platform.python_version()}, NumPy {np.__version__}")
    print(f"{runs} pairs of runs after a warm-up, files in the page cache, in {directory}")
    print(f"load {os.getloadavg()[0]:.1f} before the first run\n")
    ours, peers = f"{'mpired':>9} {'peak':>8}", f"{'time':>9} {'peak':>8}"
    print(f"{'case':13} {ours}  {'peer':19} {peers}  {'bits':5}  {'ratio':>6} {'(least to greatest)':22}  target")


def main() -> int:
    """Run the cases that are asked for; the status is 1 if a program failed or a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [case.name for case in CASES]
    parser.add_argument("--case", action="append", choices=names, help="only this case; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the data, three pairs of runs")
    parser.add_argument("--runs", type=int, help=f"pairs of runs (default {_LEAST_RUNS}, with --quick {_QUICK_RUNS})")
    parser.add_argument("--dir", type=Path, help="where to make a directory for the data (default $TMPDIR or /tmp)")
    parser.add_argument("--keep", action="store_true", help="leave that directory there")
    options = parser.parse_args()
    runs = (_QUICK_RUNS if options.quick else _LEAST_RUNS) if options.runs is None else options.runs
    if runs < 1:
        parser.error("--runs is at least 1")
    directory = Path(tempfile.mkdtemp(prefix="mpired-bench-", dir=options.dir)).resolve()
    try:
        print_head(directory, runs)
        chosen = [case for case in CASES if options.case is None or case.name in options.case]
        if options.quick:
            chosen = [case._replace(ranks=case.ranks.smaller(), targets=()) for case in chosen]
        failed = [case.name for case in chosen if not run_case(case, directory, runs)]
        return 1 if failed else 0
    finally:
        if not options.keep:
            shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
