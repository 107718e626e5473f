"""What the name of a result leads to, and what is kept of the file that is replaced."""

from __future__ import annotations

import fcntl
import os
import re
import stat

import pytest
from command import NOBODY, become_nobody, reduce, run, succeeded, unchanged
from one_result import NEW, OLD, WORDS, write
from users import ACCESS_LIST, LIST

from mpired.errors import OutputExistsError
from mpired.files import calls
from mpired.files.output import open_output


def test_leaving_without_a_commit_changes_nothing(kind, folder):
    before = os.listdir("/proc/self/fd")
    with unchanged(folder), open_output(str(folder / "results" / "out"), overwrite=True) as output:
        calls.pwrite_all(output.fd, NEW, 0)
    with unchanged(folder), pytest.raises(ZeroDivisionError), open_output(str(folder / "results" / "new")) as output:
        _ = 1 / 0
    assert os.listdir("/proc/self/fd") == before


def test_draft_is_private_locked_and_beside_the_result(tmp_path, monkeypatch):
    monkeypatch.setattr(calls, "open_unnamed", lambda _dirfd: None)
    with open_output(str(tmp_path / ("x" * 255))):
        (name,) = os.listdir(tmp_path)
        assert re.fullmatch(r"\.x{100}\.[0-9a-f]{32}\.mpired-new", name)
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        with open(tmp_path / name, "rb+") as other, pytest.raises(BlockingIOError):
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert os.listdir(tmp_path) == []


def test_symbolic_links_are_kept(kind, folder):
    out, link = folder / "results" / "out", folder / "link"
    link.symlink_to("middle")
    (folder / "middle").symlink_to(out)
    with pytest.raises(OutputExistsError):
        write(link)
    write(link, overwrite=True)
    assert (link.is_symlink(), (folder / "middle").is_symlink(), out.is_symlink()) == (True, True, False)
    assert out.read_bytes() == NEW
    (folder / "dangling").symlink_to("results/new")
    write(folder / "dangling")
    assert (folder / "dangling").is_symlink()
    assert (folder / "results" / "new").read_bytes() == NEW
    assert sorted(os.listdir(folder)) == ["dangling", "link", "middle", "rank.bin", "results"]


def test_hard_link_is_split_and_said(kind, folder):
    out, other = folder / "results" / "out", folder / "other"
    os.link(out, other)
    words = ("reduce", *WORDS, "-o", "results/out", "-f")
    outcome = run(*words, cwd=folder)
    assert outcome.status == 0
    assert "mpired: results/out is a hard link; its other names keep the old content" in outcome.err.splitlines()
    assert (out.read_bytes(), other.read_bytes()) == (NEW, OLD)
    assert (out.stat().st_nlink, other.stat().st_nlink) == (1, 1)
    out.unlink()
    os.link(other, out)
    assert run(*words, "-q", cwd=folder).err == ""


def test_mode_of_a_new_file_is_that_of_any_new_file(kind, tmp_path):
    modes = {}
    for umask in (0o000, 0o022, 0o027, 0o077, 0o777):
        before = os.umask(umask)
        try:
            write(tmp_path / f"{umask:o}")
            (tmp_path / f"like{umask:o}").touch()
        finally:
            os.umask(before)
        modes[umask] = [(tmp_path / f"{name}{umask:o}").stat().st_mode for name in ("", "like")]
    assert [umask for umask, (mode, like) in modes.items() if mode != like] == []


def test_mode_of_an_existing_file_is_kept(as_root, kind, folder):
    out, modes = folder / "results" / "out", (0, 0o400, 0o644, 0o755, 0o2750, 0o4755)
    found = []
    for mode in modes:
        out.chmod(mode)
        write(out, overwrite=True)
        found.append(stat.S_IMODE(out.stat().st_mode))
    assert found == [*modes]


def test_owner_and_attributes_are_kept(as_root, kind, folder):
    out, attributes = folder / "results" / "out", {"user.origin": b"run 7", "user.empty": b"", ACCESS_LIST: LIST}
    os.chown(out, NOBODY, 12345)
    for name, value in attributes.items():
        os.setxattr(out, name, value)
    write(out, overwrite=True)
    assert (out.stat().st_uid, out.stat().st_gid) == (NOBODY, 12345)
    assert {name: os.getxattr(out, name) for name in os.listxattr(out)} == attributes


def test_owner_that_cannot_be_kept_loses_set_uid(as_root, kind, open_folder):
    (open_folder / "rank.bin").write_bytes(NEW)
    (open_folder / "out").write_bytes(OLD)
    (open_folder / "out").chmod(0o6755)
    open_folder.chmod(0o777)
    succeeded(reduce(*WORDS, "-o", "out", "-f", cwd=open_folder, setup=become_nobody))
    status = (open_folder / "out").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o755, NOBODY)
