"""Structures with few fields: one of one field is combined as its field, and a column of them stays that."""

from __future__ import annotations

import functools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from command import in_child
from rows import together
from tables import bytes_of, read

import mpired
from mpired.errors import MpiredError
from mpired.formats import columns


def structures(*fields):
    """Return a column of structures of these columns, called f0, f1 and so on."""
    return pa.StructArray.from_arrays(fields, [f"f{i}" for i in range(len(fields))])


@pytest.fixture
def write(suffix, tmp_path):
    """Return a function that writes a column `s`, and returns the path."""

    def written(column, name="a"):
        path = tmp_path / f"{name}.{suffix}"
        path.write_bytes(bytes_of(pa.table({"s": column}), suffix))
        return path

    return written


def test_one_field(write, suffix, tmp_path):
    for kind in ("int8", "uint64", "halffloat", "double"):
        numbers = pa.array([1, 2, 3], pa.int64()).cast("float" if kind == "halffloat" else kind).cast(kind)
        path = write(structures(numbers))
        expected = structures(pc.add(*[numbers.cast("double" if kind == "halffloat" else kind)] * 2).cast(kind))
        mpired.reduce([path] * 2, "sum", output=tmp_path / f"sum.{suffix}", overwrite=True)
        assert read(tmp_path / f"sum.{suffix}")["s"].combine_chunks().equals(expected)
        mpired.scan([path] * 2, "sum", output=str(tmp_path / f"scan{{rank}}.{suffix}"), overwrite=True)
        assert read(tmp_path / f"scan0.{suffix}").equals(read(path))
        assert read(tmp_path / f"scan1.{suffix}")["s"].combine_chunks().equals(expected)
        mpired.Window(path).accumulate(write(structures(numbers), "origin"), "sum")
        assert read(path)["s"].combine_chunks().equals(expected)


def test_one_field_of_which_some_are_missing(write, suffix, tmp_path):
    """A structure is missing if it is null, or its field."""
    column = pa.array([{"f0": 1}, None, {"f0": None}, {"f0": 4}], pa.struct([("f0", pa.int64())]))
    paths = [write(column), write(structures(pa.array([10, 20, 30, 40])), "b")]
    for some, expected in ((paths, [11, 20, 30, 44]), (paths[:1] * 2, [2, None, None, 8])):
        mpired.reduce(some, "sum", nulls="ignore", output=tmp_path / f"o.{suffix}", overwrite=True)
        found = read(tmp_path / f"o.{suffix}")["s"].to_pylist()
        assert [each and each["f0"] for each in found] == expected


def test_two_fields_are_a_pair(write, suffix, tmp_path):
    values = [1.0, 5, 3], [4.0, 2, 3]
    pairs = [structures(pa.array(some), pa.array([rank] * 3, pa.int32())) for rank, some in enumerate(values)]
    paths = [write(column, name) for column, name in zip(pairs, "ab", strict=True)]
    mpired.reduce(paths, "maxloc", output=tmp_path / f"o.{suffix}")
    expected = [{"f0": 4.0, "f1": 1}, {"f0": 5.0, "f1": 0}, {"f0": 3.0, "f1": 0}]
    assert read(tmp_path / f"o.{suffix}")["s"].to_pylist() == expected
    mpired.Window(paths[0]).accumulate(paths[1], "maxloc")
    assert read(paths[0])["s"].to_pylist() == expected


def test_what_no_op_takes_is_refused_as_such(write, suffix, tmp_path):
    """A sum is not of pairs and of more fields, and no op is of structures in structures."""
    with together(tmp_path) as case:
        for nfields, is_nested in ((0, False), (2, False), (3, False), (0, True), (1, True), (3, True)):
            if (nfields, suffix) == (0, "parquet"):
                continue  # of no form there
            fields = [(f"f{i}", pa.int32()) for i in range(nfields)]
            column = pa.array([{f"f{i}": i for i in range(nfields)}] * 2, pa.struct(fields))
            column = structures(column) if is_nested else column
            path, origin = write(column), write(column, "origin")
            accumulate = functools.partial(mpired.Window(path).accumulate, origin, "sum")
            for call in (functools.partial(mpired.reduce, [path], "sum"), accumulate):
                with case(nfields, is_nested, call.func.__name__):
                    with pytest.raises(MpiredError, match=r"not numbers|is not defined for 's'") as caught:
                        call()
                    assert "damaged" not in str(caught.value)


def test_a_mistake_of_this_program_is_no_damage(write, suffix, tmp_path, monkeypatch):
    path = write(pa.array([1.0, 2.0]))
    before = path.read_bytes()

    def wrong(*_args):
        raise ValueError("a mistake")

    def look():
        for call in (
            lambda: mpired.reduce([path], "sum", output=tmp_path / f"o.{suffix}"),
            lambda: mpired.Window(path).accumulate(np.ones(2), "sum"),
        ):
            with pytest.raises(ValueError, match="a mistake") as caught:
                call()
            assert not isinstance(caught.value, MpiredError)

    monkeypatch.setattr(columns, "column_of", wrong)
    in_child(look)  # which has no threads, so that its workers are forks and make the mistake too
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
