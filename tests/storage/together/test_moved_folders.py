"""Folders that were moved or copied between a commit and its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest
from command import NOBODY, become_nobody, refused, run, unchanged
from many_files import FINISHED, NEW, contents, contents_of, in_child, litter, new, write

from mpired.errors import BufferFileError
from mpired.storage.remains import finish_staged as recover


def test_a_folder_that_was_renamed_is_finished(half_done, tmp_path):
    half_done.rename(tmp_path / "B")
    outcome = run("recover", "B/3", cwd=tmp_path)
    assert outcome == (0, f"B/3: {FINISHED} (4 files)\n".encode(), "")
    assert contents_of(tmp_path / "B") == NEW
    assert litter(tmp_path) == []


def test_a_copy_with_its_times_is_finished_by_itself(half_done, tmp_path):
    subprocess.run(["cp", "-a", "A", "B"], cwd=tmp_path, check=True)
    with unchanged(half_done):
        assert run("recover", "B/3", cwd=tmp_path).status == 0
    assert contents_of(tmp_path / "B") == NEW
    assert litter(tmp_path / "B") == []
    recover([str(half_done / "0")])
    assert contents_of(half_done) == NEW


def test_a_copy_without_its_times_is_reported(half_done, tmp_path):
    """Nobody can tell whether the files in it were changed since."""
    subprocess.run(["cp", "-r", "A", "B"], cwd=tmp_path, check=True)
    for path in (tmp_path / "B" / str(number) for number in range(4)):
        os.utime(path, (1, 1))
    with unchanged(tmp_path):
        outcome = run("info", "--from", "raw", "--type", "byte", "B/3", cwd=tmp_path)
        refused(outcome, 3, f"{tmp_path}/B/2", f"{tmp_path}/B/3", "copied without its times", f"waits in {tmp_path}/B/")


def test_new_files_are_finished_in_any_copy(tmp_path):
    (tmp_path / "A").mkdir()

    def dies() -> None:
        os.link = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        write([tmp_path / "A" / str(number) for number in range(4)], overwrite=False)

    assert in_child(dies) == -signal.SIGKILL
    subprocess.run(["cp", "-r", "A", "B"], cwd=tmp_path, check=True)
    with unchanged(tmp_path / "A"):
        recover([str(tmp_path / "B" / "0")])
    assert contents_of(tmp_path / "B") == NEW


@pytest.mark.parametrize("folder", ["a", "b"])
@pytest.mark.parametrize("how", [["mv"], ["cp", "-a"]], ids=["moved", "copied"])
def test_one_of_several_folders_that_is_elsewhere_is_reported(how, folder, committed, tmp_path):
    subprocess.run([*how, folder, "c"], cwd=tmp_path, check=True)
    with unchanged(tmp_path), pytest.raises(BufferFileError, match=r"was moved or copied from .*; bring it back"):
        recover([str(tmp_path / "c" / "0")])


@pytest.mark.parametrize("folder", ["a", "b"])
def test_what_stayed_waits_for_the_folder_that_was_moved(folder, committed, paths, tmp_path):
    other = tmp_path / "ab".replace(folder, "")
    (tmp_path / folder).rename(tmp_path / "c")
    with unchanged(tmp_path), pytest.raises(BufferFileError, match="is not there; bring it back"):
        recover([str(other / "x")])
    (tmp_path / "c").rename(tmp_path / folder)
    recover([str(other / "x")])
    assert contents(paths) == NEW


def test_the_number_of_the_device_may_change(committed, paths, monkeypatch):
    """As after a restart of the machine with other disks."""
    for folder in committed:
        said = json.loads((folder / "manifest").read_text())
        said["files"] = [[number, name, [status[0] + 1, *status[1:]]] for number, name, status in said["files"]]
        (folder / "manifest").write_text(json.dumps(said))
    recover(map(str, paths))
    assert contents(paths) == NEW


@pytest.mark.parametrize(("closed", "mode", "read"), [("d2", 0o555, "d1"), ("d2", 0, "d1"), ("d1", 0, "d2")])
def test_a_folder_that_may_not_be_changed_is_said_with_what_waits(closed, mode, read, as_root, open_folder):
    paths = [open_folder / name / "c" for name in ("d1", "d2")]
    for path in paths:
        path.parent.mkdir()
        path.write_bytes(b"old")
        os.chown(path.parent, NOBODY, NOBODY)
        os.chown(path, NOBODY, NOBODY)

    def dies() -> None:
        become_nobody()
        os.replace = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        write(paths)

    assert in_child(dies) == -signal.SIGKILL
    home = next((open_folder / "d1").glob(".*.mpired-together"))
    (open_folder / closed).chmod(mode)
    words = ("reduce", "-q", "--op", "bor", "--from", "raw", "--type", "byte", f"{read}/c", "--to", "raw")
    outcome = run(*words, cwd=open_folder, setup=become_nobody)
    refused(outcome, 4, f"mpired: {open_folder}/{closed}", "Permission denied, so the committed results of", str(home))
    (open_folder / closed).chmod(0o755)
    outcome = run(*words, cwd=open_folder, setup=become_nobody)
    assert outcome == (0, new(int(read[1]) - 1), f"mpired: {paths[0]}: {FINISHED} (2 files)\n")
    assert contents(paths) == NEW[:2]
