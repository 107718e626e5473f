"""Inputs that look bad but are good: their results, and what large claims cost."""

from __future__ import annotations

import os
import pty
import socket

from bad_files import DATA, header, npy
from command import measured
from rows import check_refused


def test_claimed_size_takes_no_memory(folder):
    (folder / "bad.npy").write_bytes(npy(header(shape="(65536, 65536)"), DATA[:8]))
    status, peak, err = measured("reduce", "--op", "sum", "bad.npy", cwd=folder)
    assert (status, err.count("\n")) == (3, 1)
    assert peak < 100 << 20


# Raw elements from devices, pipes, sockets and terminals, as far as they end

TYPED = ("--op", "sum", "--type", "double")


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
