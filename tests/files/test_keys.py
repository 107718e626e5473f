"""The keys of `--once`: none is forgotten, and none counts for another file."""

import os
import shutil
import stat
import subprocess

import numpy as np
import pytest
from command import NOBODY, refused, run, unchanged
from protocols import COMMITS
from rows import check_refusals

import mpired
from mpired.files import keys

MISSING = "t.npy.mpired-keys is missing or belongs to another file"


@pytest.fixture
def folder(tmp_path):
    """A folder with a target of zeros, and an origin of ones."""
    np.save(tmp_path / "t.npy", np.zeros(1))
    np.save(tmp_path / "o.npy", np.ones(1))
    return tmp_path


def with_key(key, target="t.npy", *words):
    """Return a command that adds the origin to a target with a key."""
    return ("accumulate", "-q", "--op", "sum", target, "o.npy", "--once-key", key, *words)


def added(folder, key, target="t.npy", *words):
    """Add the origin to a target with a key; return whether the key was new."""
    outcome = run(*with_key(key, target, *words), cwd=folder)
    assert outcome.status == 0, outcome.err
    return "already applied" not in outcome.err


def counted(folder, *targets):
    """Return how many keys each target has."""
    counts = []
    for target in targets or ("t.npy",):
        with keys.of_file(folder / target) as found:
            counts.append(found.count)
    return counts


def test_thousands_of_keys_are_remembered(folder):
    window = mpired.Window(folder / "t.npy", durability="process")
    origins = [np.full(1, float(number)) for number in range(2500)]  # more than two pages
    assert window.accumulate(origins[:1000], "sum", once=True) == 1000
    assert window.accumulate(origins, "sum", once=True) == 1500
    with unchanged(folder):
        assert window.accumulate(origins, "sum", once=True) == 0
    assert np.load(folder / "t.npy").tolist() == [sum(range(2500))]
    assert added(folder, "one more")
    assert (counted(folder), added(folder, "one more")) == ([2501], False)


@pytest.mark.parametrize("commit", COMMITS)
def test_the_keys_of_version_0_1_are_taken_over(commit, folder):
    old = b"".join([key_of_0_1("old 0"), os.urandom(10 * 382), key_of_0_1("old 383")])
    os.setxattr(folder / "t.npy", keys.ATTRIBUTE, old + bytes(10))  # zeros are no key
    with unchanged(folder):
        assert not added(folder, "old 0", "t.npy", "--commit", commit)
    assert added(folder, "new", "t.npy", "--commit", commit)
    assert counted(folder) == [385]
    with unchanged(folder):
        assert not any(added(folder, key) for key in ("old 0", "old 383", "new"))


def key_of_0_1(text):
    """As `b2sum -l 80` prints it."""
    printed = subprocess.run(["b2sum", "-l", "80"], input=text.encode(), capture_output=True, check=True).stdout
    return bytes.fromhex(printed.split()[0].decode())


def test_copies_and_new_files(folder):
    """A copy has the keys if their file is copied, too; a file that takes the place of the target has none."""
    assert added(folder, "a")
    for name in ("t.npy", "t.npy.mpired-keys"):
        subprocess.run(["cp", "-a", name, name.replace("t.npy", "both.npy")], cwd=folder, check=True)
    subprocess.run(["cp", "t.npy", "plain.npy"], cwd=folder, check=True)
    shutil.copy(folder / "o.npy", folder / "new.npy")
    names = ("t.npy", "both.npy", "plain.npy")
    assert [added(folder, "a", name) for name in names] == [False, False, True]
    assert [added(folder, "b", name) for name in names] == [True] * 3  # each has its own
    assert counted(folder, *names) == [2] * 3
    os.replace(folder / "new.npy", folder / "t.npy")
    assert counted(folder) == [0]
    assert [added(folder, "a"), added(folder, "a")] == [True, False]


def test_a_target_that_has_moved_takes_its_keys_along(folder):
    assert all(added(folder, key) for key in "ab")
    (folder / "t.npy").rename(folder / "u.npy")
    with unchanged(folder):
        assert not added(folder, "a", "u.npy")
    assert added(folder, "c", "u.npy")
    (folder / "t.npy.mpired-keys").unlink()
    assert not any(added(folder, key, "u.npy") for key in "abc")


def moved(folder):
    (folder / "elsewhere").mkdir()
    (folder / "t.npy").rename(folder / "elsewhere" / "t.npy")


def of_another(folder):
    assert added(folder, "a", "other.npy")
    (folder / "other.npy.mpired-keys").replace(folder / "t.npy.mpired-keys")


def damaged(folder):
    with open(folder / "t.npy.mpired-keys", "r+b") as file:
        file.seek(4096 + 16 * 1024 + 112)  # the digest of the second key
        file.write(b"\1")


UNFIT = {
    "missing": lambda folder: (folder / "t.npy.mpired-keys").unlink(),
    "moved": moved,
    "another": of_another,
    "older": lambda folder: (folder / "kept").replace(folder / "t.npy.mpired-keys"),
    "damaged": damaged,
    "emptied": lambda folder: (folder / "t.npy.mpired-keys").write_bytes(b""),
}


@pytest.mark.parametrize("how", UNFIT)
def test_a_file_of_keys_that_does_not_fit_is_refused(how, folder):
    np.save(folder / "other.npy", np.zeros(1))
    assert added(folder, "a")
    shutil.copy(folder / "t.npy.mpired-keys", folder / "kept")
    assert added(folder, "b")
    UNFIT[how](folder)
    target = "elsewhere/t.npy" if how == "moved" else "t.npy"
    cases = [with_key("b", target), with_key("b", target, "--dry-run")]
    check_refusals(folder, [(words, 3, MISSING, "put that back", "a copy of the target") for words in cases])
    with unchanged(folder):
        assert run("accumulate", "--op", "sum", "--dry-run", target, "o.npy", cwd=folder).status == 0
    subprocess.run(["cp", target, "copy.npy"], cwd=folder, check=True)
    assert added(folder, "b", "copy.npy")


def test_a_damaged_key_is_noticed_when_the_keys_are_taken_over(folder):
    assert all(added(folder, key) for key in "ab")
    (folder / "t.npy").rename(folder / "u.npy")
    with open(folder / "t.npy.mpired-keys", "r+b") as file:
        file.seek(4096)
        file.write(b"\1")
    before = (folder / "u.npy").read_bytes()
    reason = "u.npy: has a damaged file of keys (t.npy.mpired-keys); restore it"
    refused(run(*with_key("c", "u.npy"), cwd=folder), 3, reason)
    assert (folder / "u.npy").read_bytes() == before


def test_what_else_has_the_name_stays(folder):
    name = folder / "t.npy.mpired-keys"
    makers = [
        (lambda: shutil.copy(folder / "o.npy", name), name.unlink, 3),
        (lambda: name.symlink_to("o.npy"), name.unlink, 4),
        (lambda: os.mkfifo(name), name.unlink, 4),
        (name.mkdir, name.rmdir, 4),
    ]
    for make, remove, status in makers:
        make()
        check_refusals(folder, [(with_key("a"), status, "t.npy.mpired-keys")])
        remove()


def test_the_keys_of_a_file_with_two_names_are_one_file(folder):
    os.link(folder / "t.npy", folder / "u.npy")
    assert added(folder, "a")
    assert added(folder, "b", "u.npy")
    again = [added(folder, key, f"{name}.npy") for key, name in ("au", "bt", "ct", "cu")]
    assert again == [False, False, True, False]
    assert not (folder / "u.npy.mpired-keys").exists()


def test_the_keys_are_as_open_to_others_as_the_target(folder):
    for mode in (0o600, 0o640, 0o666):
        (folder / "t.npy").chmod(mode)
        os.chown(folder / "t.npy", -1, NOBODY)
        assert added(folder, f"{mode}")
        status = (folder / "t.npy.mpired-keys").stat()
        assert (stat.S_IMODE(status.st_mode), status.st_gid) == (mode, NOBODY)
        (folder / "t.npy.mpired-keys").unlink()
        os.removexattr(folder / "t.npy", keys.ATTRIBUTE)
