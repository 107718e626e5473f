"""`mpired diff` of directories and lists, without output, and as a picture."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xarray as xr
from command import run
from rows import check_refused

import mpired
import mpired.queries.drawing


def write_directories(folder):
    """Write two directories of files of several formats, some of which differ."""
    for name in "ab":
        inner = folder / name / "inner"
        inner.mkdir(parents=True)
        np.save(folder / name / "same.npy", np.arange(3))
        np.save(inner / "other.npy", np.arange(3) + (name == "b"))
        (folder / name / "README").write_text(f"text {name}")
        (folder / name / f"only {name}.txt").write_text("x")
        xr.Dataset({"t": ("x", [1, 2 + (name == "b")])}).to_zarr(inner / "store.zarr", consolidated=False)
        pq.write_table(pa.table({"x": [1.0, None]}), inner / "table.parquet")
    (folder / "a" / "bad.npy").write_bytes(b"\x93NUMPY")
    shutil.copy(folder / "a" / "bad.npy", folder / "b" / "bad.npy")


def test_directories(tmp_path):
    """A store is one file; what no format reads is compared by its bytes."""
    write_directories(tmp_path)
    outcome = run("diff", "a", "b", cwd=tmp_path)
    assert (outcome.status, outcome.err) == (1, "")
    *files, total = outcome.out.decode().splitlines()
    assert files == [
        "README: different: 1 of 6 x MPI_BYTE (uint8), largest difference 1 at [5]",
        "bad.npy: not known: a/bad.npy: the header is truncated; not a valid npy file",
        "inner/other.npy: different: 3 of 3 x MPI_INT64_T (int64), largest difference 1 at [0]",
        "inner/store.zarr: different: 1 of 2 x MPI_INT64_T (int64), largest difference 1 at [1]",
        "only a.txt: only in a",
        "only b.txt: only in b",
    ]
    assert total == "8 files: 2 the same, 3 different, 2 in one alone, 1 not known"
    described = json.loads(run("diff", "--json", "a", "b", cwd=tmp_path).out)
    assert {each["name"]: each["equal"] for each in described["files"]} == {
        "README": False, "bad.npy": False, "inner/other.npy": False, "inner/store.zarr": False,
        "inner/table.parquet": True, "same.npy": True,
    }  # fmt: skip
    assert (described["only_in_a"], described["only_in_b"]) == (["only a.txt"], ["only b.txt"])
    found = mpired.diff(tmp_path / "a", tmp_path / "b", jobs=2, atol=1.0)
    assert [each.name for each in found.files if each.verdict == "different"] == ["README"]
    assert run("diff", "-q", "a", "a", cwd=tmp_path)[::2] == (3, "")  # for the damaged file
    (tmp_path / "a" / "bad.npy").unlink()
    assert run("diff", "a", "a", cwd=tmp_path)[:2] == (0, b"6 files: 6 the same\n")


def test_lists(tmp_path):
    for name, shift in (("a", 0), ("b", 0), ("c", 1)):
        np.save(tmp_path / f"{name}.npy", np.arange(3) + shift)
    (tmp_path / "one").write_text("a.npy\na.npy\nb.npy\n")
    (tmp_path / "two").write_text("b.npy\nc.npy\n")
    outcome = run("diff", "@one", "@two", cwd=tmp_path)
    assert outcome.status == 1
    assert outcome.out.decode().splitlines() == [
        "a.npy and c.npy: different: 3 of 3 x MPI_INT64_T (int64), largest difference 1 at [0]",
        "b.npy: only in A",
        "3 files: 1 the same, 1 different, 1 in one alone",
    ]
    assert run("diff", "{a..b}.npy", "@two", cwd=tmp_path).status == 2
    names = [str(tmp_path / f"{name}.npy") for name in "abc"]
    assert mpired.diff(names[:1], names[1:2]).equal
    assert mpired.diff(names[:2], names[1:2]).verdict == "different"  # for the one without a partner
    assert [each.equal for each in mpired.diff([np.arange(3), names[0]], names[1:]).files] == [True, False]
    check_refused(tmp_path, "diff @one a.npy", 2, "a.npy", "give two lists or files")
    check_refused(tmp_path, "diff @one @two --png x.png", 2, "--png", "draw one after another")
