"""A source that is no local file: bytes in memory, which every format reads as it reads a file."""

from __future__ import annotations

import contextlib
import functools
import io
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from format_files import WRITERS
from tables import bytes_of

from mpired.datatypes import parse
from mpired.errors import BufferFileError, ChangedError, MpiredError
from mpired.formats import FORMATS, InputOptions, recognise
from mpired.sources.source import OpenSource

VALUES = np.arange(100_000, dtype="f8")
PAIRS = pa.StructArray.from_arrays([VALUES, np.arange(100_000, dtype="i4")], ["value", "index"])


class Memory(NamedTuple):
    """Bytes of this process as a source."""

    name: str
    content: bytes
    inode = None
    is_forward = False

    @property
    def nbytes(self):
        return len(self.content)

    def open(self):
        return OpenMemory(self)

    def kept(self):
        return self

    def check_unchanged(self):
        pass

    def changed(self):
        return ChangedError(self.name, "changed while being read")


@dataclass
class OpenMemory(OpenSource):
    source: Memory

    def read_into(self, view, offset):
        found = self.source.content[offset : offset + len(view)]
        view[: len(found)] = found
        return len(found)


def npy(values):
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


CONTENT = {
    "raw": lambda: VALUES.tobytes(),
    "npy": lambda: npy(VALUES),
    "parquet": lambda: bytes_of(pa.table({"x": VALUES}), "parquet", row_group_size=30_000),
    "arrow": lambda: bytes_of(pa.table({"x": VALUES}), "arrow", compression="zstd"),
    **{form: functools.partial(WRITERS[form], VALUES) for form in ("npz", "safetensors", "hdf5", "netcdf", "zarr")},
    "arrows": lambda: bytes_of(pa.table({"x": VALUES}), "arrows", compression="lz4"),
}


def opened(form, content):
    """Look at bytes as at a file of that name."""
    source = Memory(f"memory.{form}", content)
    declared = InputOptions(datatype=parse("double")[0]) if form == "raw" else InputOptions()
    return recognise(source, declared).inspect(source, declared)


def test_every_format_that_can_be_read_is_tried():
    assert CONTENT.keys() == {row.name for row in FORMATS.values() if row.readable}


@pytest.mark.parametrize("form", CONTENT)
def test_bytes_in_memory(form):
    file = opened(form, CONTENT[form]())
    (buffer,) = file.buffers
    assert (file.format, buffer.count, str(buffer.datatype)) == (form, len(VALUES), "MPI_DOUBLE")
    with contextlib.closing(buffer.open()) as reader:
        for start in (0, 10, 65_000, 3):
            block = np.empty(40_000 if start < 60_000 else 35_000)
            reader.read(start, block)
            assert np.array_equal(block, VALUES[start : start + len(block)])


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_pairs_in_memory(form):
    (buffer,) = opened(form, bytes_of(pa.table({"p": PAIRS}), form)).buffers
    with contextlib.closing(buffer.open()) as reader:
        block = np.empty(10, buffer.datatype.form)
        reader.read(50_000, block)
    assert block["value"].tolist() == VALUES[50_000:50_010].tolist()
    assert block["index"].tolist() == list(range(50_000, 50_010))


@pytest.mark.parametrize("form", CONTENT)
def test_what_is_cut_off_is_refused(form):
    content = CONTENT[form]()
    with pytest.raises(MpiredError) as error:
        opened(form, content[: len(content) // 2 - 3])
    assert error.value.exit_status == 3
    with pytest.raises(MpiredError if form in {"raw", "netcdf"} else BufferFileError):  # of which so little is no sign
        opened(form, content[:5])
