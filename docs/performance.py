"""Prints docs/performance.md, from the measurements in docs/plots; `make bench-plot` and `make docs` write it."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent / "plots"))

from model import CLUSTER, GB, JOB, MEASURED, NODES, elements, machine, ranks, reading
from pairs import measured

_SMALL = 0.1  # a ratio that needs one digit more
_SHORT = 0.005  # seconds of a step that is left out
_FEW = 1_000  # ranks whose cost is printed

PAGE = """# What a reduction costs

Written by `make bench-plot` from the measurements of `docs/plots/measure.py`; do not edit.

A reduction reads every rank once, and nothing else grows with the data. Its time is a sum of three parts, measured on
one machine with {cores} cores and all files in memory:

```text
seconds = {start:.2f} + ranks x {rank:.0f} us + bytes / {gbytes:.1f} GB/s
```

| part | measured | work |
| --- | --- | --- |
| start | {start:.2f} s | load Python, NumPy and mpired; the rest takes milliseconds |
| a rank | {rank:.0f} us | open the file, read its header, compare it with the first rank |
| a byte | {gbytes:.1f} GB/s | read and combine with all workers; one worker alone {worker:.1f} GB/s |
| the result | {copy:.1f} GB/s | write it once; with a disk, also wait for the disk, see [Durability](durability.md) |

[Speed and memory](speed.md) compares mpired with other programs. `benchmarks/NOTES.md` lists the expected and the
measured effect of each change.

## Bytes moved

A worker takes a block of {block} KiB of each rank, one rank after another. This block and the two blocks of the state
stay in the second-level cache. Each byte of a rank is

- copied once, from the page cache of the system into the block; elements that are stored plainly are not mapped,
  because page faults cost more than copies;
- read there once by the kernel of the op.

The result moves through memory once when it is written. `scan` and the other collectives with results for several ranks
write each result once. pyarrow takes columns of parquet and arrow files of this machine from where they are mapped,
and decodes them, which is one more copy. A byte order other than the machine's costs one more pass.

## Growth

The time is proportional to the bytes of the ranks, whether the ranks are longer or more:

![Seconds by gigabytes, in straight lines: longer ranks, more ranks and the model are almost equal](plots/growth.svg)

| GB in all | 16 ranks, longer ones | model |
| --- | --- | --- |
{lengths}

It is also proportional to the number of small ranks; {few} ranks cost {few_seconds:.2f} s:

![Seconds by ranks of 4 KiB, from 2 to 100,000: level up to some hundred, then a line](plots/many.svg)

| ranks of 4 KiB | measured, seconds | model |
| --- | --- | --- |
{small}

More workers are faster until the bandwidth of memory is the limit. For {half:.1f} GB one worker took {one:.2f} s,
{jobs} workers {all:.2f} s, which is {ratio:.2f} of it, each with the start.

## Kernels

The picture shows the bytes that a worker combines in a second, with all blocks in its caches. Above the dashed line,
the speed of reading, the kernel costs no time of its own; below the line, the kernel is the limit.

![GB/s by datatype, a mark for each op, and a line where files are read](plots/kernels.svg)

The table has nanoseconds for an element. C marks [compiled kernels](ops.md); without a C compiler at the installation
NumPy's kernels take their place, which need two to ten times as long. The limit is the time to read an element.

| type | bytes | {ops} | limit |
| --- | --- | {rules} | --- |
{kernels}

The other ops are as fast as a similar one: min like max, minloc like maxloc, the other logical and bitwise ops like
land and band. Rates of memory, GB/s of one worker: {memory}.

## Comparison with other programs

mpired and another program, or another call of mpired, ran in turn. The ratio is the median of the pairs, with the
smallest and the largest in parentheses. Each ratio above its limit has a note below the table. The files were in memory
except where noted, and the results on a disk; mpired waits until the disk has them, the others do not.

| job; compared with | mpired, s | the other, s | ratio | limit | processor time, ratio | mpired, MB |
| --- | --- | --- | --- | --- | --- | --- |
{pairs}

{notes}

Measured on {pairs_date} by `make bench`, with {pairs_runs} pairs of each.

## On many machines

This was not measured. It is computed from the constants above and from assumptions: {workers} workers
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
{hundred_reading:.1f}; from there on the file system is the limit, and more machines do not help. If each worker
opens every rank, the opens take longer than the reading from {crossing} machines on. `--spread auto` therefore
chooses ranks from 100,000 opens on; see [More than one machine](scaling.md).

Measured on {date} with Python {python} and NumPy {numpy}: the fastest of {runs} runs of whole processes; kernels and
memory are the best of seven rounds in one process.
"""


class Compared(NamedTuple):
    """A case of `make bench`: its name on the page, and the reason if its ratio is above the limit."""

    what: str
    why: str = ""


_LOOKING = (
    "mpired checks every rank before it combines one: is it a link, was its update interrupted, and at the end, has it"
    " changed"
)
COMPARED = {
    "start": Compared("2 ranks of 80 bytes; `import numpy, click`"),
    "small": Compared("5,000 ranks of 4 KiB, 64 descriptors; NumPy script", _LOOKING),
    "many": Compared("100,000 ranks of 256 bytes; NumPy script", _LOOKING),
    "sum64-numpy": Compared("sum of 64 ranks of 64 MiB; NumPy script"),
    "sum64-cat": Compared(
        "sum of 64 ranks of 64 MiB; `cat` to /dev/null", "the start of `cat` takes no time, and it writes no result"
    ),
    "sum64-jobs": Compared(
        "sum of 64 ranks of 64 MiB; with `-j 1`", "with one worker only the combination takes longer"
    ),
    "sum16-numpy": Compared("sum of 16 ranks of 64 MiB; NumPy script"),
    "sum16-cold": Compared(
        "sum of 16 ranks of 64 MiB that are not in memory; four `cat`s at a time",
        "the start reads nothing from the disk",
    ),
    "sum-8gib": Compared("8 GiB; 512 MiB, a byte"),
    "sum16-mpi": Compared("sum of 16 ranks of 64 MiB; `mpiexec -n 16`, MPI_Reduce in C"),
    "maxloc16-mpi": Compared(
        "maxloc of `double_int`, 16 ranks of 64 MiB; `mpiexec -n 16`, MPI_Reduce in C",
        "the start alone is most of the limit",
    ),
    "sum16-polars": Compared("parquet, 16 ranks of 8 M doubles; polars"),
    "sum16-duckdb": Compared("parquet, 16 ranks of 8 M doubles; duckdb", "duckdb does not wait for the disk"),
    "columns": Compared("parquet, 1,000 columns; 100 columns"),
    "map": Compared("`--map`, 3 million entries onto one element; onto all"),
    "sum16-nces": Compared("netCDF, 16 ranks of 64 MiB; `nces -y ttl`"),
    "sum16-cdo": Compared("netCDF, 16 ranks of 64 MiB; `cdo enssum`", "the start is most of the limit"),
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
                f"{len(notes) + 1}. {what.replace(';', ', compared with')}: {seconds}; {why}. Of"
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
    return f"{', '.join(named)}, and the rest {rest:.2f}"


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
    """Return the values of the page."""
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
