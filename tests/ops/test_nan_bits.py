"""The bits of NaN: of two or more ranks one quiet NaN, of a single rank its own, wherever an element lies."""

from __future__ import annotations

import itertools
import random
import warnings

import numpy as np
import pytest
import reference
import values

import mpired
from mpired.errors import OverflowWarning

COMPLEX = ("COMPLEX4", "C_COMPLEX", "C_DOUBLE_COMPLEX", "C_LONG_DOUBLE_COMPLEX")
NAMES = ("REAL2", "FLOAT", "DOUBLE", "LONG_DOUBLE", *COMPLEX)
OF_NUMBERS = ("sum", "prod", "mean", "var", "std", "rms")
OF_REAL_NUMBERS = ("max", "min", "range", "absmax", "absmin", "median", "quantile:0.3")
EXACT = ("sum", "mean", "var", "std", "rms")
COMPILED = ("sum", "prod", "max", "min")
# Of a complex number a real one is made.
REAL = ("var", "std", "rms")
RULES = {
    "": {},
    "nan left out": {"nan": "ignore"},
    "1 left out": {"missing": 1},
    "in long double": {"accumulate_in": "longdouble"},
}
COUNT, LONGEST = 300, 70


def ranks_of(name, nranks=3):
    """Return ranks whose elements go through many triples of zeros, ones, infinities and NaNs with payloads."""
    parts = reference.FORMS[name][0]
    biting = values.BITING[parts[0][0]]
    triples = list(itertools.product((*biting[:4], *biting[9:]), repeat=nranks))
    random.Random(name).shuffle(triples)
    columns = itertools.islice(itertools.cycle(triples), COUNT * len(parts))
    by_rank = zip(*columns, strict=True)
    return [
        b"".join(reference.assemble(name, each) for each in zip(*[iter(rank)] * len(parts), strict=True))
        for rank in by_rank
    ]


def components(name, octets):
    """Return the bytes of each part of each element."""
    return [
        [element[at : at + reference.VALUE_BYTES[code]] for code, at in reference.FORMS[name][0]]
        for element in reference.elements(name, octets)
    ]


def is_nan(code, octets):
    return reference.is_nan(reference.decode(code, octets))


def is_left_out(code, element, rules):
    numbers = [reference.decode(code, part) for part in element]
    return ("nan" in rules and any(map(reference.is_nan, numbers))) or ("missing" in rules and numbers[0] == 1)


def wrong(name, op, rules, ranks, octets):
    """Return the elements of a result whose NaNs have other bits than they should."""
    code = reference.FORMS[name][0][0][0]
    copied = not (op in REAL and "COMPLEX" in name)
    form = name if copied else {"f2": "REAL2", "f4": "FLOAT", "f8": "DOUBLE", "g": "LONG_DOUBLE"}[code]
    columns = list(zip(*(components(name, rank) for rank in ranks), strict=True))
    found = []
    for number, (result, column) in enumerate(zip(components(form, octets), columns, strict=True)):
        there = [element for element in column if not is_left_out(code, element, rules)]
        for lane, part in enumerate(result):
            if is_nan(code, part):
                single = len(there) == 1 and copied and is_nan(code, there[0][lane])
                if part != (there[0][lane] if single else reference.QUIET_NAN[code]):
                    found.append((number, part.hex(), [each[lane].hex() for each in column]))
    return found


def scanned(paths, op, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OverflowWarning)
        return mpired.scan(paths, op, **options)


def cases(name, kernel):
    """Return the ops and rules for a datatype, as keywords."""
    of_numbers = OF_NUMBERS if "COMPLEX" in name else (*OF_NUMBERS, *OF_REAL_NUMBERS)
    chosen = of_numbers if kernel == "numpy" else [op for op in of_numbers if op in COMPILED]
    for op, rules in itertools.product(chosen, RULES.values()):
        if "COMPLEX" in name and {"missing", "accumulate_in"} & {*rules}:
            continue
        if "accumulate_in" in rules and op in ("max", "min", "median", "quantile:0.3"):
            continue
        yield op, rules
        if op in EXACT and "LONG_DOUBLE" not in name and "accumulate_in" not in rules:
            yield op, rules | {"exact": True}


@pytest.mark.parametrize("name", NAMES)
def test_every_op_and_rule(name, directory, either_kernel):
    """Also of each partial result, and where other elements of the block are left out."""
    ranks, paths = ranks_of(name), []
    for rank, octets in enumerate(ranks):
        paths.append(directory / f"{name}{rank}.bin")
        paths[-1].write_bytes(octets)
    found, several = {}, 0
    for op, rules in cases(name, either_kernel):
        for rank, result in enumerate(scanned(paths, op, type=name, **rules)):
            found[op, str(rules), rank] = wrong(name, op, rules, ranks[: rank + 1], result.tobytes())
            several += np.isnan(result.view(result.dtype if result.dtype.names is None else result.dtype[0])).sum()
    assert {case: each[:2] for case, each in found.items() if each} == {}
    assert several > 500


@pytest.mark.parametrize("op", ["mean", "var", "std", "rms", "absmax", "median", "sum exact"])
def test_neither_length_nor_place_shows(op, long, directory):
    """Of statistics, at any address in a file; for ops of MPI see collectives/test_identical_bits.py."""
    ranks = ranks_of("DOUBLE")
    op, *exact = op.split()
    options = {"exact": bool(exact), "type": "double"}
    paths = [directory / f"rank{rank}.bin" for rank in range(len(ranks))]
    for before in (0, 3):
        for path, rank in zip(paths, ranks, strict=True):
            path.write_bytes(bytes(before) + rank)
        whole = mpired.reduce(paths, op, offset=before, **options)
        assert {*whole[np.isnan(whole)].view("u8").tolist()} == {0x7FF8 << 48}
        for count in range(1, LONGEST, 1 if long else 5):
            for start in (0, 1, LONGEST - count):
                found = mpired.reduce(paths, op, offset=before + 8 * start, count=count, **options)
                assert found.tobytes() == whole[start : start + count].tobytes(), (before, start, count)


@pytest.mark.parametrize("op", ["max", "sum", "maxloc"])
def test_an_element_of_a_window(op, tmp_path):
    """The target is a rank too, and of a pair the bits stay."""
    bits = np.array([0xFFF8 << 48 | 1, 0x7FF8 << 48 | 2], "u8")
    form = [("value", "f8"), ("index", "i8")] if op == "maxloc" else "f8"
    target, origin = (np.zeros(2, form) for _ in range(2))
    (target["value"] if op == "maxloc" else target)[...] = bits.view("f8")
    np.save(tmp_path / "t.npy", target)
    fetched = mpired.Window(tmp_path / "t.npy").get_accumulate(origin, op)
    result = np.load(tmp_path / "t.npy")
    if op == "maxloc":
        fetched, result = fetched["value"], result["value"]
    assert fetched.tobytes() == bits.tobytes()
    assert result.view("u8").tolist() == (bits.tolist() if op == "maxloc" else [0x7FF8 << 48] * 2)


def test_what_copies_an_element_keeps_its_bits():
    bits = np.array([[0xFFF8 << 48 | 1], [0x7FF0 << 48 | 2]], "u8")
    for op, rank in ("first", 0), ("last", 1):
        assert mpired.reduce(list(bits.view("f8")), op).view("u8").tolist() == bits[rank].tolist()


def test_a_complex_number_that_no_rank_has_is_nan(directory):
    for name in COMPLEX:
        code = reference.FORMS[name][0][0][0]
        one, zero = (reference.encode(code, np.longdouble(number)) for number in (1, 0))
        nan = reference.QUIET_NAN[code]
        paths = [directory / f"none{name}{rank}.bin" for rank in range(2)]
        for path in paths:
            path.write_bytes(reference.assemble(name, [one, nan]) + reference.assemble(name, [one, one]))
        for op in ("sum", "prod", "mean", "first"):
            found = mpired.reduce(paths, op, type=name, nan="ignore")
            assert components(name, found.tobytes())[0] == [nan, zero], (op, name)
