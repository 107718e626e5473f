"""What the name of a result leads to, and what is kept of the file that is replaced."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat

import pytest
from command import NOBODY, become_nobody, reduce, run, succeeded, unchanged
from one_result import NEW, OLD, WORDS, write

from mpired.errors import OutputExistsError
from mpired.files import calls
from mpired.files.output import open_output


def test_new_file(kind, tmp_path):
    write(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == NEW
    assert os.listdir(tmp_path) == ["out"]


def test_existing_file_is_kept_unless_it_may_be_replaced(kind, folder):
    out = folder / "results" / "out"
    with unchanged(folder), pytest.raises(OutputExistsError, match="`overwrite=True` replaces it"):
        write(out)
    write(out, overwrite=True)
    assert out.read_bytes() == NEW
    assert os.listdir(folder / "results") == ["out"]


def test_leaving_without_a_commit_changes_nothing(kind, folder):
    with unchanged(folder), open_output(str(folder / "results" / "out"), overwrite=True) as output:
        calls.pwrite_all(output.fd, NEW, 0)
    with unchanged(folder), pytest.raises(ZeroDivisionError), open_output(str(folder / "results" / "new")) as output:
        _ = 1 / 0


def test_draft_is_private_locked_and_beside_the_result(tmp_path, monkeypatch):
    monkeypatch.setattr(calls, "open_unnamed", lambda _dirfd: None)
    with open_output(str(tmp_path / ("x" * 255))):
        (name,) = os.listdir(tmp_path)
        assert re.fullmatch(r"\.x{100}\.[0-9a-f]{32}\.mpired-new", name)
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        with open(tmp_path / name, "rb+") as other, pytest.raises(BlockingIOError):
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert os.listdir(tmp_path) == []


def test_name_of_a_draft_that_is_taken(tmp_path, monkeypatch):
    """What lies in the folder is never written to: not a file of that name, and nothing through a link."""
    monkeypatch.setattr(calls, "open_unnamed", lambda _dirfd: None)
    (tmp_path / "secret").write_bytes(OLD)
    os.symlink("secret", tmp_path / ".out.mpired-new")
    with unchanged(tmp_path), pytest.raises(FileExistsError):
        write(tmp_path / "out")


def test_symbolic_link_is_kept_and_its_target_replaced(kind, folder):
    out, link = folder / "results" / "out", folder / "link"
    link.symlink_to("middle")
    (folder / "middle").symlink_to(out)
    with pytest.raises(OutputExistsError):
        write(link)
    write(link, overwrite=True)
    assert (link.is_symlink(), (folder / "middle").is_symlink(), out.is_symlink()) == (True, True, False)
    assert out.read_bytes() == NEW
    assert sorted(os.listdir(folder)) == ["link", "middle", "rank.bin", "results"]


def test_dangling_link_gets_its_target(kind, folder):
    (folder / "link").symlink_to("results/new")
    write(folder / "link")
    assert (folder / "link").is_symlink()
    assert (folder / "results" / "new").read_bytes() == NEW


def test_link_to_a_missing_folder(kind, folder):
    (folder / "link").symlink_to("missing/new")
    with unchanged(folder), pytest.raises(FileNotFoundError):
        write(folder / "link")


def test_link_loop(kind, folder):
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    with unchanged(folder), pytest.raises(OSError, match="symbolic links") as caught:
        write(folder / "a", overwrite=True)
    assert caught.value.errno == errno.ELOOP


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


@pytest.mark.parametrize("name", ["", ".", "results", "results/", "new/", "results/out/", "results/out/x", "missing/x"])
def test_names_that_cannot_be_files(kind, name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    with unchanged(folder), pytest.raises(OSError, match=r".*") as caught:
        write(name, overwrite=True)
    assert caught.value.errno in {errno.EISDIR, errno.ENOTDIR, errno.ENOENT}
    assert caught.value.filename == name


# Mode, owner, attributes


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o027, 0o077, 0o777])
def test_mode_of_a_new_file_is_that_of_any_new_file(kind, umask, tmp_path):
    before = os.umask(umask)
    try:
        write(tmp_path / "out")
        (tmp_path / "like").touch()
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "like").stat().st_mode


@pytest.mark.parametrize(
    "mode", [pytest.param(0, marks=pytest.mark.needs("root")), 0o400, 0o644, 0o755, 0o2750, 0o4755]
)
def test_mode_of_an_existing_file_is_kept(kind, mode, folder):
    out = folder / "results" / "out"
    out.chmod(mode)
    write(out, overwrite=True)
    assert stat.S_IMODE(out.stat().st_mode) == mode


def test_owner_and_attributes_are_kept(as_root, kind, folder):
    out = folder / "results" / "out"
    os.chown(out, NOBODY, 12345)
    os.setxattr(out, "user.origin", b"run 7")
    os.setxattr(out, "user.empty", b"")
    write(out, overwrite=True)
    assert (out.stat().st_uid, out.stat().st_gid) == (NOBODY, 12345)
    assert {name: os.getxattr(out, name) for name in os.listxattr(out)} == {"user.origin": b"run 7", "user.empty": b""}


def test_access_list_is_kept(as_root, kind, folder):
    out = folder / "results" / "out"
    # Version 2; read and write for the owner, read for user 1000, the group and the mask; nothing for others.
    entries = [(1, 6, 2**32 - 1), (2, 4, 1000), (4, 4, 2**32 - 1), (16, 4, 2**32 - 1), (32, 0, 2**32 - 1)]
    octets = b"\x02\0\0\0" + b"".join(
        tag.to_bytes(2, "little") + rights.to_bytes(2, "little") + who.to_bytes(4, "little")
        for tag, rights, who in entries
    )
    os.setxattr(out, "system.posix_acl_access", octets)
    write(out, overwrite=True)
    assert os.getxattr(out, "system.posix_acl_access") == octets


def test_owner_that_cannot_be_kept_loses_set_uid(as_root, kind, open_folder):
    (open_folder / "rank.bin").write_bytes(NEW)
    (open_folder / "out").write_bytes(OLD)
    (open_folder / "out").chmod(0o6755)
    open_folder.chmod(0o777)
    succeeded(reduce(*WORDS, "-o", "out", "-f", cwd=open_folder, setup=become_nobody))
    status = (open_folder / "out").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o755, NOBODY)


def test_file_system_without_attributes(kind, folder, monkeypatch):
    def unsupported(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "listxattr", unsupported)
    write(folder / "results" / "out", overwrite=True)
    assert (folder / "results" / "out").read_bytes() == NEW
