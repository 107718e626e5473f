"""Which files are the ranks: lists, globs and ranges, beside what shells make of the same words."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import numpy as np
import pytest
from command import COMMAND, Outcome, refused, succeeded, unchanged
from command import run as run_in

import mpired
from mpired.errors import UsageError
from mpired.ranks.lists import meant

NAMES = ("a0.npy", "a1.npy", "b0.npy", "b10.npy", "sub/c0.npy", "sub/deep/c1.npy", "{0..1}.npy", ".hidden.npy")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sub/deep").mkdir(parents=True)
    for number, name in enumerate(NAMES):
        np.save(tmp_path / name, np.arange(3.0) + 10**number)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str, **settings: object) -> Outcome:
    return run_in(*words, cwd=os.getcwd(), **settings)


def sum_of(*names: str) -> bytes:
    total = np.zeros(3)
    for name in names:
        total += np.load(name)
    return total.tobytes()


def bash(script: str) -> list[str]:
    done = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True, env={"LC_ALL": "C"})
    return done.stdout.split()


@pytest.mark.parametrize(
    "word",
    ["x{0..3}", "x{007..12}", "x{3..1}.{08..10..2}y", "{-2..01}", "{-02..1}", "{5..5}", "{10..1..3}", "{1..9..-4}",
     "{1..2}{1..2}{1..2}", "{0..100}", "{a..c}", "{1..}", "{00..2}", "{0..10..0}"],
)  # fmt: skip
def test_ranges_are_those_of_bash(word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = bash(f"echo {word}") if word != "{a..c}" else [word]  # letters are no numbers of ranks
    assert meant([[word]]) == [named]


@pytest.mark.parametrize("word", ["*.npy", "**/*.npy", "[ab]?.npy", "sub/**/c*", "b{0..1}*.n*", "sub/**", "s*/*"])
def test_globs_are_those_of_bash(word, folder):
    files = f'for f in {word}; do if test -f "$f"; then echo "$f"; fi; done'
    assert sorted(meant([[word]])[0]) == sorted(bash(f"shopt -s globstar nullglob; {files}"))
    if "{" not in word:
        assert meant([[word]])[0] == sorted(meant([[word]])[0])


def test_the_list_cannot_be_a_rank_too(tmp_path):
    words = ("reduce", "--op", "sum", "--type", "double", "-", "--files-from", "-")
    refused(run_in(*words, cwd=tmp_path, stdin=b"a.npy\n"), 2, "-: is a rank, and the list of ranks too")


def test_numbers_are_those_of_printf(folder):
    printed = bash('for i in 0 7 12345; do printf "o.%04d.%d " $i $i; done')
    assert meant([["o.%04d.%d", "x"]], [0, 7, 12345]) == [[*printed, "x"]]
    words = ("--op", "sum", "a%d.npy", "--ranks", "0-1")
    assert run("reduce", "-q", *words, "--to", "raw") == (0, sum_of("a0.npy", "a1.npy"), "")
    refused(run("reduce", "-q", "--op", "sum", "a0.npy", "--ranks", "0-1"), 2, "--ranks", "%d")
    refused(run("reduce", "-q", "--op", "sum", "a%d.npy", "--ranks", "2-1"), 2, "--ranks", "0-511")


def test_a_file_of_that_name_is_meant(folder):
    """What looks like a glob or a range, and is there, is the file."""
    np.save("*.npy", np.full(3, 5.0))
    assert meant([["*.npy", "{0..1}.npy", "./@a", "-"]]) == [["*.npy", "{0..1}.npy", "./@a", "-"]]


def test_lists(folder):
    Path("all.txt").write_bytes(b"# the first ones\na0.npy\r\n\n  \nsub/c0.npy\n./sub/deep/c1.npy\nb0.npy\n./a1.npy")
    Path("sub/more.txt").write_text("c0.npy\n")
    names = ("a0.npy", "sub/c0.npy", "sub/deep/c1.npy", "b0.npy", "a1.npy")
    assert run("reduce", "-q", "--op", "sum", "@all.txt", "--to", "raw") == (0, sum_of(*names), "")
    Path("bom.txt").write_text("a0.npy\n", encoding="utf-8-sig")
    assert run("reduce", "-q", "--op", "sum", "@bom.txt", "--to", "raw")[1] == sum_of("a0.npy")
    os.chdir("sub")  # the names of @LIST are beside it, and those of --files-from here
    assert run("reduce", "-q", "--op", "sum", "@../all.txt", "--to", "raw")[0] == 0
    refused(run("reduce", "-q", "--op", "sum", "--files-from", "../all.txt"), 4, "No such file or directory: a0.npy")
    found = mpired.reduce(["../b10.npy"], "sum", files_from="more.txt")
    os.chdir("..")
    assert found.tobytes() == sum_of("b10.npy", "sub/c0.npy")


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_lists_through_pipes(shell, folder):
    np.save("new\nline.npy", np.ones(3))
    names = ("new\nline.npy", "a0.npy", "a1.npy")
    script = 'find . -maxdepth 1 -name "[an]*.npy" -print0 | "$@" --files-from - -0 --to raw'
    command = [shell, "-c", script, shell, COMMAND, "reduce", "-q", "--op", "sum"]
    assert subprocess.run(command, check=True, capture_output=True).stdout == sum_of(*names)
    script = 'printf "a0.npy\\na1.npy\\n" | "$@" --to raw @/dev/stdin'
    command[2] = script
    assert subprocess.run(command, check=True, capture_output=True).stdout == sum_of("a0.npy", "a1.npy")


@pytest.mark.parametrize(
    ("content", "words", "status", "reasons"),
    [
        (b"a0.npy\0a1.npy\0", "@list", 2, ["1: ", "is not the name", "--null"]),
        (b"a0.npy\0\0", "--files-from list -0", 2, ["2: ''", "is not the name"]),
        (b"x" * 9000, "@list", 2, ["is not the name"]),
        (b"@none\n", "@list", 4, ["@none", "No such file"]),
        (b"\n# nothing\n", "@list", 2, ["there are none"]),
        (b"sub\n", "@list", 3, ["sub", "is a directory", "sub/*.npy"]),
        (b"a0.npy", "@list --null", 2, ["--null", "--files-from"]),
        (b"a0.npy", "--files-from list --files-from list", 2, ["--files-from", "once", "@LIST"]),
        (b"", "a%d.npy --ranks 0 --ranks 1", 2, ["--ranks", "once", "0-10,20"]),
        (b"", "@none", 4, ["none", "No such file"]),
        (b"", "sub", 3, ["is a directory", "sub/*.npy"]),
        (b"", "z*.npy", 4, ["z*.npy", "No such file or directory, and no file matches"]),
        (b"", "x{0..99999}{0..99999}", 2, ["10000000000 files"]),
    ],
)
def test_refusals(content, words, status, reasons, folder):
    Path("list").write_bytes(content)
    with unchanged(folder):
        refused(run("reduce", "-q", "--op", "sum", *words.split(), "-o", "out.npy"), status, *reasons)


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ("--ranks-in-file 4 dump.bin", (0, 4, 6, 6)),
        ("--stride 64 dump.bin", (0, 3, 8, 8)),
        ("--stride 48 --count 4 dump.bin", (0, 4, 6, 4)),
        ("--stride 48 --count 4 --offset 16 --ranks-in-file 3 dump.bin", (2, 3, 6, 4)),
        ("--ranks-in-file 2 --offset 64 dump.bin", (8, 2, 8, 8)),
        ("--count 3 @parts", (0, 3, 9, 3)),
        ("--count 2 --offset 8 --files-from parts", (1, 3, 9, 2)),
    ],
)
def test_several_ranks_in_a_file(words, ranks, tmp_path, monkeypatch):
    first, nranks, step, count = ranks
    monkeypatch.chdir(tmp_path)
    values = np.random.default_rng(5).normal(size=24)
    values.tofile("dump.bin")
    Path("parts").write_text("dump.bin:0\ndump.bin:72\n./dump.bin:144\n")
    ranks = [values[first + number * step :][:count] for number in range(nranks)]
    said = ("--type", "double", *words.split())
    total = ranks[0].copy()
    for rank in ranks[1:]:
        total += rank
    assert run("reduce", "-q", "--op", "sum", *said, "--to", "raw") == (0, total.tobytes(), "")
    succeeded(run("scan", "-q", "--op", "max", *said, "-o", "max_{rank}.bin"))
    assert np.fromfile(f"max_{nranks - 1}.bin").tolist() == np.max(ranks, axis=0).tolist()
    found = run("locate", "--op", "maxloc", *said).out.decode()
    rank, index = divmod(int(np.argmax(ranks)), count)
    assert found.endswith(f" at [{index}]\n")
    assert f"in rank {rank}, " in found
    np.save("total.npy", np.zeros(count))
    succeeded(run("accumulate", "-q", "--op", "sum", "total.npy", *said))
    np.testing.assert_array_equal(np.load("total.npy"), total)


def test_several_ranks_in_a_file_in_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = np.arange(24.0)
    values.tofile("dump.bin")
    found = mpired.reduce(["dump.bin"], "sum", type="double", ranks_in_file=3)
    assert found.tolist() == values.reshape(3, 8).sum(axis=0).tolist()
    Path("dump.bin:8").write_bytes(np.ones(24).tobytes())
    Path("list").write_text("dump.bin\ndump.bin:8\n")  # a file of that name is meant
    assert mpired.reduce([], "sum", type="double", files_from="list").tolist() == (values + 1).tolist()
    reading, writing = os.pipe()
    with pytest.raises(UsageError, match="is a stream"):
        mpired.reduce([f"/dev/fd/{reading}"], "sum", type="double", stride=8)
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("words", "status", "reasons"),
    [
        ("--stride 64 d.npy", 3, ["d.npy:0", "npy, and only raw files"]),
        ("--type double --stride 9 d.bin", 2, ["--stride", "no whole number", "--count"]),
        ("--type double --stride 8 --count 2 d.bin", 2, ["--stride", "fewer than the 16"]),
        ("--type double --stride 80 d.bin", 3, ["192 bytes", "not a multiple of the 80 bytes"]),
        ("--type double --stride 64 --ranks-in-file 4 d.bin", 3, ["holds 3 ranks", "--ranks-in-file 4"]),
        ("--type double --ranks-in-file 5 d.bin d.bin", 3, ["192 bytes do not make 5 ranks"]),
        ("--stride 8 d.bin", 2, ["--stride", "--type"]),
        ("--type double --stride 8 --offset 200 d.bin", 3, ["--offset 200"]),
        ("--type double --stride 64 --in-place d.bin", 2, ["--in-place", "d.bin:0"]),
        ("--type double --ranks-in-file 2 none.bin", 4, ["none.bin", "No such file"]),
    ],
)
def test_files_that_hold_no_such_ranks(words, status, reasons, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.arange(24.0).tofile(tmp_path / "d.bin")
    np.save(tmp_path / "d.npy", np.arange(24.0))
    words = words.replace("d.npy", "d.npy --type double") if "d.npy" in words else words
    with unchanged(tmp_path):
        refused(run("reduce", "-q", "--op", "sum", *words.split()), status, *reasons)


def test_thousands_of_ranks_are_opened_once_each(tmp_path, monkeypatch):
    """With few descriptors too, and a second look at each is for whether it has changed."""
    monkeypatch.chdir(tmp_path)
    for rank in range(2000):
        np.save(f"r{rank}.npy", np.arange(16.0) * rank)
    Path("list").write_text("".join(f"r{rank}.npy\n" for rank in range(2000)))
    total = np.arange(16.0) * 0
    for rank in range(2000):
        total += np.arange(16.0) * rank

    def few_descriptors() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    outcome = run("reduce", "-q", "--op", "sum", "@list", "--to", "raw", setup=few_descriptors)
    assert outcome == (0, total.tobytes(), "")
    opened: list[str] = []
    usual = os.open
    monkeypatch.setattr(os, "open", lambda path, *how, **more: opened.append(str(path)) or usual(path, *how, **more))
    assert mpired.reduce([], "sum", files_from="list").tobytes() == total.tobytes()
    names = [name for name in opened if name.endswith(".npy")]
    assert len(names) == len(set(names)) == 2000
