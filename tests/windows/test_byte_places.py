"""Elements that lie at any byte of a window, in either byte order; what is not theirs stays as it is."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from command import run
from protocols import COMMITS

import mpired


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize(
    ("basic", "text", "count", "at"),
    [
        ("int16_t", "struct([1],[1],[int16_t])", "2", [1, 3]),
        ("uint32_t", "resized(0,7,uint32_t)", "2", [0, 7]),
        ("double", "hindexed([1,1],[13,3],double)", "1", [13, 3]),
    ],
)
def test_elements_off_the_grid_of_a_big_endian_window(basic, text, count, at, commit, tmp_path):
    form = np.dtype(basic.removesuffix("_t")).newbyteorder(">")
    octets = bytearray(range(100, 121 + form.itemsize))
    squares = bytearray(octets)
    for place, number in zip(at, (3, 5), strict=True):
        octets[place : place + form.itemsize] = np.array([number], form).tobytes()
        squares[place : place + form.itemsize] = np.array([number * number], form).tobytes()
    (tmp_path / "t.bin").write_bytes(octets)
    (tmp_path / "o.bin").write_bytes(octets)  # the other side has the same type
    types = ("--target-type", text, "--target-count", count, "--origin-type", text, "--origin-count", count)
    words = ("accumulate", "-q", "--op", "prod", "--byte-order", "big", "--commit", commit, *types, "t.bin", "o.bin")
    assert run(*words, cwd=tmp_path) == (0, b"", "")
    assert (tmp_path / "t.bin").read_bytes() == squares


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("where", [{"target_type": "vector(2,1,2,double_int)"}, {"at": "::2"}, {"map": [0, 2]}, {}])
def test_the_padding_of_pairs_in_a_window(where, order, tmp_path):
    form = np.dtype([("v", f"{order}f8"), ("i", f"{order}i4")], align=True)
    octets = np.full((3, 16), 0xEE, np.uint8)
    octets[:, :12] = np.array([(1, 1)] * 3, form).view(np.uint8).reshape(3, 16)[:, :12]
    np.save(tmp_path / "t.npy", octets.reshape(-1).view(form))
    header = (tmp_path / "t.npy").stat().st_size - 48
    pairs = np.array([(2.0, 7), (0.0, 8), (3.0, 9)][: 3 if not where else 2], [("v", "f8"), ("i", "i4")])
    mpired.Window(tmp_path / "t.npy").accumulate(pairs, "maxloc", **where)
    expected = [(2, 7), (1, 1), (3, 9)] if not where else [(2, 7), (1, 1), (1, 1)]
    assert np.load(tmp_path / "t.npy").tolist() == expected
    after = np.frombuffer((tmp_path / "t.npy").read_bytes()[header:], np.uint8).reshape(3, 16)
    assert (after[:, 12:] == 0xEE).all()


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("call", ["reduce_local", "reduce", "hdf5"])
def test_the_padding_of_pairs_in_a_rank_that_is_replaced(call, order, tmp_path):
    code = {"little": "<", "big": ">"}[order]
    form = np.dtype([("v", f"{code}f8"), ("i", f"{code}i4")], align=True)
    ranks = np.full((2, 5, 16), 0xEE, np.uint8)
    ranks[0, :, :12] = np.array([(1, 1)] * 5, form).view(np.uint8).reshape(5, 16)[:, :12]
    ranks[1, :, :12] = np.array([(i, 2) for i in range(5)], form).view(np.uint8).reshape(5, 16)[:, :12]
    for name, octets in zip("ab", ranks, strict=True):
        (tmp_path / f"{name}.bin").write_bytes(octets.tobytes()[:-4])
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = octets.reshape(-1).view(form)
    paths = [tmp_path / f"{name}.{'h5' if call == 'hdf5' else 'bin'}" for name in "ab"]
    said = {} if call == "hdf5" else {"type": "double_int", "byte_order": order}
    if call == "reduce_local":
        mpired.reduce_local(*paths, "maxloc", **said)
    else:
        mpired.reduce(paths, "maxloc", in_place=True, root=1, **said)
    wanted = ranks[1].copy()
    wanted[:, :12] = np.array([(1, 1), (1, 1), (2, 2), (3, 2), (4, 2)], form).view(np.uint8).reshape(5, 16)[:, :12]
    assert paths[1].read_bytes().find(wanted.tobytes()[:-4]) >= 0
    assert call == "hdf5" or paths[1].stat().st_size == 76


def test_elements_of_an_origin_that_are_closer_than_they_are_long(tmp_path):
    """The last of them ends with the file, though its padding would not."""
    pairs = np.zeros(2, np.dtype([("v", "f8"), ("i", "i4")], align=True))
    octets = bytearray(pairs.tobytes())
    octets[20:32] = np.array([2.5]).tobytes() + np.array([4], "i4").tobytes()
    (tmp_path / "o.bin").write_bytes(octets)
    np.save(tmp_path / "t.npy", np.zeros(3, pairs.dtype))
    said = {"origin_type": "resized(0,10,double_int)", "origin_count": 3, "target_disp": 0}
    assert mpired.Window(tmp_path / "t.npy").accumulate(tmp_path / "o.bin", "maxloc", **said) == 1
    assert np.load(tmp_path / "t.npy")[2].tolist() == (2.5, 4)
