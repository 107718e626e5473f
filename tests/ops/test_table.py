"""Every row of the table of ops is whole, and what decides about an op stands nowhere else.

Which ops could be bracketed otherwise without another bit, and that all processors make the same bits.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import matrix
import numpy as np
import reference
import special_triples
import values

from mpired import ops
from mpired.datatypes import get
from mpired.ops import kernels

ROWS = {row.name: row for row in ops.OPS}


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


# ---- order


SCRIPT = str(Path(special_triples.__file__))


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
