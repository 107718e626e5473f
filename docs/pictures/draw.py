"""Draws the pictures of the documents: `make docs` runs it; a test compares its files with those that are there.

python docs/pictures/draw.py DIRECTORY
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from svg import Picture

import mpired

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "plots"))

from pairs import beside_others

ROOT = Path(__file__).resolve().parent.parent.parent
_COUNTS = ((2, 6, 1, 5), (3, 7, 2, 6), (4, 8, 3, 7), (5, 0, 4, 8))  # the start of sample_data/counts_?.npy


def fold() -> Picture:
    """Draw four files that become one."""
    picture = Picture(520, 318, "Four files, counts_0.npy to counts_3.npy, are added element by element into total.npy")
    left, cell, row = 164, 60, 34
    picture.words(left, 28, "element", "soft")
    for element in range(4):
        picture.words(left + (element + 0.5) * cell, 48, str(element), "soft", "middle")
    for rank, values in enumerate(_COUNTS):
        top = 58 + rank * (row + 6)
        picture.words(16, top + 22, f"counts_{rank}.npy", "mono")
        for element, value in enumerate(values):
            picture.cell(left + element * cell, top, cell - 4, row, str(value), f"c{rank}")
        picture.words(left + 4 * cell + 4, top + 20, "…", "soft")
    picture.arrow((464, 62), (464, 210))
    for number, word in enumerate(("in", "this", "order")):
        picture.words(472, 120 + 20 * number, word, "soft")
    picture.words(16, 240, "--op sum", "mono strong")
    for element in range(4):
        picture.arrow((left + (element + 0.5) * cell - 2, 218), (left + (element + 0.5) * cell - 2, 252))
    picture.words(16, 280, "total.npy", "mono")
    for element, column in enumerate(zip(*_COUNTS, strict=True)):
        picture.cell(left + element * cell, 258, cell - 4, row, str(sum(column)), "quiet")
    picture.words(left + 4 * cell + 4, 278, "…", "soft")
    return picture


def logo() -> Picture:
    """Draw four files above one, without words: for a tab of a browser and the corner of a page."""
    picture = Picture(32, 32, "mpired", has_ground=False)
    for rank in range(4):
        picture.box(2, 1 + 5 * rank, 28, 4, f"c{rank} full")
    picture.line((2, 22.5), (30, 22.5))
    for rank in range(4):
        picture.box(2 + 7 * rank, 25, 7, 6, f"c{rank} full")
    return picture


# Anchors of the colour map viridis, which people who see fewer colours read too, and the steps between them.
_VIRIDIS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
_LEVELS = 24


def _colour(level: int) -> str:
    """Return the colour of a level, from 0 to _LEVELS - 1."""
    at = level / (_LEVELS - 1) * (len(_VIRIDIS) - 1)
    lower = min(int(at), len(_VIRIDIS) - 2)
    pairs = zip(_VIRIDIS[lower], _VIRIDIS[lower + 1], strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (at - lower)):02x}" for a, b in pairs)


def mean() -> Picture:
    """Draw a map of the first member of the ensemble and one of the mean of all four, which mpired computes."""
    members = [str(path) for path in sorted((ROOT / "sample_data").glob("tas_?.nc"))]
    maps = [mpired.reduce(files, op="mean")["tas"] for files in (members[:1], members)]
    low, high = float(min(each.min() for each in maps)), float(max(each.max() for each in maps))
    picture = Picture(
        520, 226, "Temperature by latitude and longitude: one member of the ensemble, and the mean of four"
    )
    for left, title, values in zip((40, 284), ("tas_0.nc", "mean.nc"), maps, strict=True):
        picture.words(left, 28, title, "mono strong")
        _map(picture, (left, 38), values, (low, high))
        for east in (0, 90, 180, 270):
            picture.words(left + east * 0.6, 175, f"{east}°", "soft", "middle")
    for row, name in enumerate(("60 N", "0", "60 S")):
        picture.words(36, 63 + row * 40, name, "soft", "end")
    for level in range(_LEVELS):
        picture.fill([(150 + 9 * level, 194, 9, 12)], _colour(level))
    picture.words(144, 206, f"{low:g} K", "soft", "end")
    picture.words(156 + 9 * _LEVELS, 206, f"{high:g} K", "soft")
    return picture


def _map(picture: Picture, corner: tuple[float, float], values: Any, bounds: tuple[float, float]) -> None:
    """Draw a box of 9 by 10 pixels for each element, north above."""
    low, high = bounds
    boxes: dict[int, list[tuple[float, float, float, float]]] = {}
    for row, line in enumerate(values[::-1].tolist()):
        for column, value in enumerate(line):
            level = min(int((value - low) / (high - low) * _LEVELS), _LEVELS - 1)
            boxes.setdefault(level, []).append((corner[0] + 9 * column, corner[1] + 10 * row, 9, 10))
    for level in sorted(boxes):
        picture.fill(boxes[level], _colour(level))


_NAMES = "abc"
# What file i has afterwards: the ranks that are combined, and the elements that it gets.
_COLLECTIVES = {
    "reduce": [((0, 1, 2), (0, 1, 2)), None, None],
    "allreduce": [((0, 1, 2), (0, 1, 2))] * 3,
    "scan": [((0,), (0, 1, 2)), ((0, 1), (0, 1, 2)), ((0, 1, 2), (0, 1, 2))],
    "reduce-scatter": [((0, 1, 2), (0,)), ((0, 1, 2), (1,)), ((0, 1, 2), (2,))],
}
_SENTENCES = {
    "reduce": "one result file with the combination of all files",
    "allreduce": "every file gets a result with the combination of all files",
    "scan": "result i combines the files 0 to i",
    "reduce-scatter": "result i has block i of the combination of all files",
}


def collective(name: str) -> Picture:
    """Draw what each file holds before and after, as the books on MPI do: a row is a rank, a column an element."""
    picture = Picture(520, 214, f"{name}: before, three files with three elements each; after, {_SENTENCES[name]}")
    picture.words(16, 30, name, "strong")
    picture.words(64, 62, "elements →", "soft")
    picture.words(272, 62, "results", "soft")
    for rank, gets in enumerate(_COLLECTIVES[name]):
        top = 74 + rank * 44
        picture.words(14, top + 22, f"file {rank}", "soft")
        for element in range(3):
            picture.cell(64 + element * 44, top, 42, 34, f"{_NAMES[rank]}{element}", f"c{rank}")
        for element in range(3):
            x = 268 + element * 80
            if gets is None or element not in gets[1]:
                continue
            picture.box(x, top, 78, 34)
            for number, part in enumerate(gets[0]):
                picture.box(x + 26 * number, top + 28, 26, 6, f"c{part} full")
            terms = "+".join(f"{_NAMES[part]}{element}" for part in gets[0])
            picture.words(x + 39, top + 20, terms, "mono", "middle")
        if gets is None:
            picture.words(272, top + 22, "no file", "soft")
    picture.arrow((204, 135), (256, 135))
    return picture


def places() -> Picture:
    """Draw which elements of a target three options hit."""
    title = "Elements of the target: --target-disp 8 hits 8 to 11; --at 1:3,2:5 hits a box; --map hits one by one"
    picture = Picture(520, 512, title)
    _strip(picture, 30, "--target-disp 8 --origin-count 4", [8, 9, 10, 11])
    picture.words(16, 176, "--at 1:3,2:5", "mono strong")
    picture.words(16, 196, "a target of shape (4, 6): rows 1 and 2, columns 2 to 4", "soft")
    for line in range(4):
        picture.words(40, 236 + line * 30, str(line), "soft", "end")
        for column in range(6):
            hit = line in (1, 2) and column in (2, 3, 4)
            text = f"o{(line - 1) * 3 + column - 2}" if hit else ""
            picture.cell(50 + column * 40, 216 + line * 30, 38, 28, text, "c0" if hit else "quiet")
    for column in range(6):
        picture.words(69 + column * 40, 352, str(column), "soft", "middle")
    picture.words(306, 258, "o0 to o5 are the", "soft")
    picture.words(306, 278, "elements of the origin", "soft")
    _strip(
        picture, 382, "--map places.npy, which holds 0 0 0 8", [0, 0, 0, 8], quiet="all three are applied to element 0"
    )
    return picture


def _strip(picture: Picture, top: float, title: str, hits: Sequence[int], quiet: str = "") -> None:
    """Draw a file of four elements above a target of twelve, with an arrow from each to the element that it hits."""
    picture.words(16, top, title, "mono strong")
    start = 250 if len(set(hits)) == len(hits) else 70
    picture.words(16, top + 34, "origin", "soft")
    picture.words(16, top + 106, "target", "soft")
    for number, hit in enumerate(hits):
        x = start + number * 36
        picture.cell(x, top + 14, 34, 30, f"o{number}", "c0")
        shift = (number - 1) * 7 if hits.count(hit) > 1 else 0
        picture.arrow((x + 17, top + 46), (70 + hit * 36 + 17 + shift, top + 84))
    for element in range(12):
        picture.cell(70 + element * 36, top + 86, 34, 30, str(element), "c0" if element in hits else "quiet")
    if quiet:
        picture.words(228, top + 34, quiet, "soft")


# Steps before and after the commit; what the commit is; and between it and the end of the steps: what other programs
# read, what is there after a loss of power, and the step after which both are the new content.
_COMMITS = {
    "rename": (("write a new file", "sync"), ("sync folder", "done"), "rename", "", "old or new", 0),
    "journal": (
        ("write journal", "sync"),
        ("write target", "sync", "drop journal"),
        "journal is on disk",
        "perhaps a part",
        "new, once recovered",
        1,
    ),
}


def commit(name: str) -> Picture:
    """Draw what other programs read of a target in time, and what a crash leads to."""
    before, after, point, seen, crashed, last = _COMMITS[name]
    title = f"--commit {name}: the steps in time, what other programs read, and what is there after a crash"
    picture = Picture(520, 254, title)
    start, at, end = 16, 220 if seen == "" else 190, 504
    picture.words(start, 30, f"--commit {name}", "mono strong")
    picture.line((at, 44), (at, 226))
    picture.words(at + 6, 56, f"commit: {point}", "soft")
    _steps(picture, before, start, at)
    settled = _steps(picture, after, at, end)[last]
    for top, row, middle in ((126, "other programs read", seen), (188, "after a loss of power", crashed)):
        picture.words(start, top, row, "soft")
        picture.cell(start, top + 8, at - start, 30, "old", "c0")
        if middle:
            picture.cell(at, top + 8, settled - at, 30, middle, "c1")
        picture.cell(settled if middle else at, top + 8, end - (settled if middle else at), 30, "new", "c2")
    picture.words(end, 246, "time →", "soft", "end")
    return picture


def _steps(picture: Picture, steps: Sequence[str], start: float, end: float) -> list[float]:
    """Draw steps one after another, each as wide as its words, and return their ends."""
    total = sum(len(step) + 2 for step in steps)
    x, ends = start, []
    for step in steps:
        width = (end - start) * (len(step) + 2) / total
        picture.box(x, 66, width, 34)
        picture.words(x + width / 2, 88, step, "soft", "middle")
        x += width
        ends.append(x)
    return ends


def bars(cases: Sequence[Mapping[str, Any]], what: str, unit: str, number: str) -> Picture:
    """Draw what mpired and each peer took for the same files: a pair of bars for each peer."""
    most = max(case[who][what] for case in cases for who in ("ours", "theirs"))
    title = f"{unit} of mpired beside each of {', '.join(case['peer'] for case in cases)}; the table has the numbers"
    picture = Picture(520, 78 + 58 * len(cases), title)
    left, width = 150, 270
    picture.words(16, 28, f"{unit}, less is better", "strong")
    picture.cell(16, 40, 14, 14, "", "c0")
    picture.words(36, 52, "mpired", "soft")
    picture.cell(110, 40, 14, 14, "", "c1")
    picture.words(130, 52, "the other program, on the same files", "soft")
    for row, case in enumerate(cases):
        top = 68 + row * 58
        picture.words(16, top + 19, case["peer"])
        picture.words(16, top + 37, case["suffix"], "soft")
        for bar, who in enumerate(("ours", "theirs")):
            value = case[who][what]
            picture.box(left, top + 2 + bar * 22, max(width * value / most, 2), 20, f"c{bar}")
            text = f"{value:{number}}"
            picture.words(left + 6 + width * value / most, top + 17 + bar * 22, text, "mono")
    picture.line((left, 64), (left, 68 + 58 * len(cases)))
    return picture


def draw() -> dict[str, Picture]:
    """Return each picture by its name."""
    pictures = {"fold": fold(), "logo": logo(), "mean": mean(), "places": places()}
    pictures |= {name: collective(name) for name in _COLLECTIVES}
    pictures |= {f"commit-{name}": commit(name) for name in _COMMITS}
    cases = beside_others()
    pictures["speed"] = bars(cases, "seconds", "seconds", ".2f")
    pictures["memory"] = bars(cases, "peak_mb", "MB of memory at the peak", ".0f")
    return pictures


def main() -> None:
    """Write the files into a folder."""
    (folder,) = map(Path, sys.argv[1:])
    for name, picture in draw().items():
        (folder / f"{name}.svg").write_text(picture.text())


if __name__ == "__main__":
    main()
