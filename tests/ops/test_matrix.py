"""Every op with every datatype: the legal pairs give the twin's bits, the illegal ones an error and no file."""

import itertools

import matrix
import pytest
import reference
import values

import mpired
from mpired.errors import OpError

NRANKS = 5
COUNT = 83  # leaves a rest after every vector width


def write_ranks(directory, ranks):
    paths = []
    for i, rank in enumerate(ranks):
        paths.append(directory / f"rank{i}.bin")
        paths[-1].write_bytes(rank)
    return paths


def reduced(directory, op, name, ranks):
    """Return the bytes of the file that the reduction writes."""
    output = directory / "result.bin"
    mpired.reduce(write_ranks(directory, ranks), op, output=output, type=name, overwrite=True)
    return output.read_bytes()


def refused(directory, op, name, paths, error=OpError):
    """Return the error of a reduction, which leaves an existing output alone and makes no new one."""
    output = directory / "precious.bin"
    output.write_bytes(b"precious")
    before = sorted(directory.iterdir())
    for path in (output, directory / "nothing.bin"):
        with pytest.raises(error) as caught:
            mpired.reduce(paths, op, output=path, type=name, overwrite=True)
        assert (sorted(directory.iterdir()), output.read_bytes()) == (before, b"precious"), (op, name)
    return caught.value


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
    wrong = [
        (op, name, nranks)
        for (op, name), nranks in itertools.product(pairs, (1, NRANKS))
        for ranks in [values.ranks(name, NRANKS, COUNT)[:nranks]]
        if reduced(directory, op, name, ranks) != reference.reduce(op, name, ranks)
    ]
    assert wrong == []


def test_illegal_pairs_raise_and_leave_no_file(directory):
    for op, name in matrix.ILLEGAL_PAIRS:
        error = refused(directory, op, name, write_ranks(directory, values.ranks(name, 2, 3)))
        for words in (f"MPI_{op}: ", f"MPI_{name}", f"it takes {', '.join(matrix.TAKES[op])};"):
            assert words in str(error), (op, name)
        assert str(error).startswith(f"MPI_{op}: ")
        assert (error.mpi_class, error.exit_status) == ("MPI_ERR_OP", 3)
