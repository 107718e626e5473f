"""The identities that hold in every bit, because all collectives are one fold.

The last rank's scan is the reduction and what allreduce gives; exscan is scan one rank later; the
blocks of reduce-scatter put together are the reduction. On data drawn at random for every op and
datatype, and for every format and number of workers.
"""

import functools
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reference
import values
from hypothesis import given
from hypothesis import strategies as st
from test_properties import EXAMPLES, buffers, reductions, write

import mpired

FORMATS = ("raw", "npy", "parquet", "arrow")
SUFFIXES = {"raw": "bin", "npy": "npy", "parquet": "parquet", "arrow": "arrow"}


def written(directory, verb, paths, op, *arguments, **options):
    """Return the bytes of the files that a call writes, by rank; a rank without one has None."""
    pattern = str(directory / "result_{rank}")
    for rank in range(len(paths)):
        (directory / f"result_{rank}").unlink(missing_ok=True)
    verb(paths, op, *arguments, output=pattern, **{"format": "raw", **options})
    results = [directory / f"result_{rank}" for rank in range(len(paths))]
    return [result.read_bytes() if result.exists() else None for result in results]


@EXAMPLES
@given(reduction=reductions())
def test_scan_is_the_twin_of_each_prefix(directory, reduction):
    op, name, ranks = reduction
    results = written(directory, mpired.scan, write(directory, ranks), op, type=name)
    for rank, result in enumerate(results):
        assert result.hex(" ") == reference.reduce(op, name, ranks[: rank + 1]).hex(" ")


@EXAMPLES
@given(reduction=reductions())
def test_allreduce_gives_every_rank_the_twin(directory, reduction):
    op, name, ranks = reduction
    results = written(directory, mpired.allreduce, write(directory, ranks), op, type=name)
    assert results == [reference.reduce(op, name, ranks)] * len(ranks)


@EXAMPLES
@given(reduction=reductions())
def test_exscan_is_scan_one_rank_later(directory, reduction):
    op, name, ranks = reduction
    paths = write(directory, ranks)
    before = written(directory, mpired.exscan, paths, op, type=name)
    assert before == [None, *written(directory, mpired.scan, paths, op, type=name)[:-1]]


@EXAMPLES
@given(reduction=reductions())
def test_the_neutral_element_changes_nothing(directory, reduction):
    op, name, ranks = reduction
    results = written(directory, mpired.exscan, write(directory, ranks), op, type=name, exscan_first="identity")
    mine = reference.elements(name, ranks[0])
    for element, neutral in zip(mine, reference.elements(name, results[0]), strict=True):
        if reference.has_nan(name, element) or (op == "PROD" and not finite(name, element)):
            continue  # in a complex product infinity times 0 is NaN
        combined = reference.numbers(name, reference.combine(op, name, neutral, element))
        expected = reference.numbers(name, element)
        if op in {"LAND", "LOR", "LXOR"}:
            expected = (int(expected[0] != 0),)
        assert combined == expected


def finite(name, element):
    return all(np.isfinite(number) for number in reference.numbers(name, element))


@EXAMPLES
@given(reduction=reductions(), choices=st.randoms(use_true_random=False))
def test_the_blocks_of_reduce_scatter_together_are_the_reduction(directory, reduction, choices):
    op, name, ranks = reduction
    count = len(ranks[0]) // reference.FORMS[name][1]
    cuts = sorted(choices.randint(0, count) for _ in ranks[1:])
    counts = [stop - start for start, stop in itertools.pairwise([0, *cuts, count])]
    results = written(directory, mpired.reduce_scatter, write(directory, ranks), op, counts, type=name)
    assert [len(result) // reference.FORMS[name][1] for result in results] == counts
    assert b"".join(results) == reference.reduce(op, name, ranks)


@EXAMPLES
@given(reduction=reductions(how_many=st.just(3)), rest=st.integers(0, 2))
def test_equal_blocks_together_are_the_reduction_or_there_are_none(directory, reduction, rest):
    op, name, ranks = reduction
    extent = reference.FORMS[name][1]
    count = len(ranks[0]) // extent // 3 * 3
    paths = write(directory, ranks)
    results = written(directory, mpired.reduce_scatter_block, paths, op, type=name, count=count)
    assert b"".join(results) == reference.reduce(op, name, [rank[: count * extent] for rank in ranks])
    assert len(set(map(len, results))) == 1
    if rest and count + rest <= len(ranks[0]) // extent:
        with pytest.raises(mpired.MpiredError, match="equal blocks"):
            mpired.reduce_scatter_block(paths, op, type=name, count=count + rest, format="raw")


@EXAMPLES
@given(reduction=reductions(how_many=st.integers(2, 6)), cut=st.integers(1, 5))
def test_scan_can_be_taken_up_where_it_was_left(directory, reduction, cut):
    op, name, ranks = reduction
    paths = write(directory, ranks)
    cut = min(cut, len(paths) - 1)
    whole = written(directory, mpired.scan, paths, op, type=name)
    before = directory / "before.bin"
    before.write_bytes(whole[cut - 1])
    assert written(directory, mpired.scan, [before, *paths[cut:]], op, type=name) == whole[cut - 1 :]


@EXAMPLES
@given(reduction=reductions(how_many=st.just(2)))
def test_reduce_local_is_reduce_over_two(directory, reduction):
    op, name, ranks = reduction
    invec, inoutvec = write(directory, ranks)
    mpired.reduce_local(invec, inoutvec, op, type=name, format="raw")
    expected = bytearray(ranks[1])  # in place, the padding of an element stays
    whole = reference.reduce(op, name, ranks)
    parts, extent = reference.FORMS[name]
    for start, (code, at) in itertools.product(range(0, len(whole), extent), parts):
        part = slice(start + at, start + at + reference.VALUE_BYTES[code])
        expected[part] = whole[part]
    assert inoutvec.read_bytes() == expected
    assert invec.read_bytes() == ranks[0]


@EXAMPLES
@given(reduction=reductions(), sizes=st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_each_of_two_groups_gets_what_the_other_reduces(directory, reduction, sizes):
    op, name, ranks = reduction
    ranks = (ranks * 6)[: sum(sizes)]
    paths = write(directory, ranks)
    cut = sizes[0]
    for_a, for_b = mpired.allreduce(paths[:cut], op, group_b=paths[cut:], type=name, format="raw")
    assert (len(for_a), len(for_b)) == sizes
    one = mpired.reduce(paths[:1], op, group_b=paths[cut:], type=name, format="raw")
    # In numbers, not bytes, because the array of a bool is NumPy's.
    expected = {key: mpired.reduce(part, op, type=name, format="raw").tobytes()
                for key, part in {"a": paths[:cut], "b": paths[cut:]}.items()}  # fmt: skip
    assert {array.tobytes() for array in [*for_a, one]} == {expected["b"]}
    assert {array.tobytes() for array in for_b} == {expected["a"]}


@EXAMPLES
@given(ranks=buffers("DOUBLE", st.integers(1, 5)))
def test_arrays_have_the_bytes_of_the_files(directory, ranks):
    paths = write(directory, ranks)
    for verb in mpired.scan, mpired.allreduce, mpired.exscan:
        arrays = verb(paths, "SUM", type="double", format="raw")
        octets = [None if array is None else array.tobytes() for array in arrays]
        assert octets == written(directory, verb, paths, "SUM", type="double")


# ---- every format, and blocks, workers and open files


NAMES = {"SUM": "DOUBLE", "PROD": "FLOAT", "MAXLOC": "DOUBLE_INT", "BXOR": "UINT16_T"}
DTYPES = {
    "DOUBLE": np.dtype("f8"),
    "FLOAT": np.dtype("f4"),
    "UINT16_T": np.dtype("u2"),
    "DOUBLE_INT": np.dtype([("value", "f8"), ("index", "i4")], align=True),
}
COUNT, NRANKS = 150, 5


def table_of(array):
    if array.dtype.names is None:
        return pa.table({"x": array})
    parts = [pa.array(np.ascontiguousarray(array[name])) for name in array.dtype.names]
    return pa.table({"x": pa.StructArray.from_arrays(parts, names=array.dtype.names)})


def save(folder, form, name, ranks):
    """Write each rank in a format, and return the paths."""
    paths = []
    for i, rank in enumerate(ranks):
        array = np.frombuffer(rank, DTYPES[name])
        paths.append(str(folder / f"{form}{i}.{SUFFIXES[form]}"))
        if form == "raw":
            array.tofile(paths[-1])
        elif form == "npy":
            np.save(paths[-1], array)
        elif form == "parquet":
            pq.write_table(table_of(array), paths[-1], row_group_size=7 + i)
        else:
            with pa.ipc.new_file(paths[-1], table_of(array).schema) as file:
                file.write_table(table_of(array), max_chunksize=11 + i)
    return paths


def load(path, form, name):
    """Read a result by other means, and return its bytes as those of a raw file."""
    dtype = DTYPES[name]
    if form == "raw":
        return np.fromfile(path, dtype).tobytes()
    if form == "npy":
        array = np.load(path)
        assert array.dtype == dtype
        return array.tobytes()
    if form == "parquet":
        column = pq.read_table(path).column(0).combine_chunks()
    else:
        with pa.OSFile(str(path)) as file:
            column = pa.ipc.open_file(file).read_all().column(0).combine_chunks()
    if dtype.names is None:
        return column.to_numpy(zero_copy_only=False).astype(dtype).tobytes()
    array = np.zeros(len(column), dtype)
    for part, field in zip(column.flatten(), dtype.names, strict=True):
        array[field] = part.to_numpy(zero_copy_only=False)
    return array.tobytes()


@functools.cache
def ranks_of(name):
    return [rank[: COUNT * DTYPES[name].itemsize] for rank in values.ranks(name, NRANKS, COUNT)]


@functools.cache
def prefixes_of(op, name):
    ranks = ranks_of(name)
    return [reference.reduce(op, name, ranks[: rank + 1]) for rank in range(NRANKS)]


def expected_of(verb, op, name):
    """Return what each rank gets, None for nothing, and what the call needs besides the op."""
    extent = reference.FORMS[name][1]
    prefixes = prefixes_of(op, name)
    counts = [50, 0, 17, 83, 0]
    cuts = list(itertools.accumulate([0, *counts]))
    return {
        "scan": prefixes,
        "exscan": [None, *prefixes[:-1]],
        "allreduce": [prefixes[-1]] * NRANKS,
        "reduce_scatter": [prefixes[-1][a * extent : b * extent] for a, b in itertools.pairwise(cuts)],
        "reduce_scatter_block": [prefixes[-1][rank * 30 * extent : (rank + 1) * 30 * extent] for rank in range(NRANKS)],
    }[verb], ([counts] if verb == "reduce_scatter" else [])


VERBS = ("scan", "exscan", "allreduce", "reduce_scatter", "reduce_scatter_block")
# Bytes of a block, and workers: each op with one of them, with another for each collective.
CUTS = ((64, 3), (1000, 2), (1 << 20, 1))


@pytest.mark.parametrize(
    ("form", "to"), [(form, to) for form in FORMATS for to in FORMATS if "npy" in {form, to} or form == to]
)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.sampled(4)
def test_every_format_with_any_blocks_and_workers(directory, engine, cut_into, verb, form, to):
    for i, (op, name) in enumerate(NAMES.items(), VERBS.index(verb)):
        paths = save(directory, form, name, ranks_of(name))
        expected, arguments = expected_of(verb, op, name)
        said = {"type": name} if form == "raw" else {}
        pattern = directory / f"out_{{rank}}.{SUFFIXES[to]}"
        nbytes, jobs = CUTS[i % len(CUTS)]
        cut_into(nbytes)
        for rank in range(NRANKS):
            (directory / f"out_{rank}.{SUFFIXES[to]}").unlink(missing_ok=True)
        getattr(mpired, verb)(paths, op, *arguments, output=pattern, to=to, jobs=jobs, **said)
        for rank, result in enumerate(expected):
            path = directory / f"out_{rank}.{SUFFIXES[to]}"
            assert path.exists() == (result is not None)
            if result is not None:
                mine = np.frombuffer(load(path, to, name), DTYPES[name])
                theirs = np.frombuffer(result, DTYPES[name])
                assert mine.tobytes() == theirs.tobytes(), (op, nbytes, jobs, rank)


@pytest.mark.parametrize("max_open", [1, 2, 5])
@pytest.mark.parametrize("verb", VERBS)
def test_more_ranks_and_results_than_open_files(directory, engine, cut_into, monkeypatch, verb, max_open):
    monkeypatch.setattr("mpired.collectives.plan._MAX_OPEN", max_open)
    cut_into(64)
    paths = save(directory, "raw", "DOUBLE", ranks_of("DOUBLE"))
    expected, arguments = expected_of(verb, "SUM", "DOUBLE")
    for jobs in (1, 3):
        assert written(directory, getattr(mpired, verb), paths, "SUM", *arguments, type="double", jobs=jobs) == expected


@pytest.mark.parametrize("form", FORMATS)
def test_in_place_gives_the_same_as_other_files(directory, engine, cut_into, form):
    # Each collective with one op, with another for each format.
    for i, verb in enumerate(VERBS, FORMATS.index(form)):
        op, name = [*NAMES.items()][i % len(NAMES)]
        said = {"type": name} if form == "raw" else {}
        paths = save(directory, form, name, ranks_of(name))
        before = [(directory / path).read_bytes() for path in paths]
        expected, arguments = expected_of(verb, op, name)
        getattr(mpired, verb)(paths, op, *arguments, in_place=True, **said)
        for path, result, content in zip(paths, expected, before, strict=True):
            if result is None:
                assert (directory / path).read_bytes() == content
            else:
                elements = reference.elements(name, load(path, form, name))  # in place the padding stays
                assert b"".join(reference.without_padding(name, each) for each in elements) == result, (verb, op)


def test_every_column_of_a_file(directory, engine, cut_into):
    cut_into(64)
    names = {"a": ("f8", "DOUBLE"), "b": ("f4", "FLOAT"), "c": ("f2", "REAL2")}
    ranks = {column: values.ranks(name, 3, COUNT) for column, (_, name) in names.items()}
    paths = []
    for i in range(3):
        paths.append(directory / f"columns{i}.parquet")
        arrays = {column: np.frombuffer(ranks[column][i], dtype) for column, (dtype, _) in names.items()}
        pq.write_table(pa.table(arrays), paths[-1], row_group_size=5 + i)
    for rank, arrays in enumerate(mpired.scan(paths, "SUM", jobs=2)):
        assert {column: array.tobytes() for column, array in arrays.items()} == {
            column: reference.reduce("SUM", name, ranks[column][: rank + 1]) for column, (_, name) in names.items()
        }
    blocks = mpired.reduce_scatter(paths, "SUM", [100, 0, 50])
    for column, (_, name) in names.items():
        whole = b"".join(block[column].tobytes() for block in blocks)
        assert whole == reference.reduce("SUM", name, ranks[column])


def test_what_is_said_of_files_needs_files(directory):
    paths = save(directory, "raw", "DOUBLE", [bytes(16)] * 2)
    for options in {"to": "npy"}, {"overwrite": True}, {"link": True}:
        with pytest.raises(ValueError, match="output"):
            mpired.allreduce(paths, "sum", type="double", **options)
    with pytest.raises(ValueError, match="in place each rank keeps its own"):
        mpired.allreduce(paths, "sum", type="double", in_place=True, link=True)


def test_options_of_other_calls_are_unknown(directory):
    paths = save(directory, "raw", "DOUBLE", [bytes(16)] * 2)
    for verb, option in (mpired.scan, "link"), (mpired.allreduce, "counts_b"), (mpired.scan, "exscan_first"):
        with pytest.raises(TypeError, match=option):
            verb(paths, "sum", type="double", **{option: None})
    for option in "to", "root", "in_place", "overwrite", "group_b":
        with pytest.raises(TypeError, match=option):
            mpired.reduce_local(*paths, "sum", type="double", **{option: None})
    with pytest.raises(TypeError, match="nonsense"):
        mpired.scan(paths, "sum", nonsense=1)
