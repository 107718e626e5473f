"""Ranks as raw files, npy, parquet and arrow, written and read without mpired."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SUFFIXES = {"raw": "bin", "npy": "npy", "parquet": "parquet", "arrow": "arrow"}
FORMATS = tuple(SUFFIXES)
# Rows of a row group or record batch: another for each rank, so that no border falls together.
GROUP_ROWS = (5, 11, 16)


def save(folder: Path, form: str, ranks: Sequence[bytes], dtype: np.dtype | str, rows: Sequence[int] = GROUP_ROWS):
    """Write each buffer in a format, and return the paths."""
    paths = []
    for i, rank in enumerate(ranks):
        array = np.frombuffer(rank, dtype)
        paths.append(str(folder / f"rank{i}.{SUFFIXES[form]}"))
        if form == "raw":
            array.tofile(paths[-1])
        elif form == "npy":
            np.save(paths[-1], array)
        else:
            _save_columns(paths[-1], form, array, rows[i % len(rows)])
    return paths


def _save_columns(path: str, form: str, array: np.ndarray, rows: int) -> None:
    names = array.dtype.names
    if names is None:
        column = pa.array(array)
    else:
        parts = [pa.array(np.ascontiguousarray(array[name])) for name in names]
        column = pa.StructArray.from_arrays(parts, names=names)
    table = pa.table({"value": column})
    if form == "parquet":
        pq.write_table(table, path, row_group_size=rows, use_dictionary=False, compression="none")
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, max_chunksize=rows)


def load(path: Path | str, form: str, dtype: np.dtype) -> bytes:
    """Return the elements of a file as those of a raw one."""
    if form == "raw":
        return np.fromfile(path, dtype).tobytes()
    if form == "npy":
        array = np.load(path)
        assert array.dtype == dtype
        return array.tobytes()
    if form == "parquet":
        column = pq.read_table(path).column(0).combine_chunks()
    else:
        with pa.OSFile(str(path)) as file:
            column = pa.ipc.open_file(file).read_all().column(0).combine_chunks()
    if dtype.names is None:
        return column.to_numpy(zero_copy_only=False).astype(dtype).tobytes()
    array = np.zeros(len(column), dtype)
    for part, field in zip(column.flatten(), dtype.names, strict=True):
        array[field] = part.to_numpy(zero_copy_only=False)
    return array.tobytes()
