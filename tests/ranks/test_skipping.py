"""Ranks that cannot be used are left out, if that is wanted, and told each time."""

from __future__ import annotations

import errno
import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import refused, run, unchanged

import mpired
from mpired.errors import CountError, SkippedWarning, UsageError

GOOD = ("g0.npy", "g1.npy", "g2.npy")
BAD = {
    "missing.npy": "No such file",
    "count.npy": "has count 5, but rank 0 ('g0.npy') has 4",
    "type.npy": "has datatype MPI_FLOAT (float32)",
    "damaged.npy": "not a valid npy file",
    "short.npy": "data bytes",
    "empty.npy": "is empty",
    "folder": "is a directory",
    "notes.pdf": "does not store the type of its elements",
}
WORDS = ("g0.npy", "missing.npy", "count.npy", "g1.npy", "type.npy", "damaged.npy", "short.npy", "g2.npy", "empty.npy",
         "folder", "notes.pdf")  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(GOOD):
        np.save(name, np.arange(4.0) * (number + 1))
    np.save("count.npy", np.zeros(5))
    np.save("type.npy", np.zeros(4, np.float32))
    content = Path("g0.npy").read_bytes()
    Path("damaged.npy").write_bytes(content.replace(b"descr", b"desk!"))
    Path("short.npy").write_bytes(content[:-1])
    Path("empty.npy").write_bytes(b"")
    Path("folder").mkdir()
    Path("notes.pdf").write_bytes(b"%PDF-1.7\n" + bytes(100))
    return tmp_path


TOTAL = np.arange(4.0) + np.arange(4.0) * 2 + np.arange(4.0) * 3


def test_the_result_is_that_of_the_others(folder):
    for words in (("-k",), ("--skip-bad", "--min-inputs", "3")):
        outcome = run("reduce", "--op", "sum", *words, *WORDS, "-o", "out.npy", "-f", cwd=folder)
        assert outcome.status == 9
        np.testing.assert_array_equal(np.load("out.npy"), TOTAL)
        told, summary = outcome.err.splitlines()
        assert told.startswith("mpired: 8 of 11 ranks left out: ")
        assert all(name in told and reason in told for name, reason in BAD.items())
        assert summary.startswith("mpired: sum of 3 ranks (8 left out), 4 x float64, ")
    quiet = run("reduce", "-q", "--op", "sum", "-k", *WORDS, "--to", "raw", cwd=folder)
    assert (quiet.status, quiet.out, quiet.err) == (9, TOTAL.tobytes(), f"{told}\n")


def test_all_are_in_the_json(folder):
    outcome = run("reduce", "--op", "sum", "-k", *WORDS, "-o", "out.npy", "--json", cwd=folder)
    found = json.loads(outcome.out)
    assert (outcome.status, found["nranks"], found["inputs"]) == (9, 3, list(GOOD))
    assert {each["file"]: each["rank"] for each in found["skipped"]} == {name: WORDS.index(name) for name in BAD}
    assert all(BAD[each["file"]] in each["reason"] for each in found["skipped"])
    assert found["warnings"][0].startswith("8 of 11 ranks left out")
    assert json.loads(run("reduce", "--op", "sum", *GOOD, "-o", "o.npy", "--json", cwd=folder).out)["skipped"] == []


def test_too_few_are_in_the_json_of_the_error(folder):
    outcome = run("reduce", "--op", "sum", "-k", "--min-inputs", "4", *WORDS, "-o", "out.npy", "--json", cwd=folder)
    found = json.loads(outcome.out)
    assert (outcome.status, found["error"]) == (3, "CountError")
    assert [each["subject"] for each in found["ranks"]] == [name for name in WORDS if name in BAD]
    with pytest.raises(CountError) as error:
        mpired.reduce(WORDS, "sum", skip_bad=True, min_inputs=4)
    assert len(error.value.errors) == len(BAD)


def test_other_calls(folder):
    assert run("scan", "-q", "--op", "sum", "-k", *WORDS, "-o", "sum_{rank}_{stem}.npy", cwd=folder).status == 9
    assert sorted(map(str, Path().glob("sum_*"))) == ["sum_0_g0.npy", "sum_1_g1.npy", "sum_2_g2.npy"]
    np.testing.assert_array_equal(np.load("sum_2_g2.npy"), TOTAL)
    outcome = run("locate", "--op", "maxloc", "-k", "--json", *WORDS, cwd=folder)
    assert (outcome.status, outcome.err.count("left out")) == (9, 1)
    assert [(each["rank"], each["file"]) for each in json.loads(outcome.out)] == [
        (3, "g2.npy")
    ]  # the counts may differ
    np.save("total.npy", np.ones(4))
    outcome = run("accumulate", "--op", "sum", "total.npy", "-k", "--json", *WORDS, cwd=folder)
    found = json.loads(outcome.out)
    np.testing.assert_array_equal(np.load("total.npy"), TOTAL + 1)
    assert (outcome.status, found["origins"], found["inputs"]) == (9, 3, list(GOOD))
    assert [each["file"] for each in found["bad"]] == [name for name in WORDS if name in BAD]


def test_in_python(folder):
    with pytest.warns(SkippedWarning) as warned:
        assert mpired.reduce(WORDS, "sum", skip_bad=True).tolist() == TOTAL.tolist()
    assert [each.file for each in warned[0].message.skipped] == [name for name in WORDS if name in BAD]
    with pytest.warns(SkippedWarning):
        done = mpired.reduce(WORDS, "sum", skip_bad=True, output="out.npy")
    assert (done.nranks, len(done.skipped)) == (3, 8)
    window = mpired.Window("g2.npy")
    with pytest.warns(SkippedWarning):
        assert window.accumulate(["g0.npy", "missing.npy", "g1.npy"], "sum", skip_bad=True) == 2
    with pytest.raises(CountError, match="ranks: 3 can be used, and `min_inputs` is 4"):
        mpired.reduce(GOOD, "sum", min_inputs=4)


@pytest.mark.parametrize(
    ("words", "status", "reasons"),
    [
        (("reduce", "--min-inputs", "4", *WORDS), 3, ["3 can be used, and --min-inputs is 4", "missing.npy"]),
        (("reduce", "missing.npy", "none.npy"), 3, ["0 can be used, and --min-inputs is 1", "none.npy"]),
        (("accumulate", "g0.npy", "missing.npy"), 3, ["origins: 0 can be used"]),
        (("reduce", "--columns", "x", "g0.npy"), 2, ["--columns"]),
        (("reduce", "--in-place", "g0.npy", "g1.npy"), 2, ["--skip-bad", "replaced"]),
        (("scan", "--in-place", "g0.npy", "g1.npy"), 2, ["--skip-bad", "replaced"]),
        (("reduce", "--op", "mean", "--weights", "1,2", "g0.npy", "none"), 2, ["--skip-bad", "weights"]),
    ],
)
def test_refusals_write_nothing(words, status, reasons, folder):
    command, *rest = words
    op = () if "--op" in rest else ("--op", "sum")
    output = () if command == "accumulate" or "--in-place" in rest else ("-o", "out.npy")
    with unchanged(folder):
        refused(run(command, "-q", "-k", *op, *rest, *output, cwd=folder), status, *reasons)


def test_a_rank_that_turns_out_bad_later_is_an_error(folder):
    for name in "ab":
        pq.write_table(
            pa.table({"x": np.random.default_rng(1).integers(9, size=50_000)}), f"{name}.parquet", compression="zstd"
        )
    content = bytearray(Path("b.parquet").read_bytes())
    content[1000:2000] = b"\xff" * 1000
    Path("b.parquet").write_bytes(content)
    with unchanged(folder):
        refused(
            run("reduce", "-q", "--op", "sum", "-k", "a.parquet", "b.parquet", "-o", "out.npy", cwd=folder),
            3,
            "b.parquet",
        )


def test_what_the_system_lacks_is_no_fault_of_a_rank(folder, monkeypatch):
    def open_rank(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("mpired.ranks.opening.open_rank", open_rank)
    with pytest.raises(OSError, match="Too many"):
        mpired.reduce(GOOD, "sum", skip_bad=True)


def test_two_groups(folder):
    words = ("g0.npy", "missing.npy", "--group-b", "g1.npy", "none.npy", "g2.npy", "-k", "-o", "o_{group}{rank}.npy")
    outcome = run("allreduce", "-q", "--op", "sum", *words, cwd=folder)
    assert (outcome.status, outcome.err.count("2 of 5 ranks left out")) == (9, 1)
    assert sorted(map(str, Path().glob("o_*"))) == ["o_a0.npy", "o_b0.npy", "o_b1.npy"]
    np.testing.assert_array_equal(np.load("o_a0.npy"), np.arange(4.0) * 5)
    with pytest.raises(UsageError):
        mpired.reduce(GOOD, "sum", in_place=True, skip_bad=True)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_rank_that_is_cut_within_an_element(suffix, folder):
    """Also where that shows only at the end of what is read."""
    pack = gzip.compress if suffix else bytes
    for name, nbytes in (("a", 32), ("cut", 29), ("b", 32)):
        Path(f"{name}.bin{suffix}").write_bytes(pack(np.arange(4.0).tobytes()[:nbytes]))
    ranks = [f"{name}.bin{suffix}" for name in ("a", "cut", "b")]
    words = ("reduce", "--op", "sum", "--type", "double", "-k", *ranks, "-o", "out.bin")
    for more in (["--dry-run"], []):
        outcome = run(*words, *more, cwd=folder)
        assert outcome.status == 9
        assert f"1 of 3 ranks left out: cut.bin{suffix}: 29 bytes is not a multiple of 8" in outcome.err
    np.testing.assert_array_equal(np.fromfile("out.bin"), 2 * np.arange(4.0))


def test_a_stream_that_is_cut_within_an_element(folder):
    np.arange(4.0).tofile("a.bin")
    words = ("reduce", "--op", "sum", "--type", "double", "-k", "a.bin", "-", "-o", "out.bin")
    outcome = run(*words, cwd=folder, stdin=bytes(29))
    assert outcome.status == 9
    assert "1 of 2 ranks left out: standard input: 29 bytes is not a multiple of 8" in outcome.err


def test_a_compressed_rank_that_is_damaged_further_on(folder):
    data = bytearray(gzip.compress(np.random.default_rng(1).bytes(1 << 20), 0))
    Path("a.bin").write_bytes(bytes(1 << 20))
    data[-2000] ^= 1
    Path("damaged.bin.gz").write_bytes(data)
    words = ("reduce", "--op", "sum", "--type", "double", "-k", "a.bin", "damaged.bin.gz", "-o", "out.bin")
    outcome = run(*words, cwd=folder)
    assert outcome.status == 9
    assert "damaged.bin.gz: cannot be decompressed" in outcome.err


def test_locate_lists_them_in_json(folder):
    outcome = run("locate", "--op", "maxloc", "-k", "--json", "g0.npy", "missing.npy", "g1.npy", cwd=folder)
    assert outcome.status == 9
    (found,) = json.loads(outcome.out)
    assert (found["file"], found["skipped"][0]["file"]) == ("g1.npy", "missing.npy")
