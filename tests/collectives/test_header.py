"""`--header copy`: raw results begin with what stands before the elements of a raw rank, as `head` and `cat` put it."""

from __future__ import annotations

import numpy as np
import pytest
from command import measured, run, shell, succeeded
from rows import check_refusals

import mpired
from mpired.errors import UsageError

COPY = ("-q", "--op", "sum", "--type", ">i4", "--offset", "16", "--header", "copy")
RANKS = tuple(f"r{rank}.bin" for rank in range(3))


@pytest.fixture
def folder(tmp_path):
    for rank, name in enumerate(RANKS):
        array = (np.arange(6) * (rank + 1)).astype(">i4")
        (tmp_path / name).write_bytes(b"header of rank %d" % rank + array.tobytes())
    np.save(tmp_path / "r0.npy", np.arange(6, dtype=">i4"))
    return tmp_path


def headed(rank: int, last: int, part: slice = slice(None)) -> bytes:
    sums = sum(np.arange(6) * (each + 1) for each in range(last + 1))
    return b"header of rank %d" % rank + sums[part].astype(">i4").tobytes()


def test_a_result_is_what_head_and_cat_make(folder):
    succeeded(run("reduce", *COPY, *RANKS, "-o", "out.bin", cwd=folder))
    plain = ("-q", "--op", "sum", "--type", ">i4", "--offset", "16", *RANKS)
    succeeded(shell('{ head -c 16 r0.bin; "$@"; } | cmp - out.bin', "reduce", *plain, cwd=folder))
    assert (folder / "out.bin").read_bytes() == headed(0, 2)
    assert run("reduce", *COPY, "out.bin", "-o", "-", cwd=folder).out == headed(0, 2)


def test_every_result_has_it(folder):
    """That of the root; the header stands there as it is, whatever the form of the elements."""
    scattered = [headed(0, 2, slice(*each)) for each in ((0, 1), (1, 1), (1, 6))]
    blocks = [headed(0, 2, slice(first, first + 2)) for first in (0, 2, 4)]
    rows = {
        "reduce --root 2": [headed(2, 2)],
        "reduce --datarep external32": [headed(0, 2)],
        "allreduce": [headed(0, 2)] * 3,
        "allreduce --link": [headed(0, 2)] * 3,
        "scan": [headed(0, last) for last in range(3)],
        "exscan": [None, headed(0, 0), headed(0, 1)],
        "reduce-scatter --counts 1,0,5": scattered,
        "reduce-scatter-block": blocks,
    }
    for words, expected in rows.items():
        names = ["out.bin"] if words.startswith("reduce -") else [f"out_{rank}.bin" for rank in range(3)]
        pattern = "out.bin" if len(names) == 1 else "out_{rank}.bin"
        for name in names:
            (folder / name).unlink(missing_ok=True)
        succeeded(run(*words.split(), *COPY, *RANKS, "-o", pattern, cwd=folder))
        paths = [folder / name for name in names]
        assert [path.read_bytes() if path.exists() else None for path in paths] == expected, words


def test_a_stream_may_be_the_root(folder):
    outcome = run("reduce", *COPY, "-", *RANKS[1:], cwd=folder, stdin=(folder / "r0.bin").read_bytes())
    assert (outcome.status, outcome.out) == (0, headed(0, 2))


def test_a_large_header_is_not_held_in_memory(folder):
    nbytes = 256 << 20
    with open(folder / "big.bin", "wb") as file:
        file.seek(nbytes)
        file.write(np.arange(6).tobytes())
    words = ("--type", "int64_t", "--offset", str(nbytes), "--header", "copy", "big.bin", "-o", "out.bin")
    status, peak, err = measured("reduce", "-q", "--op", "sum", *words, cwd=folder)
    assert (status, err) == (0, "")
    assert peak < nbytes // 2
    assert (folder / "out.bin").stat().st_size == nbytes + 48
    assert np.fromfile(folder / "out.bin", np.int64, offset=nbytes).tolist() == list(range(6))


def test_refusals(folder):
    (folder / "ops.py").write_text("def first(invec, inoutvec): return invec\n")
    ranks, apart = " ".join(RANKS), "--type 'resized(0,4,vector(2,1,2,int))' --offset 16 --count 2"
    copy = f"reduce --op sum --type >i4 --offset 16 --header copy {ranks}"
    rows = [
        (f"{copy} -o out.npy", 2, "--header / is raw, and the result npy"),
        (f"{copy} --in-place", 2, "--header / --in-place"),
        ("reduce --op sum --header copy r0.npy -o out.bin", 2, "--header / r0.npy is npy, and the result raw"),
        ("reduce --op sum --header all r0.npy -o out.bin", 2, "--header"),
        (f"reduce --op sum --type >i4 --header copy {ranks} -o o.bin", 2, "--header / a header that --offset skips"),
        (f"reduce --op ops.py:first {apart} --header copy {ranks} -o o.bin", 2, "--header / its elements in one piece"),
    ]
    check_refusals(folder, rows)
    with pytest.raises(UsageError, match="`header`: is for files"):
        mpired.reduce([folder / "r0.bin"], "sum", type=">i4", offset=16, header="copy")
