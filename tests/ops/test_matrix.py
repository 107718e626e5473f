"""Every op with every datatype: the legal pairs give the twin's bits, the illegal ones an error and no file."""

import itertools

import matrix
import pytest
import reference
import values

import mpired
from mpired.errors import DatatypeError, OpError

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


def test_names_are_taken_in_any_case_with_or_without_the_prefix(directory):
    names = {"int": "INT", "MPI_INT": "INT", "mpi_int": "INT", "Int": "INT", **matrix.SYNONYMS}
    for op, (word, name) in itertools.product(("sum", "SUM", "MPI_SUM", "mpi_sum", "Mpi_Sum"), names.items()):
        ranks = values.ranks(name, 2, 3)
        assert reduced(directory, op, word, ranks) == reference.reduce("SUM", name, ranks), (op, word)


def test_illegal_pairs_raise_and_leave_no_file(directory):
    for op, name in matrix.ILLEGAL_PAIRS:
        error = refused(directory, op, name, write_ranks(directory, values.ranks(name, 2, 3)))
        for words in (f"MPI_{op}: ", f"MPI_{name}", f"it takes {', '.join(matrix.TAKES[op])};"):
            assert words in str(error), (op, name)
        assert str(error).startswith(f"MPI_{op}: ")
        assert (error.mpi_class, error.exit_status) == ("MPI_ERR_OP", 3)


def test_illegal_pairs_are_refused_for_a_single_rank_and_for_no_elements(directory):
    (empty,) = write_ranks(directory, [b""])
    for op, name in ("SUM", "CHAR"), ("LAND", "DOUBLE"), ("BAND", "C_BOOL"):
        for paths in ([empty], [empty, empty], write_ranks(directory, values.ranks(name, 1, 3))):
            refused(directory, op, name, paths)


@pytest.mark.parametrize(
    ("op", "name", "others"),
    [
        ("LAND", "DOUBLE", "max, min, sum, prod, mean, "),
        ("mean", "C_BOOL", "land, lor, lxor, "),
        ("SUM", "BYTE", "band, bor, bxor, "),
    ],
)
def test_a_refusal_names_the_ops_and_the_statistics_that_take_the_type(directory, op, name, others):
    paths = write_ranks(directory, values.ranks(name, 2, 3))
    _, _, named = str(refused(directory, op, name, paths)).partition(" takes ")
    assert others in named
    takers = named.rpartition(" takes ")[2].split("; ")[0].split(", ")
    for taker in takers:
        if taker != "quantile":
            mpired.reduce(paths, taker, type=name)


def test_unavailable_datatypes_are_said_to_be_so(directory):
    paths = write_ranks(directory, [bytes(64), bytes(64)])
    for op, name in itertools.product(matrix.REDUCE_OPS, matrix.UNAVAILABLE):
        error = refused(directory, op, name, paths, DatatypeError)
        assert f"MPI_{name}: is not available" in str(error), op
        assert error.mpi_class == "MPI_ERR_TYPE"


def test_ops_for_windows_are_no_reductions(directory):
    ways = {"REPLACE": "is for accumulate and fetch only", "NO_OP": "is for fetch only"}
    for op, name in itertools.product(matrix.RMA_OPS, matrix.AVAILABLE):
        text = str(refused(directory, op, name, write_ranks(directory, values.ranks(name, 2, 3))))
        assert ways[op] in text, name
        assert all(reduce_op.lower() in text for reduce_op in matrix.REDUCE_OPS)
