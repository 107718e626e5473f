"""Odd words of the command line: many inputs, inputs that are outputs, names of every sort."""

import os
import shutil

import numpy as np
from bad_files import DATA, THREE
from command import run, succeeded
from rows import check_refused, each

from mpired.files import mounts

ADD = "def add(a, b):\n    return a + b\n"


@each("words, name, what", [
    ("reduce --op sum --types t.toml --type thing r.bin r.bin -o", "t.toml", "the named datatypes"),
    ("reduce --op op.py:add good.npy good.npy --to raw -o", "op.py", "the op"),
    ("reduce --op ./op.so:cos good.npy good.npy --to raw -o", "op.so", "the op"),
    ("pack --types t.toml --type thing r.bin --to raw -o", "t.toml", "the named datatypes"),
    ("unpack --types t.toml --type thing r.bin -o", "t.toml", "the named datatypes"),
    ("unpack --types t.toml --type thing r.bin --into", "t.toml", "the named datatypes"),
    ("get-accumulate --op sum --map m.npy good.npy m.npy --fetch", "m.npy", "the origin"),
    ("get-accumulate --op no_op --map m.npy good.npy --fetch", "m.npy", "the map"),
])  # fmt: skip
def test_output_that_is_another_file_of_the_command(words, name, what, folder):
    """By its name, by another way to it, and by a link."""
    (folder / "t.toml").write_text("thing = 'double'\n")
    (folder / "op.py").write_text(ADD)
    library = next(line.split()[-1] for line in mounts.lines("/proc/self/maps") if "/libm.so" in line)
    shutil.copy(library, folder / "op.so")
    np.save(folder / "m.npy", np.arange(3))
    (folder / "r.bin").write_bytes(DATA)
    (folder / "link").unlink(missing_ok=True)
    os.symlink(name, folder / "link")
    force = () if "--into" in words else ("-f",)
    for target in (name, f"./{name}", "link"):
        reason = f"{target}: is the file of {what}, an input of this command; name another"
        check_refused(folder, (*words.split(), target, *force), 2, reason)


@each("name, shown", [
    ("new\nline.npy", r"new\nline.npy"),
    ("\x1b[31mred\t\r.npy", r"\x1b[31mred\t\r.npy"),
    ("no\udcffutf8.npy", "no"),
    ("right-to-left\u202e.npy", r"\u202e"),
    ("naïve 漢字.npy", "naïve 漢字.npy"),
])  # fmt: skip
def test_odd_names(name, shown, folder):
    reduces = ("reduce", "-q", "--op", "sum")
    check_refused(folder, (*reduces, "-o", "out", "-f", "--", name), 4, shown, "No such file")
    succeeded(run(*reduces, f"--output={name}", "-f", "--", "good.npy", "good.npy", cwd=folder))
    np.testing.assert_array_equal(np.load(folder / name), 2 * THREE)
    check_refused(folder, (*reduces, f"--output={name}", "--", "good.npy"), 2, shown, "--force")
    outcome = run("info", "--", name, cwd=folder)
    assert (outcome.status, outcome.out.count(b"\n"), shown.encode() in outcome.out) == (0, 2, True)


@each("words, reason", [
    (("good.npy/", "-o", "out", "-f"), "good.npy/"),
    (("good.npy", "-o", "good.bin/", "-f"), "good.bin/"),
    (("good.npy", "-o", "missing/", "-f"), "missing/"),
    (("", "-o", "out", "-f"), "''"),
    (("good.npy", "-o", "", "-f"), "''"),
    (("x" * 256, "-o", "out", "-f"), "too long"),
    (("good.npy", "-o", "x" * 256, "-f"), "too long"),
])  # fmt: skip
def test_impossible_names(words, reason, folder):
    check_refused(folder, ("reduce", "--op", "sum", *words), 4, reason)
