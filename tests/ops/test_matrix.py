"""Every op with every datatype: the legal pairs give the twin's bits, the illegal ones an error and no file."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import matrix
import numpy as np
import pytest
import reference
import values

import mpired
from mpired import ops
from mpired.datatypes import get
from mpired.errors import OpError
from mpired.ops import kernels

NRANKS = 5
TESTS = Path(__file__).parents[1]


def written(directory, name, nranks, count):
    """Write some ranks of a datatype; return their paths and their bytes."""
    ranks = values.ranks(name, nranks, count)
    paths = [directory / f"rank{rank}.bin" for rank in range(nranks)]
    for path, rank in zip(paths, ranks, strict=True):
        path.write_bytes(rank)
    return paths, ranks


def test_the_tables_are_those_of_the_matrix():
    assert sorted((*matrix.AVAILABLE, *matrix.UNAVAILABLE)) == sorted(row.name for row in mpired.DATATYPES)
    assert len(set(matrix.AVAILABLE)) == len(matrix.AVAILABLE)
    assert {synonym: row.name for row in mpired.DATATYPES for synonym in row.synonyms} == matrix.SYNONYMS
    assert [row.name for row in mpired.OPS] == [*matrix.REDUCE_OPS, *matrix.RMA_OPS]
    assert list(matrix.LEGAL) == list(matrix.TAKES) == list(matrix.REDUCE_OPS)
    assert len(matrix.LEGAL_PAIRS) == 332
    assert len(matrix.LEGAL_PAIRS) + len(matrix.ILLEGAL_PAIRS) == 12 * 66
    assert {row.name: row.extent for row in mpired.DATATYPES if row.dtype is not None} == {
        name: extent for name, (_, extent) in reference.FORMS.items()
    }
    assert sorted(reference.FORMS) == sorted(matrix.AVAILABLE)


def test_legal_pairs_give_the_bits_of_the_twin(directory, either_kernel):
    """That of a single rank is its copy, whatever the op."""
    pairs = matrix.LEGAL_PAIRS if either_kernel == "numpy" else matrix.COMPILED_PAIRS
    wrong, output = [], directory / "result.bin"
    for name in sorted({name for _, name in pairs}):
        count = 19 + 64 // reference.FORMS[name][1]  # leaves a rest after every vector width
        paths, ranks = written(directory, name, NRANKS, count)
        takers = [op for op, other in pairs if other == name]
        for op, nranks in [(takers[0], 1), *((op, NRANKS) for op in takers)]:
            mpired.reduce(paths[:nranks], op, output=output, type=name, overwrite=True)
            if output.read_bytes() != reference.reduce(op, name, ranks[:nranks]):
                wrong.append((op, name, nranks))
    assert wrong == []


def test_illegal_pairs_raise_and_leave_no_file(directory):
    """An output that exists stays."""
    output = directory / "precious.bin"
    output.write_bytes(b"precious")
    for op, name in matrix.ILLEGAL_PAIRS:
        paths, _ = written(directory, name, 2, 3)
        for path in (output, directory / "nothing.bin"):
            with pytest.raises(OpError) as caught:
                mpired.reduce(paths, op, output=path, type=name, overwrite=True)
        error = caught.value
        for words in (f"MPI_{name}", f"it takes {', '.join(matrix.TAKES[op])};"):
            assert words in str(error), (op, name)
        assert str(error).startswith(f"MPI_{op}: ")
        assert (error.mpi_class, error.exit_status) == ("MPI_ERR_OP", 3)
        assert output.read_bytes() == b"precious", (op, name)
        assert not (directory / "nothing.bin").exists(), (op, name)


def test_the_identity_changes_no_element_from_either_side():
    for (op, name), lower in itertools.product(matrix.LEGAL_PAIRS, (True, False)):
        datatype, row = get(name), ops.get(op)
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


EVERY_PAIR = """
import hashlib, matrix, numpy as np, values
from mpired import ops
from mpired.datatypes import get
digest = hashlib.sha256()
for op, name in matrix.LEGAL_PAIRS:
    datatype, row = get(name), ops.get(op)
    some = np.frombuffer(values.ranks(name, 1, 200)[0], datatype.form)
    with np.errstate(all="ignore"):
        found = row.lower(row.kernel(np.repeat(some, 200), np.tile(some, 200), datatype), datatype)
    datatype.clear_padding(found)
    digest.update(found.tobytes())
print(digest.hexdigest())
"""


def test_every_level_of_the_processor_gives_the_same_bytes():
    """NumPy chooses kernels by it: all that there are, none for AVX-512, and none for AVX2; and C instead of NumPy."""
    found = set()
    levels = "", "X86_V4 AVX512_ICL AVX512_SPR", "AVX2 FMA3 X86_V3 X86_V4 AVX512_ICL AVX512_SPR"
    for disabled, native in itertools.product(levels, "01"):
        chosen = {"NPY_DISABLE_CPU_FEATURES": disabled, "MPIRED_NATIVE": native, "PYTHONPATH": str(TESTS)}
        words = [sys.executable, "-W", "ignore", "-c", EVERY_PAIR]
        done = subprocess.run(words, check=True, capture_output=True, text=True, env=os.environ | chosen)
        found.add(done.stdout)
    assert len(found) == 1
