"""The commands whose results go to the ranks: what each rank gets, and what is refused without a change."""

import functools
import json
import operator
import os

import numpy as np
import pyarrow.parquet as pq
import pytest
from command import refused, run, succeeded, unchanged
from rows import check_refusals

NRANKS, COUNT = 4, 12
NPY = tuple(f"r{rank}.npy" for rank in range(NRANKS))
SUM = ("-q", "--op", "sum")


def numbers(rank):
    return np.array([(rank + 3) * (i + 1) % 11 - 4 for i in range(COUNT)])


def prefix(rank, first=0):
    """Sum the ranks up to this one."""
    return functools.reduce(operator.add, [numbers(each) for each in range(first, rank + 1)])


@pytest.fixture
def folder(tmp_path):
    for rank in range(NRANKS):
        np.save(tmp_path / f"r{rank}.npy", numbers(rank))
    return tmp_path


OPS = """
import mpired

@mpired.op(commute=False, identity=0)
def minus(invec, inoutvec, count, datatype):
    inoutvec[:] = 2 * invec - inoutvec

def fails_late(lower, upper):
    if (lower == 7).any():
        raise ValueError("a seven")
    return lower + upper

def dies(lower, upper):
    import os
    os._exit(3)
"""


@pytest.fixture
def ops(folder):
    (folder / "ops.py").write_text(OPS)
    return folder


def minus(lower, upper):
    return 2 * lower - upper


@pytest.mark.parametrize(("op", "combine", "form"), [("sum", operator.add, "npy"), ("ops.py:minus", minus, "parquet")])
def test_what_each_rank_gets(ops, op, combine, form):
    """Of an op that does not commute in the order of the ranks."""
    folds = [functools.reduce(combine, map(numbers, range(rank + 1))) for rank in range(NRANKS)]
    whole = folds[-1]
    calls = {
        ("scan",): folds,
        ("exscan",): [None, *folds[:-1]],
        ("exscan", "--exscan-first", "identity"): [0 * whole, *folds[:-1]],
        ("allreduce",): [whole] * NRANKS,
        ("allreduce", "--link"): [whole] * NRANKS,
        ("reduce-scatter", "--counts", "3,0,4,5"): [whole[:3], whole[3:3], whole[3:7], whole[7:]],
        ("reduce-scatter-block",): np.split(whole, NRANKS),
    }
    paths = [ops / f"out_{rank}.{form}" for rank in range(NRANKS)]
    for words, expected in calls.items():
        for path in paths:
            path.unlink(missing_ok=True)
        succeeded(run(*words, "-q", "--op", op, *NPY, "-o", f"out_{{rank}}.{form}", cwd=ops))
        assert [path.exists() for path in paths] == [each is not None for each in expected], words
        new = [path for path in paths if path.exists()]
        found = [np.load(path) if form == "npy" else pq.read_table(path).column(0).to_numpy() for path in new]
        wanted = [each.tolist() for each in expected if each is not None]
        assert [each.tolist() for each in found] == wanted, words
        assert len({path.stat().st_ino for path in new}) == (1 if "--link" in words else len(found))


def test_user_ops_that_have_no_neutral_element_or_fail_leave_all_as_it_was(ops):
    np.save(ops / "r3.npy", np.full(COUNT, 7))
    np.save(ops / "r2.npy", np.full(COUNT, 7) - prefix(1))
    out = ("-o", "out_{rank}.npy")
    with unchanged(ops):
        words = ("exscan", "-q", "--exscan-first", "identity", "--op", "ops.py:fails_late", *NPY, *out)
        refused(run(*words, cwd=ops), 3, "neutral element", "identity=")
        for op, reason in ("fails_late", "a seven"), ("dies", "status 3"):
            for where in (("--in-place",), out):
                refused(run("scan", "-q", "--op", f"ops.py:{op}", *NPY, *where, cwd=ops), 7, reason)


def test_two_groups(folder):
    rows = [
        ("allreduce r0.npy --group-b r1.npy r2.npy r3.npy",
         {"a0": prefix(3, 1), "b0": numbers(0), "b1": numbers(0), "b2": numbers(0)}),
        # The group ends at the next option.
        ("allreduce --group-b r2.npy r3.npy --to npy r0.npy r1.npy",
         {"a0": prefix(3, 2), "a1": prefix(3, 2), "b0": prefix(1), "b1": prefix(1)}),
        ("reduce-scatter --counts 5,7 --counts-b 12 r0.npy r1.npy --group-b r2.npy",
         {"a0": numbers(2)[:5], "a1": numbers(2)[5:], "b0": prefix(1)}),
    ]  # fmt: skip
    for line, expected in rows:
        for path in folder.glob("out_*"):
            path.unlink()
        succeeded(run(*line.split(), *SUM, "-o", "out_{group}{rank}.npy", cwd=folder))
        found = {path.stem.removeprefix("out_"): np.load(path).tolist() for path in folder.glob("out_*")}
        assert found == {name: each.tolist() for name, each in expected.items()}, line
    outcome = run("reduce", *SUM, "r0.npy", "--group-b", "r1.npy", "r2.npy", "--to", "raw", cwd=folder)
    assert (outcome.status, outcome.out) == (0, prefix(2, 1).tobytes())


def test_summaries_and_warnings(folder):
    scan = ("scan", "--op", "sum", *NPY)
    told = "mpired: MPI_Scan with sum of 4 ranks, 12 x int64, 1 worker -> 4 files, out_{rank}.npy (npy)\n"
    assert run(*scan, "-o", "out_{rank}.npy", cwd=folder).err == told
    summary = json.loads(run("exscan", "--json", "--op", "max", *NPY, "-o", "x_{rank}.npy", cwd=folder).out)
    expected = {"call": "MPI_Exscan", "op": "MPI_MAX", "nranks": 4, "noutputs": 3, "output": "x_{rank}.npy",
                "format": "npy", "nbytes": 3 * 8 * COUNT}  # fmt: skip
    assert {name: summary[name] for name in expected} == expected  # the last rank is in no result
    np.save(folder / "r10.npy", numbers(0))
    words = ("--op", "sum", "r0.npy", "r10.npy", "r2.npy", "-f", "-o", "out_{rank}.npy")
    assert "r10.npy came before r2.npy" in run("scan", *words, cwd=folder).err
    assert "came before" not in run("allreduce", *words, cwd=folder).err  # integers
    variables = {"MPIRED_TO": "text", "MPIRED_JOBS": "1"}
    assert "from the environment" in run(*scan, "-o", "t_{rank}.npy", cwd=folder, env=variables).err
    assert (folder / "t_0.npy").read_text().splitlines()[0] == str(numbers(0)[0])
    os.link(folder / "r0.npy", folder / "other")
    assert "r0.npy is a hard link" in run(*scan, "--in-place", cwd=folder).err


OUT = "-o out_{rank}.npy"
ALL = " ".join(NPY)
SCAN = f"scan -q --op sum {ALL}"


def test_counts_that_are_refused(folder):
    np.savez(folder / "r.npz", short=np.zeros(2), long=np.zeros(4))
    reasons = {
        "3,0,5": (3, "has 3 values for 4 ranks"),
        "3,0,4,6": (3, "sum to 13, but every rank has 12"),
        **dict.fromkeys(("3,,4,5", "-3,5,5,5", "a"), (2, "are not counts")),
        "9999999999999999999,0,0,0": (2, "between 0 and 2**63 - 1"),
    }
    scatter = f"reduce-scatter -q --op sum {OUT}"
    rows = [(f"{scatter} --counts={counts} {ALL}", *refusal) for counts, refusal in reasons.items()]
    rows += [
        (f"{scatter} {ALL}", 2, "--counts"),
        (f"reduce-scatter-block -q --op sum {ALL} r0.npy {OUT}", 3, "12 elements do not make 5 equal blocks"),
        ("reduce-scatter-block --op sum r.npz r.npz -o {rank}.npz", 3, "r.npz: has arrays of different lengths"),
        ("reduce-scatter --op sum --counts 1,1 r.npz r.npz -o {rank}.npz", 3, "of different lengths / --columns"),
    ]
    check_refusals(folder, rows)


def test_groups_that_are_refused(folder):
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
        (f"{allreduce} -f --group-b r1.npy -o r{{rank}}.npy", 2, "r0.npy"),
    ]
    check_refusals(folder, rows)


def test_names_that_are_refused(folder):
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
    wrong = ["{}.npy", "{rank!r}", "{rank:x}", "{rank:1000000000d}", "{rank.__class__}", "{0}", "{stem:>9}"]
    patterns |= dict.fromkeys([*wrong, "{rank", "rank}"], none)
    rows = [(f"{SCAN} -o '{pattern}'", 2, reason) for pattern, reason in patterns.items()]
    rows += [
        ("scan -q --op sum r0.npy other/r0.npy -o {stem}.npy", 2, "r0.npy / the file of several results"),
        ("scan -q --op sum r0.npy r1.npy -o d{rank}/x", 2, "the file of several results"),
        ("scan -q --op sum r0.npy r1.npy r0.npy --in-place", 2, "r0.npy / the file of several results"),
        ("scan -q --op sum -f r1.npy r0.npy -o r{rank}.npy", 2, "r0.npy / is the file of rank 1 / --in-place"),
        (f"{SCAN} -o {{stem}}.npy", 2, "r0.npy: is the file of rank 0 / --in-place"),
        (f"{SCAN} -f -o {{stem}}.npy", 2, "r0.npy: is the file of rank 0 / --in-place"),
        (f"{SCAN} -o old_{{rank}}.npy", 2, "2 of 4 outputs: already exists: old_1.npy, old_3.npy"),
        (f"{SCAN} -o fifo{{rank}}", 2, "4 of 4 outputs: a stream"),
        (f"{SCAN} -o /dev/fd/{{rank}}", 2, "4 of 4 outputs: a stream"),
        ("scan -q --op sum r0.npy - -o {stem}_.npy", 2, "standard input / no name"),
        ("scan -q --op sum r0.npy - --in-place", 2, "standard input"),
    ]
    check_refusals(folder, rows, stdin=(folder / "r1.npy").read_bytes())
