"""HDF5 files that differ in the elements of their arrays alone: the library looks at the first of them."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from contextlib import suppress

import h5py
import netCDF4
import numpy as np
import pytest
from command import refused, run, succeeded

from mpired.buffers import hierarchy
from mpired.buffers.alike import Known
from mpired.context import NO_LIMITS
from mpired.sources.open import open_source

# Each file that the library opens to look at it is a line in "opened".
COUNTING = """
import os
from mpired.buffers import hierarchy
look = hierarchy.look
def count(source, *rest):
    with open("opened", "a") as file:
        file.write(source.name + chr(10))
    return look(source, *rest)
hierarchy.look = count
from mpired.cli import main
from mpired.context import NO_LIMITS
os._exit(main())
"""
COUNT = 5000  # elements, so that a file is larger than what is kept when it is looked at


def write(path, values, coordinate=b"zero", **attributes):
    """Write an array whose elements lie as they are, and texts, which are carried."""
    with h5py.File(path, "w", libver="earliest") as file:  # a later form has the time at which it was written
        file["t"] = np.full(4, coordinate, "S8")
        file["x"] = values
        for name, value in attributes.items():
            file["x"].attrs[name] = value


def looked_at(folder, *words):
    """Run a command in which a worker can be forked; return the files that the library has looked at."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # a process with threads cannot fork
    subprocess.run([sys.executable, "-c", COUNTING, *words], cwd=folder, env=environment, check=True)
    return sorted(set((folder / "opened").read_text().split()))  # the first twice, then without its elements


def test_the_library_looks_at_the_first(tmp_path):
    names = [f"r{i:02}.h5" for i in range(20)]
    for i, name in enumerate(names):
        write(tmp_path / name, np.arange(COUNT) + float(i))
    opened = looked_at(tmp_path, "reduce", "-q", "--op", "sum", "-o", "sum.h5", *names)
    assert opened == names[:1]
    with h5py.File(tmp_path / "sum.h5") as file:
        assert np.array_equal(file["x"][()], np.arange(COUNT) * 20 + 190.0)
        assert file["t"][()].tolist() == [b"zero"] * 4


def test_netcdf4(tmp_path):
    names = [f"r{i:02}.nc" for i in range(20)]
    for i, name in enumerate(names):
        with netCDF4.Dataset(tmp_path / name, "w") as file:
            file.createDimension("t", COUNT)
            file.createVariable("t", "f8", ("t",))[:] = np.arange(COUNT)
            file.createVariable("x", "i4", ("t",), fill_value=-1)[:] = i
    opened = looked_at(tmp_path, "reduce", "-q", "--op", "max", "-o", "max.nc", *names)
    assert opened == names[:1]
    with netCDF4.Dataset(tmp_path / "max.nc") as file:
        assert (file["x"][:].tolist(), file["t"][:].tolist()) == ([19] * COUNT, [*range(COUNT)])


def test_chunks_are_looked_at(tmp_path):
    """What only the library finds is not known by the bytes around it."""
    names = [f"r{i}.h5" for i in range(4)]
    for i, name in enumerate(names):
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset("x", data=np.full(8, float(i)), chunks=(4,))
    assert looked_at(tmp_path, "reduce", "-q", "--op", "sum", "-o", "sum.npy", *names) == names
    assert np.load(tmp_path / "sum.npy").tolist() == [6] * 8


@pytest.mark.parametrize(
    ("write_other", "reason"),
    [
        (lambda path: write(path, np.zeros((2, COUNT // 2))), "rank 2 has shape (2, 2500)"),
        (lambda path: write(path, np.zeros(COUNT, np.int64)), "rank 2 has datatype MPI_INT64_T"),
        (
            lambda path: write(path, np.zeros(COUNT, ">f8"), coordinate=b"one"),
            "'t' differs from that of rank 0",
        ),
        (lambda path: write(path, np.zeros(COUNT), scale_factor=2.0), "'x'"),
    ],
    ids=["shape", "type", "coordinate", "packing"],
)
def test_others_are_told(tmp_path, write_other, reason):
    """A file between those that are alike, of the same length or nearly so."""
    for i in range(4):
        write(tmp_path / f"{i}.h5", np.full(COUNT, float(i)))
    write_other(tmp_path / "2.h5")
    names = [f"{i}.h5" for i in range(4)]
    refused(run("reduce", "--op", "sum", "-o", "sum.npy", *names, cwd=tmp_path), 3, reason, "2.h5")
    words = ["reduce", "-q", "--op", "sum", "--columns", "x", "--keep", "t", "--skip-bad", "-o", "sum.h5"]
    outcome = run(*words, *names, cwd=tmp_path)
    assert outcome.status == 9
    with h5py.File(tmp_path / "sum.h5") as file:
        assert file["x"][()].tolist() == [4.0] * COUNT


def test_the_order_of_bytes_is_seen(tmp_path):
    """Two files of the same length, in one of which the elements are big-endian."""
    for name, dtype in (("a.h5", "<f8"), ("b.h5", ">f8"), ("c.h5", "<f8")):
        write(tmp_path / name, np.arange(COUNT, dtype=dtype))
    assert len({(tmp_path / name).stat().st_size for name in ("a.h5", "b.h5")}) == 1
    words = ["reduce", "-q", "--op", "sum", "--columns", "x", "-o", "sum.npy"]
    succeeded(run(*words, "a.h5", "b.h5", "c.h5", cwd=tmp_path))
    assert np.load(tmp_path / "sum.npy").tolist() == (np.arange(COUNT) * 3.0).tolist()


ASKED = False, False, False


def known(source):
    """Return what is known of a file after a look at it."""
    return Known.of(source, ASKED, hierarchy.look(source, *ASKED))


def test_each_byte_counts_but_those_of_elements(tmp_path):
    """One byte of another file is changed after another."""
    write(tmp_path / "a.h5", np.arange(6.0))
    content = (tmp_path / "a.h5").read_bytes()
    like = known(open_source(str(tmp_path / "a.h5"), NO_LIMITS))
    with h5py.File(tmp_path / "a.h5") as file:
        place, nbytes = file["x"].id.get_offset(), file["x"].nbytes
    elements = set(range(place, place + nbytes))
    alike = set()
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 0x10
        (tmp_path / "b.h5").write_bytes(changed)
        os.utime(tmp_path / "b.h5", (0, 0))  # a file that was just written is waited for
        if like.is_as(open_source(str(tmp_path / "b.h5"), NO_LIMITS), ASKED):
            alike.add(at)
    assert alike == elements
    assert not like.is_as(open_source(str(tmp_path / "a.h5"), NO_LIMITS), (True, False, False))
    (tmp_path / "b.h5").write_bytes(content + b"\0")
    assert not like.is_as(open_source(str(tmp_path / "b.h5"), NO_LIMITS), ASKED)


def test_elements_over_the_start_of_a_file_are_not_passed_over(tmp_path):
    """A damaged array that claims all bytes leaves nothing to compare."""
    write(tmp_path / "a.h5", np.arange(6.0))
    source = open_source(str(tmp_path / "a.h5"), NO_LIMITS)
    array = hierarchy.look(source, *ASKED)[0]
    whole = array._replace(dtype=np.dtype("u1"), offset=0, shape=(source.nbytes,), carried=False)
    assert Known.of(source, ASKED, [whole]) is None


@pytest.fixture
def two(tmp_path):
    """Files in two directories, with sources beside them that differ: coordinates, texts, and texts or numbers."""
    for folder, value in (("a", 0.0), ("b", 1.0)):
        (tmp_path / folder).mkdir()
        with h5py.File(tmp_path / folder / "source.h5", "w") as file:
            file["t"] = np.full(4, value)
            file["s"] = np.array([b"abc" if value else b"xyz"] * 4)
            file["e"] = np.arange(3.0) if value else np.array([b"q"] * 3)
        with h5py.File(tmp_path / folder / "t.h5", "w") as file:
            layout = h5py.VirtualLayout((4,), "f8")
            layout[:] = h5py.VirtualSource("source.h5", "t", (4,))
            file.create_virtual_dataset("t", layout)
            file["t"].make_scale("t")
            file["x"] = np.arange(4.0) + value
            file["x"].dims[0].attach_scale(file["t"])
        for name in "se":
            with h5py.File(tmp_path / folder / f"{name}.h5", "w") as file:
                file["x"] = np.arange(4.0) + value
                file["e"] = h5py.ExternalLink("source.h5", name)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("t", "'t' differs from that of rank 0"),
        ("s", "'e' differs from that of rank 0"),
        ("e", "rank 1 has 2 datasets, but rank 0"),
    ],
)
def test_what_lies_in_other_files_is_looked_at(two, name, reason):
    words = ["reduce", "--op", "sum", "--follow-links", f"a/{name}.h5", f"b/{name}.h5", "-o", "sum.npy"]
    refused(run(*words, cwd=two), 3, reason)


def moved(path, array, to):
    """Let an array of a file claim other bytes."""
    content = path.read_bytes()
    with h5py.File(path) as file:
        place, nbytes = file[array].id.get_offset(), file[array].nbytes
    old, new = (struct.pack("<QQ", each, nbytes) for each in (place, to))
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


def test_a_coordinate_over_the_elements(tmp_path):
    """It is compared, though it lies where files that are alike may differ."""
    for i in range(2):
        path = tmp_path / f"{i}.h5"
        with h5py.File(path, "w") as file:
            file["t"] = np.full(16, 7.0)
            file["t"].make_scale("t")
            file["x"] = np.arange(16.0) + i
            place = file["x"].id.get_offset()
        moved(path, "t", place)
    outcome = run("reduce", "--op", "sum", "0.h5", "1.h5", "-o", "sum.npy", cwd=tmp_path)
    refused(outcome, 3, "'t' differs from that of rank 0")


def test_elements_over_what_describes_another_array(tmp_path):
    """The order of its bytes is seen in each file."""
    for i, dtype in enumerate(("<i4", ">i4")):
        path = tmp_path / f"{i}.h5"
        with h5py.File(path, "w") as file:
            file["y"] = np.arange(4, dtype=dtype)
            file["x"] = np.zeros(256, "u1")
            place = h5py.h5o.get_info(file["y"].id).addr
        moved(path, "x", place)
    words = ["reduce", "-q", "--op", "sum", "--columns", "y", "0.h5", "1.h5", "-o", "sum.npy"]
    succeeded(run(*words, cwd=tmp_path))
    assert np.load(tmp_path / "sum.npy").tolist() == [0, 2, 4, 6]


def test_elements_over_a_text_that_matters_in_another_file(tmp_path):
    """The name of a coordinate, which is none in the first file."""
    with h5py.File(tmp_path / "a.h5", "w", libver="earliest") as file:
        file["x"] = np.arange(4, dtype="u1")
        file["y"] = np.arange(4.0) + 1
        file["w"] = np.arange(4.0)
        file["y"].attrs["coordinates"] = np.bytes_("QQQQ")
    place = (tmp_path / "a.h5").read_bytes().index(b"QQQQ")
    moved(tmp_path / "a.h5", "x", place)
    content = bytearray((tmp_path / "a.h5").read_bytes())
    content[place : place + 4] = b"w\0\0\0"
    (tmp_path / "b.h5").write_bytes(content)
    refused(run("reduce", "--op", "max", "a.h5", "b.h5", "-o", "max.npz", cwd=tmp_path), 3, "this file lacks 'w'")


def test_a_read_of_elements_counts_whatever_comes_of_it(tmp_path):
    """The library may go on without what it wanted to read."""
    write(tmp_path / "a.h5", np.arange(6.0))
    source = open_source(str(tmp_path / "a.h5"), NO_LIMITS)
    like = known(source)

    def reading(place):
        def look(rest, *_asked):
            with suppress(ValueError):
                rest.open().read(8, place)

        return look

    with h5py.File(tmp_path / "a.h5") as file:
        place = file["x"].id.get_offset()
    assert [like.is_found(reading(at)) for at in (0, place - 8, place - 1, place)] == [True, True, False, False]
    assert like.is_found(hierarchy.look)
