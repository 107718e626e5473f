"""The ranks that the benchmarks read, and the left fold that every result is held against.

Nothing here uses mpired: the fold is NumPy's `np.add(acc, x, out=acc)`, rank by rank.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

Values = Callable[[np.random.Generator, int, int], np.ndarray]
Fold = Callable[[np.ndarray, np.ndarray], None]
Write = Callable[[Path, np.ndarray], None]
Whole = Callable[[np.ndarray], np.ndarray]

DOUBLE = np.dtype("f8")
DOUBLE_INT = np.dtype([("value", "f8"), ("index", "i4")], align=True)
NETCDF_HEADER = 88  # bytes before the values
_RELATIVE_ERROR = 1e-12
# What --quick leaves of a size.
_QUICK = 16
_LARGE_COUNT = 1 << 20
_SYNCED_NBYTES = 1 << 20  # a file of so many bytes is synced by itself, smaller ones together


def uniform(random: np.random.Generator, _rank: int, count: int) -> np.ndarray:
    """Return doubles between 0 and 1, whose sum depends on the order from the third rank on."""
    return random.random(count)


def located(random: np.random.Generator, rank: int, count: int) -> np.ndarray:
    """Return pairs of a double between 0 and 1 and the rank."""
    pairs = np.zeros(count, DOUBLE_INT)
    pairs["value"], pairs["index"] = random.random(count), rank
    return pairs


def add(acc: np.ndarray, values: np.ndarray) -> None:
    """Add the next rank."""
    np.add(acc, values, out=acc)


def maxloc(acc: np.ndarray, pairs: np.ndarray) -> None:
    """Take the pairs of the next rank that are greater, or as great with a smaller index (MPI-4.1, 6.9.4)."""
    tied = (pairs["value"] == acc["value"]) & (pairs["index"] < acc["index"])
    better = (pairs["value"] > acc["value"]) | tied
    acc[better] = pairs[better]


def write_npy(path: Path, values: np.ndarray) -> None:
    """Write the array as NumPy does."""
    np.save(path, values)


def write_raw(path: Path, values: np.ndarray) -> None:
    """Write the bytes and nothing else."""
    values.tofile(path)


def write_parquet(path: Path, values: np.ndarray) -> None:
    """Write one column, as pyarrow does if nothing is said."""
    import pyarrow as pa  # noqa: PLC0415 - for two of the cases only
    import pyarrow.parquet as pq  # noqa: PLC0415

    pq.write_table(pa.table({"value": values}), path)


def write_columns(ncolumns: int) -> Write:
    """Return what writes the values as so many columns."""

    def write(path: Path, values: np.ndarray) -> None:
        import pyarrow as pa  # noqa: PLC0415 - as above
        import pyarrow.parquet as pq  # noqa: PLC0415

        columns = {f"c{number:04}": column for number, column in enumerate(np.split(values, ncolumns))}
        pq.write_table(pa.table(columns), path)

    return write


def write_netcdf(path: Path, values: np.ndarray) -> None:
    """Write one variable in netCDF-3 with 64-bit offsets: a header of big-endian words, then the values."""
    absent, dimensions, variables, double = b"\0" * 8, 10, 11, 6
    head = struct.pack(">4si", b"CDF\2", 0)
    head += struct.pack(">iii4si", dimensions, 1, 1, b"x", len(values)) + absent  # no attributes
    head += struct.pack(">iii8sii", variables, 1, 5, b"value", 1, 0) + absent
    head += struct.pack(">iIq", double, values.nbytes, NETCDF_HEADER)
    with path.open("wb") as file:
        file.write(head)
        values.astype(">f8").tofile(file)


@dataclass(frozen=True)
class Ranks:
    """A set of ranks, before and after it is made.

    Parameters
    ----------
    name
        The directory that it lies in; sets of one name share their files.
    nranks
        The number of files.
    count
        Elements in each.
    write
        Writes one file.
    suffix
        The ending of its name.
    values
        Gives the elements of one rank.
    fold
        Combines them, in place.
    stored
        The NumPy form of an element in a file.
    whole
        Gives what is expected, from all ranks stacked, where that is not the fold: the result may differ by rounding.
    """

    name: str
    nranks: int
    count: int
    write: Write = write_npy
    suffix: str = ".npy"
    values: Values = uniform
    fold: Fold = add
    stored: np.dtype = DOUBLE
    whole: Whole | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the elements of all files."""
        return self.nranks * self.count * self.stored.itemsize

    def smaller(self) -> Ranks:
        """Return the set for --quick: short ranks where they are long, else few where they are many."""
        if self.count >= _LARGE_COUNT:
            return replace(self, count=self.count // _QUICK)
        return replace(self, nranks=max(2, self.nranks // _QUICK))

    @property
    def files(self) -> list[str]:
        """The paths in rank order, from the directory of the benchmark."""
        return [f"{self.name}/{rank:04}{self.suffix}" for rank in range(self.nranks)]

    def make(self, directory: Path) -> np.ndarray:
        """Write the files that are not there yet, and return what a program has to make of all."""
        acc: np.ndarray | None = None
        stack, written = [], 0
        for rank, name in enumerate(self.files):
            values = self.values(np.random.default_rng(rank), rank, self.count)
            written += self._keep(directory / name, values)
            if self.whole is not None:
                stack.append(values)
            elif acc is None:
                acc = values
            else:
                self.fold(acc, values)
        if written and self.count * self.stored.itemsize < _SYNCED_NBYTES:
            os.sync()
        (directory / f"{self.name}.txt").write_text("".join(f"{name}\n" for name in self.files))
        if self.whole is not None:
            return self.whole(np.stack(stack))
        assert acc is not None  # noqa: S101 - no set is empty
        return acc

    def _keep(self, path: Path, values: np.ndarray) -> bool:
        """Write a file if it is not there; else the disk would be busy with it while others are timed."""
        if path.exists():
            return False
        path.parent.mkdir(exist_ok=True)
        self.write(path, values)
        if values.nbytes >= _SYNCED_NBYTES:
            with path.open("rb") as file:
                os.fsync(file.fileno())
        return True

    def evict(self, directory: Path) -> None:
        """Let the kernel forget the contents of the files, which are on the disk."""
        for name in self.files:
            with (directory / name).open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_result(path: Path, ranks: Ranks) -> np.ndarray:
    """Read what a program wrote, in the format that its suffix tells."""
    if path.suffix == ".npy":
        result: np.ndarray = np.load(path)
    elif path.suffix == ".parquet":
        import pyarrow.parquet as pq  # noqa: PLC0415 - for two of the cases only

        result = np.concatenate([column.to_numpy() for column in pq.read_table(path).columns])
    elif path.suffix == ".nc":
        # The one variable ends the file; what the header has grown to does not matter.
        start = path.stat().st_size - ranks.count * ranks.stored.itemsize
        result = np.fromfile(path, ranks.stored, offset=max(start, 0))
    else:
        result = np.fromfile(path, ranks.stored)
    return result


def compare(result: np.ndarray, expected: np.ndarray) -> str:
    """Return "same" if all values have the same bits, "close" if only rounding differs, else "wrong"."""
    pairs = list(zip(_parts(result), _parts(expected), strict=True))
    if any(len(mine) != len(theirs) for mine, theirs in pairs):
        return "wrong"
    if all(np.array_equal(mine.view(np.uint8), theirs.view(np.uint8)) for mine, theirs in pairs):
        return "same"
    return "close" if all(np.allclose(*pair, rtol=_RELATIVE_ERROR, atol=0) for pair in pairs) else "wrong"


def _parts(values: np.ndarray) -> list[np.ndarray]:
    """Return the plain arrays of values, native and without the padding of pairs."""
    parts = [values] if values.dtype.names is None else [values[name] for name in values.dtype.names]
    return [np.ascontiguousarray(part, part.dtype.newbyteorder("=")) for part in parts]
