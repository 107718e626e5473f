"""Odd words of the command line: many inputs, inputs that are outputs, names of every sort."""

from __future__ import annotations

import os
import shutil

import numpy as np
from bad_files import DATA, THREE, npy_of
from command import reduce, refused, run, succeeded
from rows import check_refused, each

from mpired.files import mounts

ADD = "def add(a, b):\n    return a + b\n"


def test_names_that_look_like_more_than_names(folder):
    for name in ("*.npy", "file:a.npy", "a b.npy", "./@a.npy", "~.npy", "$HOME.npy", "{0..1}.npy", "%d.npy"):
        (folder / name).write_bytes(npy_of(THREE))
        assert reduce("--op", "sum", name, "--to", "raw", cwd=folder) == (0, DATA, ""), name


@each(
    "source, target",
    [("good.npy", "good.npy"), ("hard.npy", "good.npy"), ("good.npy", "hard.npy"), ("soft.npy", "good.npy"),
     ("good.npy", "soft.npy")],
)  # fmt: skip
def test_output_that_is_an_input(source, target, folder):
    for name in ("good.npy", "hard.npy", "soft.npy"):
        (folder / name).unlink(missing_ok=True)
    (folder / "good.npy").write_bytes(npy_of(THREE))
    os.link(folder / "good.npy", folder / "hard.npy")
    os.symlink("good.npy", folder / "soft.npy")
    words = ("reduce", "--op", "sum", source, "-o", target, "-f")
    check_refused(folder, words, 2, target, "is the file of rank 0")
    succeeded(reduce("--op", "sum", source, "good.npy", "--in-place", cwd=folder))
    np.testing.assert_array_equal(np.load(folder / source), 2 * THREE)
    assert (folder / "soft.npy").is_symlink()


@each(
    "words, name, what",
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
def test_output_that_is_another_file_of_the_command(words, name, what, folder):
    """By its name, by another way to it, and by a link."""
    (folder / "t.toml").write_text("thing = 'double'\n")
    (folder / "op.py").write_text(ADD)
    library = next(line.split()[-1] for line in mounts.lines("/proc/self/maps") if "/libm.so" in line)
    shutil.copy(library, folder / "op.so")
    np.save(folder / "m.npy", np.arange(3))
    for rank in ("r.bin", "s.bin"):
        (folder / rank).write_bytes(DATA)
    (folder / "link").unlink(missing_ok=True)
    os.symlink(name, folder / "link")
    force = () if "--into" in words else ("-f",)
    for target in (name, f"./{name}", "link"):
        reason = f"{target}: is the file of {what}, an input of this command; name another"
        check_refused(folder, (*words.split(), target, *force), 2, reason)


def test_outputs_of_which_one_is_the_file_of_the_op(folder):
    (folder / "op1.py").write_text(ADD)
    words = ("scan", "--op", "op1.py:add", "good.npy", "good.npy", "--to", "raw", "-f", "-o", "op{rank}.py")
    check_refused(folder, words, 2, "op1.py: is the file of the op, an input of this command")


def test_input_by_its_descriptor(folder):
    def open_it() -> None:
        assert os.open("good.npy", os.O_RDONLY) == 3

    words = ("reduce", "-q", "--op", "sum", "/proc/self/fd/3", "/dev/fd/3", "-f", "-o")
    check_refused(folder, (*words, "good.npy"), 2, "good.npy", "is the file of rank 1", setup=open_it)
    succeeded(run(*words, "new.npy", cwd=folder, setup=open_it))
    np.testing.assert_array_equal(np.load(folder / "new.npy"), 2 * THREE)


@each(
    "name, shown",
    [
        ("-dash.npy", "-dash.npy"),
        ("new\nline.npy", r"new\nline.npy"),
        ("\x1b[31mred\t\r.npy", r"\x1b[31mred\t\r.npy"),
        ("no\udcffutf8.npy", "no"),
        ("right-to-left\u202e.npy", r"\u202e"),
        ("naïve 漢字.npy", "naïve 漢字.npy"),
        ("x" * 251 + ".npy", "x" * 251 + ".npy"),
    ],
)
def test_odd_names(name, shown, folder):
    reduces = ("reduce", "-q", "--op")
    check_refused(folder, (*reduces, "sum", "-o", "out", "-f", "--", name), 4, shown, "No such file")
    succeeded(run(*reduces, "sum", f"--output={name}", "-f", "--", "good.npy", "good.npy", cwd=folder))
    np.testing.assert_array_equal(np.load(folder / name), 2 * THREE)
    check_refused(folder, (*reduces, "sum", f"--output={name}", "--", "good.npy"), 2, shown, "--force")
    check_refused(folder, (*reduces, "band", "-o", "out", "-f", "--", name), 3, "MPI_BAND")
    outcome = run("reduce", "--op", "sum", "--root", "0", "--in-place", "--", name, cwd=folder)
    assert (outcome.status, outcome.err.count("\n")) == (0, 1)
    assert shown in outcome.err
    outcome = run("info", "--", name, cwd=folder)
    assert (outcome.status, outcome.out.count(b"\n")) == (0, 2)
    assert shown.encode() in outcome.out
    (folder / name).unlink()
    assert sorted(os.listdir(folder)) == ["good.arrow", "good.bin", "good.npy", "good.parquet", "out"]


@each(
    "words, reason",
    [
        (("good.npy/", "-o", "out", "-f"), "good.npy/"),
        (("good.npy", "-o", "good.bin/", "-f"), "good.bin/"),
        (("good.npy", "-o", "missing/", "-f"), "missing/"),
        (("", "-o", "out", "-f"), "''"),
        (("good.npy", "-o", "", "-f"), "''"),
        (("x" * 256, "-o", "out", "-f"), "too long"),
        (("good.npy", "-o", "x" * 256, "-f"), "too long"),
    ],
)
def test_impossible_names(words, reason, folder):
    check_refused(folder, ("reduce", "--op", "sum", *words), 4, reason)


def test_working_directory_that_is_gone(folder):
    gone = folder / "gone"
    gone.mkdir()
    words = ("--op", "sum", str(folder / "good.npy"), "-o", str(folder / "new.npy"))
    succeeded(reduce(*words, cwd=gone, setup=gone.rmdir))
    np.testing.assert_array_equal(np.load(folder / "new.npy"), THREE)
    gone.mkdir()
    refused(reduce("--op", "sum", "good.npy", cwd=gone, setup=gone.rmdir), 4, "good.npy")
