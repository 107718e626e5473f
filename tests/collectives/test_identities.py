"""What each rank gets of a collective, because all collectives are one fold: in every bit the twin's.

On data drawn at random for every op and datatype, and for every format and number of workers. Of blocks, two groups and
reduce-local see conformance/test_collectives.py.
"""

import functools
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reference
import values
from four_formats import FORMATS, SUFFIXES, load, save
from hypothesis import given
from hypothesis import strategies as st
from test_properties import EXAMPLES, reductions, write

import mpired


def written(directory, verb, paths, op, *arguments, **options):
    """Return the bytes of the files that a call writes, by rank; a rank without one has None."""
    pattern = str(directory / "result_{rank}")
    for rank in range(len(paths)):
        (directory / f"result_{rank}").unlink(missing_ok=True)
    verb(paths, op, *arguments, output=pattern, **{"format": "raw", **options})
    results = [directory / f"result_{rank}" for rank in range(len(paths))]
    return [result.read_bytes() if result.exists() else None for result in results]


@EXAMPLES
@given(reduction=reductions(), choices=st.randoms(use_true_random=False))
def test_every_rank_gets_the_twin_of_a_prefix_or_a_part(directory, reduction, choices):
    op, name, ranks = reduction
    extent, paths = reference.FORMS[name][1], write(directory, ranks)
    prefixes = [reference.reduce(op, name, ranks[: rank + 1]) for rank in range(len(ranks))]
    count = len(ranks[0]) // extent
    cuts = [0, *sorted(choices.randint(0, count) for _ in ranks[1:]), count]
    parts = [prefixes[-1][start * extent : stop * extent] for start, stop in itertools.pairwise(cuts)]
    counts = [stop - start for start, stop in itertools.pairwise(cuts)]
    assert written(directory, mpired.scan, paths, op, type=name) == prefixes
    if name not in {"C_BOOL", "CXX_BOOL"}:  # of which an array has the truth alone
        assert [each.tobytes() for each in mpired.scan(paths, op, type=name, format="raw")] == prefixes
    assert written(directory, mpired.exscan, paths, op, type=name) == [None, *prefixes[:-1]]
    assert written(directory, mpired.allreduce, paths, op, type=name) == [prefixes[-1]] * len(ranks)
    assert written(directory, mpired.reduce_scatter, paths, op, counts, type=name) == parts


# ---- every format, and blocks, workers and open files


NAMES = {"SUM": "DOUBLE", "PROD": "FLOAT", "MAXLOC": "DOUBLE_INT", "BXOR": "UINT16_T"}
DTYPES = {
    "DOUBLE": np.dtype("f8"),
    "FLOAT": np.dtype("f4"),
    "UINT16_T": np.dtype("u2"),
    "DOUBLE_INT": np.dtype([("value", "f8"), ("index", "i4")], align=True),
}
COUNT, NRANKS = 150, 5


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
# Bytes of a block, workers, and open files: each op with one of them, with another for each collective.
CUTS = ((64, 3, 1), (1000, 2, 2), (64, 1, 1), (1 << 20, 1, 100))


@pytest.mark.parametrize(
    ("form", "to"), [("raw", "raw"), ("npy", "parquet"), ("parquet", "npy"), ("arrow", "npy"), ("npy", "arrow")]
)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.sampled(2)
@pytest.mark.usefixtures("engine")
def test_every_format_with_any_blocks_and_workers(directory, cut_into, monkeypatch, verb, form, to):
    for i, (op, name) in enumerate(NAMES.items(), VERBS.index(verb)):
        paths = save(directory, form, ranks_of(name), DTYPES[name])
        expected, arguments = expected_of(verb, op, name)
        said = {"type": name} if form == "raw" else {}
        outputs = [directory / f"out_{rank}.{SUFFIXES[to]}" for rank in range(NRANKS)]
        for path in outputs:
            path.unlink(missing_ok=True)
        nbytes, jobs, max_open = CUTS[i % len(CUTS)]
        cut_into(nbytes)
        for limit in ("_MAX_OPEN", "_MAX_OPEN_STREAMED"):
            monkeypatch.setattr(f"mpired.collectives.plan.{limit}", max_open)
        pattern = directory / f"out_{{rank}}.{SUFFIXES[to]}"
        getattr(mpired, verb)(paths, op, *arguments, output=pattern, to=to, jobs=jobs, **said)
        found = [load(path, to, DTYPES[name]) if path.exists() else None for path in outputs]
        assert found == expected, (op, nbytes, jobs)


@pytest.mark.parametrize("form", FORMATS)
def test_in_place_gives_the_same_as_other_files(directory, engine, cut_into, form):
    # Each collective with one op, with another for each format.
    for i, verb in enumerate(VERBS, FORMATS.index(form)):
        op, name = [*NAMES.items()][i % len(NAMES)]
        said = {"type": name} if form == "raw" else {}
        paths = save(directory, form, ranks_of(name), DTYPES[name])
        before = [(directory / path).read_bytes() for path in paths]
        expected, arguments = expected_of(verb, op, name)
        getattr(mpired, verb)(paths, op, *arguments, in_place=True, **said)
        for path, result, content in zip(paths, expected, before, strict=True):
            if result is None:
                assert (directory / path).read_bytes() == content
            else:
                elements = reference.elements(name, load(path, form, DTYPES[name]))  # in place the padding stays
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
    results = [*mpired.scan(paths, "SUM", jobs=2), *(mpired.reduce(paths, "SUM", jobs=jobs) for jobs in (1, 7))]
    for last, arrays in zip((0, 1, 2, 2, 2), results, strict=True):
        assert {column: array.tobytes() for column, array in arrays.items()} == {
            column: reference.reduce("SUM", name, ranks[column][: last + 1]) for column, (_, name) in names.items()
        }
    blocks = mpired.reduce_scatter(paths, "SUM", [100, 0, 50])
    for column, (_, name) in names.items():
        whole = b"".join(block[column].tobytes() for block in blocks)
        assert whole == reference.reduce("SUM", name, ranks[column])


def test_options_that_a_call_has_not(directory):
    """What is said of files needs files."""
    paths = save(directory, "raw", [bytes(16)] * 2, "f8")
    for options in {"to": "npy"}, {"overwrite": True}, {"link": True}:
        with pytest.raises(ValueError, match="output"):
            mpired.allreduce(paths, "sum", type="double", **options)
    with pytest.raises(ValueError, match="`link`: does not go with `in_place`"):
        mpired.allreduce(paths, "sum", type="double", in_place=True, link=True)
    unknown = [(mpired.scan, "link"), (mpired.scan, "exscan_first"), (mpired.scan, "nonsense")]
    for verb, option in *unknown, (mpired.allreduce, "counts_b"):
        with pytest.raises(TypeError, match=option):
            verb(paths, "sum", type="double", **{option: None})
    for option in "to", "root", "in_place", "overwrite", "group_b":
        with pytest.raises(TypeError, match=option):
            mpired.reduce_local(*paths, "sum", type="double", **{option: None})
