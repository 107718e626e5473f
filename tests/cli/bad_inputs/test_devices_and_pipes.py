"""Raw elements from devices, pipes, sockets and terminals, as far as they end."""

from __future__ import annotations

import os
import pty
import socket

import numpy as np
from bad_files import DATA, THREE, covers
from command import Child, open_fifo, reduce, refused, succeeded, unchanged


@covers(43, 66)
def test_raw_without_elements(folder):
    (folder / "none.bin").touch()
    words = ("--op", "sum", "--type", "double", "none.bin", "none.bin")
    succeeded(reduce(*words, "-o", "sum.bin", cwd=folder))
    assert (folder / "sum.bin").read_bytes() == b""
    succeeded(reduce(*words, "-o", "sum.npy", cwd=folder))
    assert np.load(folder / "sum.npy").shape == (0,)
    assert reduce(*words, cwd=folder) == (0, b"", "")


@covers(44)
def test_part_of_an_endless_device(folder):
    words = ("--op", "sum", "--type", "double", "--count", "3", "/dev/zero", "good.bin")
    assert reduce(*words, cwd=folder) == (0, DATA, "")


@covers(44)
def test_part_of_an_endless_fifo(folder):
    os.mkfifo(folder / "fifo")
    child = Child("reduce", "-q", "--op", "sum", "--type", "double", "--count", "3", "fifo", "good.bin", cwd=folder)
    with open_fifo(folder / "fifo") as fifo:
        fifo.write(DATA + b"more")
        fifo.flush()
        assert child.finish() == (0, (2 * THREE).tobytes(), "")


@covers(44)
def test_fifo_and_pipe_to_their_end(folder):
    os.mkfifo(folder / "fifo")
    read, write = os.pipe()
    child = Child("reduce", "-q", "--op", "sum", "--type", "double", "fifo", "-", "good.bin", cwd=folder, stdin=read)
    os.close(read)
    with open_fifo(folder / "fifo") as fifo:
        fifo.write(DATA)
    with open(write, "wb") as pipe:
        pipe.write(DATA)
    assert child.finish() == (0, (3 * THREE).tobytes(), "")


@covers(44)
def test_terminal_as_input(folder):
    master, slave = pty.openpty()
    with unchanged(folder):
        words = ("--op", "sum", "--type", "double", os.ttyname(slave), "-o", "out", "-f")
        refused(reduce(*words, cwd=folder), 2, "/dev/pts/", "--count")
        refused(reduce(*words[:-4], "-", "-o", "out", "-f", cwd=folder, stdin=slave), 2, "standard input", "--count")
    os.close(master)
    os.close(slave)


@covers(44)
def test_socket_as_input(folder):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        with unchanged(folder):
            words = ("--op", "sum", "--type", "double", "socket", "-o", "out", "-f")
            refused(reduce(*words, cwd=folder), 4, "socket")
