"""Odd npy files that are taken, and what large claims cost."""

from __future__ import annotations

import numpy as np
import pytest
from bad_files import DATA, THREE, covers, header, npy
from command import measured, reduce, succeeded


@covers(8, 35)
@pytest.mark.parametrize(
    ("label", "text"),
    [
        ("no newline at the end", header().ljust(118).encode()),
        ("no padding", header().encode() + b"\n"),
        ("double quotes", header('"<f8"').replace("'", '"').encode() + b"\n"),
        ("Python 2 integers", header(shape="(3L,)").encode() + b"\n"),
        ("keys in another order", b"{'shape': (3,), 'fortran_order': False, 'descr': '<f8'}\n"),
        ("10001 bytes", header().ljust(10000).encode() + b"\n"),
        ("65535 bytes", header().ljust(65534).encode() + b"\n"),
    ],
)
def test_npy_header_accepted(label, text, folder):
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + DATA
    (folder / "odd.npy").write_bytes(content)
    succeeded(reduce("--op", "sum", "good.npy", "odd.npy", "-o", "sum.npy", cwd=folder))
    np.testing.assert_array_equal(np.load(folder / "sum.npy"), [2.0, 4.0, 6.0])


@covers(11)
def test_claimed_size_takes_no_memory(folder):
    (folder / "bad.npy").write_bytes(npy(header(shape="(65536, 65536)"), DATA[:8]))
    status, peak, err = measured("reduce", "--op", "sum", "bad.npy", cwd=folder)
    assert (status, err.count("\n")) == (3, 1)
    assert peak < 100 << 20


@covers(15, 66)
@pytest.mark.parametrize("shape", ["(0,)", "(0, 9223372036854775807)", "(3, 0, 2)"])
def test_npy_without_elements(shape, folder):
    (folder / "none.npy").write_bytes(npy(header(shape=shape)))
    succeeded(reduce("--op", "sum", "none.npy", "none.npy", "-o", "sum.npy", cwd=folder))
    result = (folder / "sum.npy").read_bytes()
    assert len(result) == 128 if len(shape) < 20 else 192
    assert f"'shape': {shape}".encode() in result


@covers(24)
@pytest.mark.parametrize("code", ["<f16", ">f16", "<c32"])
def test_npy_of_long_double(code, folder):
    np.save(folder / "a.npy", np.array([1, 2, 3], code))
    succeeded(reduce("--op", "sum", "a.npy", "a.npy", "-o", "sum.npy", cwd=folder))
    result = np.load(folder / "sum.npy")
    assert result.dtype.str == code
    np.testing.assert_array_equal(result, np.array([2, 4, 6], code))


@covers(25)
def test_npy_of_the_other_byte_order(folder):
    np.save(folder / "big.npy", THREE.astype(">f8"))
    succeeded(reduce("--op", "sum", "big.npy", "good.npy", "-o", "sum.npy", cwd=folder))
    assert (folder / "sum.npy").read_bytes()[-24:] == np.array([2, 4, 6], ">f8").tobytes()
    assert np.load(folder / "sum.npy").dtype.str == ">f8"


@covers(26)
def test_npy_of_pairs(folder):
    np.save(folder / "a.npy", np.array([(1, 5), (2, 4)], "f4,f4"))
    np.save(folder / "b.npy", np.array([(2, 3), (1, 2)], "f4,f4"))
    succeeded(reduce("--op", "maxloc", "a.npy", "b.npy", "-o", "max.npy", cwd=folder))
    assert np.load(folder / "max.npy").tolist() == [(2, 3), (2, 4)]


@covers(34)
def test_npy_version_3_with_a_name_in_utf8(folder):
    content = npy(header("[('größe', '<f8'), ('rang', '<i4')]", shape="(1,)").encode(), bytes(12), b"\x03\x00")
    (folder / "a.npy").write_bytes(content)
    succeeded(reduce("--op", "minloc", "a.npy", "a.npy", "-o", "min.npy", cwd=folder))
    assert np.load(folder / "min.npy").dtype.names == ("größe", "rang")


@covers(37)
def test_npy_without_dimensions(folder):
    np.save(folder / "a.npy", np.array(4))
    succeeded(reduce("--op", "prod", "a.npy", "a.npy", "-o", "prod.npy", cwd=folder))
    result = np.load(folder / "prod.npy")
    assert (result.shape, result.item()) == ((), 16)
