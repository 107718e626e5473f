"""Many entries of a map that go to few elements: one after another, as the twin combines them."""

from __future__ import annotations

import matrix
import numpy as np
import pytest
import reference
import values

import mpired
from mpired.errors import OverflowWarning

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


@pytest.mark.parametrize("part", range(3))
def test_every_op_and_datatype(part, long, directory):
    pairs = matrix.LEGAL_PAIRS[part :: 3 if long else 9]
    assert [(op, name) for op, name in pairs if wrong_elements(op, name, directory)] == []


@pytest.mark.parametrize("nan", ["ignore", "mpi"])
def test_rules_for_nan(nan, tmp_path):
    origin = np.random.default_rng(1).standard_normal(NENTRIES)
    origin[::7] = np.nan
    chains, steps = (mpired.Window(tmp_path / name, durability="none") for name in ("chains.npy", "steps.npy"))
    for op in ("max", "sum"):
        for name in ("chains.npy", "steps.npy"):
            np.save(tmp_path / name, np.zeros(NELEMENTS))
        chains.accumulate(origin, op, map=WHERE, nan=nan)
        for where, number in zip(WHERE, origin, strict=True):
            steps.accumulate(np.array([number]), op, target_disp=int(where), nan=nan)
        assert (tmp_path / "chains.npy").read_bytes() == (tmp_path / "steps.npy").read_bytes()


def test_overflow_is_found_in_the_step_where_it_is(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(1, np.int8))
    with pytest.warns(OverflowWarning) as told:
        mpired.Window(tmp_path / "t.npy").accumulate(np.ones(300, np.int8), "sum", map=np.zeros(300, np.int64))
    (warning,) = told
    assert warning.message.details["count"] == 1
    assert warning.message.details["element"] == 127
    assert np.load(tmp_path / "t.npy").tolist() == [44]
