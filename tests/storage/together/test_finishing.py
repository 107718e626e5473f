"""How the next command finishes many files that were committed, and what it must not touch."""

from __future__ import annotations

import errno
import os
import signal
import subprocess

import numpy as np
import pytest
from command import COMMAND, NOBODY, refused, run, unchanged
from many_files import FINISHED, NEW, OLD, contents, in_child, litter

from mpired.api.windows import Window
from mpired.errors import BufferFileError
from mpired.storage import calls, lock
from mpired.storage.remains import finish_staged as recover
from mpired.storage.staging import pending
from mpired.storage.together import Together


def test_a_file_that_was_changed_since_is_not_overwritten(committed, paths, tmp_path):
    paths[1].write_bytes(b"newer than all")
    with pytest.raises(BufferFileError, match="was changed while a committed result"):
        recover(map(str, paths))
    assert contents(paths) == [NEW[0], b"newer than all", *NEW[2:]]
    with pytest.raises(BufferFileError, match=r"waits in .*mpired-together; .* remove that directory"):
        recover(map(str, paths))
    for folder in committed:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    recover(map(str, paths))
    assert contents(paths) == [NEW[0], b"newer than all", *NEW[2:]]


def test_a_file_that_was_removed_since_is_not_made_again(committed, paths):
    paths[1].unlink()
    with pytest.raises(BufferFileError, match="was removed"):
        recover(map(str, paths))
    assert contents(paths) == [NEW[0], None, *NEW[2:]]


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EINTR])
def test_a_folder_that_the_system_cannot_list_is_an_error(number, committed, paths, tmp_path):
    """The old file would be read else, though the new one is committed. What a signal interrupts is repeated."""

    def setup():
        original = os.listdir

        def fail(path="."):
            if path == str(tmp_path / "a"):
                os.listdir = original if number == errno.EINTR else fail
                raise OSError(number, os.strerror(number), path)
            return original(path)

        os.listdir = fail

    words = ("reduce", "-q", "--op", "bor", "--type", "byte", "--from", "raw", "a/0", "--to", "raw")
    if number != errno.EINTR:
        refused(run(*words, cwd=tmp_path, setup=setup), 4, str(tmp_path / "a"), os.strerror(number))
        setup = None
    assert run(*words, cwd=tmp_path, setup=setup).out == NEW[0]


def test_links_lead_to_the_folder_that_matters(committed, paths, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "alias").symlink_to(paths[0])
    assert run("info", "elsewhere/alias", cwd=tmp_path).status == 0
    assert contents(paths) == NEW


@pytest.mark.parametrize(
    "words",
    [
        ("info", "a/0"),
        ("diff", "zero.bin", "a/0"),
        ("locate", "--op", "maxloc", "a/0"),
        ("reduce", "-q", "--op", "bor", "a/0"),
        ("scan", "-q", "--op", "sum", "other.npy", "-o", "a/s_{rank}.npy"),
        ("reduce", "-q", "--op", "sum", "other.npy", "-o", "b/3", "-f"),
        ("pack", "-q", "--type", "byte", "a/0", "-o", "packed"),
        ("unpack", "-q", "--type", "byte", "--from", "raw", "zero.bin", "-o", "a/new"),
        ("accumulate", "-q", "--op", "bor", "--type", "byte", "a/0", "zero.bin"),
        ("accumulate", "-q", "--op", "bor", "--type", "byte", "zero.bin", "a/0", "--origin-count", "1"),
        ("fetch-and-op", "--op", "no_op", "--type", "byte", "a/0"),
        ("recover", "a/0"),
    ],
)
def test_every_command_finishes_first(words, committed, paths, tmp_path):
    np.save(tmp_path / "other.npy", np.arange(3))
    (tmp_path / "zero.bin").write_bytes(b"\0")
    raw = words[0] in {"info", "reduce", "diff", "locate"} and "a/0" in words
    run(*words, *(("--from", "raw", "--type", "byte") if raw else ()), cwd=tmp_path)
    assert contents(paths)[:3] == NEW[:3]
    assert litter(tmp_path) == []


@pytest.mark.parametrize("words", [("reduce", "--op", "bor"), ("accumulate", "--op", "bor", "zero.bin")])
def test_a_dry_run_says_what_waits_and_finishes_nothing(words, committed, paths, tmp_path):
    (tmp_path / "zero.bin").write_bytes(b"\0")
    with unchanged(tmp_path):
        outcome = run(*words, "--type", "byte", "--from", "raw", "--dry-run", "a/0", cwd=tmp_path)
    assert "has results that an interrupted command has committed, which the call finishes first" in outcome.err


def test_recover_says_what_it_finished(committed, paths, tmp_path):
    outcome = run("recover", "a/1", "b/link", cwd=tmp_path)
    done = f"{FINISHED} (4 files)"
    assert outcome == (0, f"a/1: {done}\nb/link: {done}\n".encode(), "")
    assert run("recover", "a/1", cwd=tmp_path) == (0, b"a/1: nothing to do\n", "")


def test_recover_says_what_it_finished_of_files_that_nobody_named(committed, paths, tmp_path):
    (tmp_path / "a" / "other").touch()
    outcome = run("recover", "a/other", cwd=tmp_path)
    assert outcome == (0, b"a/other: nothing to do\n", f"mpired: {tmp_path}/a/0: {FINISHED} (4 files)\n")


def test_nothing_is_printed_in_python(committed, paths, capfd):
    recover(map(str, paths))
    assert contents(paths) == NEW
    assert capfd.readouterr() == ("", "")


@pytest.mark.needs("strace")
def test_a_rerun_after_a_kill_says_that_it_is_one(without_bytecode, tmp_path):
    """The installed command, killed by the tracer at its third rename, and then repeated."""
    for rank in range(4):
        (tmp_path / f"d{rank}").mkdir()
        np.save(tmp_path / f"d{rank}" / "c.npy", np.full(3, rank + 1))
    files = [f"d{rank}/c.npy" for rank in range(4)]
    words = (COMMAND, "scan", "-q", "--op", "sum", *files, "--in-place")
    renames = "rename,renameat,renameat2"
    options = ("-f", "-qq", "-o", "trace", "-e", f"trace={renames}", "-e", f"inject={renames}:signal=KILL:when=3")
    killed = subprocess.run(["strace", *options, *words], cwd=tmp_path, check=False, timeout=60)
    assert killed.returncode in {-signal.SIGKILL, 128 + signal.SIGKILL}
    assert litter(tmp_path) != []
    again = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert again.stderr == f"mpired: {tmp_path}/d0/c.npy: {FINISHED} (4 files)\n"
    assert [int(np.load(tmp_path / path)[0]) for path in files] == [1, 4, 10, 20]
    assert litter(tmp_path) == []


def test_recover_lists_what_there_is(committed, tmp_path):
    with unchanged(tmp_path):
        outcome = run("recover", "--list", "a/0", cwd=tmp_path)
    assert outcome == (0, b"a/0: results of an interrupted or a living command in its directory\n", "")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{"version": 1, "files": [["0", "../victim", null]], "members": []}',
        b'{"version": 1, "files": [["../victim", "0", null]], "members": []}',
        b'{"version": 1, "files": [["0", "", null]], "members": []}',
        b'{"version": 1, "files": [["0", "0", [1, 2]]], "members": []}',
        b'{"version": 1, "files": [], "members": ["/etc"]}',
        b'{"version": 2, "files": [], "members": []}',
        b"\xff" * 100,
    ],
)
def test_a_damaged_manifest_is_an_error_and_harmless(text, committed, paths, tmp_path):
    (tmp_path / "victim").write_bytes(b"victim")
    for folder in committed:
        (folder / "manifest").write_bytes(text)
    with unchanged(tmp_path), pytest.raises(BufferFileError, match="manifest"):
        recover(map(str, paths))


def test_what_others_left_is_not_followed(as_root, committed, paths, tmp_path):
    for folder in committed:
        os.chown(folder, NOBODY, NOBODY)
    with unchanged(tmp_path):
        recover(map(str, paths))
    assert pending(str(tmp_path / "a")) == []


def test_a_link_in_the_place_of_a_staging_directory_is_not_followed(committed, paths, tmp_path):
    for number, folder in enumerate(committed):
        folder.rename(tmp_path / f"moved{number}")
        folder.symlink_to(tmp_path / f"moved{number}")
    with unchanged(tmp_path):
        recover(map(str, paths))


def test_a_folder_that_is_gone_is_said(committed, paths, tmp_path):
    (tmp_path / "a").rename(tmp_path / "c")
    with unchanged(tmp_path), pytest.raises(BufferFileError, match="is not there"):
        recover([str(paths[3])])
    (tmp_path / "c").rename(tmp_path / "a")
    recover([str(paths[3])])
    assert contents(paths) == NEW


def test_results_that_are_committed_while_a_lock_is_waited_for_come_first(tmp_path, monkeypatch):
    """Their command is killed before its renames: an update of one of them must not come between."""
    paths = [tmp_path / "t.npy", tmp_path / "u.npy"]
    for path in paths:
        np.save(path, np.ones(3))
    original, waited = lock.acquire, []

    def results() -> None:
        os.replace = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        with Together(list(map(str, paths)), overwrite=True) as outputs:
            for path, draft in zip(paths, outputs.drafts, strict=True):
                np.save(tmp_path / "result.npy", np.full(3, 5.0))
                with draft.created() as fd:
                    calls.pwrite_all(fd, (tmp_path / "result.npy").read_bytes(), 0)
                assert path.exists()
            outputs.commit()

    def acquire(*arguments: object, **settings: object) -> None:
        if not waited:
            waited.append(in_child(results))
        original(*arguments, **settings)

    monkeypatch.setattr(lock, "acquire", acquire)
    Window(paths[0]).accumulate(np.full(3, 2.0), op="sum")
    assert waited == [-signal.SIGKILL]
    assert [np.load(path).tolist() for path in paths] == [[7.0] * 3, [5.0] * 3]
    assert litter(tmp_path) == []


def test_results_of_another_user_are_told(as_root, committed, paths):
    """Only he can say that they are his."""
    os.chown(committed[0], NOBODY, NOBODY)
    outcome = run("recover", "0", cwd=paths[0].parent)
    told = f"results of user {NOBODY} may wait in {committed[0]}, which `mpired recover` of that user finishes"
    assert outcome == (0, f"0: {told}\n".encode(), "")
    assert contents(paths) == OLD
