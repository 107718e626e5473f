"""`mpired reduce`: ops, datatypes, outputs over what is there, and effort."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq
from command import refused, shell, unchanged
from rows import check_refusals
from three_ranks import A


def test_what_is_refused(folder):
    pq.write_table(pa.table({"x": [1], "y": [2]}), folder / "two.parquet")
    in_place = "reduce --op sum --in-place"
    rows = [
        *(
            (f"reduce --op sum --type long a.{each} -o out", 3, f"a.{each} / MPI_LONG")
            for each in ("npy", "parquet", "arrow")
        ),
        ("reduce --op sum a.npy b.npy -o c.npy", 2, "c.npy / --force"),
        ("reduce --op sum a.npy b.npy --max-memory 0.5T", 2, "--max-memory / 0.5T"),
        (f"{in_place} a.npy b.npy -o out", 2, "--in-place / --output"),
        (f"{in_place} a.npy b.npy --root 2", 2, "root 2"),
        (f"{in_place} a.npy b.npy --to csv", 2, "--in-place / --to"),
        (f"{in_place} - b.npy --type double", 2, "--in-place / standard input"),
        (f"{in_place} a.npy b.npy --type int", 3, "a.npy / MPI_INT"),
        (f"{in_place} two.parquet two.parquet --columns x", 2, "--in-place / not chosen"),
        (f"{in_place} missing.npy b.npy", 4, "missing.npy"),
        (f"{in_place} --type double --count 3 /dev/zero a.bin", 2, "/dev/zero"),
    ]
    check_refusals(folder, rows, stdin=A.tobytes())


def test_an_output_that_is_an_input_by_any_name_is_refused(folder):
    (folder / "symlink.npy").symlink_to("a.npy")
    os.link(folder / "a.npy", folder / "link.npy")
    rows = []
    for name in "a.npy", "./a.npy", "symlink.npy", "link.npy":
        words = f"reduce -q -f --op sum -o {name}"
        rows += [
            (f"{words} b.npy a.npy", 2, f"{name}: is the file of rank 1,"),
            (f"{words} b.npy --group-b a.npy", 2, f"{name}: is the file of rank 0 of group B,"),
            (f"get-accumulate -q -f --op sum --fetch {name} b.npy a.npy", 2, f"{name}: is the file of the origin,"),
        ]
    check_refusals(folder, rows)
    with unchanged(folder):
        outcome = shell('"$@" - < a.npy', "reduce", "-q", "-f", "--op", "sum", "-o", "link.npy", "b.npy", cwd=folder)
        refused(outcome, 2, "link.npy: is the file of rank 1,")
