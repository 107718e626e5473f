"""Damaged npy files: no other exception than ours, and what is accepted is what NumPy reads."""

import io
import warnings
from contextlib import closing

import numpy as np
from values import folder_in_memory

from mpired.errors import MpiredError
from mpired.formats import InputOptions, open_rank

SHAPES = [(), (3,), (0,), (2, 3), (2, 1, 3)]
DTYPES = ["<f8", ">i4", "|u1", "|b1", "<c16", "<f2", [("value", "<f8"), ("index", "<i4")], [("a", ">i2", (2, 3))]]
# What stands in headers, and what is near it.
WORDS = (
    b"True", b"False", b"None", b"'descr'", b"'shape'", b"'fortran_order'", b"'<f8'", b"'>i4'", b"'|O'", b"'|V8'",
    b"'<M8[s]'", b"'<f16'", b"'|S4'", b"(3,)", b"(2, 3)", b"()", b"(0,)", b"-1", b"3L", b"99999999999999999999",
    b"[", b"]", b"(", b")", b"{", b"}", b":", b",", b"'", b'"', b"\\", b"\n", b"\0", b" ", b"1e3", b"0x10",
    b"__import__('os')",
)  # fmt: skip


def damaged(draw):
    """Return a file that NumPy wrote, with some bytes changed, left out, doubled or put in."""
    shape, dtype = SHAPES[draw.integers(len(SHAPES))], np.dtype(DTYPES[draw.integers(len(DTYPES))])
    array, file = np.zeros(shape, dtype, order="CF"[draw.integers(2)]), io.BytesIO()
    array.reshape(-1, order="A").view(np.uint8)[...] = 1
    np.lib.format.write_array(file, array, version=(int(draw.integers(1, 4)), 0))
    octets = file.getvalue()
    for _ in range(draw.integers(4)):
        start = draw.integers(min(len(octets), 130) + 1)
        stop = start + draw.integers(13)
        word = WORDS[draw.integers(len(WORDS))]
        new = (b"", octets[start:stop] * 2, word, draw.bytes(draw.integers(4)))[draw.integers(4)]
        octets = octets[:start] + new + octets[stop:]
    if draw.integers(2):
        return octets
    width = 2 if octets[6:7] == b"\1" else 4  # of the length of the header, which is corrected, so that it is looked at
    text = octets[8 + width :].partition(b"\n")[0] + b"\n"
    return octets[:8] + len(text).to_bytes(width, "little") + octets[8 + width :]


def agree(path):
    """Tell whether a file is accepted; it is an error if NumPy reads anything else in it."""
    try:
        (array,) = open_rank(str(path), InputOptions()).buffers
    except MpiredError:
        return False
    ours = np.empty(array.count, array.datatype.form)
    with closing(array.open()) as reader:
        reader.read(0, ours)
    numpys = np.load(path, allow_pickle=False, max_header_size=1 << 17)
    assert array.shape == numpys.shape
    numpys = numpys.ravel(order="F" if array.fortran_order else "C")
    fields = [(ours, numpys)] if ours.dtype.names is None else [
        (ours[mine], numpys[theirs]) for mine, theirs in zip(ours.dtype.names, numpys.dtype.names, strict=True)
    ]  # fmt: skip
    for mine, theirs in fields:
        # A truth value of another program may be any byte.
        same = mine if theirs.dtype.kind == "b" else mine.astype(theirs.dtype)
        assert same.tobytes() == np.ascontiguousarray(theirs).tobytes()
        assert mine.dtype.itemsize == theirs.dtype.itemsize
    return True


def test_what_is_accepted_is_what_numpy_reads(long, record_property):
    draw, accepted = np.random.default_rng(11), []
    with folder_in_memory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that version 3 is for UTF-8, and a header Python 2's
        for _ in range(20_000 if long else 400):
            octets = damaged(draw)
            (folder / "rank.npy").write_bytes(octets)
            try:
                accepted.append(agree(folder / "rank.npy"))
            except Exception as error:
                raise AssertionError(octets) from error
    # Of both there are many, or nothing was compared.
    assert min(accepted.count(True), accepted.count(False)) > len(accepted) / 50
    record_property("tried", len(accepted))
