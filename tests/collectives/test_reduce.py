"""`mpired reduce`: ops, datatypes, outputs over what is there, and effort."""

from __future__ import annotations

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from command import reduce, refused, run, shell, succeeded, unchanged
from rows import check_refusals
from three_ranks import A, B, C, fold


def test_types_and_sizes_in_any_spelling(folder):
    sums = (0, (A + B).tobytes(), "")
    for word in "double", "MPI_DOUBLE", "Double_Precision", "real8", "<f8", "f8", "=f8":
        assert reduce("--op", "sum", "--type", word, "a.npy", "b.npy", "--to", "raw", cwd=folder) == sums, word
    for size in "200M", "200MiB", "200mb", "1G", "209715200", "1 G":
        words = ("--op", "sum", "a.npy", "b.npy", "--to", "raw", "--max-memory", size)
        assert reduce(*words, cwd=folder) == sums, size


def test_summary_has_the_given_type(folder):
    """In JSON by MPI's name; the line has NumPy's."""
    np.save(folder / "i.npy", np.arange(3, dtype="i4"))
    for word, name in (("int", "MPI_INT"), ("integer", "MPI_INTEGER"), ("int32_t", "MPI_INT32_T")):
        words = ("reduce", "--op", "sum", "--type", word, "i.npy", "--to", "text")
        assert f'"datatype": "{name}"' in run(*words, "--json", cwd=folder).err
        assert "3 x int32," in run(*words, cwd=folder).err


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


def test_force(folder):
    for flag in "-f", "--force", "-O", "--overwrite":
        (folder / "out.npy").write_bytes(b"old")
        succeeded(reduce("--op", "sum", "a.npy", "b.npy", "-o", "out.npy", flag, cwd=folder))
        assert np.load(folder / "out.npy").tolist() == (A + B).tolist(), flag


def test_in_place_keeps_the_header_of_npy(tmp_path):
    text = b"{'shape': (3,), 'fortran_order': False, 'descr': '>f8'}".ljust(300) + b"\n"
    head = b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text
    (tmp_path / "a.npy").write_bytes(head + A.astype(">f8").tobytes())
    np.save(tmp_path / "b.npy", B)
    succeeded(reduce("--op", "sum", "a.npy", "b.npy", "--in-place", cwd=tmp_path))
    assert (tmp_path / "a.npy").read_bytes() == head + (A + B).astype(">f8").tobytes()


def test_root_is_the_model_of_the_result(folder):
    for root, start in (("0", b"\x93NUMPY"), ("1", B.tobytes()[:0]), ("2", b"PAR1")):
        words = ("--op", "sum", "--type", "double", "a.npy", "b.bin", "c.parquet", "--root", root)
        outcome = reduce(*words, cwd=folder)
        assert outcome.out.startswith(start or fold(np.add, A, B, C).tobytes())


def test_a_repetition_does_not_combine_its_own_result(folder):
    def command():
        ranks = sorted(path.name for path in folder.glob("*.npy"))
        return reduce("--op", "sum", "-f", "-o", "total.npy", *ranks, cwd=folder)

    succeeded(command())
    with unchanged(folder):
        refused(command(), 2, "total.npy: is the file of rank 3, an input of this command", "--root R and --in-place")
    assert np.load(folder / "total.npy").tolist() == (A + B + C).tolist()


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


def test_current_directory_is_gone(folder):
    script = f'mkdir gone; cd gone; rmdir ../gone; "$@" {folder}/a.npy -o new.npy'
    refused(shell(script, "reduce", "-q", "--op", "sum", cwd=folder), 4, "mpired: new.npy: No such file")
    script = f'mkdir gone; cd gone; rmdir ../gone; "$@" {folder}/a.npy --to raw'
    assert shell(script, "reduce", "-q", "--op", "sum", cwd=folder) == (0, A.tobytes(), "")


def test_jobs_are_told(tmp_path):
    with open(tmp_path / "a.bin", "wb") as file:
        file.truncate(32 << 20)
    words = ("reduce", "--op", "sum", "--type", "int", "a.bin", "a.bin", "-o", "out.bin", "-f", "--json")
    for jobs, workers in (("1", 1), ("2", 2), ("3", 3)):
        assert json.loads(run(*words, "-j", jobs, cwd=tmp_path).out)["workers"] == workers

    def one_core() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    assert json.loads(run(*words, cwd=tmp_path, setup=one_core).out)["workers"] == 1
