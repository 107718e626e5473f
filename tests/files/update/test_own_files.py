"""Files of mpired beside a target: whoever has their names, and what is left of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from command import NOBODY, refused, run
from protocols import LOG
from rows import check_refusals
from updates import WORDS, hold, value

from mpired.files import calls


def _intrude(monkeypatch, folder: Path, make: Callable[[Path], None]) -> None:
    """Let somebody take the name of a new file just before it is opened; drafts and logs have names from the start."""
    original = calls.open_new

    def open_new(name, dirfd=None):
        if not (path := folder / "here" / os.fsdecode(name)).exists():
            make(path)
        return original(name, dirfd)

    monkeypatch.setattr(calls, "open_new", open_new)
    monkeypatch.setattr(calls, "open_unnamed", lambda _dirfd: None)


def _file(path: Path) -> None:
    path.write_bytes(b"another's")
    os.chown(path, NOBODY, NOBODY)


def _link(path: Path) -> None:
    (path.parent.parent / "elsewhere").write_bytes(b"another's")
    path.symlink_to("../elsewhere")


@pytest.mark.parametrize(
    ("commit", "make", "status"),
    [("rename", _file, 5), ("rename", _link, 4), ("journal", _file, 5), ("journal", _link, 3)],
)
def test_a_name_that_somebody_takes_is_left_to_him(as_root, commit, make, status, folder, monkeypatch):
    _intrude(monkeypatch, folder, make)
    refused(run(*WORDS, "--commit", commit, "--lock-timeout", "0.2", cwd=folder), status, "here/")
    assert value(folder) == 0
    (intruder,) = (path for path in (folder / "here").iterdir() if path.name != "t.npy")
    assert intruder.read_bytes() == b"another's"


OWN = {
    LOG: "belongs to an unfinished change of t.npy, and is not data",
    ".t.npy.mpired-new": "is a draft of a command that writes t.npy, not data",
    "t.npy.mpired-keys": "has the keys of updates of t.npy, and is not data",
    ".t.npy.mpired-journal": "is the journal of an unfinished update of t.npy by mpired 0.1",
    ".0123abcd.mpired-together": "has results that mpired 0.1 has not put in place yet",
}
# Each names such a file, J or LINK, which leads to it; T is the target.
COMMANDS = [
    "info T J",
    "reduce --op sum T J -o x.npy",
    "reduce --op sum T -f -o J",
    "reduce --op sum T --group-b J -o x.npy",
    "allreduce --op sum T J -o x{rank}.npy",
    "scan --op sum T T --in-place J",
    "reduce-local --op sum T J",
    "reduce-local --op sum J T",
    "pack --type double J -o T -f",
    "pack --type double T -o J",
    "unpack --type double T -o J",
    "unpack --type double T --into J",
    "unpack --type double J --into T",
    "accumulate --op sum J T",
    "accumulate --op sum T J",
    "accumulate --op sum T ones.npy --map J",
    "accumulate --op sum --window T --window J ones.npy",
    "get-accumulate --op sum J T",
    "get-accumulate --op sum T ones.npy -f --fetch J",
    "get-accumulate --op sum T ones.npy --map J",
    "fetch-and-op --op sum T J",
    "fetch-and-op --op sum J T",
    "compare-and-swap J 0 T",
    "compare-and-swap T J 1",
    "recover J",
    "recover --list J",
    "recover --discard --force J",
    "info T LINK",
    "accumulate --op sum LINK T",
]


def test_files_of_mpired_itself_are_no_data(folder):
    """One with the name of a log would be removed by the recovery of the file beside it; that is not begun."""
    for name, reason in OWN.items():
        (folder / "here" / name).write_bytes(b"my own notes" * 1000)
        os.symlink(f"here/{name}", folder / "link")
        names = {"T": "here/t.npy", "J": f"here/{name}", "LINK": "link"}
        cases = [
            (
                tuple(names.get(word, word) for word in words.split()),
                3,
                f"mpired: {'link' if 'LINK' in words else f'here/{name}'}: {reason}",
            )
            for words in (COMMANDS if name == LOG else COMMANDS[:: len(COMMANDS) // 9])
        ]
        check_refusals(folder, cases)
        (folder / "here" / name).unlink()
        (folder / "link").unlink()


@pytest.mark.parametrize(
    "words",
    [
        WORDS,
        (*WORDS, "--commit", "journal"),
        ("reduce", "-q", "--op", "sum", "ones.npy", "-f", "-o", "here/t.npy"),
        ("reduce", "-q", "--op", "sum", "here/t.npy", "ones.npy", "--in-place"),
    ],
)
def test_the_next_command_removes_what_a_kill_has_left(words, folder):
    """Between the name of a new file and the rename, on any file system."""

    def kill(*_arguments: object, **_settings: object) -> None:
        os.kill(os.getpid(), 9)

    killed = run(*WORDS, "--commit", "rename", cwd=folder, setup=lambda: setattr(os, "replace", kill))
    assert killed.status == -9
    assert len(os.listdir(folder / "here")) == 2
    assert run(*words, cwd=folder).status == 0
    assert os.listdir(folder / "here") == ["t.npy"]


def test_dead_drafts_are_removed_and_living_ones_stay(folder):
    draft, foreign = (folder / "here" / name for name in (".t.npy.mpired-new", ".u.npy.mpired-new"))
    for path in (draft, foreign):
        path.write_bytes(b"x")
    fd = hold(draft)
    assert run("recover", "here/t.npy", cwd=folder).out == b"here/t.npy: nothing to do\n"
    os.close(fd)
    assert run("recover", "here/t.npy", cwd=folder).out == f"here/t.npy: removed {draft.name}\n".encode()
    assert sorted(os.listdir(folder / "here")) == [foreign.name, "t.npy"]
