"""Which files are the ranks: lists, globs and ranges, beside what shells make of the same words."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from command import refused, run, succeeded
from rows import check_refused, each

import mpired
from mpired.errors import UsageError
from mpired.ranks.order import expand

NAMES = ("a0.npy", "a1.npy", "b0.npy", "b10.npy", "sub/c0.npy", "sub/deep/c1.npy", "{0..1}.npy", ".hidden.npy")
SUM = ("reduce", "-q", "--op", "sum", "--to", "raw")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sub/deep").mkdir(parents=True)
    for number, name in enumerate(NAMES):
        np.save(tmp_path / name, np.arange(3.0) + 10**number)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sum_of(*names: str) -> bytes:
    return np.sum([np.load(name) for name in names], axis=0).tobytes()


def bash(script: str) -> list[str]:
    done = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True, env={"LC_ALL": "C"})
    return done.stdout.split()


@each(
    "word",
    ["x{0..3}", "x{007..12}", "x{3..1}.{08..10..2}y", "{-2..01}", "{-02..1}", "{5..5}", "{10..1..3}", "{1..9..-4}",
     "{1..2}{1..2}{1..2}", "{0..100}", "{a..c}", "{1..}", "{00..2}", "{0..10..0}"],
)  # fmt: skip
def test_ranges_are_those_of_bash(word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = bash(f"echo {word}") if word != "{a..c}" else [word]  # letters are no numbers of ranks
    assert expand([[word]]) == [named]


@each("word", ["*.npy", "**/*.npy", "[ab]?.npy", "sub/**/c*", "b{0..1}*.n*", "sub/**", "s*/*"])
def test_globs_are_those_of_bash(word, folder):
    files = f'for f in {word}; do if test -f "$f"; then echo "$f"; fi; done'
    found = expand([[word]])[0]
    assert sorted(found) == sorted(bash(f"shopt -s globstar nullglob; {files}"))
    assert found == sorted(found) or "{" in word


def test_numbers_are_those_of_printf(folder):
    printed = bash('for i in 0 7 12345; do printf "o.%04d.%d " $i $i; done')
    assert expand([["o.%04d.%d", "x"]], [0, 7, 12345]) == [[*printed, "x"]]
    assert run(*SUM, "a%d.npy", "--ranks", "0-1", cwd=folder) == (0, sum_of("a0.npy", "a1.npy"), "")


def test_lists(folder):
    Path("all.txt").write_bytes(b"# the first ones\na0.npy\r\n\n  \nsub/c0.npy\n./sub/deep/c1.npy\nb0.npy\n./a1.npy")
    Path("sub/more.txt").write_text("c0.npy\n")
    Path("bom.txt").write_text("a0.npy\n", encoding="utf-8-sig")
    names = ("a0.npy", "sub/c0.npy", "sub/deep/c1.npy", "b0.npy", "a1.npy")
    assert run(*SUM, "@all.txt", cwd=folder) == (0, sum_of(*names), "")
    assert run(*SUM, "@bom.txt", cwd=folder).out == sum_of("a0.npy")
    # The names of @LIST are beside it, and those of --files-from here.
    assert run(*SUM, "@../all.txt", cwd=folder / "sub").status == 0
    refused(run(*SUM, "--files-from", "../all.txt", cwd=folder / "sub"), 4, "No such file or directory: a0.npy")
    os.chdir("sub")
    found = mpired.reduce(["../b10.npy"], "sum", files_from="more.txt")
    os.chdir("..")
    assert found.tobytes() == sum_of("b10.npy", "sub/c0.npy")


@each("content, words, status, reasons", [
    (b"a0.npy\0a1.npy\0", "@list", 2, ["1: ", "is not the name", "--null"]),
    (b"a0.npy\0\0", "--files-from list -0", 2, ["2: ''", "is not the name"]),
    (b"x" * 9000, "@list", 2, ["is not the name"]),
    (b"@none\n", "@list", 4, ["@none", "No such file"]),
    (b"sub\n", "@list", 3, ["sub", "is a directory", "sub/*.npy"]),
    (b"a0.npy", "@list --null", 2, ["--null", "--files-from"]),
    (b"a0.npy", "--files-from list --files-from list", 2, ["--files-from", "once", "@LIST"]),
    (b"", "- --files-from - --type double", 2, ["-: is a rank, and the list of ranks too"]),
    (b"", "a%d.npy --ranks 2-1", 2, ["--ranks", "0-511"]),
    (b"", "a%d.npy --ranks 0 --ranks 1", 2, ["--ranks", "once", "0-10,20"]),
    (b"", "@none", 4, ["none", "No such file"]),
    (b"", "x{0..99999}{0..99999}", 2, ["10000000000 files"]),
    # files that hold no such ranks
    (b"", "--type double --stride 9 d.bin", 2, ["--stride", "no whole number", "--count"]),
    (b"", "--type double --stride 8 --count 2 d.bin", 2, ["--stride", "fewer than the 16"]),
    (b"", "--type double --stride 64 --ranks-in-file 4 d.bin", 3, ["holds 3 ranks", "--ranks-in-file 4"]),
    (b"", "--type double --ranks-in-file 5 d.bin d.bin", 3, ["192 bytes do not make 5 ranks"]),
    (b"", "--stride 8 d.bin", 2, ["--stride", "--type"]),
    (b"", "--type double --stride 8 --offset 200 d.bin", 3, ["--offset 200"]),
    (b"", "--type double --stride 64 --in-place d.bin", 2, ["--in-place", "d.bin:0"]),
])  # fmt: skip
def test_refusals(content, words, status, reasons, folder):
    Path("list").write_bytes(content)
    np.arange(24.0).tofile("d.bin")
    output = "" if "--in-place" in words else "-o out.npy"
    check_refused(folder, f"reduce --op sum {words} {output}", status, *reasons)


@each("words, first, nranks, step, count", [
    ("--ranks-in-file 4 dump.bin", 0, 4, 6, 6),
    ("--stride 64 dump.bin", 0, 3, 8, 8),
    ("--stride 48 --count 4 --offset 16 --ranks-in-file 3 dump.bin", 2, 3, 6, 4),
    ("--stride 72 --count 3 dump.bin", 0, 3, 9, 3),  # the last one ends before its stride does
    ("--ranks-in-file 2 --offset 64 dump.bin", 8, 2, 8, 8),
    ("--count 3 @parts", 0, 3, 9, 3),
    ("--count 2 --offset 8 --files-from parts", 1, 3, 9, 2),
])  # fmt: skip
def test_several_ranks_in_a_file(words, first, nranks, step, count, tmp_path):
    values = np.random.default_rng(5).integers(-99, 99, 24) / 8
    values.tofile(tmp_path / "dump.bin")
    (tmp_path / "parts").write_text("dump.bin:0\ndump.bin:72\n./dump.bin:144\n")
    ranks = np.stack([values[first + number * step :][:count] for number in range(nranks)])
    typed = ("--type", "double", *words.split())
    assert run(*SUM, *typed, cwd=tmp_path) == (0, ranks.sum(axis=0).tobytes(), "")
    succeeded(run("scan", "-q", "-f", "--op", "max", *typed, "-o", "max_{rank}.bin", cwd=tmp_path))
    assert np.fromfile(tmp_path / f"max_{nranks - 1}.bin").tolist() == ranks.max(axis=0).tolist()
    found = run("locate", "--op", "maxloc", *typed, cwd=tmp_path).out.decode()
    rank, index = divmod(int(np.argmax(ranks)), count)
    assert found.endswith(f" at [{index}]\n")
    assert f"in rank {rank}, " in found
    np.save(tmp_path / "total.npy", np.zeros(count))
    succeeded(run("accumulate", "-q", "--op", "sum", "total.npy", *typed, cwd=tmp_path))
    np.testing.assert_array_equal(np.load(tmp_path / "total.npy"), ranks.sum(axis=0))


def test_several_ranks_in_a_file_in_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = np.arange(24.0)
    values.tofile("dump.bin")
    found = mpired.reduce(["dump.bin"], "sum", type="double", ranks_in_file=3)
    assert found.tolist() == values.reshape(3, 8).sum(axis=0).tolist()
    Path("dump.bin:8").write_bytes(np.ones(24).tobytes())
    Path("list").write_text("dump.bin\ndump.bin:8\n")  # a file of that name is meant
    assert mpired.reduce([], "sum", type="double", files_from="list").tolist() == (values + 1).tolist()
    with pytest.raises(UsageError, match="is a stream"):
        mpired.reduce(["/dev/null"], "sum", type="double", stride=8)


@each("words", [
    "reduce - /dev/stdin --count 4",
    "reduce /dev/fd/0 /dev/stdin --count 4",
    "reduce /dev/stdin - --from npy",
    *(f"{words} fifo {again}" for words in ("reduce -k", "accumulate target") for again in ("./fifo", "link")),
])  # fmt: skip
def test_a_pipe_cannot_be_two_ranks(words, tmp_path):
    """Blocks of both would alternate: the result would be wrong, with status 0. A FIFO is not waited for."""
    if not (tmp_path / "fifo").exists():
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "link").symlink_to("fifo")
        (tmp_path / "target").write_bytes(bytes(8))
    read, write = os.pipe()
    os.write(write, bytes(64))
    os.close(write)
    outcome = run(*words.split(), "--op", "sum", "--type", "double", cwd=tmp_path, stdin=read)
    os.close(read)
    refused(outcome, 2, "is the same pipe ")
