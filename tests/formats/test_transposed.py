"""Arrays in Fortran order beside arrays in C order: the elements of the same index are combined, as NumPy does it."""

import io
import itertools
from contextlib import closing
from pathlib import Path

import numpy as np
from command import measured
from hypothesis import given
from hypothesis import strategies as st
from rows import together

import mpired
from mpired.datatypes import from_dtype
from mpired.formats import Array
from mpired.formats.derived import in_order

SHAPES = ((5, 7), (1, 6), (6, 1), (3, 1, 4), (2, 3, 4, 5), (130, 3), (3, 130), (0, 4))
CODES = {"<i4": "bor", ">i4": "bor", "<f8": "sum", ">c16": "sum", "|u1": "bor", "?": "lor"}
PAIR = [("value", ">f8"), ("index", "<i4")]


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


def saved_ranks(folder: Path, arrays: list[np.ndarray], orders: str) -> list[str]:
    each = enumerate(zip(arrays, orders, strict=True))
    return [saved(folder / f"r{rank}.npy", array, order) for rank, (array, order) in each]


class Held(io.BytesIO):
    """A source in memory."""

    name = "held"

    def open(self):
        return self

    def seekable(self):
        return self

    def read_into(self, view, offset):
        self.seek(offset)
        return self.readinto(view)


@given(st.data())
def test_any_range_of_any_array_is_that_of_numpy(data):
    shape = (2, *data.draw(st.lists(st.integers(1, 6), max_size=3)), data.draw(st.integers(2, 6)))
    array = array_of(shape, data.draw(st.sampled_from(("<i8", ">f4", "<c16", PAIR))))
    order, other = data.draw(st.sampled_from(("CF", "FC")))
    datatype = from_dtype(array.dtype)
    flat = Array(Held(b"head" + array.tobytes(order)), datatype, array.size, array.dtype, 4, shape, order == "F")
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


def test_ranks_in_both_orders(tmp_path):
    with together(tmp_path) as case:
        for shape, code in [*((shape, "<f8") for shape in SHAPES), *(((3, 4), code) for code in CODES)]:
            arrays = [array_of(shape, code, 100 * rank) for rank in range(3)]
            expected = sum(arrays) if CODES[code] == "sum" else arrays[0] | arrays[1] | arrays[2]
            for orders in itertools.islice(itertools.product("CF", repeat=3), 1, 7):
                with case(shape, code, orders) as folder:
                    result = mpired.reduce(saved_ranks(folder, arrays, orders), CODES[code])
                    assert result.dtype == expected.dtype.newbyteorder("=")
                    assert result.tobytes("C") == expected.astype(result.dtype).tobytes("C")
                    assert result.shape == shape
    pairs = [array_of((5, 3), PAIR), array_of((5, 3), PAIR, 40)]
    larger = pairs[1]["value"] > pairs[0]["value"]
    found = mpired.reduce(saved_ranks(tmp_path, pairs, "CF"), "maxloc")
    assert found["index"].tolist() == np.where(larger, pairs[1]["index"], pairs[0]["index"]).tolist()


def test_memory_workers_and_open_files_do_not_show(tmp_path):
    """What is read ahead counts as memory: 32 MiB a rank are turned in 80 MiB for all."""
    arrays = [array_of((300, 40), ">i4", rank) for rank in range(6)]
    paths = saved_ranks(tmp_path, arrays, "CFFCFF")
    expected = sum(each.astype("i4") for each in arrays)
    for options in ({"max_memory": 61 << 20}, {"max_memory": 500 << 20, "jobs": 2}, {"jobs": 1}):
        assert mpired.reduce(paths, "sum", **options).tolist() == expected.tolist()
    shape = (1024, 4096)
    saved_ranks(tmp_path, [np.full(shape, rank + 1.0) for rank in range(3)], "CFF")
    words = ("-q", "--op", "sum", "r0.npy", "r1.npy", "r2.npy", "-o", "out.npy", "-j", "1", "--max-memory", "80M")
    status, peak, err = measured("reduce", *words, cwd=tmp_path)
    assert (status, err) == (0, "")
    assert peak <= 80 << 20
    assert np.load(tmp_path / "out.npy").tobytes() == np.full(shape, 6.0).tobytes()


def test_origins_in_the_other_order(tmp_path):
    """Elements of the same index are combined, of files and of arrays."""
    target, whole = array_of((4, 6)), array_of((4, 6), first=60)
    with together(tmp_path) as case:
        for orders, at in itertools.product(("CF", "FC"), (None, "1:,::2")):
            with case(orders, at) as folder:
                place = (...,) if at is None else np.s_[1:, ::2]
                origin = whole[place]
                window = mpired.Window(saved(folder / "t.npy", target, orders[0]))
                path = saved(folder / "o.npy", origin, orders[1])
                assert window.get_accumulate(path, "sum", at=at).tolist() == target[place].tolist()
                assert window.accumulate(np.asarray(origin, order=orders[1]), "sum", at=at) == 1
                expected = target.copy()
                expected[place] += 2 * origin
                found = np.load(folder / "t.npy")
                assert found.flags.f_contiguous == (orders[0] == "F")
                assert found.tolist() == expected.tolist()
