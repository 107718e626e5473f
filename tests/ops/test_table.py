"""Every row of the table of ops is whole, and what decides about an op stands nowhere else."""

from __future__ import annotations

import ast
from pathlib import Path

import matrix
import numpy as np
import pytest
import reference
import values

import mpired
from mpired import ops
from mpired.context import NO_LIMITS
from mpired.datatypes import get
from mpired.errors import OpError
from mpired.ops import kernels, state

ROWS = {row.name: row for row in ops.OPS}
WITH_NAN = {*matrix.FLOATING_POINT, *matrix.COMPLEX, "FLOAT_INT", "DOUBLE_INT"}
SECTIONS = {"MAXLOC": "6.9.4", "MINLOC": "6.9.4", "REPLACE": "12.3.4", "NO_OP": "12.3.4"}


@pytest.mark.parametrize("row", ops.OPS, ids=str)
def test_a_row_is_whole(row):
    assert row.doc
    assert row.section == SECTIONS.get(row.name, "6.9.2")
    assert (row.identity is None) == (row.name in matrix.RMA_OPS)
    takes_nan = any(get(name).group in row.groups for name in WITH_NAN)
    assert (row.nan is not None) == takes_nan
    assert not row.user


def test_the_rows_of_the_table():
    rows = [*ops.OPS, *ops.STATISTICS]
    assert len({row.name for row in rows}) == len(rows)
    # A window holds elements, so that it takes no op with another state.
    assert {row.uses for row in ops.STATISTICS} == {ops.Use.REDUCE}
    assert None not in {row.nan for row in ops.STATISTICS}


@pytest.mark.parametrize("row", ops.OPS, ids=str)
def test_the_state_of_a_predefined_op_is_the_element(row):
    datatype = get("DOUBLE")
    assert row.result(datatype) is datatype
    assert type(state.state_of(row, datatype, 2)) is state.Combined
    block = np.arange(4.0)
    assert row.lower(block, datatype) is block


@pytest.mark.parametrize("op", matrix.RMA_OPS)
def test_an_op_without_an_identity_says_so(op):
    with pytest.raises(OpError, match=f"MPI_{op}: has no identity"):
        ops.neutral(ROWS[op], get("INT"))


@pytest.mark.parametrize(("op", "name"), matrix.LEGAL_PAIRS)
def test_the_identity_changes_no_element_from_either_side(op, name):
    datatype, row = get(name), ROWS[op]
    (rank,) = values.ranks(name, 1, 150)
    elements = np.frombuffer(rank, datatype.form)
    for lower in (True, False):
        block, identity = elements.copy(), np.full(elements.shape, ops.neutral(row, datatype))
        with np.errstate(all="ignore"):
            found = row.kernel(*((identity, block) if lower else (block, identity)), datatype).tobytes()
        for old, new in zip(reference.elements(name, rank), reference.elements(name, found), strict=True):
            mine, theirs = reference.numbers(name, old), reference.numbers(name, new)
            if reference.has_nan(name, old) or (op == "PROD" and not all(map(np.isfinite, mine))):
                continue  # in a complex product infinity times 0 is NaN
            assert theirs == ((int(mine[0] != 0),) if op in {"LAND", "LOR", "LXOR"} else mine)


@pytest.mark.parametrize("op", [row.name for row in ops.OPS if row.nan == "propagates"])
def test_a_nan_propagates_from_either_side(op):
    datatype = get("DOUBLE_INT" if "DOUBLE_INT" in matrix.LEGAL[op] else "DOUBLE")
    for first, second in ((np.nan, 1.0), (1.0, np.nan), (np.nan, np.nan)):
        blocks = [np.zeros(1, datatype.form) for _ in range(2)]
        for block, number in zip(blocks, (first, second), strict=True):
            (block if block.dtype.names is None else block["value"])[...] = number
        found = ROWS[op].kernel(*blocks, datatype)
        assert np.isnan(found if found.dtype.names is None else found["value"]).all()


def test_the_summary_says_what_becomes_of_nan(tmp_path):
    from mpired.collectives.call import plan_call
    from mpired.collectives.table import COLLECTIVES
    from mpired.report import summarise

    np.save(tmp_path / "floats.npy", np.zeros(3))
    np.save(tmp_path / "integers.npy", np.zeros(3, "i4"))
    said = {}
    for name in ("floats", "integers"):
        options = COLLECTIVES["reduce"].checked({})
        planned = plan_call(
            "reduce", [str(tmp_path / f"{name}.npy")], "max", str(tmp_path / "out.npy"), options, NO_LIMITS
        )
        said[name] = summarise(planned).nan
    assert said == {"floats": "propagates", "integers": None}


@pytest.mark.parametrize("function", [max, min, sum, np.max, np.min, np.sum, np.prod])
def test_functions_that_mean_an_op(function):
    name = {"prod": "PROD", "max": "MAX", "min": "MIN", "sum": "SUM"}[function.__name__.removeprefix("a")]
    assert ops.meant(function) is ROWS[name]
    assert ops.meant(f"{function.__module__}:{function.__name__}") is ROWS[name]


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
