"""Tables as files, and the smallest of each sort."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def bytes_of(table, suffix, **settings):
    """Return a table as a file of that format."""
    file = io.BytesIO()
    if suffix == "parquet":
        pq.write_table(table, file, **settings)
    else:
        new = pa.ipc.new_file if suffix == "arrow" else pa.ipc.new_stream
        with new(file, table.schema, options=pa.ipc.IpcWriteOptions(**settings)) as writer:
            writer.write_table(table)
    return file.getvalue()


def write(path, table, rows=None, **settings):
    """Write a table by the suffix of the path, in row groups or record batches of at most `rows` rows."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows, **settings)
        return path
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(**settings)) as writer:
        writer.write_table(table, rows)
    return path


SUFFIXES = ("parquet", "arrow")
THREE = np.array([1.0, 2.0, 3.0])
PAIRS = pa.array([{"v": 1.5, "i": 1}, {"v": -2.0, "i": 2}, {"v": 0.0, "i": 3}], pa.struct([("v", "f8"), ("i", "i4")]))

PAGES2 = {"data_page_version": "2.0", "write_page_index": True, "compression": "zstd"}
SMALLEST = {
    "plain.parquet": bytes_of(pa.table({"x": THREE}), "parquet"),
    "pages2.parquet": bytes_of(pa.table({"x": THREE, "p": PAIRS}), "parquet", **PAGES2),
    "plain.arrow": bytes_of(pa.table({"x": THREE}), "arrow"),
    "zstd.arrow": bytes_of(pa.table({"x": THREE, "p": PAIRS}), "arrow", compression="zstd"),
}


def read(path):
    """Return what is in a file, by its suffix."""
    if path.suffix == ".parquet":
        return pq.read_table(path)
    with pa.ipc.open_file(path) as file:
        return file.read_all()
