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

DOUBLE = np.dtype("f8")
DOUBLE_INT = np.dtype([("value", "f8"), ("index", "i4")], align=True)
NETCDF_HEADER = 88  # bytes before the values
_RELATIVE_ERROR = 1e-12
# What --quick leaves of a size.
_QUICK = 16
_LARGE_COUNT = 1 << 20


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
    """

    name: str
    nranks: int
    count: int
    write: Write = write_npy
    suffix: str = ".npy"
    values: Values = uniform
    fold: Fold = add
    stored: np.dtype = DOUBLE

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
        """Write the files that are not there yet, and return the left fold of all."""
        acc: np.ndarray | None = None
        for rank, name in enumerate(self.files):
            values = self.values(np.random.default_rng(rank), rank, self.count)
            self._keep(directory / name, values)
            if acc is None:
                acc = values
            else:
                self.fold(acc, values)
        assert acc is not None  # noqa: S101 - no set is empty
        return acc

    def _keep(self, path: Path, values: np.ndarray) -> None:
        if path.exists():
            return
        path.parent.mkdir(exist_ok=True)
        self.write(path, values)
        with path.open("rb") as file:
            os.fsync(file.fileno())  # else the disk is busy with it while others are timed


def read_result(path: Path, ranks: Ranks) -> np.ndarray:
    """Read what a program wrote, in the format that its suffix tells."""
    if path.suffix == ".npy":
        result: np.ndarray = np.load(path)
    elif path.suffix == ".parquet":
        import pyarrow.parquet as pq  # noqa: PLC0415 - for two of the cases only

        result = pq.read_table(path).column(0).to_numpy()
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
