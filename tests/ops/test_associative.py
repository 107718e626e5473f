"""Which ops could be bracketed otherwise without another bit, and that all processors make the same bits."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import special_triples

from mpired import ops

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
