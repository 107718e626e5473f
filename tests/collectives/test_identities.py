"""What each rank gets of a collective, because all collectives are one fold: in every bit the twin's.

Of every format, in any blocks, by any number of workers, in other files and in place.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import reference
import tables
import values

import mpired

SUFFIXES = {"raw": "bin", "npy": "npy", "parquet": "parquet", "arrow": "arrow"}
FORMATS = tuple(SUFFIXES)
# Rows of a row group or record batch: another for each rank, so that no border falls together.
GROUP_ROWS = (5, 11, 16)


def save(folder: Path, form: str, ranks: Sequence[bytes], dtype: np.dtype | str) -> list[Path]:
    """Write each buffer in a format, and return the paths."""
    paths = []
    for i, rank in enumerate(ranks):
        array = np.frombuffer(rank, dtype)
        paths.append(folder / f"rank{i}.{SUFFIXES[form]}")
        if form == "raw":
            array.tofile(paths[-1])
        elif form == "npy":
            np.save(paths[-1], array)
        else:
            _save_column(paths[-1], array, GROUP_ROWS[i % len(GROUP_ROWS)])
    return paths


def _save_column(path: Path, array: np.ndarray, rows: int) -> None:
    names = array.dtype.names
    if names is None:
        column = pa.array(array)
    else:
        parts = [pa.array(np.ascontiguousarray(array[name])) for name in names]
        column = pa.StructArray.from_arrays(parts, names=names)
    settings = {"use_dictionary": False, "compression": "none"} if path.suffix == ".parquet" else {}
    tables.write(path, pa.table({"value": column}), rows, **settings)


def load(path: Path, form: str, dtype: np.dtype) -> bytes:
    """Return the elements of a file as those of a raw one."""
    if form == "raw":
        return np.fromfile(path, dtype).tobytes()
    if form == "npy":
        array = np.load(path)
        assert array.dtype == dtype
        return array.tobytes()
    column = tables.read(path).column(0).combine_chunks()
    if dtype.names is None:
        return column.to_numpy(zero_copy_only=False).astype(dtype).tobytes()
    array = np.zeros(len(column), dtype)
    for part, field in zip(column.flatten(), dtype.names, strict=True):
        array[field] = part.to_numpy(zero_copy_only=False)
    return array.tobytes()


NAMES = {"SUM": "DOUBLE", "PROD": "FLOAT", "MAXLOC": "DOUBLE_INT", "BXOR": "UINT16_T"}
DTYPES = {
    "DOUBLE": np.dtype("f8"),
    "FLOAT": np.dtype("f4"),
    "UINT16_T": np.dtype("u2"),
    "DOUBLE_INT": np.dtype([("value", "f8"), ("index", "i4")], align=True),
}
COUNT, NRANKS = 150, 5


@functools.cache
def ranks_of(name):
    return [rank[: COUNT * DTYPES[name].itemsize] for rank in values.ranks(name, NRANKS, COUNT)]


@functools.cache
def prefixes_of(op, name):
    ranks = ranks_of(name)
    return [reference.reduce(op, name, ranks[: rank + 1]) for rank in range(NRANKS)]


def said_of(form, name):
    return {"type": name} if form == "raw" else {}


def expected_of(verb, op, name):
    """Return what each rank gets, None for nothing, and what the call needs besides the op."""
    extent = reference.FORMS[name][1]
    prefixes = prefixes_of(op, name)
    counts = [50, 0, 17, 83, 0]
    cuts = list(itertools.accumulate([0, *counts]))
    return {
        "scan": prefixes,
        "exscan": [None, *prefixes[:-1]],
        "allreduce": [prefixes[-1]] * NRANKS,
        "reduce_scatter": [prefixes[-1][a * extent : b * extent] for a, b in itertools.pairwise(cuts)],
        "reduce_scatter_block": [prefixes[-1][rank * 30 * extent : (rank + 1) * 30 * extent] for rank in range(NRANKS)],
    }[verb], ([counts] if verb == "reduce_scatter" else [])


VERBS = ("scan", "exscan", "allreduce", "reduce_scatter", "reduce_scatter_block")
# Bytes of a block, workers, and open files: each op with one of them, with another for each collective.
CUTS = ((64, 3, 1), (1000, 2, 2), (64, 1, 1), (1 << 20, 1, 100))


@pytest.mark.parametrize(
    ("form", "to"), [("raw", "raw"), ("npy", "parquet"), ("parquet", "npy"), ("arrow", "npy"), ("npy", "arrow")]
)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.sampled(4)
@pytest.mark.usefixtures("engine")
def test_every_format_with_any_blocks_and_workers(directory, cut_into, monkeypatch, verb, form, to):
    for i, (op, name) in enumerate(NAMES.items(), VERBS.index(verb)):
        paths = save(directory, form, ranks_of(name), DTYPES[name])
        expected, arguments = expected_of(verb, op, name)
        outputs = [directory / f"out_{rank}.{SUFFIXES[to]}" for rank in range(NRANKS)]
        for path in outputs:
            path.unlink(missing_ok=True)
        nbytes, jobs, max_open = CUTS[i % len(CUTS)]
        cut_into(nbytes)
        for limit in ("_MAX_OPEN", "_MAX_OPEN_STREAMED"):
            monkeypatch.setattr(f"mpired.collectives.plan.{limit}", max_open)
        pattern = directory / f"out_{{rank}}.{SUFFIXES[to]}"
        getattr(mpired, verb)(paths, op, *arguments, output=pattern, to=to, jobs=jobs, **said_of(form, name))
        found = [load(path, to, DTYPES[name]) if path.exists() else None for path in outputs]
        assert found == expected, (op, nbytes, jobs)


@pytest.mark.parametrize("form", FORMATS)
def test_in_place_gives_the_same_as_other_files(directory, engine, cut_into, form):
    # Each collective with one op, with another for each format.
    for i, verb in enumerate(VERBS, FORMATS.index(form)):
        op, name = [*NAMES.items()][i % len(NAMES)]
        paths = save(directory, form, ranks_of(name), DTYPES[name])
        before = [path.read_bytes() for path in paths]
        expected, arguments = expected_of(verb, op, name)
        getattr(mpired, verb)(paths, op, *arguments, in_place=True, **said_of(form, name))
        for path, result, content in zip(paths, expected, before, strict=True):
            if result is None:
                assert path.read_bytes() == content
            else:
                elements = reference.elements(name, load(path, form, DTYPES[name]))  # in place the padding stays
                assert b"".join(reference.without_padding(name, each) for each in elements) == result, (verb, op)


@pytest.mark.parametrize("form", FORMATS)
def test_the_file_that_is_written_has_the_same_bytes(directory, engine, cut_into, form):
    paths = save(directory, form, ranks_of("DOUBLE"), "f8")
    for to, suffix in SUFFIXES.items():
        output, contents = directory / f"result.{suffix}", set()
        for nbytes, jobs in (8, 7), (64, 2), (1 << 20, 1):
            cut_into(nbytes)
            mpired.reduce(paths, "SUM", output=output, overwrite=True, jobs=jobs, to=to, **said_of(form, "DOUBLE"))
            contents.add(output.read_bytes())
        assert len(contents) == 1, to


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_batches_of_any_size(directory, engine, cut_into, monkeypatch, form):
    paths = save(directory, form, ranks_of("DOUBLE"), "f8")
    for batch_rows, nbytes, jobs in (1, 8, 1), (3, 8, 7), (7, 72, 2), (64, 1 << 20, 1):
        monkeypatch.setattr(f"mpired.formats.{form}._BATCH_ROWS", batch_rows)
        cut_into(nbytes)
        array = mpired.reduce(paths, "SUM", jobs=jobs)
        assert array.tobytes() == prefixes_of("SUM", "DOUBLE")[-1], (batch_rows, nbytes, jobs)
