"""Prints docs/performance.md, from what docs/plots has measured; `make bench-plot` and `make docs` write it."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent / "plots"))

from model import (
    CLUSTER,
    GB,
    JOB,
    MEASURED,
    NODES,
    elements,
    machine,
    ranks,
    reading,
)
from pairs import measured

_SMALL = 0.1  # a ratio that needs one digit more
_SHORT = 0.005  # seconds of a step that is not told of
_FEW = 1_000  # ranks for which it is said what they cost

PAGE = """# What a reduction costs

Written by `make bench-plot` from what `docs/plots/measure.py` has measured; do not edit.

A reduction reads every rank once, and nothing else grows with the data. So its time is a sum of three parts, each
measured on one machine with {cores} cores and all files in memory:

```text
seconds = {start:.2f} + ranks x {rank:.0f} us + bytes / {gbytes:.1f} GB/s
```

| part | measured | what it is |
| --- | --- | --- |
| start | {start:.2f} s | Python, NumPy and mpired are loaded; the rest is milliseconds |
| a rank | {rank:.0f} us | the file is opened, its header read, it is compared with the first rank, and read |
| a byte | {gbytes:.1f} GB/s | all workers read and combine; one worker alone {worker:.1f} GB/s |
| the result | {copy:.1f} GB/s | it is written once; on a disk it is also waited for, see [Durability](durability.md) |

Beside other programs: [Speed and memory](speed.md). What was expected of each change and what came of it is in
`benchmarks/NOTES.md`.

## Bytes moved

A worker takes a block of {block} KiB of each rank, one rank after another. The block of the rank and the two of the
state stay in the second-level cache. So of each byte of a rank

- one copy is made, from the page cache of the kernel into the block; nothing is mapped, because page faults cost more
  than copies;
- one pass of the kernel of the op reads it there.

The result moves once through memory when it is written. Results of several ranks, as those of `scan`, are written
once for each. Parquet pages of plain numbers are decompressed, and copied once more; other columns are decoded by
pyarrow, with two copies more. Byte orders that are not the machine's cost a pass.

## Growth

With the bytes of the ranks, whether they are longer or more of them, the time grows in proportion:

![Seconds by gigabytes, in straight lines: longer ranks, more ranks and the model lie together](plots/growth.svg)

| GB in all | 16 ranks, longer ones | model |
| --- | --- | --- |
{lengths}

With the number of small ranks it grows in proportion, too; {few} ranks cost {few_seconds:.2f} s:

![Seconds by ranks of 4 KiB, from 2 to 100,000: level up to some hundred, then a line](plots/many.svg)

| ranks of 4 KiB | measured, seconds | model |
| --- | --- | --- |
{small}

With the workers it falls as long as memory can follow. {half:.1f} GB by one worker took {one:.2f} s, by {jobs}
workers {all:.2f} s, which is {ratio:.2f} of it. The start is part of both.

## Kernels

How many bytes a worker combines in a second, of blocks that are in its caches. Where a kernel is faster than reading,
the dashed line, it hides behind it; below the line, it is what takes the time.

![GB/s by datatype, a mark for each op, and a line where files are read](plots/kernels.svg)

Nanoseconds for an element. C marks [compiled kernels](ops.md); without a C compiler at the installation these are
those of NumPy, which take two to ten times as long. The limit is what reading an element takes.

| type | bytes | {ops} | limit |
| --- | --- | {rules} | --- |
{kernels}

Ops not named here are as fast as one that is: min as max, minloc as maxloc, the other logical and bitwise ops as land
and band. Rates of memory, GB/s of one worker: {memory}.

## Beside other programs

mpired and another program, or another call of mpired, ran in turn. The ratio is the median of those of the pairs;
least and greatest are behind it. What is above its limit has a note below. The files were in memory unless said, the
results on a disk, where mpired waits until they are there and the others do not.

| what, and beside what | mpired, s | the other, s | ratio | limit | processor time, ratio | mpired, MB |
| --- | --- | --- | --- | --- | --- | --- |
{pairs}

{notes}

Measured on {pairs_date} by `make bench`, with {pairs_runs} pairs of each.

## On many machines

This was not measured. It is arithmetic with the constants above, and with these, which are assumed: {workers} workers
on each machine, {fs:.0f} GB/s and {opens:,.0f} opens a second of the file system, {link:.0f} GB/s between machines.
The job: {nranks:,} ranks of {nbytes:.0f} GB, {total:.0f} TB in all.

```text
reading  = bytes / min(file system, machines x min(link, workers x rate of a worker))
elements = start + ranks x (machines x workers + 1) / opens a second + reading + result / link
ranks    = start + ranks x (workers + 1) / opens a second + result / link
           + max(reading, result / link) x (1 + (machines - 1) / chunks of 1 MiB in the part of a worker)
```

![Minutes by machines, from 1 to 1,000: reading falls to a limit, elements rise again](plots/nodes.svg)

| machines | reading, s | `--spread elements`, s | `--spread ranks`, s |
| --- | --- | --- | --- |
{nodes}

On 100 machines the job takes {hundred:.0f} minutes with `--spread ranks`, of which reading is
{hundred_reading:.1f}; from there on the file system is the limit, and more machines do not help. Where each worker
opens every rank, the opens take longer than the reading from {crossing} machines on. `--spread auto` therefore
chooses ranks from 100,000 opens on; see [More than one machine](scaling.md).

Measured on {date} with Python {python} and NumPy {numpy}, the least of {runs} runs of whole processes; kernels and
memory are the best of seven rounds in one process.
"""


class Compared(NamedTuple):
    """A case of `make bench`: what it is called here, and why its ratio is what it is if that is above the limit."""

    what: str
    why: str = ""


_LOOKING = (
    "mpired looks at every rank before it combines one, and sees whether it is a link, whether its update was"
    " interrupted, and at the end whether it has changed"
)
COMPARED = {
    "start": Compared("2 ranks of 80 bytes; `import numpy, click`"),
    "small": Compared("5,000 ranks of 4 KiB, 64 descriptors; NumPy script", _LOOKING),
    "many": Compared("100,000 ranks of 256 bytes; NumPy script", _LOOKING),
    "sum64-numpy": Compared("sum of 64 ranks of 64 MiB; NumPy script"),
    "sum64-cat": Compared(
        "sum of 64 ranks of 64 MiB; `cat` to /dev/null", "`cat` has no start to speak of and writes no result"
    ),
    "sum64-jobs": Compared("sum of 64 ranks of 64 MiB; with `-j 1`", "with one worker only the combining takes longer"),
    "sum16-numpy": Compared("sum of 16 ranks of 64 MiB; NumPy script"),
    "sum16-cold": Compared(
        "sum of 16 ranks of 64 MiB that are not in memory; four `cat`s at a time",
        "nothing is read from the disk in the start",
    ),
    "sum-8gib": Compared("8 GiB; 512 MiB, a byte"),
    "sum16-mpi": Compared("sum of 16 ranks of 64 MiB; `mpiexec -n 16`, MPI_Reduce in C"),
    "maxloc16-mpi": Compared(
        "maxloc of `double_int`, 16 ranks of 64 MiB; `mpiexec -n 16`, MPI_Reduce in C",
        "the start alone is most of the limit",
    ),
    "sum16-polars": Compared("parquet, 16 ranks of 8 M doubles; polars"),
    "sum16-duckdb": Compared(
        "parquet, 16 ranks of 8 M doubles; duckdb",
        "duckdb does not wait for the disk",
    ),
    "columns": Compared("parquet, 1,000 columns; 100 columns"),
    "map": Compared("`--map`, 3 million entries onto one element; onto all"),
    "sum16-nces": Compared("netCDF, 16 ranks of 64 MiB; `nces -y ttl`"),
    "sum16-cdo": Compared(
        "netCDF, 16 ranks of 64 MiB; `cdo enssum`",
        "the start is most of the limit",
    ),
    "sum16-dask": Compared("sum of 16 ranks of 64 MiB; dask.array"),
    "sum64-engine": Compared(
        "sum of 64 ranks of 64 MiB, `mpiexec -n 3`; `-j 2`",
        "the start is that of three processes on two cores, each of which loads NumPy and MPI",
    ),
}


def _ratio(number: float) -> str:
    return f"{number:.2f}" if number >= _SMALL else f"{number:.3f}"


def _of_pairs() -> dict[str, object]:
    """Return the table of the pairs, and a note on each that is above its limit."""
    found = measured()
    rows, notes = [], []
    for case, (what, why) in COMPARED.items():
        line, mark = found[case], ""
        (limit,) = line["targets"]
        if line["ratio"] > limit:
            if not why:
                raise LookupError(f"{case} is above its limit, and no reason is known")
            seconds = f"the limit is {limit * line['theirs']['seconds']:.2f} s"
            notes.append(
                f"{len(notes) + 1}. {what.replace(';', ', beside')}: {seconds}; {why}. Of"
                f" {line['ours']['seconds']:.2f} s, {_steps(line['steps'])}."
            )
            mark = f" [{len(notes)}]"
        rows.append(
            _line(
                f"{what}{mark}", f"{line['ours']['seconds']:.2f}", f"{line['theirs']['seconds']:.2f}",
                f"{_ratio(line['ratio'])} ({_ratio(line['ratios'][0])} to {_ratio(line['ratios'][-1])})", f"{limit:g}",
                _ratio(line["processor_ratio"]), f"{line['ours']['peak_mb']}",
            )
        )  # fmt: skip
    runs = sorted({len(line["ratios"]) for line in found.values()})
    return {
        "pairs": "\n".join(rows), "notes": "\n\n".join(notes),
        "pairs_date": max(line["time"] for line in found.values())[:10], "pairs_runs": " or ".join(map(str, runs)),
    }  # fmt: skip


def _steps(steps: Mapping[str, float]) -> str:
    """Return in words how long the steps took that took long."""
    rest = steps["in all"] + steps["the start"] - sum(taken for name, taken in steps.items() if name != "in all")
    long = [(name, taken) for name, taken in steps.items() if name != "in all" and taken >= _SHORT]
    named = [
        f"{name} took {taken:.2f} s" if not number else f"{name} {taken:.2f}"
        for number, (name, taken) in enumerate(long)
    ]
    return f"{', '.join(named)}, and all else {rest:.2f}"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _kernels(ops: list[str]) -> str:
    rows = MEASURED["kernels"]
    reading_rate = MEASURED["memory"]["reading by blocks"]
    lines = []
    for name in dict.fromkeys(row["type"] for row in rows):
        mine = {row["op"]: row for row in rows if row["type"] == name}
        itemsize = next(iter(mine.values()))["itemsize"]
        cells = [
            f"{1 / mine[op]['rate']:.2f}{' C' if mine[op]['compiled'] else ''}" if op in mine else "" for op in ops
        ]
        lines.append(_line(f"`{name}`", str(itemsize), *cells, f"{itemsize / reading_rate:.2f}"))
    return "\n".join(lines)


def _values() -> dict[str, object]:
    """Return what the page says."""
    one = machine()
    lengths = {int(nbytes): taken for nbytes, taken in MEASURED["lengths"].items()}
    small = {int(number): taken for number, taken in MEASURED["small"].items()}
    jobs, workers = max(map(int, MEASURED["workers"])), MEASURED["workers"]
    ops = list(dict.fromkeys(row["op"] for row in MEASURED["kernels"]))
    dearer = (count for count in NODES if elements(JOB, count) > 2 * reading(JOB, count))
    return MEASURED | _of_pairs() | {
        "start": one.start, "rank": one.rank * 1e6, "gbytes": one.gbytes, "worker": one.worker_gbytes,
        "copy": MEASURED["memory"]["copy of 256 MiB"], "block": 256, "few": f"{_FEW:,}", "few_seconds": _FEW * one.rank,
        "lengths": "\n".join(
            _line(f"{nbytes / GB:.2f}", f"{taken:.2f} s", f"{one.seconds(16, nbytes):.2f} s")
            for nbytes, taken in lengths.items()
        ),
        "small": "\n".join(
            _line(f"{number:,}", f"{taken:.2f}", f"{one.seconds(number, number * 4096):.2f}")
            for number, taken in small.items()
        ),
        "half": max(lengths) / 2 / GB, "one": workers["1"], "jobs": jobs, "all": workers[str(jobs)],
        "ratio": workers[str(jobs)] / workers["1"],
        "ops": " | ".join(ops), "rules": " | ".join("---" for _ in ops), "kernels": _kernels(ops),
        "memory": ", ".join(f"{what} {rate:.1f}" for what, rate in MEASURED["memory"].items()),
        "workers": CLUSTER.workers, "fs": CLUSTER.gbytes, "opens": CLUSTER.opens,
        "link": CLUSTER.link_gbytes, "nranks": JOB.nranks, "nbytes": JOB.nbytes / GB,
        "total": JOB.nranks * JOB.nbytes / GB / 1000,
        "nodes": "\n".join(
            _line(f"{count:,}", *(f"{way(JOB, count):,.0f}" for way in (reading, elements, ranks))) for count in NODES
        ),
        "hundred": ranks(JOB, 100) / 60, "hundred_reading": reading(JOB, 100) / 60,
        "crossing": next(dearer, max(NODES)),
    }  # fmt: skip


def main() -> None:
    """Print the page."""
    parts = PAGE.format_map(_values()).split("```")
    # Paragraphs are broken anew, not tables and formulas.
    print("```".join(part if number % 2 else _wrapped(part) for number, part in enumerate(parts)), end="")


def _wrapped(text: str) -> str:
    parts = text.split("\n\n")
    return "\n\n".join(part if part.strip()[:1] in "#|-!" else _broken(part) for part in parts)


def _broken(part: str) -> str:
    ends = part[len(part.rstrip("\n")) :]
    return textwrap.fill(part, 120, break_long_words=False, break_on_hyphens=False) + ends if part.strip() else part


if __name__ == "__main__":
    main()
