"""Tables as files."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq


def bytes_of(table, suffix, **settings):
    """Return a table as a file of that format."""
    file = io.BytesIO()
    if suffix == "parquet":
        pq.write_table(table, file, **settings)
    else:
        with pa.ipc.new_file(file, table.schema, options=pa.ipc.IpcWriteOptions(**settings)) as writer:
            writer.write_table(table)
    return file.getvalue()


def read(path):
    """Return what is in a file, by its suffix."""
    if path.suffix == ".parquet":
        return pq.read_table(path)
    with pa.ipc.open_file(path) as file:
        return file.read_all()
