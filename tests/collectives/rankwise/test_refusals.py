"""What the commands with results for the ranks refuse: no file is made or changed."""

from __future__ import annotations

import os

import numpy as np
from rankwise import COUNT, NRANKS, numbers
from rows import check_refusals

NPY = " ".join(f"r{rank}.npy" for rank in range(NRANKS))
OUT = "-o out_{rank}.npy"
SCAN = f"scan -q --op sum {NPY}"


def test_options(folder):
    rows = []
    for verb in "scan", "exscan", "allreduce", "reduce-scatter-block":
        rows += [
            (f"{verb} --op maxloc {NPY} {OUT}", 3, "MPI_MAXLOC"),
            (f"{verb} --op nosuch {NPY} {OUT}", 2, "nosuch"),
            (f"{verb} --op replace {NPY} {OUT}", 3, "accumulate"),
            (f"{verb} --op sum missing.npy r0.npy {OUT}", 4, "missing.npy"),
            (f"{verb} --op sum r0.npy r0.bin {OUT}", 2, "--type"),
            (f"{verb} --op sum {OUT}", 2, "at least one file"),
        ]
    rows += [
        (f"{SCAN} {OUT} --link", 2, "--link"),
        (f"{SCAN} {OUT} --root=1", 2, "--root"),
        (f"exscan -q --op sum {NPY} {OUT} --link", 2, "--link"),
        (f"allreduce -q --op sum {NPY} {OUT} --counts=1", 2, "--counts"),
        (f"{SCAN} --byte-order big -o x_{{rank}}.npy", 2, "--byte-order"),
        ("reduce-local -q --op sum", 2, "reduce-local --help"),
        ("reduce-local -q --op sum r0.npy", 2, "reduce-local --help"),
        ("reduce-local -q --op sum r0.npy r1.npy r2.npy", 2, "reduce-local --help"),
    ]
    check_refusals(folder, rows)


def test_counts(folder):
    np.savez(folder / "r.npz", short=np.zeros(2), long=np.zeros(4))
    reasons = {
        "3,0,5": (3, "has 3 values for 4 ranks"),
        "3,0,4,6": (3, "sum to 13, but every rank has 12"),
        "3,,4,5": (2, "are not counts"),
        "-3,5,5,5": (2, "are not counts"),
        "a": (2, "are not counts"),
        "9999999999999999999,0,0,0": (2, "between 0 and 2**63 - 1"),
    }
    scatter = f"reduce-scatter -q --op sum {OUT}"
    rows = [(f"{scatter} --counts={counts} {NPY}", *refusal) for counts, refusal in reasons.items()]
    rows += [
        (f"{scatter} {NPY}", 2, "--counts"),
        (f"reduce-scatter-block -q --op sum {NPY} r0.npy {OUT}", 3, "12 elements do not make 5 equal blocks"),
        ("reduce-scatter-block --op sum r.npz r.npz -o {rank}.npz", 3, "r.npz: has arrays of different lengths"),
        ("reduce-scatter --op sum --counts 1,1 r.npz r.npz -o {rank}.npz", 3, "of different lengths / --columns"),
    ]
    check_refusals(folder, rows)


def test_groups(folder):
    np.save(folder / "short.npy", np.arange(3))
    np.save(folder / "float.npy", np.zeros(COUNT))
    allreduce, where = "allreduce -q --op sum r0.npy", "-o {group}.{rank}.npy"
    disagree = "rank 0 of group B / rank 0 of group A"
    rows = [
        (f"scan -q --op sum r0.npy {OUT} --group-b r1.npy", 2, "No such option '--group-b'"),
        (f"exscan -q --op sum r0.npy {OUT} --group-b r1.npy", 2, "No such option '--group-b'"),
        (f"{allreduce} --group-b", 2, "--group-b"),
        ("allreduce --op sum r0.npy --group-b -q", 2, "--group-b"),
        (f"{allreduce} --group-b short.npy {where}", 3, f"short.npy / count 3 / {disagree}"),
        (f"{allreduce} --group-b float.npy {where}", 3, f"float.npy / MPI_DOUBLE / {disagree}"),
        (f"{allreduce} --in-place --group-b r1.npy", 2, "--in-place / --group-b"),
        ("reduce -q --op sum r0.npy --in-place --group-b r1.npy", 2, "--in-place / --group-b"),
        ("reduce-scatter-block -q --op sum r0.npy --in-place --group-b r1.npy", 2, "--in-place / --group-b"),
        (f"{allreduce} --group-b r1.npy {OUT}", 2, "the file of several results / {group}"),
        (f"{allreduce} -f --group-b r1.npy -o r{{rank}}.npy", 2, "r0.npy"),
        (
            f"reduce-scatter -q --op sum --counts 5,7 r0.npy r1.npy {where} --group-b r2.npy",
            2,
            "--counts-b / is missing",
        ),
    ]
    check_refusals(folder, rows)


def test_names(folder):
    """Patterns that are none, and files that may not be replaced."""
    for folder_ in "real", "other":
        (folder / folder_).mkdir()
    np.save(folder / "other" / "r0.npy", numbers(0))
    for rank in range(NRANKS):
        os.mkfifo(folder / f"fifo{rank}")
    for link in "d0", "d1":
        (folder / link).symlink_to("real")
    for rank in 1, 3:
        (folder / f"old_{rank}.npy").write_bytes(b"old")
    one, none = "names one file", "not a pattern / {rank:05d}"
    patterns = {"sum.npy": one, "{group}.npy": one, "{{rank}}.npy": one, "": one, "-": one, "/dev/null": one}
    wrong = (
        "{}.npy",
        "{rank!r}",
        "{rank:x}",
        "{rank:1000000000d}",
        "{rank.__class__}",
        "{0}",
        "{stem:>9}",
        "{rank",
        "rank}",
    )
    patterns |= dict.fromkeys(wrong, none)
    rows = [(f"{SCAN} -o '{pattern}'", 2, reason) for pattern, reason in patterns.items()]
    rows += [
        ("scan -q --op sum r0.npy other/r0.npy -o {stem}.out", 2, "r0.out / the file of several results"),
        ("scan -q --op sum r0.npy r1.npy -o d{rank}/x", 2, "the file of several results"),
        ("scan -q --op sum r0.npy r1.npy r0.npy --in-place", 2, "r0.npy / the file of several results"),
        ("scan -q --op sum -f r1.npy r0.npy -o r{rank}.npy", 2, "r0.npy / is the file of rank 1 / --in-place"),
        (f"{SCAN} -o {{stem}}.npy", 2, "r0.npy: is the file of rank 0 / --in-place"),
        (f"{SCAN} -f -o {{stem}}.npy", 2, "r0.npy: is the file of rank 0 / --in-place"),
        (f"{SCAN} -o old_{{rank}}.npy", 2, "2 of 4 outputs: already exists: old_1.npy, old_3.npy"),
        (f"{SCAN} -o fifo{{rank}}", 2, "4 of 4 outputs: a stream"),
        (f"{SCAN} -o /dev/fd/{{rank}}", 2, "4 of 4 outputs: a stream"),
        (SCAN, 2, "--output / {rank} / --in-place"),
        (f"{SCAN} -o {{rank}} --in-place", 2, "--in-place"),
        ("scan -q --op sum r0.npy - -o {stem}_.npy", 2, "standard input / no name"),
        ("scan -q --op sum r0.npy - --in-place", 2, "standard input"),
    ]
    check_refusals(folder, rows, stdin=(folder / "r1.npy").read_bytes())
