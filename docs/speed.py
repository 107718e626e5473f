"""Prints docs/speed.md, from docs/plots/pairs.jsonl; `make docs` writes it."""

import statistics
import sys
import textwrap
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "plots"))

from pairs import beside_others

HEAD = """# Speed and memory

Written by `make docs` from the measurements of `make bench`; do not edit.

mpired reads every file once, in blocks, with all cores, and sends no array from one process to another. So its memory
does not grow with the size of the files or their number.

## Comparison with other programs

The pictures show the sum of {nranks} files with {millions:.1f} million doubles each, {megabytes:.0f} MB a file, in the
format that both programs read. mpired and the other program ran in turn, {runs} times each after one warm-up run, on a
machine with {cores} cores. The files were in memory, and the result went to a disk; mpired waits until the disk has it,
the others do not. The seconds are the medians of whole processes from start to end. The memory is the largest resident
set of a process; mpired has two processes, MPI has {nranks}. More cases are in [What a reduction
costs](performance.md#comparison-with-other-programs).

![Seconds: two bars for each program, mpired and that program; the table has the numbers](pictures/speed.svg)

![Memory: two bars for each program, mpired and that program; the table has the numbers](pictures/memory.svg)

| program | files | mpired | program | times as long | smallest to largest | mpired | program |
| --- | --- | --- | --- | --- | --- | --- | --- |
|  |  | seconds | seconds |  |  | MB | MB |"""

TAIL = """
"Times as long" is the median of the ratios of the pairs of runs. mpired was slower than {faster}. Every result of
mpired had the bits of `total += np.load(file)` in the order of the files; the results of {close} differed by rounding.

- mpired read the netCDF files as raw binary, with `--from raw --type '>f8' --offset {offset}`. They are netCDF-3 with
  one variable.
- mpired had its defaults: all cores.

Versions: {versions}. Measured on {date}.

## On your machine

`make bench` runs these and other cases, and needs 9 GB of disk. `make bench ARGS='--quick'` takes a sixteenth of the
data. A program that is not installed is left out.

## Costs

| cost | advice |
| --- | --- |
| parquet is decoded and encoded | use npy or arrow for files that are read often |
| a result is synced | keep it: the result then survives a loss of power; see [Durability](durability.md) |
| a start takes about as long as importing NumPy | name many files in one command, not few files in many commands |
| pairs, max and min without compiled kernels | install a C compiler, then mpired again; see [`mpired ops`](ops.md) |
| functions in Python are called for each block | use a ufunc of NumPy, or [an op in C](user-ops.md#in-c) |
| a slow disk | none: the files are read once |
"""


def _filled(text: str, values: dict[str, Any]) -> str:
    """Put values into a text, and break the lines of its paragraphs anew."""
    parts = text.format_map(values).lstrip().split("\n\n")
    return "\n\n".join(part if part.lstrip()[:1] in "#|-!" else textwrap.fill(part, 120) for part in parts)


def main() -> None:
    """Print the page."""
    cases = beside_others()
    first, runs = cases[0], sorted({len(case["ratios"]) for case in cases})
    size = {"millions": first["count"] / 1e6, "megabytes": first["count"] * 8 / 1e6}
    print(_filled(HEAD, first | size | {"runs": " or ".join(map(str, runs))}))
    for case in cases:
        ours, theirs, times = case["ours"], case["theirs"], sorted(1 / ratio for ratio in case["ratios"])
        cells = (case["peer"], case["suffix"], f"{ours['seconds']:.2f}", f"{theirs['seconds']:.2f}",
                 f"{statistics.median(times):.1f}", f"{times[0]:.1f} to {times[-1]:.1f}",
                 ours["peak_mb"], theirs["peak_mb"])  # fmt: skip
        print(f"| {' | '.join(map(str, cells))} |")
    versions = dict.fromkeys(f"{name} {first[name]}" for name in ("python", "numpy", "pyarrow"))
    versions |= dict.fromkeys(case["version"] for case in cases)
    values = {
        "close": ", ".join(case["peer"] for case in cases if case["bits"] == "close") or "none",
        "faster": ", ".join(case["peer"] for case in cases if case["ratio"] > 1) or "none of them",
        "versions": ", ".join(versions), "offset": 88, "date": max(case["time"] for case in cases)[:10],
    }  # fmt: skip
    print("\n" + _filled(TAIL, values), end="")


if __name__ == "__main__":
    main()
