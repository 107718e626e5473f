"""Every row of the table of ops is whole, and what decides about an op stands nowhere else.

Which ops could be bracketed otherwise without another bit, and that all processors make the same bits.
"""

from __future__ import annotations

import ast
import itertools
import os
import subprocess
import sys
from pathlib import Path

import matrix
import numpy as np
import pytest
import reference
import special_triples
import values

import mpired
from mpired import ops
from mpired.datatypes import get
from mpired.errors import OpError
from mpired.ops import kernels

ROWS = {row.name: row for row in ops.OPS}
WITH_NAN = {*matrix.FLOATING_POINT, *matrix.COMPLEX, "FLOAT_INT", "DOUBLE_INT"}
SECTIONS = {"MAXLOC": "6.9.4", "MINLOC": "6.9.4", "REPLACE": "12.3.4", "NO_OP": "12.3.4"}


def test_the_rows_are_whole():
    rows = [*ops.OPS, *ops.STATISTICS]
    assert len({row.name for row in rows}) == len(rows)
    for row in ops.OPS:
        assert row.doc, row
        assert row.section == SECTIONS.get(row.name, "6.9.2"), row
        assert (row.identity is None) == (row.name in matrix.RMA_OPS), row
        takes_nan = any(get(name).group in row.groups for name in WITH_NAN)
        assert (row.nan is not None) == takes_nan, row
        assert not row.user, row
    # A window holds elements, so that it takes no op with another state.
    assert {row.uses for row in ops.STATISTICS} == {ops.Use.REDUCE}
    assert None not in {row.nan for row in ops.STATISTICS}


def test_an_op_without_an_identity_says_so():
    for op in matrix.RMA_OPS:
        with pytest.raises(OpError, match=f"MPI_{op}: has no identity"):
            ops.neutral(ROWS[op], get("INT"))


def test_the_identity_changes_no_element_from_either_side():
    for (op, name), lower in itertools.product(matrix.LEGAL_PAIRS, (True, False)):
        datatype, row = get(name), ROWS[op]
        (rank,) = values.ranks(name, 1, 50)
        block = np.frombuffer(rank, datatype.form).copy()
        identity = np.full(block.shape, ops.neutral(row, datatype))
        with np.errstate(all="ignore"):
            found = row.kernel(*((identity, block) if lower else (block, identity)), datatype).tobytes()
        for old, new in zip(reference.elements(name, rank), reference.elements(name, found), strict=True):
            mine, theirs = reference.numbers(name, old), reference.numbers(name, new)
            if reference.has_nan(name, old) or (op == "PROD" and not all(map(np.isfinite, mine))):
                continue  # in a complex product infinity times 0 is NaN
            assert theirs == ((int(mine[0] != 0),) if op in {"LAND", "LOR", "LXOR"} else mine), (op, name, lower)


def test_replace_and_no_op_choose_an_operand():
    target, origin = np.arange(3), np.arange(3) + 10
    assert kernels.replace(target, origin, get("LONG")) is origin
    assert kernels.no_op(target, origin, get("LONG")) is target


def test_no_op_is_asked_for_by_name():
    """What decides about an op stands in its row."""
    root = Path(mpired.__file__).parent
    found = [
        f"{path.relative_to(root)}: {node.value}"
        for path in root.rglob("*.py")
        if path != root / "__init__.py"  # which exports the rows
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in ROWS
    ]
    assert sorted(found) == sorted(f"ops/table.py: {name}" for name in ROWS)
    assert all(getattr(mpired, name) is row for name, row in ROWS.items())


# ---- order


SCRIPT = str(Path(special_triples.__file__))
# An index that is a NaN is equal to none.
BY_INDEX = {(op, name) for op in ("MAXLOC", "MINLOC") for name in ("2REAL", "2DOUBLE_PRECISION")}


def test_an_op_is_associative_to_the_bit_unless_it_rounds():
    """`rounds` says so of each pair of op and datatype, but for those of indices that are floating-point numbers."""
    for op, name in special_triples.PAIRS:
        rounds = special_triples.TYPES[name].group in ops.get(op).rounds
        assert special_triples.is_associative(op, name) == (not rounds and (op, name) not in BY_INDEX), (op, name)


def test_every_level_of_the_processor_gives_the_same_bytes():
    """NumPy chooses kernels by it: all that there are, none for AVX-512, and none for AVX2; and C instead of NumPy."""
    found = set()
    levels = "", "X86_V4 AVX512_ICL AVX512_SPR", "AVX2 FMA3 X86_V3 X86_V4 AVX512_ICL AVX512_SPR"
    for disabled, native in itertools.product(levels, "01"):
        chosen = {"NPY_DISABLE_CPU_FEATURES": disabled, "MPIRED_NATIVE": native}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", SCRIPT],
            check=True, capture_output=True, text=True, env=os.environ | chosen,
        )  # fmt: skip
        found.add(done.stdout)
    assert len(found) == 1
    assert int(found.pop().split()[1]) == len(special_triples.PAIRS)
