"""Odd words of the command line: no inputs and many, inputs that are outputs, names of every sort."""

from __future__ import annotations

import os
import pty
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
from bad_files import DATA, THREE, covers, npy_of
from command import Child, reduce, refused, run, succeeded, unchanged

from mpired.files import mounts


@covers(60)
def test_names_that_look_like_more_than_names(folder):
    for name in ("*.npy", "file:a.npy", "a b.npy", "./@a.npy", "~.npy", "$HOME.npy", "{0..1}.npy", "%d.npy"):
        (folder / name).write_bytes(npy_of(THREE))
        assert reduce("--op", "sum", name, "--to", "raw", cwd=folder) == (0, DATA, "")


# options and arguments


@covers(63)
@pytest.mark.parametrize("name", ["good.npy", "good.bin"])
def test_one_input_is_its_copy(name, folder):
    words = ("--op", "sum") if name == "good.npy" else ("--op", "sum", "--type", "double")
    assert reduce(*words, name, "--to", "raw", cwd=folder) == (0, DATA, "")


@covers(63, 67)
def test_ten_thousand_inputs_with_few_descriptors(folder):
    def few_descriptors() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    words = ("--op", "sum", *["good.npy"] * 10_000, "--to", "raw")
    assert reduce(*words, cwd=folder, setup=few_descriptors) == (0, (10_000 * THREE).tobytes(), "")


@covers(67)
def test_a_file_twice_is_two_ranks(folder):
    assert reduce("--op", "sum", "good.npy", "good.npy", "--to", "raw", cwd=folder) == (0, (2 * THREE).tobytes(), "")


def _same(folder: Path) -> str:
    return "good.npy"


def _hard_link(folder: Path) -> str:
    os.link(folder / "good.npy", folder / "hard.npy")
    return "hard.npy"


def _symbolic_link(folder: Path) -> str:
    os.symlink("good.npy", folder / "soft.npy")
    return "soft.npy"


@covers(68, 69)
@pytest.mark.parametrize("way", [_same, _hard_link, _symbolic_link])
@pytest.mark.parametrize("which", ["input", "output"])
def test_output_that_is_an_input(way, which, folder):
    other = way(folder)
    source, target = (other, "good.npy") if which == "input" else ("good.npy", other)
    with unchanged(folder):
        refused(reduce("--op", "sum", source, "-o", target, "-f", cwd=folder), 2, target, "is the file of rank 0")
    succeeded(reduce("--op", "sum", source, "good.npy", "--in-place", cwd=folder))
    np.testing.assert_array_equal(np.load(folder / source), 2 * THREE)
    assert (folder / "soft.npy").is_symlink() or way is not _symbolic_link


@covers(68)
@pytest.mark.parametrize("way", ["{}", "./{}", "link"])
@pytest.mark.parametrize(
    ("words", "name", "what"),
    [
        ("reduce --op sum --types t.toml --type thing r.bin r.bin -o", "t.toml", "the named datatypes"),
        ("reduce --op op.py:add good.npy good.npy --to raw -o", "op.py", "the op"),
        ("reduce --op ./op.so:cos good.npy good.npy --to raw -o", "op.so", "the op"),
        ("reduce --op ./op.so:cos:count good.npy good.npy --to raw -o", "op.so", "the op"),
        ("pack --types t.toml --type thing r.bin --to raw -o", "t.toml", "the named datatypes"),
        ("unpack --types t.toml --type thing r.bin -o", "t.toml", "the named datatypes"),
        ("unpack --types t.toml --type thing r.bin --into", "t.toml", "the named datatypes"),
        ("get-accumulate --op sum --map m.npy good.npy m.npy --fetch", "m.npy", "the origin"),
        ("get-accumulate --op no_op --map m.npy good.npy --fetch", "m.npy", "the map"),
        ("get-accumulate --op sum --types t.toml --type thing r.bin s.bin --fetch", "t.toml", "the named datatypes"),
    ],
)
def test_output_that_is_another_file_of_the_command(words, name, what, way, folder):
    (folder / "t.toml").write_text("thing = 'double'\n")
    (folder / "op.py").write_text("import numpy as np\n\n\ndef add(a, b):\n    return a + b\n")
    shutil.copy(
        next(line.split()[-1] for line in mounts.lines("/proc/self/maps") if "/libm.so" in line), folder / "op.so"
    )
    np.save(folder / "m.npy", np.arange(3))
    for rank in ("r.bin", "s.bin"):
        (folder / rank).write_bytes(DATA)
    os.symlink(name, folder / "link")
    target = way.format(name)
    force = () if "--into" in words else ("-f",)
    with unchanged(folder):
        outcome = run(*words.split(), target, *force, cwd=folder)
        refused(outcome, 2, f"{target}: is the file of {what}, an input of this command; name another")


@covers(68)
def test_outputs_of_which_one_is_the_file_of_the_op(folder):
    (folder / "op1.py").write_text("def add(a, b):\n    return a + b\n")
    words = ("scan", "--op", "op1.py:add", "good.npy", "good.npy", "--to", "raw", "-f", "-o", "op{rank}.py")
    with unchanged(folder):
        refused(run(*words, cwd=folder), 2, "op1.py: is the file of the op, an input of this command")


@covers(68)
def test_input_by_its_descriptor(folder):
    def open_it() -> None:
        assert os.open("good.npy", os.O_RDONLY) == 3

    words = ("--op", "sum", "/proc/self/fd/3", "/dev/fd/3", "-f", "-o")
    with unchanged(folder):
        refused(reduce(*words, "good.npy", cwd=folder, setup=open_it), 2, "good.npy", "is the file of rank 1")
    succeeded(reduce(*words, "new.npy", cwd=folder, setup=open_it))
    np.testing.assert_array_equal(np.load(folder / "new.npy"), 2 * THREE)


@covers(72)
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("-dash.npy", "-dash.npy"),
        ("new\nline.npy", r"new\nline.npy"),
        ("\x1b[31mred.npy", r"\x1b[31mred.npy"),
        ("tab\tand\rreturn.npy", r"tab\tand\rreturn.npy"),
        ("no\udcffutf8.npy", "no"),
        ("right-to-left\u202e.npy", r"\u202e"),
        ("naïve 漢字.npy", "naïve 漢字.npy"),
        ("x" * 251 + ".npy", "x" * 251 + ".npy"),
    ],
)
def test_odd_names(name, shown, folder):
    with unchanged(folder):
        refused(reduce("--op", "sum", "-o", "out", "-f", "--", name, cwd=folder), 4, shown, "No such file")
    succeeded(reduce("--op", "sum", f"--output={name}", "-f", "--", "good.npy", "good.npy", cwd=folder))
    np.testing.assert_array_equal(np.load(folder / name), 2 * THREE)
    names = [name, "good.npy", "good.arrow", "good.bin", "good.parquet", "out"]
    assert sorted(os.listdir(folder)) == sorted(names)
    with unchanged(folder):
        refused(reduce("--op", "sum", f"--output={name}", "--", "good.npy", cwd=folder), 2, shown, "--force")
        refused(reduce("--op", "sum", f"--output={name}", "-f", "--", name, cwd=folder), 2, shown, "--in-place")
        refused(reduce("--op", "band", "-o", "out", "-f", "--", name, cwd=folder), 3, "MPI_BAND")
    outcome = run("reduce", "--op", "sum", "--root", "0", "--in-place", "--", name, cwd=folder)
    assert (outcome.status, outcome.err.count("\n")) == (0, 1)
    assert shown in outcome.err
    outcome = run("info", "--", name, cwd=folder)
    assert outcome.status == 0
    assert shown.encode() in outcome.out
    assert outcome.out.count(b"\n") == 2


@covers(72)
@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (("good.npy/", "-o", "out", "-f"), 4, "good.npy/"),
        (("good.npy", "-o", "good.bin/", "-f"), 4, "good.bin/"),
        (("good.npy", "-o", "missing/", "-f"), 4, "missing/"),
        (("", "-o", "out", "-f"), 4, "''"),
        (("good.npy", "-o", "", "-f"), 4, "''"),
        (("x" * 256, "-o", "out", "-f"), 4, "too long"),
        (("good.npy", "-o", "x" * 256, "-f"), 4, "too long"),
    ],
)
def test_impossible_names(words, status, reason, folder):
    with unchanged(folder):
        refused(reduce("--op", "sum", *words, cwd=folder), status, reason)


@covers(73)
@pytest.mark.parametrize("to", [(), ("--to", "raw"), ("--to", "npy")])
def test_terminal_never_gets_binary(to, folder):
    master, slave = pty.openpty()
    child = Child("reduce", "-q", "--op", "sum", "good.npy", "good.npy", *to, cwd=folder, stdout=slave)
    outcome = child.finish()
    shown = os.read(master, 10_000).decode()
    os.close(master)
    os.close(slave)
    assert (outcome.status, outcome.err) == (0, "")
    assert shown.split() == ["element", "value", "0", "2.0", "1", "4.0", "2", "6.0"]


@covers(74)
@pytest.mark.parametrize(
    ("a", "b", "op", "expected"),
    [
        (np.array([2**31 - 1], "i4"), np.array([1], "i4"), "sum", np.array([-(2**31)], "i4")),
        (np.array([-128], "i1"), np.array([-1], "i1"), "prod", np.array([-128], "i1")),
        (np.array([2**63 - 1], "i8"), np.array([2**63 - 1], "i8"), "prod", np.array([1], "i8")),
        (np.array([np.inf, 0.0]), np.array([-np.inf, np.inf]), "sum", np.array([np.nan, np.inf])),
        (np.array([np.inf, 1e308]), np.array([0.0, 1e308]), "prod", np.array([np.nan, np.inf])),
        (np.array([np.nan, 1.0]), np.array([1.0, np.nan]), "max", np.array([np.nan, np.nan])),
        (np.array([np.nan, 1.0]), np.array([1.0, np.nan]), "min", np.array([np.nan, np.nan])),
        (np.array([5e-324]), np.array([5e-324]), "prod", np.array([0.0])),
        (np.array([65504], "f2"), np.array([65504], "f2"), "sum", np.array([np.inf], "f2")),
    ],
)
def test_arithmetic_that_overflows_says_nothing(a, b, op, expected, folder):
    np.save(folder / "a.npy", a)
    np.save(folder / "b.npy", b)
    succeeded(reduce("--op", op, "--overflow", "wrap", "a.npy", "b.npy", "-o", "result.npy", cwd=folder))
    result = np.load(folder / "result.npy")
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)
