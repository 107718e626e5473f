"""`mpired show`: figures and elements of files, compared with NumPy."""

import math
import random
from collections import Counter
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import xarray as xr
from command import run
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, basic_indices
from rows import check_refused, each
from tables import bytes_of
from values import BITING

import mpired
from mpired.datatypes import parse
from mpired.errors import UsageError
from mpired.queries.show import Selection


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Let files of a few elements have several blocks."""
    monkeypatch.setattr("mpired.queries.figures.BLOCK", 7)
    monkeypatch.setattr("mpired.queries.show._BLOCK", 5)


def drawn(code, count):
    """Draw numbers, many of which bite."""
    dtype = np.dtype(code)
    chosen = random.Random(0).choices(BITING[code], k=count)
    return np.frombuffer(b"".join(each.ljust(dtype.itemsize, b"\0") for each in chosen), dtype)


def exact_mean(numbers):
    """Return the mean by fractions, rounded once."""
    there = numbers[~np.isnan(numbers)] if numbers.dtype.kind == "f" else numbers
    infinite = there[np.isinf(there)] if there.dtype.kind == "f" else ()
    if len(infinite):
        return float(sum(infinite.tolist()))
    ratios = (each.as_integer_ratio() if there.dtype.kind == "f" else (int(each), 1) for each in there)
    try:
        return float(sum((Fraction(*ratio) for ratio in ratios), Fraction()) / len(there))
    except OverflowError:
        return math.inf if there.max() > 0 else -math.inf


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@each("code", [code for code in BITING if code != "g"])
@each("shape, order", [((40,), "C"), ((5, 8), "C"), ((5, 8), "F"), ((2, 5, 4), "F"), ((1,), "C"), ((3, 1), "F")])
def test_figures_are_those_of_numpy(code, shape, order, tmp_path):
    array = np.asarray(drawn(code, math.prod(shape)).reshape(shape), order=order)
    np.save(tmp_path / "a.npy", array)
    shown = mpired.show(tmp_path / "a.npy").buffers[0]
    (part,) = shown.parts
    is_float = array.dtype.kind == "f"
    assert (shown.count, shown.shape) == (array.size, shape)
    assert (part.nan, part.infinite) == ((np.isnan(array).sum(), np.isinf(array).sum()) if is_float else (0, 0))
    if is_float and np.isnan(array).all():
        assert (part.min, part.max_at, part.mean) == (None, None, None)
        return
    assert (part.min, part.max) == (np.nanmin(array), np.nanmax(array))
    assert part.min_at == np.unravel_index(np.nanargmin(array), shape)
    assert part.max_at == np.unravel_index(np.nanargmax(array), shape)
    np.testing.assert_equal(part.mean, exact_mean(array.ravel()))


def test_pairs_have_the_number_of_their_indices(tmp_path, monkeypatch):
    """Of too many a bound is told."""
    indices = np.random.default_rng(2).integers(0, 9, 50)
    np.save(tmp_path / "a.npy", np.array([(0, i) for i in indices], "f8,i4"))
    found, counts = mpired.show(tmp_path / "a.npy").buffers[0].indices, Counter(indices.tolist())
    assert (found.exact, found.distinct, dict(found.most)) == (True, len(counts), counts)
    assert [count for _, count in found.most] == sorted(counts.values(), reverse=True)
    monkeypatch.setattr("mpired.queries.figures._MOST_INDICES", 20)
    np.save(tmp_path / "a.npy", np.array([(0, i) for i in range(50)], "i4,i4"))
    found = mpired.show(tmp_path / "a.npy").buffers[0].indices
    assert (found.exact, found.most, 20 < found.distinct <= 50) == (False, (), True)


@each("form, how", [("parquet", {"row_group_size": 13, "data_page_size": 64}), ("arrow", {})])
def test_nulls_are_counted_and_left_out(form, how, tmp_path):
    draw = random.Random(3)
    numbers = [draw.choice([None, draw.randrange(-9, 9)]) for _ in range(60)]
    flags = [draw.choice([None, True, False]) for _ in range(60)]
    peaks = [draw.choice([None, {"value": 0.5 * i, "index": draw.choice([None, i % 4])}]) for i in range(60)]
    kind = pa.struct([("value", pa.float64()), ("index", pa.int32())])
    times = pa.array([None if each is None else each + 10 for each in numbers], pa.timestamp("ms"))
    table = pa.table({"n": pa.array(numbers, pa.int16()), "f": flags, "p": pa.array(peaks, kind), "t": times})
    path = tmp_path / f"a.{form}"
    path.write_bytes(bytes_of(table, form, **how))
    n, f, p = mpired.show(path, columns="n,f,p").buffers
    valid = [each for each in numbers if each is not None]
    mean = float(Fraction(sum(valid), len(valid)))
    assert (n.count, n.nulls, n.parts[0].min, n.parts[0].mean) == (60, 60 - len(valid), min(valid), mean)
    assert n.parts[0].max_at == (numbers.index(max(valid)),)
    assert (f.nulls, f.parts[0].mean) == (flags.count(None), flags.count(True) / (60 - flags.count(None)))
    whole = [each for each in peaks if each and each["index"] is not None]
    assert (p.nulls, dict(p.indices.most)) == (60 - len(whole), Counter(each["index"] for each in whole))
    (t,) = mpired.show(path, columns="t", bins=3).buffers
    assert (t.parts[0].min, t.parts[0].mean) == (np.datetime64(min(valid) + 10, "ms"), None)
    assert sum(t.parts[0].histogram.counts) == len(valid)
    out = run("show", path.name, "--columns", "n", "--histogram", cwd=tmp_path).out.decode()
    assert f"histogram of n, without {n.nulls} nulls\n" in out
    out = run("show", path.name, "--columns", "n,p", "--slice", "50::-7", cwd=tmp_path).out.decode()
    rows = [line.split() for line in out.split("\n\n")[1].splitlines()[1:]]
    for row, at in zip(rows, range(50, -1, -7), strict=True):
        peak = (peaks[at]["value"], peaks[at]["index"]) if peaks[at] in whole else (None, None)
        assert row == [str(at), *("null" if each is None else str(each) for each in (numbers[at], *peak))]


def text_of(index):
    """Write an index as it is typed."""

    def written(part):
        if isinstance(part, slice):
            start, stop, step = ("" if each is None else str(each) for each in (part.start, part.stop, part.step))
            return f"{start}:{stop}" + (f":{step}" if step else "")
        return "..." if part is ... else str(part)

    return ",".join(map(written, index))


@given(array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=7), st.sampled_from("CF"), st.data())
@settings(deadline=None, max_examples=100)
def test_slices_are_those_of_numpy(shape, order, data):
    index = data.draw(basic_indices(shape, min_dims=0, allow_newaxis=False))
    index = index if isinstance(index, tuple) else (index,)
    array = np.arange(math.prod(shape)).reshape(shape)
    stored = array.ravel(order=order)
    expected = array[index]
    comma = data.draw(st.sampled_from(["", ","]))  # which a tuple may end with
    selection = Selection.of(text_of(index or (...,)) + comma, shape)
    assert tuple(len(selection.axes[axis]) for axis in selection.kept) == expected.shape

    reader = SimpleNamespace(
        read=lambda start, block: np.copyto(block, stored[start : start + len(block)]), close=lambda: None
    )
    buffer = SimpleNamespace(
        datatype=parse("int64")[0], isolated=False, dimensions=shape, fortran_order=order == "F", open=lambda: reader
    )
    found = []
    for indices, ((picked, _),) in selection.read([buffer], [range(selection.count)]):
        assert array[tuple(indices)].tolist() == picked.tolist()
        found += picked.tolist()
    assert found == expected.ravel().tolist()


def tables_of(*words, cwd):
    """Return the parts of what is printed, as lists of words a line."""
    outcome = run("show", *words, cwd=cwd)
    assert (outcome.status, outcome.err) == (0, "")
    return [[line.split() for line in part.splitlines()] for part in outcome.out.decode().split("\n\n")]


@pytest.fixture
def folder(tmp_path):
    """An array, a file with a column of texts, one with texts alone, and raw bytes."""
    np.save(tmp_path / "a.npy", np.arange(12.0).reshape(3, 4))
    np.save(tmp_path / "line.npy", np.zeros(3))
    np.save(tmp_path / "cube.npy", np.zeros((2, 3, 4)))
    (tmp_path / "raw").write_bytes(bytes(8))
    (tmp_path / "texts.parquet").write_bytes(bytes_of(pa.table({"t": ["a"]}), "parquet"))
    (tmp_path / "both.parquet").write_bytes(bytes_of(pa.table({"t": ["a"], "n": [1]}), "parquet"))
    packing = {"t": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9}}
    xr.Dataset({"t": ("x", [1.5])}).to_netcdf(tmp_path / "p.nc", encoding=packing)
    arrays = {"x": np.arange(4.0), "y": np.array([8.0]), "z": np.arange(4.0, 8.0), "m": np.array([[1.0, 2], [3, 4]])}
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    return tmp_path


@each("words, status, reason", [
    ("raw", 2, "--type"),
    ("a.npy --slice 3", 3, "--slice 3: index 3 is out of bounds for axis 0 with 3 elements"),
    ("a.npy --slice 0,0,0", 2, "has 3 indices, but the elements have shape (3, 4)"),
    ("a.npy --slice ::0", 2, "'::0' is not an index"),
    ("a.npy --slice ...,...", 2, "has 2 indices"),
    ("a.npz --slice 0", 2, "--slice: is of arrays of one shape"),
    ("texts.parquet", 3, "column 't' holds string, not numbers"),
    ("p.nc", 3, "'t' is packed by `scale_factor`; unpack it with --unpack\n"),
    ("both.parquet --columns t --png x.png", 3, "column 't' holds string, not numbers"),
    ("a.npy --png x.pdf", 2, "--png: x.pdf is not the name of a PNG picture; write NAME.png"),
    ("a.npy a.npy --png x.png", 2, "--png: is of one file"),
    ("a.npy --png x.png --slice 0,0", 2, "--slice 0,0: a picture shows a plane"),
    ("a.npy --png x.png --slice :,3:4", 2, "choose a plane, or leave --slice out"),
    ("a.npy --bins 3", 2, "--bins: is for histograms; add --histogram or --png"),
    ("a.npy --histogram --bins 0", 2, "--bins"),
    ("line.npy --png x.png --diff line.npy", 2, "mpired: --diff: draws planes / `mpired diff` compares all"),
    ("cube.npy --png x.png --diff cube.npy", 2, "mpired: --diff: draws planes / choose a plane with --slice"),
    ("a.npy --diff a.npy --png a.png --slice 0", 2, "a picture shows a plane"),
])  # fmt: skip
def test_what_cannot_be_shown(words, status, reason, folder):
    check_refused(folder, f"show {words}", status, *reason.split(" / "))


def test_a_slice_in_python_is_of_a_picture():
    with pytest.raises(UsageError, match="chooses the plane of a picture"):
        mpired.show(np.zeros(3), slice="0")


def test_columns_of_texts_are_left_out_and_arrays_of_several_shapes_have_a_table_each(folder):
    header, rows, summary = tables_of("both.parquet", cwd=folder)
    assert header[-1][:4] == ["t:", "1", "x", "string;"]
    assert (rows, summary[0]) == ([["element", "n"], ["0", "1"]], ["n"])
    assert tables_of("a.npz", cwd=folder)[1:-1] == [
        [["element", "x", "z"], ["0", "0.0", "4.0"], ["1", "1.0", "5.0"], ["2", "2.0", "6.0"], ["3", "3.0", "7.0"]],
        [["element", "y"], ["0", "8.0"]],
        [["m:"], ["0", "1"], ["0", "1.0", "2.0"], ["1", "3.0", "4.0"]],
    ]
    assert tables_of("--slice", "3", "--columns", "x,z", "a.npz", cwd=folder)[1][1] == ["3", "3.0", "7.0"]


@each("shape", [(0,), (0, 3), ()])
def test_arrays_with_no_or_one_element(shape, tmp_path):
    np.save(tmp_path / "a.npy", np.ones(shape))
    outcome = run("show", "a.npy", "--histogram", cwd=tmp_path)
    assert (outcome.status, outcome.err) == (0, "")
    assert mpired.show(tmp_path / "a.npy").buffers[0].count == math.prod(shape)


@each("dtype, last", [("M8[D]", 9), ("M8[us]", 2**63 - 1), ("m8[s]", 9)])
def test_nat_is_the_nan_of_times(dtype, last, tmp_path):
    times = np.array([3, "NaT", -7, 12, "NaT", last], dtype)
    np.save(tmp_path / "a.npy", times)
    (part,) = mpired.show(tmp_path / "a.npy", bins=4).buffers[0].parts
    valid = times[~np.isnat(times)]
    assert (part.nan, part.min, part.max) == (2, valid.min(), valid.max())
    assert (part.min_at, times[part.max_at]) == ((2,), valid.max())
    assert part.mean == (None if dtype[0] == "M" else exact_mean(valid.astype("i8")))
    edges = np.array(part.histogram.edges).astype("i8")
    assert list(part.histogram.counts) == np.histogram(valid.astype("i8"), edges)[0].tolist()
    assert b"histogram of value, without 2 NaN\n" in run("show", "--histogram", "a.npy", cwd=tmp_path).out
