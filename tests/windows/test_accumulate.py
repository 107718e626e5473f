"""What accumulate does to the elements of a target, to many of them or to one again and again."""

import itertools
import os

import numpy as np
import pytest
import reference
import values
from command import refused, run
from matrix import LEGAL_PAIRS
from protocols import COMMITS

import mpired
from mpired.errors import OverflowWarning


def wrong_bytes(op, name, folder):
    """Return whether a window is not what the slow twin makes of it, or what carries no value has changed."""
    target, *origins = values.ranks(name, 4, 30)
    (folder / "t.bin").write_bytes(target)
    for i, origin in enumerate(origins):
        (folder / f"o{i}.bin").write_bytes(origin)
    commit = COMMITS[len(name) % 2]
    mpired.Window(folder / "t.bin", type=name, commit=commit).accumulate([folder / f"o{i}.bin" for i in range(3)], op)
    expected = reference.elements(name, reference.reduce(op, name, [target, *origins]))
    found = reference.elements(name, (folder / "t.bin").read_bytes())
    return any(
        reference.without_padding(name, new) != right
        or [a ^ b for a, b in zip(new, right, strict=True)]
        != [a ^ b for a, b in zip(old, reference.without_padding(name, old), strict=True)]
        for new, right, old in zip(found, expected, reference.elements(name, target), strict=True)
    )


def some_pairs(long):
    """Return all pairs of op and datatype, or of each datatype the op that its number chooses."""
    takers = {name: [op for op, other in LEGAL_PAIRS if other == name] for _, name in LEGAL_PAIRS}
    some = [(ops[number % len(ops)], name) for number, (name, ops) in enumerate(takers.items())]
    assert {op for op, _ in some} == {op for op, _ in LEGAL_PAIRS}
    return LEGAL_PAIRS if long else some


def test_accumulating_is_the_fold_that_goes_on(directory, long):
    assert [(op, name) for op, name in some_pairs(long) if wrong_bytes(op, name, directory)] == []


NENTRIES, NELEMENTS = 200, 3
WHERE = np.random.default_rng(3).integers(0, NELEMENTS, NENTRIES)


def wrong_elements(op, name, folder):
    """Return whether the elements of a chain, and those that it fetches, differ from the twin's."""
    (origin,) = values.ranks(name, 1, NENTRIES)
    (target,) = values.ranks(name, 1, NELEMENTS)
    for file, content in (("t.bin", target), ("in.bin", origin)):
        (folder / file).write_bytes(content)
    before = mpired.Window(folder / "t.bin", type=name).get_accumulate(folder / "in.bin", op, map=WHERE)
    elements, fetched = reference.elements(name, target), []
    with np.errstate(all="ignore"):
        for where, operand in zip(WHERE, reference.elements(name, origin), strict=True):
            fetched.append(elements[where])
            elements[where] = reference.combine(op, name, elements[where], operand)
    clean = [[reference.without_padding(name, each) for each in them] for them in (elements, fetched)]
    if name in ("C_BOOL", "CXX_BOOL"):  # an array of NumPy has True, whatever the byte was
        clean[1] = [bytes([any(each)]) for each in clean[1]]
    found = [reference.elements(name, each) for each in ((folder / "t.bin").read_bytes(), before.tobytes())]
    return [[reference.without_padding(name, each) for each in them] for them in found] != clean


def test_many_entries_of_a_map_for_few_elements(directory, long):
    """One after another, as the twin combines them."""
    assert [(op, name) for op, name in some_pairs(long) if wrong_elements(op, name, directory)] == []


def test_overflow_is_found_in_the_step_where_it_is(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(1, np.int8))
    with pytest.warns(OverflowWarning) as told:
        mpired.Window(tmp_path / "t.npy").accumulate(np.ones(300, np.int8), "sum", map=np.zeros(300, np.int64))
    (warning,) = told
    assert warning.message.details["count"] == 1
    assert warning.message.details["element"] == 127
    assert np.load(tmp_path / "t.npy").tolist() == [44]


def test_a_last_element_without_its_padding(tmp_path):
    pairs = np.zeros(3, np.dtype([("v", "f8"), ("i", "i4")], align=True))
    (tmp_path / "t.bin").write_bytes(pairs.tobytes()[:-4])
    pairs["v"] = 9
    (tmp_path / "o.bin").write_bytes(pairs.tobytes())
    for commit in COMMITS:
        mpired.Window(tmp_path / "t.bin", type="double_int", commit=commit).accumulate(tmp_path / "o.bin", "maxloc")
        found = (tmp_path / "t.bin").read_bytes()
        assert len(found) == 44
        assert np.frombuffer(found + bytes(4), pairs.dtype)["v"].tolist() == [9, 9, 9]


def test_an_origin_that_changes_when_it_has_been_read_is_refused(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(100_000))
    np.save(tmp_path / "o.npy", np.ones(100_000))
    before = (tmp_path / "t.npy").read_bytes()

    def setup() -> None:
        original, times = os.preadv, itertools.count()

        def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
            got = original(fd, buffers, offset)
            if offset and os.readlink(f"/proc/self/fd/{fd}").endswith("/o.npy"):
                os.utime("o.npy", (0, next(times)))
            return got

        os.preadv = preadv

    outcome = run("accumulate", "--op", "sum", "t.npy", "o.npy", cwd=tmp_path, setup=setup)
    refused(outcome, 3, "o.npy", "changed while being read")
    assert (tmp_path / "t.npy").read_bytes() == before
