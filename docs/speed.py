"""Prints docs/speed.md, from docs/pictures/measured.json; `make docs` writes it."""

import json
import textwrap
from pathlib import Path
from typing import Any

_MEASURED = Path(__file__).resolve().parent / "pictures" / "measured.json"

HEAD = """# Speed and memory

Written by `make docs` from what `docs/pictures/measure.py` has measured; do not edit.

mpired reads every file once, in blocks, with all cores, and no array goes from one process to another. So its memory
does not grow with the size of the files or their number.

## Beside other programs

The pictures show the sum of {ranks} files with {millions:.1f} million doubles each, {megabytes:.0f} MB a file, in the
format that both programs read. mpired and the other program ran in turn, {runs} times each, on a machine with {cores}
cores, with all files in memory (tmpfs). The seconds are the medians, of whole processes from their start to their end.
The memory is the greatest resident set of any one process; there are two of mpired, and {ranks} of MPI. {note}

![Seconds: two bars for each program, mpired and that program; the table has the numbers](pictures/speed.svg)

![Memory: two bars for each program, mpired and that program; the table has the numbers](pictures/memory.svg)

| program | files | mpired | program | times as long | least to greatest | mpired | program |
| --- | --- | --- | --- | --- | --- | --- | --- |
|  |  | seconds | seconds |  |  | MB | MB |"""

TAIL = """
"Times as long" is the median of the ratios of the pairs of runs. mpired was slower than {faster}. Every result of
mpired had the bits of `total += np.load(file)` in the order of the files; those of {close} differed by rounding.

- The netCDF files were read by mpired as raw binary, with `--from raw --type '>f8' --offset {offset}`. They are
  netCDF-3 with one variable.
- mpired had its defaults, which are all cores. On a disk it also waits until the result is there; the other programs do
  not.

Versions: {versions}. Measured on {date}.

## On your machine

`make bench` runs these and other cases, and needs 9 GB of disk. `make bench ARGS='--quick'` takes a sixteenth of the
data. A program that is not installed is left out.

## What costs time

| cost | what to do |
| --- | --- |
| parquet is decoded and encoded | use npy or arrow for files that are read often |
| a result is synced | nothing, if you want to find it after a loss of power; see [Durability](durability.md) |
| a start takes about as long as importing NumPy | name many files in one command rather than few files in many |
| pairs, max and min without compiled kernels | install a C compiler, then mpired again; see [`mpired ops`](ops.md) |
| functions in Python are called for each block | use a ufunc of NumPy, or [an op in C](user-ops.md#in-c) |
| a slow disk | nothing: the files are read once |
"""


def _filled(text: str, values: dict[str, Any]) -> str:
    """Put values into a text, and break the lines of its paragraphs anew."""
    parts = text.format_map(values).lstrip().split("\n\n")
    return "\n\n".join(part if part.lstrip()[:1] in "#|-!" else textwrap.fill(part, 120) for part in parts)


def main() -> None:
    """Print the page."""
    measured = json.loads(_MEASURED.read_text())
    count, cases = measured["count"], measured["cases"]
    print(_filled(HEAD, measured | {"millions": count / 1e6, "megabytes": count * 8 / 1e6}))
    for case in cases:
        (ours, theirs), (least, greatest), (our_mb, their_mb) = case["seconds"], case["ratios"], case["peak_mb"]
        cells = (case["peer"], f".{case['format']}", f"{ours:.2f}", f"{theirs:.2f}", f"{case['ratio']:.1f}")
        print(f"| {' | '.join(cells)} | {least:.1f} to {greatest:.1f} | {our_mb} | {their_mb} |")
    close = ", ".join(case["peer"] for case in cases if case["bits"] == "close") or "none"
    faster = ", ".join(case["peer"] for case in cases if case["ratio"] < 1) or "none of them"
    versions = ", ".join(f"{name} {version}" for name, version in measured["versions"].items())
    print(
        "\n" + _filled(TAIL, measured | {"close": close, "faster": faster, "versions": versions, "offset": 88}), end=""
    )


if __name__ == "__main__":
    main()
