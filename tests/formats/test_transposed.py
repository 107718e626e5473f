"""Arrays in Fortran order beside arrays in C order: the elements of the same index are combined, as NumPy does it."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from command import measured, refused, run, succeeded, unchanged
from hypothesis import given
from hypothesis import strategies as st

import mpired
from mpired import ranks
from mpired.datatypes import from_dtype
from mpired.errors import CountError
from mpired.formats import Array, InputOptions, RankFile, open_rank
from mpired.formats.transposed import TransposedReader, in_order

SHAPES = ((5, 7), (1, 6), (6, 1), (3, 1, 4), (2, 3, 4, 5), (130, 3), (3, 130), (0, 4))
DTYPES = ("<i4", ">i4", "<f8", ">c16", "|u1", "?", [("value", ">f8"), ("index", "<i4")])


def array_of(shape: tuple[int, ...], code: object = "<f8", first: int = 0) -> np.ndarray:
    """Return an array whose elements are all different, if its type has as many."""
    dtype = np.dtype(code)
    numbers = (np.arange(first, first + int(np.prod(shape))) * 37 % 1009).reshape(shape)
    if dtype.names is None:
        return numbers.astype(dtype)
    array = np.zeros(shape, dtype)
    array["value"], array["index"] = numbers / 8, numbers[..., ::-1]
    return array


def saved(path: Path, array: np.ndarray, order: str) -> str:
    np.save(path, np.asarray(array, order=order))
    return str(path)


class _Held:
    """A source in memory."""

    name = "held"

    def __init__(self, octets: bytes) -> None:
        self._octets, self.nreads = octets, 0

    def open(self) -> _Held:
        return self

    def kept(self) -> _Held:
        return self

    def read_into(self, view: memoryview, offset: int) -> int:
        self.nreads += 1
        part = self._octets[offset : offset + len(view)]
        view[: len(part)] = part
        return len(part)

    def close(self) -> None:
        pass


@given(st.data())
def test_any_range_of_any_array_is_that_of_numpy(data):
    shape = (2, *data.draw(st.lists(st.integers(1, 6), max_size=3)), data.draw(st.integers(2, 6)))
    array = array_of(shape, data.draw(st.sampled_from(("<i8", ">f4", "<c16", DTYPES[-1]))))
    order, other = data.draw(st.sampled_from(("CF", "FC")))
    datatype = from_dtype(array.dtype)
    flat = Array(_Held(b"head" + array.tobytes(order)), datatype, array.size, array.dtype, 4, shape, order == "F")
    turned = in_order(flat, fortran_order=order == "C")
    buffer = turned._replace(memory=data.draw(st.integers(1, 2 * array.nbytes)))
    assert buffer.fortran_order == (other == "F")
    expected = array.ravel(order=other)
    with closing(buffer.open()) as reader:
        for _ in range(3):
            start = data.draw(st.integers(0, array.size))
            block = np.empty(data.draw(st.integers(0, array.size - start)), datatype.form)
            reader.read(start, block)
            for field in array.dtype.names or (...,):
                assert block[field].tolist() == expected[start : start + len(block)][field].tolist()


@pytest.mark.parametrize("gap", [1, 1000])
def test_stretches_are_read_at_once(gap):
    """Not an element at a time: near ones with what is between, far ones each."""
    array = np.arange(4.0 * gap * 50, dtype="<f8").reshape(4 * gap, 50)
    held = _Held(array.tobytes("F"))
    flat = Array(held, from_dtype(array.dtype), array.size, array.dtype, 0, array.shape, fortran_order=True)
    buffer = in_order(flat, fortran_order=False)
    block = np.empty(200)
    with closing(buffer.open()) as reader:
        reader.read(0, block)
    assert block.tolist() == array[:4].ravel().tolist()
    assert held.nreads <= (1 if gap == 1 else 50)


@pytest.mark.parametrize(
    ("shape", "code"), [*((shape, "<f8") for shape in SHAPES), *(((3, 4), c) for c in DTYPES[:-1])]
)
def test_a_rank_in_the_other_order_is_converted(shape, code, tmp_path):
    arrays = [array_of(shape, code, 100 * rank) for rank in range(3)]
    expected = arrays[0] | arrays[1] | arrays[2] if code in {"<i4", ">i4", "|u1", "?"} else sum(arrays)
    op = "bor" if code in {"<i4", ">i4", "|u1"} else "lor" if code == "?" else "sum"
    for orders in itertools.islice(itertools.product("CF", repeat=3), 1, 7):
        paths = [saved(tmp_path / f"r{i}.npy", *each) for i, each in enumerate(zip(arrays, orders, strict=True))]
        result = mpired.reduce(paths, op)
        assert result.dtype == expected.dtype.newbyteorder("=")
        assert result.tobytes("C") == expected.astype(result.dtype).tobytes("C")
        assert result.shape == shape


@pytest.mark.parametrize("root", [0, 1])
def test_the_result_has_the_order_of_the_root(root, tmp_path):
    arrays = [array_of((4, 6)), array_of((4, 6), ">f8", 50)]
    saved(tmp_path / "r0.npy", arrays[0], "C")
    saved(tmp_path / "r1.npy", arrays[1], "F")
    succeeded(
        run("reduce", "-q", "--op", "sum", "r0.npy", "r1.npy", "--root", str(root), "-o", "out.npy", cwd=tmp_path)
    )
    out = np.load(tmp_path / "out.npy")
    assert out.flags.f_contiguous == bool(root)
    assert out.dtype == arrays[root].dtype
    assert out.tolist() == (arrays[0] + arrays[1]).tolist()
    words = ("--op", "sum", "r0.npy", "r1.npy", "--root", str(root), "--in-place")
    succeeded(run("reduce", "-q", *words, cwd=tmp_path))
    assert (tmp_path / f"r{root}.npy").read_bytes() == (tmp_path / "out.npy").read_bytes()


@pytest.mark.parametrize("code", DTYPES[-1:])
def test_pairs(code, tmp_path):
    arrays = [array_of((5, 3), code), array_of((5, 3), code, 40)]
    paths = [saved(tmp_path / f"r{i}.npy", array, "CF"[i]) for i, array in enumerate(arrays)]
    larger = arrays[1]["value"] > arrays[0]["value"]
    expected = np.where(larger, arrays[1]["index"], arrays[0]["index"])
    assert mpired.reduce(paths, "maxloc")["index"].tolist() == expected.tolist()


def test_raw_ranks_have_no_order_of_their_own(tmp_path):
    array = array_of((3, 4))
    paths = [str(tmp_path / "r0.bin"), *(saved(tmp_path / f"{order}.npy", array, order) for order in "FC")]
    np.zeros(12).tofile(paths[0])
    assert mpired.reduce(paths, "sum", type="double").tolist() == (2 * array.ravel("F")).tolist()


def test_all_results_have_one_order(tmp_path):
    arrays = [array_of((3, 5), first=20 * rank) for rank in range(3)]
    for rank, array in enumerate(arrays):
        saved(tmp_path / f"r{rank}.npy", array, "FCC"[rank])
    names = [f"r{rank}.npy" for rank in range(3)]
    succeeded(run("scan", "-q", "--op", "sum", *names, "-o", "out_{rank}.npy", cwd=tmp_path))
    succeeded(run("scan", "-q", "--op", "sum", *names, "--in-place", cwd=tmp_path))
    for rank in range(3):
        found = np.load(tmp_path / f"out_{rank}.npy")
        assert found.flags.f_contiguous
        assert found.tolist() == sum(arrays[: rank + 1]).tolist()
        assert (tmp_path / f"r{rank}.npy").read_bytes() == (tmp_path / f"out_{rank}.npy").read_bytes()


def test_two_groups(tmp_path):
    arrays = [array_of((3, 4), first=20 * rank) for rank in range(2)]
    for rank, array in enumerate(arrays):
        saved(tmp_path / f"r{rank}.npy", array, "CF"[rank])
    words = ("--op", "sum", "r0.npy", "--group-b", "r1.npy", "-o", "out_{group}_{rank}.npy")
    succeeded(run("allreduce", "-q", *words, cwd=tmp_path))
    assert np.load(tmp_path / "out_a_0.npy").tolist() == arrays[1].tolist()
    assert np.load(tmp_path / "out_b_0.npy").tolist() == arrays[0].tolist()


def test_memory_workers_and_open_files_do_not_show(tmp_path):
    arrays = [array_of((300, 40), ">i4", rank) for rank in range(6)]
    paths = [saved(tmp_path / f"r{i}.npy", array, "CFF"[i % 3]) for i, array in enumerate(arrays)]
    expected = sum(each.astype("i4") for each in arrays)
    for options in ({"max_memory": 61 << 20}, {"max_memory": 500 << 20, "jobs": 2}, {"jobs": 1}):
        assert mpired.reduce(paths, "sum", **options).tolist() == expected.tolist()


def test_bounded_memory(tmp_path):
    """What is read ahead counts as memory: 32 MiB a rank are turned in 80 MiB for all."""
    shape = (1024, 4096)
    for rank in range(3):
        saved(tmp_path / f"r{rank}.npy", np.full(shape, rank + 1.0), "CFF"[rank])
    words = ("-q", "--op", "sum", "r0.npy", "r1.npy", "r2.npy", "-o", "out.npy", "-j", "1", "--max-memory", "80M")
    status, peak, err = measured("reduce", *words, cwd=tmp_path)
    assert (status, err) == (0, "")
    assert peak <= 80 << 20
    assert np.load(tmp_path / "out.npy").tobytes() == np.full(shape, 6.0).tobytes()


def test_a_format_that_cannot_be_turned_is_refused(tmp_path):
    file = open_rank(saved(tmp_path / "c.npy", array_of((2, 3)), "C"), InputOptions())
    decoded = file.buffers[0]._replace(fortran_order=True, reader=TransposedReader)
    other = RankFile(file.source, (decoded,))
    with pytest.raises(CountError, match="cannot be read in C order"):
        ranks.in_one_order(((file, other),), 0)


@pytest.mark.parametrize("orders", ["CF", "FC"])
@pytest.mark.parametrize("at", [None, "1:,::2"])
def test_an_origin_in_the_other_order(orders, at, tmp_path):
    """Elements of the same index are combined, of a file and of an array."""
    target, whole = array_of((4, 6)), array_of((4, 6), first=60)
    origin = whole if at is None else whole[1:, ::2]
    saved(tmp_path / "t.npy", target, orders[0])
    saved(tmp_path / "o.npy", origin, orders[1])
    expected = target.copy()
    expected[(...,) if at is None else np.s_[1:, ::2]] += 2 * origin
    window = mpired.Window(tmp_path / "t.npy")
    old = window.get_accumulate(tmp_path / "o.npy", "sum", at=at)
    assert old.tolist() == target[(...,) if at is None else np.s_[1:, ::2]].tolist()
    assert window.accumulate(np.asarray(origin, order=orders[1]), "sum", at=at) == 1
    found = np.load(tmp_path / "t.npy")
    assert found.flags.f_contiguous == (orders[0] == "F")
    assert found.tolist() == expected.tolist()


def test_origins_in_both_orders(tmp_path):
    for name, order in (("t", "C"), ("c", "C"), ("f", "F")):
        saved(tmp_path / f"{name}.npy", array_of((3, 5)), order)
    succeeded(run("accumulate", "-q", "--op", "sum", "t.npy", "f.npy", "c.npy", "f.npy", cwd=tmp_path))
    assert np.load(tmp_path / "t.npy").tolist() == (4 * array_of((3, 5))).tolist()


def test_an_origin_that_is_placed_by_displacement_is_taken_as_it_lies(tmp_path):
    array = array_of((2, 3))
    np.save(tmp_path / "t.npy", np.zeros((3, 3)))
    saved(tmp_path / "f.npy", array, "F")
    succeeded(run("accumulate", "-q", "--op", "sum", "--target-disp", "1", "t.npy", "f.npy", cwd=tmp_path))
    assert np.load(tmp_path / "t.npy").ravel()[1:7].tolist() == array.ravel("F").tolist()


def test_another_shape_is_refused_all_the_same(tmp_path):
    saved(tmp_path / "c.npy", array_of((3, 4)), "C")
    saved(tmp_path / "f.npy", array_of((4, 3)), "F")
    with unchanged(tmp_path):
        refused(run("reduce", "--op", "sum", "c.npy", "f.npy", "-o", "out.npy", cwd=tmp_path), 3, "shape (4, 3)")
        refused(run("accumulate", "--op", "sum", "c.npy", "f.npy", cwd=tmp_path), 3, "shape (4, 3)")
