"""Many files that appear together: whatever happens, all of them are old or, after the next command, all new."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from command import COMMAND, NOBODY, become_nobody, refused, run, snapshot, succeeded, unchanged

from mpired.api.windows import Window
from mpired.errors import BufferFileError, OutputExistsError, RanksError, UnconfirmedError, UsageError
from mpired.storage import calls, lock, staging
from mpired.storage.staging import pending, recover
from mpired.storage.together import Together, check_outputs

# Every call of the operating system by which a file system is changed.
CHANGING = (
    "chmod", "fchmod", "fsync", "ftruncate", "link", "mkdir", "open", "posix_fallocate", "pwrite", "replace", "rmdir",
    "symlink", "unlink",
)  # fmt: skip
COMMITTING = {"commit", "manifest"}
FINISHED = "finished what an interrupted command had committed"


def old(number: int) -> bytes:
    return b"old %d" % number


def new(number: int) -> bytes:
    return b"new content of %d" % number


def write(paths: list[Path], *, overwrite: bool = True) -> None:
    """Write the new files together."""
    with Together([str(path) for path in paths], overwrite=overwrite) as outputs:
        for number, draft in enumerate(outputs.drafts):
            with draft.created(len(new(number))) as fd:
                calls.pwrite_all(fd, new(number), 0)
        outputs.commit()


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Four old files in two folders; the third is reached by a link."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    found = [tmp_path / "a" / "0", tmp_path / "a" / "1", tmp_path / "b" / "link", tmp_path / "b" / "3"]
    (tmp_path / "b" / "link").symlink_to("2")
    for number, path in enumerate(found):
        path.write_bytes(old(number))
    return found


def contents(paths: list[Path]) -> list[bytes | None]:
    return [path.read_bytes() if path.exists() else None for path in paths]


def litter(folder: Path) -> list[str]:
    return [name for _, folders, files in os.walk(folder) for name in [*folders, *files] if "mpired" in name]


OLD, NEW = [old(number) for number in range(4)], [new(number) for number in range(4)]


# All is well


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
    assert len(caught.value.errors) == 4
    assert caught.value.exit_status == 2
    assert all(str(path) in str(caught.value) for path in paths)


def test_directories_streams_and_files_in_the_way_are_one_error(paths, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    names = [str(tmp_path / "a"), str(tmp_path / "fifo"), str(paths[0]), str(tmp_path / "free")]
    with unchanged(tmp_path), pytest.raises(RanksError) as caught:
        check_outputs(names, overwrite=False)
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
        with pytest.raises(OutputExistsError, match="in the meantime"):
            outputs.commit()
    assert os.listdir(tmp_path) == ["1"]
    assert (tmp_path / "1").read_bytes() == b"other"


# Errors


def failing(name: str, number: int, fails: Callable[[int], bool]) -> Callable[[pytest.MonkeyPatch], None]:
    """Return what lets the calls of a function fail for which `fails` holds, counted from 0."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        original, count = getattr(os, name), iter(range(10**6))

        def patched(*arguments: object, **settings: object) -> object:
            if fails(next(count)):
                raise OSError(number, os.strerror(number))
            return original(*arguments, **settings)

        monkeypatch.setattr(os, name, patched)

    return patch


def calls_of_a_commit(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return how often each changing call is made, and at which of the fsyncs and opens the commit point is."""
    counts = dict.fromkeys(CHANGING, 0)
    with monkeypatch.context() as patch:
        for name in CHANGING:
            original = getattr(os, name)

            def counted(*arguments: object, _name=name, _original=original, **settings: object) -> object:
                counts[_name] += 1
                return _original(*arguments, **settings)

            patch.setattr(os, name, counted)
        write(paths)
    for number, path in enumerate(paths):
        path.write_bytes(old(number))
    return counts


def end_of_writing(paths: list[Path]) -> str:
    """Tell how writing ended: before the commit, with a file's name in the error, or after it."""
    try:
        write(paths)
    except UnconfirmedError:
        return "committed"
    except OSError as error:
        return "before" if error.filename else f"nameless: {error}"
    return "no error"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize(
    "name", ["fchmod", "fsync", "mkdir", "open", "posix_fallocate", "pwrite", "replace", "symlink"]
)
def test_error_of_every_call_leaves_all_old_or_all_new(name, number, paths, tmp_path, monkeypatch):
    total = calls_of_a_commit(paths, monkeypatch)[name]
    assert total > 0
    ends = set()
    for which in range(total):
        with monkeypatch.context() as patch:
            failing(name, number, lambda count, which=which: count == which)(patch)
            ends.add(ending := end_of_writing(paths))
            if ending == "before":
                assert contents(paths) == OLD
                assert litter(tmp_path) == []
        committed = contents(paths) != OLD or any(pending(str(path.parent)) for path in paths)
        recover(map(str, paths))
        assert contents(paths) == (NEW if committed else OLD), (which, ends)
        assert litter(tmp_path) == []
        for i, path in enumerate(paths):
            path.write_bytes(old(i))
    assert ends <= {"before", "committed", "no error"}
    assert ("committed" if name == "replace" else "before") in ends


def test_error_of_a_rename_is_said_and_the_next_command_finishes(tmp_path):
    for rank in range(3):
        np.save(tmp_path / f"r{rank}.npy", np.full(3, rank + 1))

    def setup() -> None:
        original, count = os.replace, iter(range(100))

        def replace(*arguments: object, **settings: object) -> None:
            if next(count) == 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            original(*arguments, **settings)

        os.replace = replace

    outcome = run("scan", "-q", "--op", "sum", "r0.npy", "r1.npy", "r2.npy", "--in-place", cwd=tmp_path, setup=setup)
    refused(outcome, 6, "committed", "next mpired command")
    assert [np.load(tmp_path / f"r{rank}.npy")[0] for rank in range(3)] == [1, 2, 3]
    outcome = run("reduce", "-q", "--op", "max", "r2.npy", "--to", "raw", cwd=tmp_path)
    assert outcome == (0, np.full(3, 6).tobytes(), f"mpired: {tmp_path}/r0.npy: {FINISHED} (3 files)\n")
    assert [np.load(tmp_path / f"r{rank}.npy")[0] for rank in range(3)] == [1, 3, 6]
    assert litter(tmp_path) == []


# Deaths: at every call that changes something, before it and after it


def die_at(which: int, *, after: bool) -> Callable[[], None]:
    """Return what kills this process at a changing call, counted over all of them."""

    def patch() -> None:
        count = iter(range(10**6))

        def dying(original: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object, **settings: object) -> object:
                mine = next(count) == which
                if mine and not after:
                    os.kill(os.getpid(), signal.SIGKILL)
                result = original(*arguments, **settings)
                if mine:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            return call

        for name in CHANGING:
            setattr(os, name, dying(getattr(os, name)))

    return patch


def in_child(function: Callable[[], object]) -> int:
    """Run a function in a child, and return how that ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            function()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def deaths(function: Callable[[], object], *, after: bool) -> Iterator[int]:
    """Run a function again and again, each time killed one call later, until it comes to its end."""
    for which in range(1000):

        def child(which: int = which) -> None:
            die_at(which, after=after)()
            function()

        status = in_child(child)
        assert status in {0, -signal.SIGKILL}
        if status == 0:
            return
        yield which
    pytest.fail("it has no end")


@pytest.mark.parametrize("after", [False, True])
def test_death_at_every_call(after, paths, tmp_path):
    states = []
    for _ in deaths(lambda: write(paths), after=after):
        found = contents(paths)
        states.append(sum(content in NEW for content in found))
        assert all(content in {old(i), new(i)} for i, content in enumerate(found))
        committed = any(
            {*os.listdir(tmp_path / name / staging)} >= COMMITTING
            for name in "ab"
            for staging in os.listdir(tmp_path / name)
            if "mpired" in staging
        )
        recover([str(paths[0]), str(paths[3])])
        recovered = contents(paths)
        assert recovered in (OLD, NEW)
        assert recovered == NEW or not (committed or NEW[0] in found)
        assert litter(tmp_path) == []
        for i, path in enumerate(paths):
            path.write_bytes(old(i))
    assert {0, 1, 2, 3, 4} <= set(states)  # each of the renames was reached
    assert states == sorted(states)


@pytest.mark.parametrize("after", [False, True])
def test_death_at_every_call_while_new_names_are_taken(after, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    paths = [tmp_path / "ab"[number % 2] / str(number) for number in range(4)]
    states = []
    for _ in deaths(lambda: write(paths, overwrite=False), after=after):
        found = contents(paths)
        states.append(4 - found.count(None))
        recover(map(str, paths))
        assert contents(paths) in ([None] * 4, NEW)
        assert contents(paths) == NEW or found == [None] * 4
        assert litter(tmp_path) == []
        for path in paths:
            path.unlink(missing_ok=True)
    assert {0, 1, 2, 3, 4} <= set(states)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("folder", ["a", "b"])
def test_death_while_it_is_finished(after, folder, paths, tmp_path):
    """The next command dies too, at each of its calls; the one after that finishes, from whichever folder."""

    def dies_between_the_renames() -> None:
        original, count = os.replace, iter(range(100))

        def replace(*arguments: object, **settings: object) -> None:
            original(*arguments, **settings)
            if next(count) == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        os.replace = replace
        write(paths)

    reached = 0
    for which in range(1000):
        assert in_child(dies_between_the_renames) == -signal.SIGKILL
        assert contents(paths) == [*NEW[:2], *OLD[2:]]

        def recovers(which: int = which) -> None:
            die_at(which, after=after)()
            recover([str(tmp_path / folder / "x")])

        status = in_child(recovers)
        recover([str(paths[0]), str(paths[3])])
        assert contents(paths) == NEW
        assert litter(tmp_path) == []
        for i, path in enumerate(paths):
            path.write_bytes(old(i))
        if status == 0:
            break
        reached += 1
    assert reached > 10


def test_one_folder_is_enough_to_finish_all(paths, tmp_path):
    def dies() -> None:
        os.replace = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        write(paths)

    for folder in "ab":
        assert in_child(dies) == -signal.SIGKILL
        assert contents(paths) == OLD
        recover([str(tmp_path / folder / "anything")])
        assert contents(paths) == NEW
        assert litter(tmp_path) == []
        for number, path in enumerate(paths):
            path.write_bytes(old(number))


@pytest.fixture
def committed(paths: list[Path], tmp_path: Path) -> list[Path]:
    """A commit of which nothing is in place; return the staging directories."""

    def dies() -> None:
        os.replace = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        write(paths)

    assert in_child(dies) == -signal.SIGKILL
    return [next((tmp_path / folder).glob(".*.mpired-together")) for folder in "ab"]


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


def test_links_lead_to_the_folder_that_matters(committed, paths, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "alias").symlink_to(paths[0])
    recover([str(tmp_path / "elsewhere" / "alias")])
    assert contents(paths) == NEW


@pytest.mark.parametrize(
    "words",
    [
        ("info", "a/0"),
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
    raw = words[0] in {"info", "reduce"} and "a/0" in words
    run(*words, *(("--from", "raw", "--type", "byte") if raw else ()), cwd=tmp_path)
    assert contents(paths)[:3] == NEW[:3]
    assert litter(tmp_path) == []


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
def test_a_rerun_after_a_kill_says_that_it_is_one(tmp_path):
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


# Directories that were moved or copied since


@pytest.fixture
def half_done(tmp_path: Path) -> Path:
    """A folder with four files, of which two are in place."""
    folder = tmp_path / "A"
    folder.mkdir()
    for number in range(4):
        (folder / str(number)).write_bytes(old(number))

    def dies() -> None:
        original, count = os.replace, iter(range(100))

        def replace(*arguments: object, **settings: object) -> None:
            if next(count) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            original(*arguments, **settings)

        os.replace = replace
        write([folder / str(number) for number in range(4)])

    assert in_child(dies) == -signal.SIGKILL
    assert contents_of(folder) == [*NEW[:2], *OLD[2:]]
    return folder


def contents_of(folder: Path) -> list[bytes | None]:
    return contents([folder / str(number) for number in range(4)])


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


def test_drafts_of_the_living_are_left_alone(paths, tmp_path):
    with Together(list(map(str, paths)), overwrite=True) as outputs:
        for draft in outputs.drafts:
            with draft.created() as fd:
                calls.pwrite_all(fd, b"draft", 0)
        before = snapshot(tmp_path)
        assert in_child(lambda: recover(map(str, paths))) == 0
        assert snapshot(tmp_path) == before
        outputs.commit()
    assert contents(paths) == [b"draft"] * 4


def test_two_at_the_same_time(tmp_path):
    """Each is whole; which one was last is nobody's business."""
    paths = [tmp_path / str(number) for number in range(4)]
    with Together(list(map(str, paths)), overwrite=True) as outputs:
        write(paths)
        for draft in outputs.drafts:
            with draft.created() as fd:
                calls.pwrite_all(fd, b"second", 0)
        outputs.commit()
    assert contents(paths) == [b"second"] * 4
    assert litter(tmp_path) == []


def test_a_living_command_that_renames_is_waited_for(committed, paths, tmp_path, monkeypatch):
    """Its lock is held by another process, which is told to go on when somebody waits."""
    read, write_end = os.pipe()
    ready, ready_end = os.pipe()

    def holds() -> None:
        fd = os.open(committed[0] / "lock", os.O_RDWR)
        assert calls.lock(fd)
        os.write(ready_end, b"x")
        os.read(read, 1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            holds()
        finally:
            os._exit(0)
    os.read(ready, 1)
    waited = []

    def sleep(_seconds: float) -> None:
        if not waited:
            os.write(write_end, b"x")
            os.waitpid(pid, 0)
        waited.append(1)

    monkeypatch.setattr(staging.time, "sleep", sleep)
    recover(map(str, paths))
    assert waited == [1]
    assert contents(paths) == NEW
    for fd in (read, write_end, ready, ready_end):
        os.close(fd)


def test_a_living_command_that_does_not_end(committed, paths, tmp_path, monkeypatch):
    fd = os.open(committed[0] / "lock", os.O_RDWR)
    assert calls.lock(fd)
    monkeypatch.setattr(staging, "_PATIENCE", 0.01)
    with unchanged(tmp_path), pytest.raises(OSError, match="does not come to an end") as caught:
        recover(map(str, paths))
    assert caught.value.errno == errno.EBUSY
    os.close(fd)


def test_what_comes_between_manifest_and_rename_is_replaced_by_the_living(tmp_path, monkeypatch):
    """Of two commands with --force on the same files the last one wins, as for a single file."""
    paths = [tmp_path / str(number) for number in range(2)]
    original = staging.commit

    def commit(home: str) -> None:
        original(home)
        paths[1].write_bytes(b"another command's")

    monkeypatch.setattr(staging, "commit", commit)
    write(paths)
    assert contents(paths) == NEW[:2]
    for path in paths:
        path.unlink()
    with pytest.raises(UnconfirmedError, match="appeared"):
        write(paths, overwrite=False)
    assert contents(paths) == [NEW[0], b"another command's"]


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
