"""Every op with every datatype: the legal pairs give the twin's bits, the illegal ones an error and no file."""

import matrix
import pytest
import reference
import values

import mpired
from mpired.errors import DatatypeError, MpiredError, OpError

NRANKS = 5
COUNT = 203  # leaves a rest after every vector width


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


def test_every_datatype_is_in_the_matrix():
    assert sorted((*matrix.AVAILABLE, *matrix.UNAVAILABLE)) == sorted(row.name for row in mpired.DATATYPES)
    assert len(set(matrix.AVAILABLE)) == len(matrix.AVAILABLE)


def test_every_synonym_is_in_the_matrix():
    assert {synonym: row.name for row in mpired.DATATYPES for synonym in row.synonyms} == matrix.SYNONYMS


def test_every_op_is_in_the_matrix():
    assert [row.name for row in mpired.OPS] == [*matrix.REDUCE_OPS, *matrix.RMA_OPS]
    assert list(matrix.LEGAL) == list(matrix.TAKES) == list(matrix.REDUCE_OPS)


def test_the_matrix_is_whole():
    assert len(matrix.LEGAL_PAIRS) == 332
    assert len(matrix.LEGAL_PAIRS) + len(matrix.ILLEGAL_PAIRS) == 12 * 66


def test_the_twin_knows_every_available_datatype():
    assert sorted(reference.FORMS) == sorted(matrix.AVAILABLE)
    assert {row.name: row.extent for row in mpired.DATATYPES if row.dtype is not None} == {
        name: extent for name, (_, extent) in reference.FORMS.items()
    }


@pytest.mark.parametrize(("op", "name"), matrix.LEGAL_PAIRS)
def test_legal_pair_gives_the_bits_of_the_twin(directory, either_kernel, op, name):
    ranks = values.ranks(name, NRANKS, COUNT)
    assert reduced(directory, op, name, ranks).hex(" ") == reference.reduce(op, name, ranks).hex(" ")


@pytest.mark.parametrize("name", matrix.AVAILABLE)
def test_one_rank_is_copied_by_every_op_that_takes_it(directory, name):
    (rank,) = values.ranks(name, 1, COUNT)
    copy = b"".join(reference.without_padding(name, element) for element in reference.elements(name, rank))
    output = directory / "result.bin"
    paths = write_ranks(directory, [rank])
    for op in (op for op in matrix.REDUCE_OPS if name in matrix.LEGAL[op]):
        mpired.reduce(paths, op, output=output, type=name, overwrite=True)
        assert output.read_bytes() == copy, op


@pytest.mark.parametrize("op", ["SUM", "PROD"])
@pytest.mark.parametrize("name", [*matrix.FLOATING_POINT, *matrix.COMPLEX])
def test_every_nan_of_a_sum_or_product_has_the_same_bits(directory, op, name):
    ranks = values.ranks(name, NRANKS, COUNT)
    result = reduced(directory, op, name, ranks)
    nans = set()
    for element in reference.elements(name, result):
        for code, at in reference.FORMS[name][0]:
            component = element[at : at + reference.VALUE_BYTES[code]]
            if reference.is_nan(reference.decode(code, component)):
                nans.add(component)
    assert nans == {reference.QUIET_NAN[reference.FORMS[name][0][0][0]]}


@pytest.mark.parametrize("synonym", matrix.SYNONYMS)
def test_a_synonym_is_the_same_datatype(directory, synonym):
    name = matrix.SYNONYMS[synonym]
    ranks = values.ranks(name, NRANKS, COUNT)
    assert reduced(directory, "SUM", synonym, ranks) == reference.reduce("SUM", name, ranks)


@pytest.mark.parametrize(("op", "name"), matrix.ILLEGAL_PAIRS)
def test_illegal_pair_raises_and_leaves_no_file(directory, op, name):
    paths = write_ranks(directory, values.ranks(name, 2, 3))
    before = sorted(directory.iterdir())
    with pytest.raises(OpError) as caught:
        mpired.reduce(paths, op, output=directory / "nothing.bin", type=name)
    assert sorted(directory.iterdir()) == before
    text = str(caught.value)
    assert text.startswith(f"MPI_{op}: ")
    assert f"MPI_{name}" in text
    assert f"it takes {', '.join(matrix.TAKES[op])};" in text
    assert caught.value.mpi_class == "MPI_ERR_OP"
    assert caught.value.exit_status == 3


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
    with pytest.raises(OpError) as caught:
        mpired.reduce(paths, op, type=name)
    _, _, named = str(caught.value).partition(" takes ")
    assert others in named
    takers = named.rpartition(" takes ")[2].split("; ")[0].split(", ")
    for taker in takers:
        if taker != "quantile":
            mpired.reduce(paths, taker, type=name)


@pytest.mark.parametrize(("op", "name"), [("SUM", "BYTE"), ("MAXLOC", "DOUBLE"), ("MAX", "DOUBLE_INT")])
def test_illegal_pair_leaves_an_existing_file_alone(directory, op, name):
    paths = write_ranks(directory, values.ranks(name, 2, 3))
    output = directory / "precious.bin"
    output.write_bytes(b"precious")
    with pytest.raises(OpError):
        mpired.reduce(paths, op, output=output, type=name, overwrite=True)
    assert output.read_bytes() == b"precious"


@pytest.mark.parametrize(("op", "name"), [("SUM", "CHAR"), ("LAND", "DOUBLE"), ("BAND", "C_BOOL")])
def test_illegal_pair_is_refused_for_a_single_rank_and_for_no_elements(directory, op, name):
    empty = directory / "empty.bin"
    empty.write_bytes(b"")
    for paths in ([empty], [empty, empty], write_ranks(directory, values.ranks(name, 1, 3))):
        with pytest.raises(OpError):
            mpired.reduce(paths, op, type=name)


@pytest.mark.parametrize("op", matrix.REDUCE_OPS)
@pytest.mark.parametrize("name", matrix.UNAVAILABLE)
def test_unavailable_datatype_is_said_to_be_so(directory, op, name):
    paths = write_ranks(directory, [bytes(64), bytes(64)])
    before = sorted(directory.iterdir())
    with pytest.raises(DatatypeError, match=f"MPI_{name}: is not available") as caught:
        mpired.reduce(paths, op, output=directory / "nothing.bin", type=name)
    assert sorted(directory.iterdir()) == before
    assert caught.value.mpi_class == "MPI_ERR_TYPE"


@pytest.mark.parametrize("op", matrix.RMA_OPS)
@pytest.mark.parametrize("name", matrix.AVAILABLE)
def test_ops_for_windows_are_no_reductions(directory, op, name):
    paths = write_ranks(directory, values.ranks(name, 2, 3))
    before = sorted(directory.iterdir())
    with pytest.raises(OpError, match=r"is for (accumulate and )?fetch only") as caught:
        mpired.reduce(paths, op, output=directory / "nothing.bin", type=name)
    assert sorted(directory.iterdir()) == before
    assert all(reduce_op.lower() in str(caught.value) for reduce_op in matrix.REDUCE_OPS)


@pytest.mark.parametrize("spelling", ["sum", "SUM", "MPI_SUM", "mpi_sum", "Mpi_Sum"])
@pytest.mark.parametrize("datatype", ["int", "MPI_INT", "mpi_int", "Int"])
def test_names_are_taken_in_any_case_with_or_without_the_prefix(directory, spelling, datatype):
    ranks = values.ranks("INT", 2, 3)
    assert reduced(directory, spelling, datatype, ranks) == reference.reduce("SUM", "INT", ranks)


@pytest.mark.parametrize("word", ["op_null", "avg", "", "MPI_", "mpi_mpi_sum"])
def test_unknown_ops_are_refused(directory, word):
    paths = write_ranks(directory, values.ranks("INT", 2, 3))
    with pytest.raises(MpiredError) as caught:
        mpired.reduce(paths, word, type="int")
    assert isinstance(caught.value, OpError)
    assert caught.value.exit_status == 2
