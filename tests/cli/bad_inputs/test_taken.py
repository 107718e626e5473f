"""Inputs that look bad but are good: their results, and what large claims cost."""

from __future__ import annotations

import os
import pty
import socket

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bad_files import DATA, THREE, header, npy
from command import Child, measured, open_fifo, reduce, succeeded
from rows import check_refused, each


@each(
    "label, text",
    [
        ("no newline at the end", header().ljust(118).encode()),
        ("no padding", header().encode() + b"\n"),
        ("double quotes", header('"<f8"').replace("'", '"').encode() + b"\n"),
        ("Python 2 integers", header(shape="(3L,)").encode() + b"\n"),
        ("keys in another order", b"{'shape': (3,), 'fortran_order': False, 'descr': '<f8'}\n"),
        ("65535 bytes", header().ljust(65534).encode() + b"\n"),
    ],
)
def test_headers_of_npy(label, text, folder):
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + DATA
    (folder / "odd.npy").write_bytes(content)
    assert reduce("--op", "sum", "good.npy", "odd.npy", "--to", "raw", cwd=folder) == (0, (2 * THREE).tobytes(), "")


@each("shape", ["(0,)", "(0, 9223372036854775807)", "(3, 0, 2)"])
def test_npy_without_elements(shape, folder):
    (folder / "none.npy").write_bytes(npy(header(shape=shape)))
    succeeded(reduce("--op", "sum", "none.npy", "none.npy", "-f", "-o", "sum.npy", cwd=folder))
    result = (folder / "sum.npy").read_bytes()
    assert len(result) == 128 if len(shape) < 20 else 192
    assert f"'shape': {shape}".encode() in result


def test_claimed_size_takes_no_memory(folder):
    (folder / "bad.npy").write_bytes(npy(header(shape="(65536, 65536)"), DATA[:8]))
    status, peak, err = measured("reduce", "--op", "sum", "bad.npy", cwd=folder)
    assert (status, err.count("\n")) == (3, 1)
    assert peak < 100 << 20


def test_many_rows_in_few_bytes(tmp_path):
    """Twenty million equal rows in some kilobytes: read as a stream, whatever the footer says of bytes."""
    ones = np.ones(1_000_000, "u1")
    with pq.ParquetWriter(tmp_path / "bomb.parquet", pa.schema({"x": pa.uint8()})) as writer:
        for _ in range(20):
            writer.write_table(pa.table({"x": ones}))
    assert (tmp_path / "bomb.parquet").stat().st_size < 100_000
    words = ("reduce", "-q", "--op", "sum", "bomb.parquet", "bomb.parquet", "--to", "raw", "-o", "sum.bin")
    status, peak, err = measured(*words, "-j", "1", cwd=tmp_path)
    assert (status, err) == (0, "")
    assert np.array_equal(np.fromfile(tmp_path / "sum.bin", "u1"), np.full(20_000_000, 2, "u1"))
    assert peak < 250 << 20


# Raw elements from devices, pipes, sockets and terminals, as far as they end

TYPED = ("--op", "sum", "--type", "double")


def test_raw_without_elements(folder):
    (folder / "none.bin").touch()
    succeeded(reduce(*TYPED, "none.bin", "none.bin", "-o", "sum.npy", cwd=folder))
    assert np.load(folder / "sum.npy").shape == (0,)
    assert reduce(*TYPED, "none.bin", "none.bin", cwd=folder) == (0, b"", "")


def test_part_of_an_endless_device_and_fifo(folder):
    assert reduce(*TYPED, "--count", "3", "/dev/zero", "good.bin", cwd=folder) == (0, DATA, "")
    os.mkfifo(folder / "fifo")
    child = Child("reduce", "-q", *TYPED, "--count", "3", "fifo", "good.bin", cwd=folder)
    with open_fifo(folder / "fifo") as fifo:
        fifo.write(DATA + b"more")
        fifo.flush()
        assert child.finish() == (0, (2 * THREE).tobytes(), "")


def test_fifo_and_pipe_to_their_end(folder):
    os.mkfifo(folder / "fifo")
    read, write = os.pipe()
    child = Child("reduce", "-q", *TYPED, "fifo", "-", "good.bin", cwd=folder, stdin=read)
    os.close(read)
    with open_fifo(folder / "fifo") as fifo:
        fifo.write(DATA)
    with open(write, "wb") as pipe:
        pipe.write(DATA)
    assert child.finish() == (0, (3 * THREE).tobytes(), "")


def test_terminal_and_socket_as_input(folder):
    master, slave = pty.openpty()
    output = ("-o", "out", "-f")
    check_refused(folder, ("reduce", *TYPED, os.ttyname(slave), *output), 2, "/dev/pts/", "--count")
    check_refused(folder, ("reduce", *TYPED, "-", *output), 2, "standard input", "--count", stdin=slave)
    os.close(master)
    os.close(slave)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        check_refused(folder, ("reduce", *TYPED, "socket", *output), 4, "socket")
        check_refused(folder, ("reduce", "--op", "sum", "good.npy", "-f", "-o", "socket"), 4, "socket")
