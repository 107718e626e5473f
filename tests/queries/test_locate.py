"""`mpired locate`: the extremes of all ranks, in order, and where they are."""

import masked
import numpy as np
import pytest
import reference
import values
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import check_refused, each

import mpired
from mpired.errors import CountError, DatatypeError, MpiredError, OpError, UsageError

# The components of plain types that have an order.
CODES = ["i1", "u1", "i8", "u8", "f2", "f4", "f8", "g"]


def expected(ranks, op, nan, top):
    """Return rank and element of the extremes, by sorting all elements as Python does."""
    keyed, sign = [], -1 if op == "maxloc" else 1
    for rank, array in enumerate(ranks):
        for element, value in enumerate(array):
            if not np.isnan(value):
                number = np.longdouble(value) if array.dtype.kind == "f" else int(value)
                keyed.append(((1, sign * number, rank, element), (rank, element)))
            elif nan == "propagate":
                keyed.append(((0, 0, rank, element), (rank, element)))
    return [place for _, place in sorted(keyed, key=lambda each: each[0])[:top]]


@st.composite
def some_ranks(draw):
    code = draw(st.sampled_from(CODES))
    pool = draw(st.lists(st.sampled_from(values.BITING[code]), min_size=1, max_size=4))
    form = reference.FORMS["LONG_DOUBLE"][1] if code == "g" else int(code[1])
    padded = [each.ljust(form, b"\0") for each in pool]
    counts = draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    draws = np.random.default_rng(draw(st.integers(0, 2**16)))
    return [np.frombuffer(b"".join(padded[i] for i in draws.integers(0, len(padded), n)), code) for n in counts]


@settings(max_examples=60, deadline=None)
@given(some_ranks(), st.sampled_from(["maxloc", "minloc"]), st.sampled_from(["propagate", "ignore"]),
       st.sampled_from([1, 2, 7, 1000]), st.sampled_from([1, 5, 1 << 20]))  # fmt: skip
def test_extremes_are_those_of_a_sort(ranks, op, nan, top, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mpired.collectives.plan._BLOCK_BYTES", block * ranks[0].itemsize)
        wanted = expected(ranks, op, nan, top)
        if not wanted:
            with pytest.raises(CountError, match="are left out, all of them"):
                mpired.locate(ranks, op, nan=nan, top=top)
            return
        found = mpired.locate(ranks, op, nan=nan, top=top)
    assert [(each.rank, each.index[0]) for each in found] == wanted
    assert [each.value.tobytes() for each in found] == [ranks[rank][element].tobytes() for rank, element in wanted]


@each("order", ["C", "F"])
@each("shape", [(), (5,), (4, 3), (3, 1, 4), (2, 3, 4)])
@each("op, function", [("maxloc", np.argmax), ("minloc", np.argmin)])
def test_an_index_is_that_of_argmax(order, shape, op, function):
    array = np.array(np.random.default_rng(7).integers(0, 3, shape), "f8", order=order)
    found = mpired.locate([array], op)
    assert found.index == tuple(map(int, np.unravel_index(function(array), shape)))
    assert (found.value, found.rank) == (array[found.index], 0)


@each("dtype, op, function", [("M8[D]", "maxloc", np.argmax), ("m8[ns]", "minloc", np.argmin)])
def test_nat_is_the_nan_of_times(dtype, op, function):
    ranks = [np.array([4, -2, 9], dtype), np.array([5, "NaT", 9, "NaT", -2], dtype)]
    whole = np.concatenate(ranks)
    assert function(whole) == 4  # NaT, as NumPy has it
    numbers = np.sort(whole[~np.isnat(whole)])
    found = mpired.locate(ranks, op, top=3)
    assert [(each.rank, each.index) for each in found[:2]] == [(1, (1,)), (1, (3,))]
    found = mpired.locate(ranks, op, nan="ignore", top=3)
    assert [each.value for each in found] == list(numbers[::-1] if op == "maxloc" else numbers)[:3]


@each("words, status, reasons", [
    ("--op sum a.npy", 3, ["MPI_SUM", "give --op maxloc or --op minloc"]),
    ("--op most a.npy", 2, ["most", "is not an MPI op"]),
    ("--op maxloc", 2, ["there are none"]),
    ("--op maxloc a.npy empty.npy", 3, ["empty.npy", "rank 1 has no elements", "leave it out"]),
    ("--op maxloc e.npz", 3, ["e.npz: 'e' has no elements, and so no extreme; choose with --columns f"]),
    ("--op maxloc a.npy i.npy", 3, ["i.npy", "rank 1 has datatype MPI_INT64_T", "MPI_DOUBLE", "; convert to one"]),
    ("--op maxloc i.npy a.npy", 3, ["rank 1 has", "with --accumulate-in longdouble"]),
    ("--op maxloc s.npy f.npy --accumulate-in int64_t", 3, ["rank 1 has", "with --accumulate-in double"]),
    ("--op maxloc a.npy f.npy", 3, ["rank 1 has datatype MPI_FLOAT", "with --accumulate-in double"]),
    ("--op maxloc flags.npy", 3, ["flags.npy", "MPI_C_BOOL", "logical", "with --accumulate-in int64_t"]),
    ("--op maxloc pairs.npy", 3, ["pairs.npy", "MPI_DOUBLE_INT", "an extreme is one of"]),
    ("--op maxloc z.npy", 3, ["z.npy", "complex"]),
    ("--op maxloc raw", 2, ["raw", "give --type"]),
    ("--op minloc --nan ignore nan.npy", 3, ["are left out, all of them"]),
    ("--op maxloc - -", 2, ["standard input"]),
])  # fmt: skip
def test_refusals(words, status, reasons, tmp_path):
    arrays = {
        "a": np.zeros(3), "i": np.zeros(3, int), "f": np.zeros(3, "f4"), "empty": np.zeros((2, 0)),
        "s": np.zeros(3, "i4"), "flags": np.zeros(3, bool),
        "nan": np.full(3, np.nan), "z": np.zeros(3, complex), "pairs": np.zeros(2, [("value", "f8"), ("index", "i4")]),
    }  # fmt: skip
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "e.npz", e=np.zeros((0, 3)), f=np.zeros(3))
    (tmp_path / "raw").write_bytes(bytes(8))
    check_refused(tmp_path, f"locate {words}", status, *reasons)


def test_ranks_of_several_datatypes():
    """As the array of NumPy that has the values of all."""
    for within, *types in (
        ("double", "f4", "f8"), ("double", "i4", "f2"), ("int64_t", "i8", "i4", "?"), ("longdouble", "u8", "i8", "f4"),
    ):  # fmt: skip
        ranks = [np.array([0, 1, 0.1 + rank], dtype) for rank, dtype in enumerate(types)]
        whole = np.concatenate(ranks).astype({"double": "f8", "int64_t": "i8"}.get(within, "g"))
        for op, function in (("maxloc", np.argmax), ("minloc", np.argmin)):
            found, at = mpired.locate(ranks, op, accumulate_in=within), int(function(whole))
            assert (found.rank, found.index, found.value) == (at // 3, (at % 3,), whole[at])
    with pytest.raises(DatatypeError, match="in a wider one with `accumulate_in='double'`"):
        mpired.locate([np.array([1], "f4"), np.array([1.0])], "maxloc")


def test_what_python_gives():
    assert mpired.locate([np.arange(3)], mpired.MINLOC).value == 0
    assert mpired.locate([np.arange(3)], max).value == mpired.locate([np.arange(3)], "MAX").value == 2
    with pytest.raises(OpError, match="give `op='maxloc'` or `op='minloc'`"):
        mpired.locate([np.arange(3)], sum)
    with pytest.raises(UsageError, match="is one array"):
        mpired.locate(np.arange(3), "maxloc")


@each("form", masked.FORMS)
def test_missing_values_are_left_out(form, tmp_path_factory):
    folder, shape = tmp_path_factory.mktemp("masked"), (20,) if form in masked.TABLES else (4, 5)
    ranks = [masked.drawn(seed, shape) for seed in range(3)]
    names = [masked.write(folder / f"r{rank}.{form}", t=array) for rank, array in enumerate(ranks)]
    flat = enumerate(array.ravel().tolist() for array in ranks)
    keyed = [(value, rank, i) for rank, values in flat for i, value in enumerate(values) if value is not None]
    for op, sign, top, jobs in (("maxloc", -1, 4, 2), ("minloc", 1, 1, 1)):
        wanted = [each[1:] for each in sorted(keyed, key=lambda each: (sign * each[0], *each[1:]))]
        found = mpired.locate(names, op, columns="t", nulls="ignore", top=top, jobs=jobs)
        assert [(each.rank, int(np.ravel_multi_index(each.index, shape))) for each in found] == wanted[:top]
    least = min(keyed)[0]
    found = mpired.locate(names, "minloc", columns="t", nulls="ignore", missing=least)
    assert found.value == min(value for value, *_ in keyed if value != least)
    with pytest.raises(MpiredError, match="skip them with `nulls='ignore'`"):
        mpired.locate(names, "maxloc", columns="t")


def test_all_elements_are_missing(tmp_path):
    masked.write(tmp_path / "a.parquet", x=np.ma.masked_all(3, "f8"), y=np.ma.array([np.nan, 1, 2], mask=[0, 1, 1]))
    for words, *reasons in (
        ("--nulls ignore --columns x", "are left out, all of them", "--nulls"),
        ("--nulls ignore --nan ignore --columns y", "are left out, all of them"),
        ("--nulls ignore --missing 0x --columns x", "--missing"),
    ):
        check_refused(tmp_path, f"locate --op maxloc {words} a.parquet", 2 if "0x" in words else 3, *reasons)
    with pytest.raises(UsageError, match=r"`missing`: 0\.5 is not a value of MPI_INT64_T"):
        mpired.locate([np.arange(3)], "maxloc", missing=0.5)
    assert mpired.locate([np.array([3, -1, 2])], "minloc", missing=-1).value == 2
