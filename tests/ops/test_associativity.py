"""Which predefined ops give the same bits however the ranks are grouped, and that no processor changes any."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import subprocess
import sys

import matrix
import numpy as np
import pytest
import values

import mpired
from mpired.datatypes import get

COUNT = 3_000
# Sums and products round, and a NaN is no index that can be compared.
DEPENDS_ON_GROUPING = {
    *itertools.product(("SUM", "PROD"), (*matrix.FLOATING_POINT, *matrix.COMPLEX)),
    *itertools.product(("MAXLOC", "MINLOC"), ("2REAL", "2DOUBLE_PRECISION")),
}


def ranks(name, seed):
    """Return three ranks of elements that bite, of few values, so that they tie in all combinations."""
    draw, choose = random.Random(seed), np.random.default_rng(seed)
    datatype = get(name)
    blocks = np.zeros((3, COUNT), datatype.form)
    if not datatype.parts:
        pool = np.frombuffer(b"".join(values.element(name, draw) for _ in range(40)), datatype.form)
        return choose.choice(pool, blocks.shape)
    for field, part, several in zip(datatype.form.names, datatype.parts, (4, 40), strict=True):
        pool = np.frombuffer(b"".join(values.element(part.name, draw) for _ in range(several)), part.form)
        blocks[field] = choose.choice(pool, blocks.shape)
    return blocks


def combined(op, name, *blocks):
    return np.asarray(mpired.reduce(blocks, op, type=name, overflow="wrap")).view(get(name).form)


@pytest.mark.parametrize(("op", "name"), matrix.LEGAL_PAIRS)
def test_grouping(op, name):
    a, b, c = ranks(name, 1)
    left = combined(op, name, combined(op, name, a, b), c)
    right = combined(op, name, a, combined(op, name, b, c))
    assert combined(op, name, a, b, c).tobytes() == left.tobytes()
    assert (left.tobytes() == right.tobytes()) is ((op, name) not in DEPENDS_ON_GROUPING)


def print_digest():
    digest = hashlib.sha256()
    for op, name in matrix.LEGAL_PAIRS:
        digest.update(combined(op, name, *ranks(name, 2)).tobytes())
    sys.stdout.write(digest.hexdigest())


def test_no_processor_changes_a_bit():
    """With none, the first and all of the levels of instructions that NumPy chooses among by the processor."""
    from numpy._core import _multiarray_umath as core

    levels = list(core.__cpu_dispatch__)
    disabled = [levels, levels[1:], []]
    program = [sys.executable, "-W", "ignore", __file__]
    path = os.path.dirname(os.path.dirname(__file__))
    digests = {
        (native, *without): subprocess.run(
            program,
            env={
                **os.environ,
                "NPY_DISABLE_CPU_FEATURES": " ".join(without),
                "MPIRED_NATIVE": native,
                "PYTHONPATH": path,
            },
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for without in disabled
        for native in ("0", "1")
    }
    assert len(digests) == 6, levels
    assert len(set(digests.values())) == 1, digests


if __name__ == "__main__":
    print_digest()
