"""Ranks that cannot be used are left out, if that is wanted, and told each time."""

import errno
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from command import run

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
NAMES = ("g0.npy", "missing.npy", "count.npy", "g1.npy", "type.npy", "damaged.npy", "short.npy", "g2.npy", "empty.npy",
         "folder", "notes.pdf")  # fmt: skip
IN_ORDER = [name for name in NAMES if name in BAD]
TOTAL = np.arange(4.0) * 6


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


def test_the_result_is_that_of_the_others(folder):
    for words in (("-k",), ("--skip-bad", "--min-inputs", "3")):
        outcome = run("reduce", "--op", "sum", *words, *NAMES, "-o", "out.npy", "-f", cwd=folder)
        assert outcome.status == 9
        np.testing.assert_array_equal(np.load("out.npy"), TOTAL)
        told, summary = outcome.err.splitlines()
        assert told.startswith("mpired: 8 of 11 ranks left out: ")
        assert [name for name, reason in BAD.items() if name not in told or reason not in told] == []
        assert summary.startswith("mpired: sum of 3 ranks (8 left out), 4 x float64, ")
    quiet = run("reduce", "-q", "--op", "sum", "-k", *NAMES, "--to", "raw", cwd=folder)
    assert (quiet.status, quiet.out, quiet.err) == (9, TOTAL.tobytes(), f"{told}\n")


def test_other_calls(folder):
    outcome = run("locate", "--op", "maxloc", "-k", "--json", *NAMES, cwd=folder)
    assert (outcome.status, outcome.err.count("left out")) == (9, 1)
    (found,) = json.loads(outcome.out)
    assert (found["rank"], found["file"], found["skipped"][0]["file"]) == (3, "g2.npy", "missing.npy")
    np.save("total.npy", np.ones(4))
    outcome = run("accumulate", "--op", "sum", "total.npy", "-k", "--json", *NAMES, cwd=folder)
    found = json.loads(outcome.out)
    np.testing.assert_array_equal(np.load("total.npy"), TOTAL + 1)
    assert (outcome.status, found["origins"], found["inputs"]) == (9, 3, list(GOOD))
    assert [each["file"] for each in found["bad"]] == IN_ORDER


def test_in_python(folder, monkeypatch):
    with pytest.warns(SkippedWarning) as warned:
        assert mpired.reduce(NAMES, "sum", skip_bad=True).tolist() == TOTAL.tolist()
    assert [each.file for each in warned[0].message.skipped] == IN_ORDER
    with pytest.warns(SkippedWarning):
        assert mpired.Window("g2.npy").accumulate(["g0.npy", "missing.npy", "g1.npy"], "sum", skip_bad=True) == 2
    with pytest.raises(CountError, match="ranks: 3 can be used, and `min_inputs` is 4") as error:
        mpired.reduce(NAMES, "sum", skip_bad=True, min_inputs=4)
    assert len(error.value.errors) == len(BAD)
    with pytest.raises(UsageError):
        mpired.reduce(GOOD, "sum", in_place=True, skip_bad=True)

    def open_rank(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("mpired.ranks.opening.open_rank", open_rank)  # what the system lacks is no fault of a rank
    with pytest.raises(OSError, match="Too many"):
        mpired.reduce(GOOD, "sum", skip_bad=True)


def test_streams_that_turn_out_bad_further_on(folder):
    np.arange(4.0).tofile("a.bin")
    words = ("reduce", "--op", "sum", "--type", "double", "-k", "-o", "out.bin")
    outcome = run(*words, "a.bin", "-", cwd=folder, stdin=bytes(29))
    assert outcome.status == 9
    assert "1 of 2 ranks left out: standard input: 29 bytes is not a multiple of 8" in outcome.err
    data = bytearray(gzip.compress(np.random.default_rng(1).bytes(1 << 20), 0))
    data[-2000] ^= 1
    Path("damaged.bin.gz").write_bytes(data)
    Path("large.bin").write_bytes(bytes(1 << 20))
    outcome = run(*words, "-f", "large.bin", "damaged.bin.gz", cwd=folder)
    assert outcome.status == 9
    assert "damaged.bin.gz: cannot be decompressed" in outcome.err
