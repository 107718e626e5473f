"""Many files that appear together: what is written, what is refused, and the steps to the end."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from command import become_nobody, refused, run, succeeded, unchanged
from many_files import NEW, contents, in_child, litter, new, write

from mpired.context import NO_LIMITS
from mpired.errors import OutputExistsError, RanksError, UnconfirmedError, UsageError
from mpired.storage import calls
from mpired.storage.remains import finish_staged as recover
from mpired.storage.together import Together, check_outputs


def test_all_are_replaced(paths, tmp_path):
    before = paths[0].stat().st_ino
    write(paths)
    assert contents(paths) == NEW
    assert paths[2].is_symlink()
    assert paths[0].stat().st_ino != before
    assert litter(tmp_path) == []


def test_all_are_new(tmp_path):
    paths = [tmp_path / str(number) for number in range(4)]
    write(paths, overwrite=False)
    assert contents(paths) == NEW
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2", "3"]


def test_modes_are_kept_or_those_of_any_new_file(paths, tmp_path):
    paths[1].chmod(0o640)
    paths[3].unlink()
    before = os.umask(0o027)
    try:
        write(paths)
        (tmp_path / "like").touch()
    finally:
        os.umask(before)
    assert stat.S_IMODE(paths[1].stat().st_mode) == 0o640
    assert paths[3].stat().st_mode == (tmp_path / "like").stat().st_mode


def test_no_umask_is_in_the_way(as_root, open_folder):
    open_folder.chmod(0o777)
    np.save(open_folder / "r.npy", np.arange(3))
    (open_folder / "r.npy").chmod(0o644)

    def setup() -> None:
        become_nobody()
        os.umask(0o777)

    succeeded(run("scan", "-q", "--op", "sum", "r.npy", "-o", "s_{rank}.npy", cwd=open_folder, setup=setup))
    assert stat.S_IMODE((open_folder / "s_0.npy").stat().st_mode) == 0


def test_files_get_the_group_of_their_folder(as_root, tmp_path):
    os.chown(tmp_path, -1, 12345)
    tmp_path.chmod(0o2755)
    write([tmp_path / "x"])
    assert (tmp_path / "x").stat().st_gid == 12345


def test_nothing_is_nothing(tmp_path):
    write([])
    assert os.listdir(tmp_path) == []


def test_long_names(tmp_path):
    write([tmp_path / ("x" * 255), tmp_path / ("y" * 255)])
    assert (tmp_path / ("y" * 255)).read_bytes() == new(1)


def test_names_that_are_no_text(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\n\x1b[1m"))
    write([path])
    assert path.read_bytes() == new(0)


@pytest.mark.parametrize("link", [False, True])
def test_repeated_files(tmp_path, link):
    with Together([str(tmp_path / "0"), str(tmp_path / "1")]) as outputs:
        first, second = outputs.drafts
        with first.created() as fd:
            calls.pwrite_all(fd, b"content", 0)
        second.repeat(first, link=link)
        outputs.commit()
    assert contents([tmp_path / "0", tmp_path / "1"]) == [b"content", b"content"]
    assert os.path.samefile(tmp_path / "0", tmp_path / "1") == link


@pytest.mark.parametrize("number", [errno.EMLINK, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP])
def test_link_that_the_system_cannot_make_becomes_a_copy(tmp_path, monkeypatch, number):
    def no_link(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", no_link)
    with Together([str(tmp_path / "0"), str(tmp_path / "1")]) as outputs:
        first, second = outputs.drafts
        with first.created() as fd:
            calls.pwrite_all(fd, b"content", 0)
        second.repeat(first, link=True)
        outputs.commit()
    assert contents([tmp_path / "0", tmp_path / "1"]) == [b"content", b"content"]


# What is refused


def test_all_that_is_there_is_listed(paths, tmp_path):
    with unchanged(tmp_path), pytest.raises(RanksError) as caught:
        write(paths, overwrite=False)
    assert [error.subject for error in caught.value.errors] == list(map(str, paths))
    assert caught.value.exit_status == 2
    assert str(paths[0]) in str(caught.value)


def test_directories_streams_and_files_in_the_way_are_one_error(paths, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    names = [str(tmp_path / "a"), str(tmp_path / "fifo"), str(paths[0]), str(tmp_path / "free")]
    with unchanged(tmp_path), pytest.raises(RanksError) as caught:
        check_outputs(names, NO_LIMITS, overwrite=False)
    assert [type(error) for error in caught.value.errors] == [IsADirectoryError, UsageError, OutputExistsError]


def test_folder_that_is_missing(paths, tmp_path):
    with unchanged(tmp_path), pytest.raises(FileNotFoundError) as caught:
        write([*paths, tmp_path / "missing" / "x"])
    assert caught.value.filename == str(tmp_path / "missing" / "x")


def test_folder_without_the_right_to_write(as_root, open_folder):
    (open_folder / "open").mkdir(mode=0o777)
    (open_folder / "open").chmod(0o777)
    np.save(open_folder / "0.npy", np.arange(3))
    np.save(open_folder / "open" / "1.npy", np.arange(3))
    with unchanged(open_folder):
        outcome = run(
            "scan", "-q", "--op", "sum", "open/1.npy", "0.npy", "--in-place", cwd=open_folder, setup=become_nobody
        )
        refused(outcome, 4, "0.npy", "Permission denied")


def test_file_that_appears_in_the_meantime(tmp_path):
    with Together([str(tmp_path / "0"), str(tmp_path / "1")]) as outputs:
        for draft in outputs.drafts:
            with draft.created():
                pass
        (tmp_path / "1").write_bytes(b"other")
        with pytest.raises(OutputExistsError, match="created by another process"):
            outputs.commit()
    assert os.listdir(tmp_path) == ["1"]
    assert (tmp_path / "1").read_bytes() == b"other"


def test_a_name_is_taken_only_if_it_is_free_at_that_moment(tmp_path, monkeypatch):
    """Between the last look and the link somebody else takes it."""
    paths = [tmp_path / str(number) for number in range(2)]
    original = os.link

    def link(draft: str, name: str, **settings: object) -> None:
        if name == paths[1].name:
            paths[1].write_bytes(b"somebody's")
        original(draft, name, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        with pytest.raises(UnconfirmedError, match="appeared"):
            write(paths, overwrite=False)
    assert contents(paths) == [NEW[0], b"somebody's"]
    paths[1].unlink()
    recover(map(str, paths))
    assert contents(paths) == NEW[:2]
    assert litter(tmp_path) == []


def test_new_names_where_there_are_no_hard_links(tmp_path, monkeypatch):
    def no_link(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_link)
    paths = [tmp_path / str(number) for number in range(2)]
    write(paths, overwrite=False)
    assert contents(paths) == NEW[:2]
    assert litter(tmp_path) == []


def test_a_staging_directory_that_others_remove_is_made_again(tmp_path, monkeypatch):
    original, made = calls.make_directory, []

    def make(name: str, dirfd: int) -> None:
        original(name, dirfd)
        made.append(name)
        if len(made) < 3:
            os.rmdir(name, dir_fd=dirfd)

    monkeypatch.setattr(calls, "make_directory", make)
    write([tmp_path / "0"])
    assert len(made) == 3
    assert os.listdir(tmp_path) == ["0"]


def test_a_name_that_another_command_has_is_left_to_it(tmp_path, monkeypatch):
    names = iter([b"\0\0\0\0", b"\0\0\0\0", b"\1\1\1\1"])
    monkeypatch.setattr(os, "urandom", lambda _n: next(names))
    with Together([str(tmp_path / "0")]) as first, Together([str(tmp_path / "1")]) as second:
        for outputs in first, second:
            for draft in outputs.drafts:
                with draft.created():
                    pass
            outputs.commit()
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]


def test_the_manifest_says_what_goes_where(committed, paths, tmp_path):
    """The form is written down: another version has to read it."""
    first, second = (json.loads((staging / "manifest").read_text()) for staging in committed)
    assert first["version"] == second["version"] == 1
    assert first["members"] == second["members"] == [str(staging) for staging in committed]
    assert [(number, name) for number, name, _ in first["files"]] == [("0", "0"), ("1", "1")]
    assert [(number, name) for number, name, _ in second["files"]] == [("2", "2"), ("3", "3")]
    status = paths[0].stat()
    assert first["files"][0][2] == [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]
    assert os.readlink(committed[1] / "home") == str(committed[0])


def _order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    steps: list[str] = []
    for name in ("fsync", "replace", "open", "unlink", "rmdir"):
        original = getattr(os, name)

        def recorded(first: object, *others: object, _name=name, _original=original, **settings: object) -> object:
            if _name == "fsync":
                steps.append("sync " + os.path.basename(os.readlink(f"/proc/self/fd/{first}"))[-8:])
            elif _name != "open" or os.path.basename(str(first)) == "commit":
                steps.append(_name)
            return _original(first, *others, **settings)

        monkeypatch.setattr(os, name, recorded)
    return steps


def test_order_of_the_steps(tmp_path, monkeypatch):
    """Whose it is, all content, what goes where, the names, the commit, the renames, their names; and then it goes."""
    (tmp_path / "folder").mkdir()
    paths = [tmp_path / "folder" / str(number) for number in range(2)]
    steps = _order(monkeypatch)
    write(paths)
    assert steps == [
        "sync together", "sync 0", "sync 1", "sync manifest", "sync together", "sync folder", "open", "sync together",
        "replace", "replace", "sync folder", "unlink", "unlink", "sync together", "unlink", "unlink", "rmdir",
    ]  # fmt: skip


def test_an_end_while_all_is_removed_brings_no_result_back(tmp_path, monkeypatch):
    """After the first thing is removed nothing of it is committed any more, whatever the user does with the results."""
    paths = [tmp_path / str(number) for number in range(4)]
    unlink, removed = calls.unlink, []

    def end_after_the_first(name: object, dirfd: int) -> None:
        if removed:
            os._exit(7)
        removed.append(name)
        unlink(name, dirfd)

    monkeypatch.setattr(calls, "unlink", end_after_the_first)
    assert in_child(lambda: write(paths, overwrite=False)) == 7
    monkeypatch.undo()
    assert contents(paths) == NEW
    for path in paths:
        path.unlink()
    recover(map(str, paths))
    assert os.listdir(tmp_path) == []
