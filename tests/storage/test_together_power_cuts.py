"""Many results are all old or all new whenever the power goes, in one folder and in two, and nothing is left behind."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from powertree import Step, TreeRecorder, TreeShelf, TreeState, tree_cuts
from values import folder_in_memory

from mpired.errors import MpiredError
from mpired.storage import calls, remains
from mpired.storage.together import Together

OLD, NEW = b"old of %d", b"what is new of %d"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Two folders, in memory because of the syncs."""
    with folder_in_memory() as outside:
        where = outside / "tree"
        for name in "ab":
            (where / name).mkdir(parents=True)
        yield where


def write(paths: list[Path], *, overwrite: bool, link: bool) -> None:
    """Write all results."""
    with Together([str(path) for path in paths], overwrite=overwrite) as outputs:
        first, *others = outputs.drafts
        for number, draft in enumerate([first] if link else outputs.drafts):
            with draft.created() as fd:
                calls.pwrite_all(fd, NEW % number, 0)
        for draft in others if link else []:
            draft.repeat(first, link=True)
        outputs.commit()


def contents(paths: list[Path]) -> list[bytes | None]:
    return [path.read_bytes() if path.exists() else None for path in paths]


def after(paths: list[Path], folder: Path) -> tuple[list[bytes | None], list[str]]:
    """Recover, and return what the files hold and what else is there."""
    try:
        remains.finish_staged([str(folder / "b" / "x"), str(folder / "a" / "x")])
    except MpiredError as error:  # nothing that a power cut leaves is a reason to refuse
        return [], [str(error)]
    litter = [str(path) for path in folder.rglob("*") if path not in paths and path.parent != folder]
    return contents(paths), litter


def record(work: Callable[[], object]) -> TreeRecorder:
    with TreeRecorder() as recorder:
        work()
    return recorder


class Scene(NamedTuple):
    """One command with many results, recorded."""

    folder: Path
    paths: list[Path]
    old: list[bytes | None]
    new: list[bytes]
    shelf: TreeShelf
    start: TreeState
    recorder: TreeRecorder

    def states(self, steps: list[Step]) -> Iterator[tuple[int, TreeState, bool]]:
        """Yield each state that a power cut may leave, and whether all is right after a recovery from it."""
        for number, state in tree_cuts(self.start, steps, self.recorder.kinds, random.Random(1)):
            self.shelf.put(state)
            found, litter = after(self.paths, self.folder)
            right = found == self.new or (found == self.old and number < len(steps))
            yield number, state, right and not litter


def scene(folder: Path, layout: str, *, overwrite: bool, link: bool) -> Scene:
    """Let a command write its results, in the place of old files or of none."""
    paths = [folder / letter / str(number) for number, letter in enumerate(layout)]
    for number, path in enumerate(paths if overwrite else []):
        path.write_bytes(OLD % number)
    old, new = contents(paths), [NEW % (0 if link else number) for number in range(len(paths))]
    shelf = TreeShelf(folder)
    start = shelf.state()
    return Scene(folder, paths, old, new, shelf, start, record(lambda: write(paths, overwrite=overwrite, link=link)))


CASES = [
    (layout, overwrite, link) for layout in ("aaa", "aab") for overwrite in (False, True) for link in (False, True)
]


@pytest.mark.parametrize(("layout", "overwrite", "link"), CASES)
def test_power_cuts(folder, layout, overwrite, link):
    of = scene(folder, layout, overwrite=overwrite, link=link)
    states = list(of.states(of.recorder.steps))
    assert [of.recorder.steps[number - 1] for number, _, right in states if not right] == []
    assert len(states) > 100


@pytest.mark.parametrize(("layout", "overwrite", "link"), CASES)
def test_power_cuts_while_it_is_finished(folder, layout, overwrite, link, long, record_property):
    """The first command is cut after its commit point, and then the one that finishes it, at each of its calls."""
    of, chance, cuts = scene(folder, layout, overwrite=overwrite, link=link), random.Random(2), 0
    for _, state, _ in of.states(of.recorder.steps):
        committed = any(name == "commit" for (_, name), _ in state.names)
        if not committed or not (long or chance.random() < 0.3):
            continue
        of.shelf.put(state)
        again = of.shelf.state()  # with other inodes
        second = record(lambda: after(of.paths, folder))
        for _, cut in tree_cuts(again, second.steps, second.kinds, random.Random(3)):
            of.shelf.put(cut)
            assert after(of.paths, folder) == (of.new, [])
            cuts += 1
    assert cuts > 20
    record_property("tried", cuts)


@pytest.mark.parametrize("overwrite", [False, True])
def test_without_any_of_the_syncs_something_is_lost_or_left(folder, overwrite):
    """The model has teeth: each sync of the protocol is missed when it is not made."""
    of = scene(folder, "ab", overwrite=overwrite, link=False)
    steps = of.recorder.steps
    syncs = [number for number, step in enumerate(steps) if step.kind == "sync"]
    assert len(syncs) == 15
    for number in syncs:
        assert not all(right for _, _, right in of.states(steps[:number] + steps[number + 1 :])), number
