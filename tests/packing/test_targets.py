"""The files that unpack writes into or replaces: old or new whatever happens, and holes stay holes."""

import numpy as np
from command import run
from rows import check_refused, each

import mpired


def test_a_full_disk_leaves_the_target(mounted):
    place = mounted("size=1m")
    np.arange(80_000, dtype="<f8").tofile(place / "a.rec")
    np.arange(1000, dtype="<f8").tofile(place / "d.bin")
    check_refused(place, "unpack --type resized(0,16,double) --count 1000 d.bin --into a.rec", 4, "No space left")


@each("text, form", [
    ("vector(2,1,2,double)", "npy"),
    ("resized(0,8,vector(2,1,3,double))", "parquet"),
    ("struct([1,1],[16,0],[double,double])", "npy"),
    ("struct([1,1,2],[8,0,12],[int,double,int8_t])", "arrow"),
])  # fmt: skip
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
