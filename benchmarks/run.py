"""mpired beside its peers: the same ranks, whole processes, ratios.

    python benchmarks/run.py [--case NAME ...] [--quick] [--runs N] [--dir DIRECTORY] [--keep] [--json FILE]

Each case runs mpired and one peer in turn (A B A B), after one run of each that is not counted; with
--quick there is one pair, and nothing before it. The ratio is the median over the pairs, with the least
and the greatest beside it: other load on the machine changes the times, but both halves of a pair alike.
Only where a core is busy all the time mpired lacks its second worker, and the ratios rise. Beside the
time is that of all processors. Every result of mpired must have the bits of the left fold that `data.py`
computes with NumPy; a peer's, and a statistic, may differ from NumPy's by rounding ("close"). A peer may
be mpired itself, with other options or on other ranks; then the ratio is of the times a byte.

The full set needs 10 GB of disk, as much page cache, and 4 GB of memory for MPI's processes; a case for
which there is no room is left out. --json adds a line for each case to a file, for a history.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
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
    write_columns,
    write_netcdf,
    write_parquet,
    write_raw,
)
from peers import (
    CAT,
    CATS,
    CDO,
    DASK,
    DUCKDB,
    IMPORTS,
    LISTED_SCRIPT,
    NCES,
    NUMPY,
    POLARS,
    RECORDS_SCRIPT,
    SCAN_SCRIPT,
    UPDATE_COLUMN_SCRIPT,
    UPDATE_SCRIPT,
    Program,
    copy_of,
    listed,
    mapping,
    mpi,
    mpired,
    script,
    stacked,
    target_of,
    under_mpi,
    update_script,
    updating,
)

_MEASURE = Path(__file__).resolve().parent / "measure.py"
_LEAST_RUNS = 5
_QUICK_RUNS = 1
_STEP_RUNS = 3
_STEP = re.compile(r"^mpired: ([0-9.]+) s (.+)$", re.MULTILINE)

DOUBLES = Ranks("doubles", 64, 8 << 20)
DOUBLES_16 = replace(DOUBLES, nranks=16)
RAW = Ranks("raw", 16, 8 << 20, write_raw, ".bin")
PAIRS = Ranks("pairs", 16, 4 << 20, write_raw, ".bin", located, maxloc, DOUBLE_INT)
COLUMNS = Ranks("columns", 16, 8 << 20, write_parquet, ".parquet")
NETCDF = Ranks("netcdf", 16, 8 << 20, write_netcdf, ".nc", stored=np.dtype(">f8"))
SMALL = Ranks("small", 5000, 512)
MANY = Ranks("many", 100_000, 32)
TINY = Ranks("tiny", 2, 10)
HALF_GIB = replace(DOUBLES, nranks=8)
GIB_8 = Ranks("gib8", 64, 16 << 20)
KIB_8 = Ranks("kib8", 1, 1024)
RECORDS = replace(PAIRS, nranks=1, whole=lambda stack: stack[0]["value"])
WIDE, NARROW = (Ranks(f"wide{n}", 2, 10_000 * n, write_columns(n), ".parquet") for n in (1000, 100))
PLACED = Ranks("placed", 1, 3_000_000)
MEMBERS = Ranks("members", 16, 1 << 20)


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
    peer_ranks
        What the peer combines, if that is something else.
    bytewise
        Whether the ratio is of the times a byte.
    is_cold
        Whether the kernel has to forget the files before each run.
    """

    name: str
    ranks: Ranks
    ours: Program
    peer: Program
    targets: tuple[float, ...]
    descriptors: int = 0
    peer_ranks: Ranks | None = None
    bytewise: bool = False
    is_cold: bool = False

    @property
    def runs(self) -> tuple[tuple[Program, Ranks], tuple[Program, Ranks]]:
        """The two programs, each with what it combines."""
        return (self.ours, self.ranks), (self.peer, self.peer_ranks or self.ranks)

    @property
    def scale(self) -> float:
        """What the ratio of the times is divided by."""
        return self.ranks.nbytes / self.peer_ranks.nbytes if self.bytewise and self.peer_ranks else 1

    def smaller(self) -> Case:
        """Return the case for --quick, which has no target."""
        peer_ranks = self.peer_ranks and self.peer_ranks.smaller()
        return self._replace(ranks=self.ranks.smaller(), peer_ranks=peer_ranks, targets=())

    def lacks_room(self, directory: Path) -> str:
        """Return what there is not enough of for the files of the ranks; "" if there is."""
        wanted = sum({ranks.name: ranks.nbytes for _, ranks in self.runs}.values()) * 5 // 4
        there = sum(file.stat().st_size for _, ranks in self.runs for file in (directory / ranks.name).glob("*"))
        if wanted - there > shutil.disk_usage(directory).free:
            return f"{wanted / 1e9:.0f} GB of disk"
        if wanted > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            return f"{wanted / 1e9:.0f} GB of memory, to keep the files in"
        return ""


_SUM = mpired("--op", "sum")
_RAW_SUM = mpired("--op", "sum", "--type", "double", suffix=".bin")
_MAXLOC = mpired("--op", "maxloc", "--type", "double_int", suffix=".bin")
_PARQUET_SUM = mpired("--op", "sum", suffix=".parquet")
# Any file of elements without gaps is a raw file; so both read the very same bytes.
_NETCDF_SUM = mpired("--op", "sum", "--from", "raw", "--type", ">f8", "--offset", str(NETCDF_HEADER), suffix=".bin")
_TWO_WORKERS = mpired("--op", "sum", "-j", "2")._replace(title="mpired -j 2")
_ONE_WORKER = mpired("--op", "sum", "-j", "1")._replace(title="mpired -j 1")
_LISTED_NUMPY = listed(script("NumPy script", LISTED_SCRIPT, ".npy", "numpy"), "many.txt")
_SCAN = mpired("--op", "sum", command="scan", stem="result_{rank}")
_NUMPY_SCAN = script("NumPy script", SCAN_SCRIPT, ".npy", "numpy", stem="result_{rank}")
_PACK = mpired("--type", "resized(0,16,double)", command="pack")
_RECORDS = script("NumPy script", RECORDS_SCRIPT, ".npy", "numpy")
_ONE_PLACE = mapping(lambda count: np.zeros(count, np.int64), PLACED.files[0], "one")
_ALL_PLACES = mapping(np.random.default_rng(0).permutation, PLACED.files[0], "spread")
_INTO_GIB = updating("gib.npy", target_of(1 << 27, "gib.npy"), "--target-disp", "9")
_INTO_MIB = updating("mib.npy", target_of(1 << 17, "mib.npy"), "--target-disp", "9", title="into 1 MiB")
_UPDATE = updating("target.npy", copy_of(DOUBLES_16.files[1], "target.npy"))
_UPDATE_COLUMN = updating("target.parquet", copy_of(COLUMNS.files[1], "target.parquet"))
_NUMPY_UPDATE = update_script("target.npy", UPDATE_SCRIPT, "numpy")
_ARROW_UPDATE = update_script("target.parquet", UPDATE_COLUMN_SCRIPT, "pyarrow")._replace(title="pyarrow script")
# The statistic in mpired and in NumPy.
_STATISTICS = {
    "mean": ("np.mean", lambda stack: stack.mean(axis=0)),
    "var": ("np.var", lambda stack: stack.var(axis=0)),
    "std": ("np.std", lambda stack: stack.std(axis=0)),
    "rms": ("(lambda stack, axis: np.sqrt((stack**2).mean(axis)))", lambda stack: np.sqrt((stack**2).mean(axis=0))),
    "range": ("np.ptp", lambda stack: np.ptp(stack, axis=0)),
    "absmax": ("(lambda stack, axis: abs(stack).max(axis))", lambda stack: abs(stack).max(axis=0)),
    "absmin": ("(lambda stack, axis: abs(stack).min(axis))", lambda stack: abs(stack).min(axis=0)),
    "median": ("np.median", lambda stack: np.median(stack, axis=0)),
    "quantile:0.9": (
        "(lambda stack, axis: np.quantile(stack, 0.9, axis))",
        lambda stack: np.quantile(stack, 0.9, axis=0),
    ),
}

CASES = (
    Case("start", TINY, _SUM, IMPORTS, (1.2,)),
    Case("small", SMALL, _SUM, NUMPY, (1.3,), descriptors=64),
    Case("many", MANY, listed(_SUM, "many.txt"), _LISTED_NUMPY, (1.3,)),
    Case("sum64-numpy", DOUBLES, _SUM, NUMPY, (0.35,)),
    Case("sum64-cat", DOUBLES, _SUM, CAT, (1.05,)),
    Case("sum64-jobs", DOUBLES, _TWO_WORKERS, _ONE_WORKER, (0.65,)),
    Case("sum64-engine", DOUBLES, under_mpi(_SUM, 3), _TWO_WORKERS, (1.15,)),
    Case("sum16-numpy", DOUBLES_16, _SUM, NUMPY, (0.9,)),
    Case("sum16-dask", DOUBLES_16, _SUM, DASK, (0.16,)),
    Case("sum16-cold", DOUBLES_16, _SUM, CATS, (1.3,), is_cold=True),
    Case("scan16-numpy", DOUBLES_16, _SCAN, _NUMPY_SCAN, ()),
    Case("sum-8gib", GIB_8, _SUM, _SUM._replace(title="mpired, 512 MiB"), (1.0,), peer_ranks=HALF_GIB, bytewise=True),
    Case("sum16-mpi", RAW, _RAW_SUM, mpi("sum"), (0.25,)),
    Case("maxloc16-mpi", PAIRS, _MAXLOC, mpi("maxloc"), (0.04,)),
    Case("pack-numpy", RECORDS, _PACK, _RECORDS, ()),
    Case("sum16-polars", COLUMNS, _PARQUET_SUM, POLARS, (1.0,)),
    Case("sum16-duckdb", COLUMNS, _PARQUET_SUM, DUCKDB, (0.6,)),
    Case("update-column", COLUMNS, _UPDATE_COLUMN, _ARROW_UPDATE, ()),
    Case("columns", WIDE, _PARQUET_SUM, _PARQUET_SUM._replace(title="mpired, 100"), (12,), peer_ranks=NARROW),
    Case("sum16-nces", NETCDF, _NETCDF_SUM, NCES, (0.3,)),
    Case("sum16-cdo", NETCDF, _NETCDF_SUM, CDO, (0.06,)),
    Case("update-numpy", DOUBLES_16, _UPDATE, _NUMPY_UPDATE, ()),
    Case("update-large", KIB_8, _INTO_GIB, _INTO_MIB, (1.5,)),
    Case("map", PLACED, _ONE_PLACE, _ALL_PLACES, (3,)),
    *(
        Case(name.partition(":")[0], replace(MEMBERS, whole=whole), mpired("--op", name), stacked(call), ())
        for name, (call, whole) in _STATISTICS.items()
    ),
)


class Run(NamedTuple):
    """What one run took, how its result compares ("same", "close", "wrong", or "" for none), and seconds by steps."""

    seconds: float
    processor_seconds: float
    peak_mb: float
    bits: str
    steps: dict[str, float]


class BenchmarkError(Exception):
    """A program failed, or gave a wrong result."""


def environment(directory: Path) -> dict[str, str]:
    """Return an environment in which Python compiles modules once, as if they had been installed by pip."""
    without = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return without | {"PYTHONPYCACHEPREFIX": str(directory / "pycache")}


def run_once(
    case: Case, program: Program, ranks: Ranks, directory: Path, expected: np.ndarray, *, steps: bool = False
) -> Run:
    """Run a program, compare its result and remove it; with `steps` it is mpired, and says what its steps took.

    Raises
    ------
    BenchmarkError
        If it fails.
    """
    output = f"{program.stem}{program.suffix}"
    words = program.words(ranks.files, output)
    if steps:
        words = ["--verbose" if word == "-q" else word for word in words]
    measure = [sys.executable, "-I", "-S", str(_MEASURE), str(case.descriptors)]
    if case.is_cold:
        ranks.evict(directory)
    done = subprocess.run(
        [*measure, *words], cwd=directory, env=environment(directory), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BenchmarkError(f"{program.title} could not be started: {done.stderr.strip()}")
    seconds, processors, peak, status = json.loads(done.stdout)
    if status:
        raise BenchmarkError(f"{program.title} ended with {status}: {done.stderr.strip().rpartition(chr(10))[2]}")
    bits = ""
    if program.suffix:
        bits = compare(read_result(directory / output.format(rank=ranks.nranks - 1), ranks), expected)
        for path in directory.glob(output.format(rank="*")):
            path.unlink()
    told = {name: float(taken) for taken, name in _STEP.findall(done.stderr)}
    return Run(seconds, processors, peak * 1024 / 1e6, bits, told)


def run_pairs(case: Case, directory: Path, runs: int) -> Iterator[tuple[Run, Run]]:
    """Yield the runs of both programs in turn, after one of each that does not count if there are several."""
    expected = [ranks.make(directory) for _, ranks in dict.fromkeys(case.runs)]
    for program, _ in case.runs:
        program.prepare(directory)
    for number in range(-(runs > 1), runs):
        ours, peer = (
            run_once(case, program, ranks, directory, wanted)
            for (program, ranks), wanted in zip(case.runs, (expected[0], expected[-1]), strict=True)
        )
        if number >= 0:
            yield ours, peer


def steps_of(case: Case, directory: Path) -> dict[str, float]:
    """Return the seconds of each step of mpired, medians of a few more runs; the start is what is before them."""
    expected = case.ranks.make(directory)
    runs = [run_once(case, case.ours, case.ranks, directory, expected, steps=True) for _ in range(_STEP_RUNS)]
    names = list(dict.fromkeys(name for run in runs for name in run.steps))
    found = {name: statistics.median(run.steps.get(name, 0.0) for run in runs) for name in names}
    if "in all" in found:
        started = statistics.median(run.seconds - run.steps["in all"] for run in runs)
        found = {"the start": round(started, 3), **found}
    return found


class Measured(NamedTuple):
    """What the pairs of a case took, and the seconds by steps of mpired."""

    case: Case
    pairs: list[tuple[Run, Run]]
    steps: dict[str, float]

    def ratios(self, what: str) -> list[float]:
        """Return the ratios of the pairs, ascending: of "seconds" or "processor_seconds"."""
        return sorted(getattr(ours, what) / getattr(peer, what) / self.case.scale for ours, peer in self.pairs)

    @property
    def ratio(self) -> float:
        """The median of the ratios of time."""
        return statistics.median(self.ratios("seconds"))

    @property
    def misses(self) -> bool:
        """Whether the ratio is greater than what is wanted."""
        return any(self.ratio > most for most in self.case.targets)

    def row(self) -> str:
        """Return the line of the table."""
        ours, peers = zip(*self.pairs, strict=True)
        times = f"{_times(ours)}  {self.case.peer.title:19} {_times(peers)}  {peers[0].bits:5}"
        ratios = self.ratios("seconds")
        spread = f"({ratios[0]:.3f} to {ratios[-1]:.3f})"
        processors = statistics.median(self.ratios("processor_seconds"))
        targets = "; ".join(map(str, self.case.targets)) + ("  missed" if self.misses else "")
        return f"{self.case.name:13} {times}  {self.ratio:6.3f} {spread:22} {processors:6.3f}  {targets}".rstrip()

    def record(self) -> dict[str, object]:
        """Return what a history keeps."""
        medians = {
            who: {what: round(statistics.median(getattr(run, what) for run in runs), 4) for what in Run._fields[:2]}
            | {"peak_mb": round(max(run.peak_mb for run in runs))}
            for who, runs in zip(("ours", "theirs"), zip(*self.pairs, strict=True), strict=True)
        }
        return {
            "case": self.case.name,
            "peer": self.case.peer.title,
            "version": self.case.peer.version(),
            "nranks": self.case.ranks.nranks,
            "count": self.case.ranks.count,
            "suffix": self.case.ranks.suffix,
            "bits": self.pairs[0][1].bits,
            **medians,
            "ratio": round(self.ratio, 4),
            "ratios": [round(each, 4) for each in self.ratios("seconds")],
            "processor_ratio": round(statistics.median(self.ratios("processor_seconds")), 4),
            "steps": self.steps,
            "targets": self.case.targets,
        }


def _times(runs: tuple[Run, ...]) -> str:
    seconds, processors = (statistics.median(getattr(run, what) for run in runs) for what in Run._fields[:2])
    return f"{seconds:7.3f} s {processors:7.3f} s {max(run.peak_mb for run in runs):5.0f} MB"


def measure_case(case: Case, directory: Path, runs: int) -> Measured:
    """Run a case.

    Raises
    ------
    BenchmarkError
        If a program fails, or a result is wrong.
    """
    pairs = list(run_pairs(case, directory, runs))
    right = {"same", ""} | ({"close"} if case.ranks.whole else set())
    if any(ours.bits not in right or peer.bits == "wrong" for ours, peer in pairs):
        raise BenchmarkError(f"the result is not what NumPy makes of the ranks: {[pair[0].bits for pair in pairs]}")
    return Measured(case, pairs, steps_of(case, directory) if runs > 1 else {})


def run_case(case: Case, directory: Path, runs: int, history: Path | None) -> bool:
    """Run a case, and print its line; tell whether it went well."""
    if missing := case.ours.missing or case.peer.missing:
        print(f"{case.name:13} left out: {missing.removeprefix('import ')} is not installed")
        return True
    if lacking := case.lacks_room(directory):
        print(f"{case.name:13} left out: needs {lacking}")
        return True
    try:
        measured = measure_case(case, directory, runs)
    except BenchmarkError as error:
        print(f"{case.name:13} FAILED: {error}", flush=True)
        return False
    print(measured.row(), flush=True)
    if history is not None:
        with history.open("a") as file:
            file.write(json.dumps(about() | measured.record()) + "\n")
    return True


def about() -> dict[str, object]:
    """Return when and with what something is measured."""
    return {
        "time": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "mpired": importlib.metadata.version("mpired"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pyarrow": importlib.metadata.version("pyarrow"),
        "linux": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
    }


def remove_unused(directory: Path, rest: Sequence[Case]) -> None:
    """Remove the ranks that no later case combines, and the files that programs have changed."""
    used = {ranks.name for case in rest for _, ranks in case.runs}
    for path in directory.iterdir():
        if path.is_dir() and path.name not in used | {"pycache"}:
            shutil.rmtree(path)
        elif path.suffix in {".npy", ".parquet"}:
            path.unlink()


def print_head(directory: Path, runs: int) -> None:
    """Print what the figures were measured on, and the names of the columns."""
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, Linux {platform.release()}, Python {platform.python_version()}, NumPy {np.__version__}")
    pairs = f"{runs} pairs of runs after a warm-up" if runs > 1 else "one pair of runs, without a warm-up"
    print(f"{pairs}, files in the page cache, in {directory}")
    print(f"load {os.getloadavg()[0]:.1f} before the first run\n")
    ours, peers = (f"{who:>9} {'cores':>9} {'peak':>8}" for who in ("mpired", "time"))
    ratios = f"{'ratio':>6} {'(least to greatest)':22} {'cores':>6}"
    print(f"{'case':13} {ours}  {'peer':19} {peers}  {'bits':5}  {ratios}  target")


def main() -> int:
    """Run the cases that are asked for; the status is 1 if a program failed or a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [case.name for case in CASES]
    parser.add_argument("--case", action="append", choices=names, help="only this case; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the data, one pair of runs: half a minute")
    parser.add_argument("--runs", type=int, help=f"pairs of runs (default {_LEAST_RUNS}, with --quick {_QUICK_RUNS})")
    parser.add_argument("--dir", type=Path, help="where to make a directory for the data (default $TMPDIR or /tmp)")
    parser.add_argument("--keep", action="store_true", help="leave that directory there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add a line of JSON for each case to FILE")
    options = parser.parse_args()
    runs = (_QUICK_RUNS if options.quick else _LEAST_RUNS) if options.runs is None else options.runs
    if runs < 1:
        parser.error("--runs is at least 1")
    directory = Path(tempfile.mkdtemp(prefix="mpired-bench-", dir=options.dir)).resolve()
    try:
        print_head(directory, runs)
        chosen = [case for case in CASES if options.case is None or case.name in options.case]
        chosen = [case.smaller() for case in chosen] if options.quick else chosen
        failed = 0
        for number, case in enumerate(chosen):
            failed += not run_case(case, directory, runs, options.json)
            if not options.keep:
                remove_unused(directory, chosen[number + 1 :])
        return 1 if failed else 0
    finally:
        if not options.keep:
            shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
