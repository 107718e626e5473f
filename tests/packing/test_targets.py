"""The files that unpack writes into or replaces: old or new whatever happens, and holes stay holes."""

import os

import numpy as np
import pytest
from command import run, succeeded
from records import CELL, records
from rows import check_refused, each

import mpired
from mpired.datatypes.typemap import transfer


def test_the_target_is_replaced_in_one_step_and_keeps_what_it_is(folder):
    np.save(folder / "d.npy", -np.arange(5.0))
    target = folder / "rank0.rec"
    target.chmod(0o640)
    (folder / "link.rec").symlink_to("rank0.rec")
    with open(target, "rb") as before:
        succeeded(run("unpack", "-q", "--type", CELL, "d.npy", "--into", "link.rec", cwd=folder))
        assert before.read() == records().tobytes()
    assert (folder / "link.rec").is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    wanted = records()
    wanted["d"] = -np.arange(5.0)
    assert target.read_bytes() == wanted.tobytes()
    assert sorted(path.name for path in folder.iterdir()) == ["d.npy", "link.rec", "rank0.rec"]


def test_a_full_disk_leaves_the_target(mounted):
    place = mounted("size=1m")
    np.arange(80_000, dtype="<f8").tofile(place / "a.rec")
    np.arange(1000, dtype="<f8").tofile(place / "d.bin")
    words = "unpack --type resized(0,16,double) --count 1000 d.bin --into a.rec"
    check_refused(place, words, 4, "No space left")


def test_a_file_that_grows_meanwhile_is_noticed(folder, monkeypatch):
    from mpired import packing as module

    def grows(run_, *arguments):
        with open(folder / "rank0.rec", "ab") as file:
            file.write(b"x")
        return cut(run_, *arguments)

    cut = transfer.cut
    monkeypatch.setattr(module.transfer, "cut", grows)
    with pytest.raises(mpired.MpiredError, match=r"rank0\.rec: "):
        mpired.pack(folder / "rank0.rec", type=CELL, output=folder / "out.npy")
    assert not (folder / "out.npy").exists()


def test_holes_stay_holes(tmp_path):
    """Four numbers far apart: whatever is done to them, nobody writes the zeros between."""
    apart = 1 << 30
    far = f"hvector(4,1,{apart},double)"
    of_each = "def add(a, b, count, datatype):\n    for name in a.dtype.names:\n        b[name] += a[name]\n"
    (tmp_path / "add.py").write_text(of_each)
    np.save(tmp_path / "four.npy", np.arange(1.0, 5.0))
    for name in ("old.bin", "other.bin"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 4 * apart)
        mpired.unpack(tmp_path / "four.npy", into=tmp_path / name, type=far, count=1)
    mpired.unpack(tmp_path / "four.npy", output=tmp_path / "new.bin", type=far)
    said = {"type": far, "count": 1, "op": f"{tmp_path}/add.py:add"}
    mpired.reduce([tmp_path / "old.bin", tmp_path / "other.bin"], in_place=True, **said)
    mpired.reduce([tmp_path / "old.bin", tmp_path / "other.bin"], output=tmp_path / "sum.bin", **said)
    for name, wanted in {"old.bin": [2, 4, 6, 8], "new.bin": [1, 2, 3, 4], "sum.bin": [3, 6, 9, 12]}.items():
        with open(tmp_path / name, "rb") as file:
            assert [np.frombuffer(os.pread(file.fileno(), 8, i * apart))[0] for i in range(4)] == wanted
            assert os.fstat(file.fileno()).st_blocks * 512 < 1 << 20
    assert (tmp_path / "old.bin").stat().st_size == 4 * apart


@each(
    "text, form",
    [
        ("vector(2,1,2,double)", "npy"),
        ("resized(0,8,vector(2,1,3,double))", "parquet"),
        ("struct([1,1],[16,0],[double,double])", "npy"),
        ("struct([1,1,2],[8,0,12],[int,double,int8_t])", "arrow"),
    ],
)
def test_elements_that_a_reduction_has_written_are_put_back(text, form, tmp_path):
    """By way of another format comes what the reduction writes to raw."""

    def add(a, b):
        return np.array([tuple(x + y for x, y in zip(*pair, strict=True)) for pair in zip(a, b, strict=True)], b.dtype)

    ranks = [tmp_path / "0.bin", tmp_path / "1.bin"]
    for rank, path in enumerate(ranks):
        (np.arange(12.0) + rank).tofile(path)
    for output in ("sum.bin", f"sum.{form}"):
        mpired.reduce(ranks, add, type=text, count=2, output=tmp_path / output, overwrite=True)
    outcome = run("unpack", "-q", "--type", text, f"sum.{form}", cwd=tmp_path)
    assert outcome == (0, (tmp_path / "sum.bin").read_bytes(), "")
    outcome = run("unpack", "-q", "--type", text, "-", cwd=tmp_path, stdin=(tmp_path / f"sum.{form}").read_bytes())
    assert outcome == (0, (tmp_path / "sum.bin").read_bytes(), "")


@each("verb", ["reduce", "scan", "reduce_scatter"])
def test_holes_around_replaced_elements_stay(verb, tmp_path):
    """Ten numbers in the middle of a large file without any others, in place."""
    paths = [tmp_path / "0.bin", tmp_path / "1.bin"]
    for path in paths:
        with open(path, "wb") as file:
            file.seek(100 << 20)
            file.write(np.arange(10.0).tobytes())
            file.truncate(200 << 20)
    arguments = [[6, 4]] if verb == "reduce_scatter" else []
    said = {"type": "double", "offset": 100 << 20, "count": 10, "in_place": True}
    getattr(mpired, verb)(paths, "sum", *arguments, **said)
    for path in paths[: 1 if verb == "reduce" else 2]:
        assert path.stat().st_blocks * 512 < 1 << 20
    first = {"reduce": 2.0, "scan": 1.0, "reduce_scatter": 2.0}[verb] * np.arange(10.0)
    kept = 6 if verb == "reduce_scatter" else 10
    octets = paths[0].read_bytes()
    assert len(octets) == (200 << 20) - 8 * (10 - kept)
    assert octets.strip(b"\0") == first[:kept].tobytes().strip(b"\0")
    assert octets[100 << 20 :][: 8 * kept] == first[:kept].tobytes()


@each("words", [
    "unpack --type int64_t s.bin --from raw",
    "unpack --type int64_t --datarep external32 s.bin",
    "unpack --type vector(2,1,2,int64_t) s.bin",
    "unpack --type int64_t s.bin --into z.bin",
    "pack --type int64_t s.bin --to raw",
    "pack --type int64_t --offset 5 s.bin --to raw",
    "reduce --op sum --type int64_t --offset 5 s.bin s.bin --to raw",
    "accumulate --op sum --type int64_t --offset 5 s.bin z.bin",
    "accumulate --op sum --type int64_t --offset 5 z.bin s.bin",
])  # fmt: skip
def test_no_elements_of_a_file_that_has_none(words, tmp_path):
    """A count of 0 is legal (MPI-4.1, 5.2 and 12.3.4), however few bytes there are."""
    (tmp_path / "s.bin").write_bytes(b"abc")
    (tmp_path / "z.bin").write_bytes(bytes(16))
    assert run(*words.split(), "-q", "--count", "0", cwd=tmp_path) == (0, b"", "")
    assert [(tmp_path / name).read_bytes() for name in ("s.bin", "z.bin")] == [b"abc", bytes(16)]
    check_refused(tmp_path, f"{words} --count 1", 3)
