"""Measures what `draw.py` shows of speed and memory: `make bench` on a few cases, kept in measured.json.

    python docs/pictures/measure.py [NOTE]

It needs the programs that are compared, and 6 GB of memory: all files are in /dev/shm, so that no disk is measured. The
numbers are those of one machine; the ratios say more than the seconds. NOTE is a sentence for the
page, on what else the machine did.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "benchmarks"))

from run import CASES, Case, run_pairs  # noqa: E402 - found by the line above

_NAMES = ("sum16-numpy", "sum16-dask", "sum16-mpi", "sum16-polars", "sum16-duckdb", "sum16-nces", "sum16-cdo")
_PACKAGES = ("numpy", "pyarrow", "dask", "mpich", "polars", "duckdb")
_PROGRAMS = ("nces", "cdo")
_RUNS = 5


def measured(case: Case, directory: Path) -> dict[str, object]:
    """Return what a case took: medians of seconds, greatest peaks in MB, and the median ratio of the pairs."""
    ours, peers = zip(*run_pairs(case, directory, _RUNS), strict=True)
    if any(run.bits != "same" for run in ours) or any(run.bits == "wrong" for run in peers):
        raise SystemExit(f"{case.name}: a result is not the left fold")
    seconds = [round(statistics.median(run.seconds for run in runs), 3) for runs in (ours, peers)]
    peaks = [round(max(run.peak_mb for run in runs)) for runs in (ours, peers)]
    ratios = sorted(peer.seconds / our.seconds for our, peer in zip(ours, peers, strict=True))
    return {
        "case": case.name,
        "peer": case.peer.title,
        "format": case.ranks.suffix.removeprefix("."),
        "seconds": seconds,
        "peak_mb": peaks,
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(ratios[0], 2), round(ratios[-1], 2)],
        "bits": peers[0].bits,
    }


def versions() -> dict[str, str]:
    """Return the versions of what is compared."""
    found = {name: importlib.metadata.version(name) for name in _PACKAGES}
    for program in _PROGRAMS:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
        words = (done.stdout + done.stderr).split()
        found[program] = next(word for word in words if word[:1].isdigit() and "." in word)
    return {"python": platform.python_version()} | found


def main() -> None:
    """Measure, and write the file."""
    chosen = [case for case in CASES if case.name in _NAMES]
    for case in chosen:
        if case.peer.missing:
            raise SystemExit(f"{case.name}: {case.peer.missing} is not installed")
    rows = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        for case, later in zip(chosen, [*chosen[1:], None], strict=True):
            rows.append(measured(case, Path(directory)))
            print(rows[-1], file=sys.stderr, flush=True)
            if later is None or later.ranks is not case.ranks:
                shutil.rmtree(Path(directory) / case.ranks.name)
    about = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "cores": len(os.sched_getaffinity(0)),
        "ranks": chosen[0].ranks.nranks,
        "count": chosen[0].ranks.count,
        "runs": _RUNS,
        "versions": versions(),
        "note": "".join(sys.argv[1:]),
    }
    (HERE / "measured.json").write_text(json.dumps(about | {"cases": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
