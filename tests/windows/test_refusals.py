"""What the one-sided calls refuse, without a byte written."""

import os
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rows import check_refusals

HUGE = str(2**63 - 1)
TWO = "vector(2,1,4,double)"

MANY = {
    "contiguous(1000000,vector(1000000,1,2,double))": ("outside of the window of 800 bytes", "but it has 800 bytes"),
    "hvector(1000000,1000000,-8,double)": ("from byte -", "from byte -"),
    "hvector(1000000000,1,0,contiguous(100,double))": ("overlap", None),
}


def test_types_of_very_many_elements_are_refused_before_they_are_laid_out(tmp_path):
    for name in ("t.bin", "o.bin"):
        (tmp_path / name).write_bytes(bytes(800))

    def limit():
        pages = int(Path("/proc/self/statm").read_text().split()[0])  # the tests' own process has much already
        allowed = pages * resource.getpagesize() + (1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))

    words = "accumulate --op sum --type double t.bin o.bin"
    cases = [
        (f"{words} --{side}-type {text}", 3, f"{side[0]}.bin: ", reason)
        for text, reasons in MANY.items()
        for side, reason in zip(("target", "origin"), reasons, strict=True)
        if reason is not None
    ]
    check_refusals(tmp_path, cases, setup=limit)


# The words after `accumulate`, the status, and what the message says.
REFUSED = [
    ("--op sum", 2, "TARGET"),
    ("--op sum t.npy", 2, "ORIGIN"),
    ("--op nope t.npy o.npy", 2, "is not an MPI op"),
    ("--op ./f.py:g t.npy o.npy", 3, "user-defined"),
    ("--op quantile:0.5 t.npy o.npy", 3, "quantile: is for reductions only"),
    ("--op sum t.npy shape.npy", 3, "shape (4, 3)"),
    ("--op sum two.npz 'one (1).npz' two.npz", 3, "has 2 arrays, but 'one (1).npz' has 1, and 'one (1).npz' lacks 'b'"),
    ("--op sum --disp-unit 1 --target-disp 73 t.npy o.npy", 3, "from byte 73 to 97, outside of the window of 96 bytes"),
    ("--op sum --target-disp -1 t.npy o.npy", 3, "is negative"),
    ("--op sum --target-disp 99999999999999999999 t.npy o.npy", 3, "window"),
    (f"--op sum --target-disp {HUGE} t.npy o.npy", 3, "window"),
    (f"--op sum --disp-unit 1 --target-disp {HUGE} t.npy o.npy", 3, "window"),
    (f"--op sum --target-type {TWO} --target-count 9999999 t.npy o.npy", 3, "3"),
    ("--op sum --disp-unit 0 t.npy o.npy", 2, "--disp-unit"),
    ("--op sum --target-count -2 t.npy o.npy", 3, "negative"),
    ("--op sum --origin-disp 2 --origin-count 2 t.npy o.npy", 3, "fewer"),
    ("--op sum --target-type vector(3,1,0,double) t.npy o.npy", 3, "overlap"),
    ("--op sum --type long --origin-type int64_t t.npy o.npy", 3, "same"),
    ("--op sum --at 5,0:3 t.npy o.npy", 3, "out of bounds"),
    ("--op sum --at 0,0:9 t.npy o.npy", 3, "out of bounds"),
    ("--op sum --at 0,0,0 t.npy o.npy", 2, "3 indices"),
    ("--op sum --at 0 --target-disp 1 t.npy o.npy", 2, "choose one"),
    ("--op sum --map bad.npy t.npy o.npy", 3, "entry 1 is 12"),
    ("--op sum --map o.npy t.npy o.npy", 3, "integers"),
    ("--op sum --map long.npy t.npy o.npy", 3, "3 elements for 4"),
    ("--op sum --map null.parquet --nulls ignore t.npy o.npy", 3, "has 1 missing element, and a map has an index"),
    ("--op sum --lock-timeout -1 t.npy o.npy", 2, "--lock-timeout"),
    ("--op sum --target-disp \u0661 t.npy o.npy", 2, "--target-disp"),
    ("--op sum --target-count 1_0 t.npy o.npy", 2, "--target-count"),
    ("--op sum --lock-timeout \u0661 t.npy o.npy", 2, "--lock-timeout"),
    ("--op sum --at \u0661 t.npy o.npy", 2, "--at"),
    ("--op sum --create \u0661 new.npy o.npy", 2, "--create"),
    ("--op sum --lock-timeout nan t.npy o.npy", 2, "--lock-timeout"),
    ("--op sum missing.npy o.npy", 4, "missing.npy"),
    ("--op sum folder o.npy", 4, "folder"),
    ("--op sum fifo o.npy", 4, "regular"),
    ("--op sum /dev/null o.npy", 4, "regular"),
    ("--op sum t.bin o.npy", 2, "--type"),
    ("--op sum dangling.npy o.npy", 4, "dangling.npy"),
    ("--op sum loop.npy o.npy", 4, "loop.npy"),
    ("--op sum --commit direct t.npy o.npy", 2, "--commit"),
    ("--op sum --durability some t.npy o.npy", 2, "--durability"),
    ("--op sum --target-rank 1 t.npy o.npy", 2, "--target-rank"),
]


def test_refusals(tmp_path):
    np.save(tmp_path / "t.npy", np.arange(12.0).reshape(3, 4))
    np.save(tmp_path / "o.npy", np.ones(3))
    np.save(tmp_path / "shape.npy", np.ones((4, 3)))
    np.save(tmp_path / "bad.npy", np.array([0, 12, 1]))
    np.save(tmp_path / "long.npy", np.array([0, 2, 1, 3]))
    pq.write_table(pa.table({"i": [0, None, 1]}), tmp_path / "null.parquet")
    np.savez(tmp_path / "one (1).npz", a=np.ones(3))
    np.savez(tmp_path / "two.npz", a=np.ones(3), b=np.ones(3))
    (tmp_path / "t.bin").write_bytes(bytes(96))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    os.symlink("nowhere", tmp_path / "dangling.npy")
    os.symlink("loop.npy", tmp_path / "loop.npy")
    check_refusals(tmp_path, [(f"accumulate {words}", status, reason) for words, status, reason in REFUSED])
