"""`--nulls` and `--missing` of one-sided calls: accumulate is the reduction that goes on, as masked arrays have it."""

import json
import operator

import masked
import netCDF4
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tables
from command import run
from rows import check_refusals, each

import mpired
from mpired.errors import DatatypeError, UsageError

OPS = {"sum": operator.add, "max": max, "prod": operator.mul, "replace": lambda _, new: new}


def combined(op, old, new, nulls):
    """Return an element, or None, after another one was combined into it."""
    if nulls == "propagate" and (new is None or (old is None and op != "replace")):
        return None
    return old if new is None else new if old is None else OPS[op](old, new)


def expected(op, arrays, nulls):
    """Return the masked array that comes of one after another."""
    target, *origins = arrays
    found = target.ravel().tolist()
    for origin in origins:
        found = [combined(op, old, new, nulls) for old, new in zip(found, origin.ravel().tolist(), strict=True)]
    mask = np.array([each is None for each in found])
    values = np.array([0 if each is None else each for each in found], target.dtype)
    return np.ma.MaskedArray(values, mask).reshape(target.shape)


@each("form, op, nulls, dtype", [
    ("parquet", "sum", "ignore", "f8"), ("parquet", "prod", "propagate", "i4"), ("arrow", "max", "propagate", "i4"),
    ("arrow", "replace", "propagate", "f8"), ("3.nc", "sum", "ignore", "i4"), ("3.nc", "max", "propagate", "f8"),
    ("4.nc", "replace", "ignore", "f8"), ("h5", "sum", "propagate", "i4"), ("2.zarr.zip", "sum", "ignore", "f8"),
    ("3.zarr.zip", "max", "ignore", "i4"),
])  # fmt: skip
def test_accumulating_is_the_reduction_that_goes_on(form, op, nulls, dtype, tmp_path_factory):
    folder, shape = tmp_path_factory.mktemp("nulls"), (12,) if form in masked.TABLES else (3, 4)
    arrays = [masked.drawn(seed, shape, dtype) for seed in range(3)]
    names = [masked.write(folder / f"{i}.{form}", t=array) for i, array in enumerate(arrays)]
    reduced = mpired.reduce(names, op, nulls=nulls) if form in masked.TABLES and op != "replace" else None
    window = mpired.Window(names[0], nulls=nulls)
    assert window.accumulate(names[1:], op, columns="t") == 2
    masked.check(masked.read(names[0], "t"), expected(op, arrays, nulls))
    if reduced is not None:
        masked.check(reduced, expected(op, arrays, nulls))


@each("form, nulls", [*((form, "ignore") for form in masked.FORMS), ("parquet", "propagate"), ("h5", "propagate")])
def test_pairs_of_two_arrays(form, nulls, tmp_path_factory):
    """The result of `index` is a target, and both arrays of a missing pair have their fill values."""
    folder, shape = tmp_path_factory.mktemp("pairs"), (12,) if form in masked.TABLES else (3, 4)
    ranks = [masked.write(folder / f"{i}.{form}", t=masked.drawn(i, shape)) for i in range(5)]
    target, origin, new = paths = [folder / f"{name}.{form}" for name in ("target", "origin", "new")]
    for path, some in (target, ranks[:2]), (origin, ranks[2:]):
        mpired.reduce(some, "maxloc", index="rank", nulls="ignore", output=path)
    (values, at), (others, theirs) = ([masked.read(path, name) for name in ("t", "t_index")] for path in paths[:2])
    masks = [np.ma.getmaskarray(each) for each in (values, others)]
    mine, their = values.data, others.data
    lacks = np.logical_and(*masks) if nulls == "ignore" else np.logical_or(*masks)
    takes = ~masks[1] & (masks[0] | (their > mine) | ((their == mine) & (theirs.data < at.data)))
    for path, created in (target, {}), (new, {"create": True}):
        origins = [origin] if path is target else [origin, target]
        window = mpired.Window(path, nulls=nulls)
        window.accumulate(origins, "maxloc", pair=("t", "t_index"), **created)
        masked.check(masked.read(path, "t"), np.ma.MaskedArray(np.where(takes, their, mine), lacks))
        masked.check(masked.read(path, "t_index"), np.ma.MaskedArray(np.where(takes, theirs.data, at.data), lacks))


@pytest.mark.parametrize("nulls", ["ignore", "propagate"])
def test_a_map_with_many_entries_for_one_element(nulls, tmp_path):
    draw = np.random.default_rng(9)
    places = np.concatenate([np.zeros(300, int), np.full(60, 5), draw.integers(0, 12, 90)])
    draw.shuffle(places)
    part = 0.02 if nulls == "propagate" else 0.5
    origin = np.ma.MaskedArray(draw.integers(-3, 4, len(places)) * 1.0, draw.random(len(places)) < part)
    for op in ("sum", "max", "replace"):
        start = masked.drawn(11, (12,))
        target = masked.write(tmp_path / f"{op}.parquet", x=start)
        found, olds = start.tolist(), []
        for place, new in zip(places, origin.tolist(), strict=True):
            olds.append(found[place])
            found[place] = combined(op, found[place], new, nulls)
        window = mpired.Window(target, nulls=nulls)
        fetched = window.get_accumulate(origin, op, map=places)
        assert fetched.tolist() == olds, op
        assert masked.read(target, "x").tolist() == found, op


@each("form", masked.FORMS)
def test_only_elements_that_a_call_combines_have_to_be_valid(form, tmp_path_factory):
    """In the target and in an origin; those with values that are not valid, too, have none to combine."""
    folder = tmp_path_factory.mktemp("part")
    path = masked.write(folder / f"t.{form}", t=np.ma.MaskedArray([1, 2, 3, 4], [0, 1, 0, 0], "i4"))
    other = masked.write(folder / f"o.{form}", t=np.ma.MaskedArray([5, 6, 7, 8], [1, 0, 0, 1], "i4"))
    window = mpired.Window(path)
    assert window.compare_and_swap(4, 9, target_disp=3, columns="t") == 4
    assert window.fetch_and_op(1, "sum", target_disp=0, columns="t") == 1
    parts = {"origin_disp": 1, "origin_count": 2, "columns": "t"}
    assert window.get_accumulate(other, "sum", target_disp=2, **parts).tolist() == [3, 9]
    masked.check(masked.read(path, "t"), np.ma.MaskedArray([2, 2, 9, 16], [0, 1, 0, 0], "i4"))
    for change in ({"target_disp": 1}, {"target_disp": 2, "origin_disp": 0}):
        with pytest.raises(DatatypeError, match=r"has 1 (null|missing element); skip them"):
            window.accumulate(other, "sum", **parts | change)


def test_elements_beyond_their_valid_range_are_missing(tmp_path):
    with netCDF4.Dataset(tmp_path / "t.nc", "w") as file:
        file.createDimension("x", 3)
        file.createVariable("t", "f8", ("x",), zlib=True)[:] = [1, 99, 2]
        file["t"].valid_range = [0.0, 10.0]
    mpired.Window(tmp_path / "t.nc").accumulate(np.ones(3), "sum", nulls="ignore")
    assert masked.read(tmp_path / "t.nc", "t").tolist() == [2, 1, 3]


def test_old_elements_are_masked_and_written_as_null(tmp_path):
    target = masked.write(tmp_path / "t.3.nc", t=np.ma.MaskedArray([1.0, 2.0, 3.0], [0, 1, 0]))
    window = mpired.Window(target, nulls="ignore")
    old = window.get_accumulate(np.ma.MaskedArray([1.0, 1.0, 1.0], [0, 0, 1]), "sum", columns="t")
    assert old.tolist() == [1, None, 3]
    assert masked.read(target, "t").tolist() == [2, 1, 3]
    mpired.Window(target).accumulate(np.ma.MaskedArray([9.0] * 3, [1, 0, 0]), "max", nulls="propagate", columns="t")
    assert window.fetch_and_op(5, "sum", target_disp=0, columns="t") is np.ma.masked
    assert window.fetch_and_op(None, "no_op", target_disp=0, columns="t") == 5
    window.accumulate(np.ma.masked_all(1), "replace", nulls="propagate", target_disp=0, columns="t")
    words = ("get-accumulate", "-q", "--op", "no_op", "--columns", "t", "t.3.nc", "--nulls", "ignore", "--fetch")
    for name, text in (("-", b"null\n9.0\n9.0\n"), ("o.parquet", b""), ("o.npy", b""), ("o.nc", b"")):
        to = ("--to", "text") if name == "-" else ()
        outcome = run(*words, name, *to, cwd=tmp_path)
        assert (outcome.status, outcome.err) == (0, "")
        assert outcome.out == text
    assert tables.read(tmp_path / "o.parquet").to_pydict() == {"value": [None, 9, 9]}
    np.testing.assert_array_equal(np.load(tmp_path / "o.npy"), [np.nan, 9, 9])
    with netCDF4.Dataset(tmp_path / "o.nc") as file:
        assert file["value"][...].tolist() == [None, 9, 9]
    fetch = ("fetch-and-op", "--op", "no_op", "--columns", "t", "--nulls", "ignore", "t.3.nc")
    assert run(*fetch, cwd=tmp_path).out == b"null\n"
    assert json.loads(run(*fetch, "--json", cwd=tmp_path).err)["old"] is None


def test_a_column_becomes_nullable_where_it_has_to_be(tmp_path):
    fields = [pa.field("n", pa.int16(), nullable=False), pa.field("s", pa.string()), pa.field("m", pa.int16())]
    table = pa.table([[1, 2], ["a", None], [None, 4]], schema=pa.schema(fields))
    one, other = np.ma.MaskedArray([5, 6], [1, 0], "i2"), np.ma.MaskedArray([7, 8], [0, 0], "i2")
    origin = masked.write(tmp_path / "o.arrow", n=one, m=other)
    for nulls, columns, n, m in (
        ("ignore", "n", [1, 8], [None, 4]),
        ("ignore", "n,m", [1, 8], [7, 12]),
        ("propagate", "n,m", [None, 8], [None, 12]),
    ):
        pq.write_table(table, tmp_path / "t.parquet")
        mpired.Window(tmp_path / "t.parquet").accumulate(origin, "sum", columns=columns, nulls=nulls)
        found = pq.read_table(tmp_path / "t.parquet")
        assert found.to_pydict() == {"n": n, "s": ["a", None], "m": m}, (nulls, columns)
        assert found.schema.field("n").nullable == (nulls == "propagate")


@each("form", ["parquet", "4.nc", "npy"])
def test_a_new_target_lacks_what_all_origins_lack(form, tmp_path_factory):
    folder, arrays = tmp_path_factory.mktemp("create"), [masked.drawn(seed, (9,)) for seed in range(2)]
    suffix = "parquet" if form == "npy" else form
    names = [masked.write(folder / f"{i}.{suffix}", t=array) for i, array in enumerate(arrays)]
    target, create = folder / f"new.{form}", True if form != "npy" else 9
    mpired.Window(target).accumulate(names, "sum", columns="t", nulls="ignore", create=create, type="double")
    wanted = expected("sum", arrays, "ignore")
    if form == "npy":  # which has the neutral element
        assert np.load(target).tolist() == wanted.filled(0).tolist()
    else:
        masked.check(masked.read(target, "t"), wanted)


def test_once_tells_nulls_from_values(tmp_path):
    target = masked.write(tmp_path / "t.parquet", x=np.ma.MaskedArray([1.0, 2.0], [0, 0]))
    one, two = (np.ma.MaskedArray([5.0, 0.0], mask) for mask in ([0, 0], [0, 1]))
    window = mpired.Window(target, nulls="ignore")
    assert [window.accumulate(each, "replace", once=True) for each in (one, two, one)] == [1, 1, 0]
    assert masked.read(target, "x").tolist() == [5, 0]


SWAPS = [
    # position, COMPARE, VALUE, the old element, and the new one with `propagate` and `ignore`
    (1, "null", 5, None, 5, 5),
    (2, 0, "one.parquet", 0, None, 0),
    (0, 1, "null", 1, None, 1),
    (4, 0, 5, None, None, None),
    (4, masked.FILL, 5, None, None, None),
    (1, "null", 6, 5, 5, 5),
    (5, "one.parquet", 7, 0, 0, 0),
    (3, 4, 9, 4, 9, 9),
    (3, 9, "null", 9, None, 9),
]


@each("form, nulls, count", [
    ("parquet", "propagate", 9), ("3.nc", "ignore", 9), ("arrow", "ignore", 2), ("4.nc", "propagate", 2),
    ("h5", "ignore", 2), ("3.zarr.zip", "propagate", 2),
])  # fmt: skip
def test_compare_and_swap(form, nulls, count, tmp_path_factory):
    """A missing element equals `null` alone; as VALUE that is `replace`'s: nothing with `ignore`."""
    folder, name = tmp_path_factory.mktemp("swap"), f"t.{form}"
    masked.write(folder / name, t=np.ma.MaskedArray([1, 0, 0, 4, 0, 0], [0, 1, 0, 0, 1, 0], "i4"))
    masked.write(folder / "one.parquet", t=np.ma.MaskedArray([0], [1], "i4"))
    for position, compare, value, old, *new in SWAPS[:count]:
        words = ("compare-and-swap", "--nulls", nulls, "--columns", "t", "--target-disp", position, name)
        outcome = run(*map(str, (*words, compare, value)), cwd=folder)
        assert outcome == (0, f"{'null' if old is None else old}\n".encode(), "")
        found = masked.read(folder / name, "t")[position]
        assert (None if found is np.ma.masked else found) == new[nulls == "ignore"], (position, compare, value)
    window = mpired.Window(folder / name, nulls=nulls)
    assert window.compare_and_swap(np.ma.masked, np.ma.masked, target_disp=4, columns="t") is np.ma.masked
    old = window.fetch_and_op(3, "sum", target_disp=2, columns="t")
    assert old == 0 if nulls == "ignore" else old is np.ma.masked


def test_refusals(tmp_path):
    masked.write(tmp_path / "t.3.nc", t=masked.drawn(1, (4,), "i4"))
    masked.write(tmp_path / "o.parquet", t=np.ma.MaskedArray([1, 2, 3, 4], [0, 1, 0, 0], "i4"))
    np.save(tmp_path / "n.npy", np.arange(4, dtype="i4"))
    with netCDF4.Dataset(tmp_path / "plain.nc", "w") as file:
        file.createDimension("x", 4)
        file.createVariable("t", "i4", ("x",), zlib=True)[:] = np.arange(4)
    add = "accumulate --op sum"
    reasons = "may give nulls of / MPI_INT32_T / has no value / or say with --missing"
    check_refusals(tmp_path, [
        (f"{add} n.npy o.parquet", 3, "'t' has 1 null / skip them with --nulls ignore"),
        (f"{add} t.3.nc n.npy --columns t", 3, "missing elements; skip them with --nulls ignore"),
        (f"{add} --nulls propagate n.npy o.parquet", 2, f"n.npy / use --nulls ignore / {reasons}"),
        (f"{add} --nulls propagate --dry-run n.npy o.parquet", 2, f"--nulls propagate / {reasons}"),
        (f"{add} --nulls propagate plain.nc o.parquet --columns t", 2, f"plain.nc / `_FillValue` / {reasons}"),
        ("compare-and-swap --columns t t.3.nc 1 2", 3, "missing element / skip them with --nulls ignore"),
        ("compare-and-swap n.npy null 2", 2, "COMPARE / is a missing value / --nulls propagate"),
        ("compare-and-swap --nulls propagate n.npy 0 null", 2, f"--nulls propagate / {reasons}"),
        ("fetch-and-op --op sum n.npy null", 2, "VALUE / is a missing value / --nulls propagate"),
        (f"{add} --missing 0.5 n.npy n.npy", 2, "--missing / not a value of MPI_INT32_T"),
        (f"{add} --nulls ignore --target-disp 1 --disp-unit 1 --origin-count 2 o.parquet n.npy", 3, "4-byte rows"),
        ("get-accumulate --op no_op --nulls ignore --fetch x.npy o.parquet", 2, "MPI_INT32_T / npy has no value"),
        ("get-accumulate --op no_op --nulls ignore --fetch x.npy o.parquet --dry-run", 2, "npy has no value"),
    ])  # fmt: skip
    with pytest.raises(DatatypeError, match="array of origin 0: has 1 null; skip them with `nulls='ignore'`"):
        mpired.Window(tmp_path / "n.npy").accumulate(np.ma.MaskedArray([1, 2, 3, 4], [0, 0, 1, 0], "i4"), "sum")
    with pytest.raises(UsageError, match="`nulls`"):
        mpired.Window(tmp_path / "n.npy", nulls="no")
