"""Many results are all old or all new whenever the power goes, in one folder and in two, and nothing is left behind."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from powertree import Step, TreeRecorder, TreeShelf, tree_cuts
from values import folder_in_memory

from mpired.errors import MpiredError
from mpired.storage import calls, staging
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


def places(folder: Path, layout: str) -> list[Path]:
    """Return the files of a layout, which says for each in which folder it is."""
    return [folder / letter / str(number) for number, letter in enumerate(layout)]


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
        staging.settle([str(folder / "b" / "x"), str(folder / "a" / "x")])
    except MpiredError as error:  # nothing that a power cut leaves is a reason to refuse
        return [], [str(error)]
    litter = [str(path) for path in folder.rglob("*") if path not in paths and path.parent != folder]
    return contents(paths), litter


def record(work: Callable[[], None]) -> TreeRecorder:
    with TreeRecorder() as recorder:
        work()
    return recorder


def expected(paths: list[Path], *, overwrite: bool, link: bool) -> tuple[list[bytes | None], list[bytes]]:
    numbers = range(len(paths))
    return [OLD % i if overwrite else None for i in numbers], [NEW % (0 if link else i) for i in numbers]


CASES = [
    (layout, overwrite, link) for layout in ("aaa", "aab") for overwrite in (False, True) for link in (False, True)
]


@pytest.mark.parametrize(("layout", "overwrite", "link"), CASES)
def test_power_cuts(folder, layout, overwrite, link):
    paths = places(folder, layout)
    for number, path in enumerate(paths if overwrite else []):
        path.write_bytes(OLD % number)
    old, new = expected(paths, overwrite=overwrite, link=link)
    shelf = TreeShelf(folder)
    start = shelf.state()
    recorder = record(lambda: write(paths, overwrite=overwrite, link=link))
    states = 0
    for number, state in tree_cuts(start, recorder.steps, recorder.kinds, random.Random(1)):
        shelf.put(state)
        found, litter = after(paths, folder)
        assert found == new or (found == old and number < len(recorder.steps)), (number, recorder.steps[number - 1])
        assert litter == []
        states += 1
    assert states > 100


@pytest.mark.parametrize(("layout", "overwrite", "link"), CASES)
def test_power_cuts_while_it_is_finished(folder, layout, overwrite, link, long):
    """The first command is cut right after its commit point, and then the one that finishes it, at each of its calls."""
    paths = places(folder, layout)
    for number, path in enumerate(paths if overwrite else []):
        path.write_bytes(OLD % number)
    old, new = expected(paths, overwrite=overwrite, link=link)
    shelf = TreeShelf(folder)
    start = shelf.state()
    first = record(lambda: write(paths, overwrite=overwrite, link=link))
    states = 0
    for number, state in tree_cuts(start, first.steps, first.kinds, random.Random(1)):
        if not _is_told(state, first, number, random.Random(number), every=long):
            continue
        shelf.put(state)
        again = shelf.state()  # with other inodes
        second = record(lambda: after(paths, folder))
        for _, cut in tree_cuts(again, second.steps, second.kinds, random.Random(2)):
            shelf.put(cut)
            assert after(paths, folder) == (new, [])
            states += 1
    assert states > 20


def _is_told(state, first: TreeRecorder, number: int, chance: random.Random, *, every: bool) -> bool:
    """Tell whether a state is committed; of these some are taken, or every one."""
    committed = any(name == "commit" for (_, name), _ in state.names)
    return committed and (every or chance.random() < 0.3)


def violations(folder: Path, steps: list[Step], kinds: dict[int, str], shelf: TreeShelf, start, paths, ends) -> int:
    old, new = ends
    wrong = 0
    for number, state in tree_cuts(start, steps, kinds, random.Random(1)):
        shelf.put(state)
        found, litter = after(paths, folder)
        wrong += not (found == new or (found == old and number < len(steps))) or bool(litter)
    return wrong


@pytest.mark.parametrize("overwrite", [False, True])
def test_without_any_of_the_syncs_something_is_lost_or_left(folder, overwrite):
    """The model has teeth. A sync is not noticed only where a later one brings the same to the disk in time."""
    paths = places(folder, "ab")
    for number, path in enumerate(paths if overwrite else []):
        path.write_bytes(OLD % number)
    ends = expected(paths, overwrite=overwrite, link=False)
    shelf = TreeShelf(folder)
    start = shelf.state()
    recorder = record(lambda: write(paths, overwrite=overwrite, link=False))
    syncs = [i for i, step in enumerate(recorder.steps) if step.kind == "sync"]
    unnoticed = []
    for i in syncs:
        steps = recorder.steps[:i] + recorder.steps[i + 1 :]
        if not violations(folder, steps, recorder.kinds, shelf, start, paths, ends):
            unnoticed.append(syncs.index(i))
    assert unnoticed == []
