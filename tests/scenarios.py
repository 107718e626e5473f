"""Commands that change files, for the tests of what becomes of them when they are cut, killed or fail."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from bad_files import npy_of

from mpired import interrupts
from mpired.context import NO_LIMITS
from mpired.errors import BufferFileError
from mpired.files import calls, keys
from mpired.files.places import Place
from mpired.files.recovery import recover_files
from mpired.files.transaction import Transaction
from mpired.options import ACCUMULATE, checked
from mpired.windows.call import plan_accumulate
from mpired.windows.transaction import transact

COUNT = 400  # elements, 3200 bytes and a header: seven sectors
OLD, NEW = np.ones(COUNT), np.full(COUNT, 3.0)


class Scenario(NamedTuple):
    """A command that changes files in the folders a and b."""

    old: tuple[str, ...]  # the files that are there before
    new: tuple[str, ...]  # those that are made
    run: Callable[[Path], None]
    together: bool = True  # whether all of them are old or all of them are new
    links: tuple[tuple[str, str], ...] = ()  # hard links: a name and another one
    syncs: int = 0  # how many times it waits for the disk
    keys: tuple[str, ...] = ()  # those that the target remembers then, the last one new


def written(*names: str, link: bool = False, patience: float = 1) -> Callable[[Path], None]:
    """Return a command that writes several results."""

    def run(tree: Path) -> None:
        paths = [str(tree / name) for name in names]
        context = NO_LIMITS._replace(lock_timeout=patience)
        with Transaction(paths, overwrite=True, context=context) as outputs:
            first = outputs.drafts[0]
            for draft in outputs.drafts:
                if link and draft is not first:
                    draft.copy_from(first, link=True)
                    continue
                with draft.created() as fd:
                    calls.pwrite_all(fd, NEW_FILE, 0)
            outputs.commit(interrupts.committed)

    return run


def updated(*names: str, **options: object) -> Callable[[Path], None]:
    """Return a command that adds two to targets."""

    def run(tree: Path) -> None:
        said = checked(ACCUMULATE, {"lock_timeout": 1, **options})
        targets = [str(tree / name) for name in names]
        transact(plan_accumulate(targets, [tree.parent / "two.npy"], "sum", said, NO_LIMITS))

    return run


OLD_FILE, NEW_FILE = npy_of(OLD), npy_of(NEW)
SCENARIOS = {
    "one new": Scenario((), ("a/x",), written("a/x"), syncs=2),
    "one replaced": Scenario(("a/x",), (), written("a/x"), syncs=2),
    "several new": Scenario((), ("a/x", "a/y", "b/z"), written("a/x", "a/y", "b/z"), together=False, syncs=5),
    "several names of one": Scenario((), ("a/x", "a/y"), written("a/x", "a/y", link=True), together=False, syncs=3),
    "several replaced": Scenario(("a/x", "a/y", "a/z"), (), written("a/x", "a/y", "a/z"), syncs=7),
    "replaced in two folders": Scenario(("a/x", "b/y"), (), written("a/x", "b/y"), syncs=10),
    "new and replaced": Scenario(("a/x", "b/y"), ("b/z",), written("a/x", "b/y", "b/z"), together=False, syncs=12),
    "rename": Scenario(("a/x",), (), updated("a/x", commit="rename"), syncs=2),
    "rename with keys": Scenario(("a/x",), (), updated("a/x", commit="rename", once_key="k"), syncs=4, keys=("k",)),
    "patch": Scenario(("a/x",), (), updated("a/x", commit="journal"), syncs=4),
    "patch with keys": Scenario(("a/x",), (), updated("a/x", commit="journal", once_key="k"), syncs=5, keys=("j", "k")),
    "patch of a hard link": Scenario(
        ("a/x",), (), updated("a/x", commit="journal"), links=(("a/x", "b/other"),), syncs=5
    ),
}


def make(tree: Path, scenario: Scenario) -> None:
    """Make the files that are there before."""
    for folder in "ab":
        (tree / folder).mkdir(parents=True, exist_ok=True)
    np.save(tree.parent / "two.npy", np.full(COUNT, 2.0))
    for name in scenario.old:
        (tree / name).write_bytes(OLD_FILE)
    for name, other in scenario.links:
        (tree / other).hardlink_to(tree / name)
    for key in scenario.keys[:-1]:
        with open(tree / "a/x", "rb+") as file:
            dirfd = calls.open_directory(str(tree / "a"))
            known = keys.Keys(Place("x", str(tree / "a/x"), dirfd), file.fileno())
            keys.set_attribute(file.fileno(), known.append([(key.encode() * keys.KEY_NBYTES, key)], durable=False))
            calls.close_quietly(dirfd)


def names(scenario: Scenario) -> list[str]:
    """Return the names of all its files."""
    return [*scenario.old, *scenario.new, *(other for _, other in scenario.links)]


def found(tree: Path, scenario: Scenario) -> dict[str, str]:
    """Return for each file "old", "new", "absent" or "torn"; its keys are those of its elements."""
    kinds = {(OLD_FILE, scenario.keys[:-1]): "old", (NEW_FILE, scenario.keys): "new"}
    return {
        name: kinds.get((path.read_bytes(), remembered(path)), "torn") if (path := tree / name).exists() else "absent"
        for name in names(scenario)
    }


def remembered(path: Path) -> tuple[str, ...]:
    """Return the texts of the keys of a file, the oldest first; "damaged" if they cannot be read."""
    with keys.of_file(str(path)) as known:
        try:
            return tuple(entry.text for entry in reversed(known.last(known.count)))
        except BufferFileError:
            return ("damaged",)


def before(scenario: Scenario) -> dict[str, str]:
    """Return what `found` gives of the files before the command."""
    return {name: "absent" if name in scenario.new else "old" for name in names(scenario)}


def is_kept(scenario: Scenario, now: dict[str, str]) -> bool:
    """Tell whether files are as promised after a crash: each whole, and those that belong together alike."""
    if scenario.together:
        return now in (before(scenario), dict.fromkeys(now, "new"))
    replaced = {now[name] for name in scenario.old} if scenario.new else set()
    return len(replaced) <= 1 and all(each in {before(scenario)[name], "new"} for name, each in now.items())


def leftovers(tree: Path, ending: str = "mpired*") -> list[str]:
    """Return the names of ours that are there and end so."""
    return sorted(path.name for path in tree.rglob(f".*.{ending}"))


def cleaned(tree: Path, scenario: Scenario) -> list[str]:
    """Remove what is left with `mpired recover`, and return what stays."""
    options = {"only_list": False, "discard": False, "force": False, "adopt": False}
    there = [str(tree / name) for name in names(scenario) if (tree / name).exists()]
    recover_files(there, options, NO_LIMITS, lambda _each: None)
    missing = {f".{Path(name).name}.mpired-new" for name in names(scenario) if not (tree / name).exists()}
    return sorted(set(leftovers(tree)) - missing)
