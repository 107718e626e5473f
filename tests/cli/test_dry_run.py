"""`--dry-run`: every check of the real run, then what it would do; and nothing is written, made, locked or finished."""

import gzip
import json
import os

import numpy as np
import pytest
from command import become_nobody, refused, run, unchanged
from rows import check_refused, each

NAMES = ("a.npy", "b.npy", "c.npy")
ALL = {
    "reduce": ("reduce", "--op", "sum", *NAMES, "-o", "out.npy"),
    "reduce over a file": ("reduce", "--op", "sum", "a.npy", "b.npy", "-f", "-o", "other.npy"),
    "count-valid": ("reduce", "--op", "sum", "--nan", "ignore", *NAMES, "-o", "valid.npy", "--count-valid", "n.npy"),
    "allreduce": ("allreduce", "--op", "max", *NAMES, "-o", "all_{rank}.npy"),
    "scan": ("scan", "--op", "sum", *NAMES, "-o", "out_{rank}.npy"),
    "exscan": ("exscan", "--op", "sum", *NAMES, "-o", "ex_{rank}.npy"),
    "reduce-scatter": ("reduce-scatter", "--op", "sum", "--counts", "2,0,1", *NAMES, "-o", "part_{rank}.npy"),
    "reduce-scatter-block": ("reduce-scatter-block", "--op", "sum", *NAMES, "-o", "block_{rank}.npy"),
    "pack": ("pack", "--type", "resized(0,16,double)", "a.bin", "-o", "packed.npy"),
    "accumulate, new": ("accumulate", "--op", "sum", "--create", "3", "new.npy", "a.npy"),
    "get-accumulate": ("get-accumulate", "--op", "sum", "a.npy", "b.npy", "--fetch", "old.bin"),
    "accumulate": ("accumulate", "--op", "sum", *NAMES),
    "reduce in place": ("reduce", "--op", "sum", "a.npy", "b.npy", "--in-place"),
    "reduce-local": ("reduce-local", "--op", "sum", "a.npy", "b.npy"),
}


@each("name", ALL)
def test_it_names_the_files_and_their_bytes_and_changes_nothing(name, folder):
    (folder / "other.npy").touch()
    words = ALL[name]
    with unchanged(folder):
        outcome = run(*words, "--dry-run", "--json", cwd=folder)
        told = run(*words, "--dry-run", cwd=folder)
    assert (outcome.status, outcome.err, told.status, told.err) == (0, "", 0, "")
    found = json.loads(outcome.out)
    assert found["dry_run"] is True
    done = run(*words, "--json", cwd=folder)
    assert done.status == 0, done.err
    summary = json.loads(done.out)
    assert (found["op"], found["call"]) == (summary.get("op", ""), summary["call"])
    assert all(each["exact"] for each in found["written"])
    for each_file in found["written"]:
        assert os.path.getsize(folder / each_file["path"]) == each_file["nbytes"]
        assert each_file["path"] in told.out.decode()
    if name in {"reduce", "allreduce", "scan"}:
        assert set(NAMES).isdisjoint(each_file["path"] for each_file in found["written"])


@pytest.mark.parametrize("name", ["reduce", "scan", "accumulate", "pack", "get-accumulate"])
def test_it_refuses_what_the_run_refuses(name, folder):
    """A damaged rank, one that is missing, an output that is there, a directory that is not."""
    words = ALL[name]
    broken = "a.bin" if name == "pack" else "b.npy"
    (folder / "damaged").write_bytes(b"\x93NUMPY\x01\x00")
    cases = [[*words, "--type", "nonsense" if name == "pack" else "int"]]
    cases += [[word.replace(broken, other) for word in words] for other in ("missing", "damaged")]
    if "-o" in words:
        cases.append([word.replace("out", "there/out").replace("packed", "there/packed") for word in words])
        for path in ("out.npy", "out_1.npy", "packed.npy"):
            (folder / path).touch()
        cases.append(list(words))
    if name == "accumulate":
        cases.append([*words, "--target-disp", "2"])
    for case in cases:
        with unchanged(folder):
            refused_for = run(*case, cwd=folder)
            assert refused_for.status > 1, case
            assert run(*case, "--dry-run", cwd=folder) == refused_for


def test_a_directory_that_may_not_be_written_to(open_folder, as_root):
    np.save(open_folder / "a.npy", np.zeros(3))
    (open_folder / "old.npy").touch()
    folder = f"cannot make a file in {open_folder}: Permission denied"
    for output, reason in ("out.npy", "Permission denied"), ("old.npy", folder):
        words = ("reduce", "-f", "--op", "sum", "a.npy", "-o", output)
        real = run(*words, cwd=open_folder, setup=become_nobody)
        refused(real, 4, f"{output}: {reason}")
        assert run(*words, "--dry-run", cwd=open_folder, setup=become_nobody) == real


def test_a_read_only_file_system(mounted, folder):
    where = mounted("ro")
    for words in "show a.npy --png", "diff a.npy a.npy --png", "reduce --dry-run --op sum --to npy a.npy -o":
        check_refused(folder, f"{words} {where}/x.png", 4, "x.png: Read-only file system")


def test_a_stream_is_not_read(folder):
    read, write = os.pipe()
    reasons = ("standard input", "--dry-run looks at files")
    check_refused(folder, "reduce --op sum a.npy - --dry-run", 2, *reasons, stdin=read)
    os.close(read)
    os.close(write)


def test_a_count_that_only_the_end_shows_is_unknown(folder):
    with gzip.open(folder / "a.bin.gz", "w") as file:
        file.write(np.arange(3).tobytes())
    words = ("reduce", "--op", "sum", "--type", "int64", "a.bin.gz", "a.bin.gz", "-o", "out.bin", "--dry-run")
    lines = run(*words, cwd=folder).out.decode().splitlines()
    assert lines[0].endswith("of 2 ranks: an unknown number of MPI_INT64_T")
    assert lines[1] == "reads the ranks to their end"
    found = json.loads(run(*words, "--json", cwd=folder).out)
    assert (found["buffers"][0]["count"], found["nbytes"]) == (None, None)


def test_warnings_and_origins_that_are_left_out_are_told(folder):
    words = ("accumulate", "--op", "sum", "--once", *NAMES)
    assert run(*words[:-1], cwd=folder).status == 0
    told = run(*words, "--dry-run", cwd=folder).out.decode()
    assert "MPI_Accumulate with MPI_SUM of 1 origin: 3 x MPI_DOUBLE\n" in told
    assert "already applied, left out: b.npy\n" in told
    os.link(folder / "a.npy", folder / "second.npy")
    outcome = run("reduce", "--op", "sum", "b.npy", "-f", "-o", "a.npy", "--dry-run", cwd=folder)
    assert "a.npy is a hard link" in outcome.err
