"""Columns of parquet and arrow alike: structures, names, and what a mistake of this program is not."""

import numpy as np
import pyarrow as pa
import pytest
from command import in_child
from tables import SUFFIXES, bytes_of, read

import mpired
from mpired.errors import MpiredError
from mpired.formats import columns


def write(path, column, name="s"):
    path.write_bytes(bytes_of(pa.table({name: column}), path.suffix[1:]))
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_structures_of_one_field(suffix, tmp_path):
    """They are combined as their field, and are missing if they are null, or their field is."""
    kind = pa.struct([("f", pa.int64())])
    some = write(tmp_path / f"some.{suffix}", pa.array([{"f": 1}, None, {"f": None}, {"f": 4}], kind))
    whole = write(tmp_path / f"whole.{suffix}", pa.array([{"f": 10 * i} for i in range(1, 5)], kind))
    for paths, expected in (([some, whole], [11, 20, 30, 44]), ([some, some], [2, None, None, 8])):
        mpired.reduce(paths, "sum", nulls="ignore", output=tmp_path / f"o.{suffix}", overwrite=True)
        found = read(tmp_path / f"o.{suffix}")["s"].to_pylist()
        assert [each and each["f"] for each in found] == expected


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_mistake_of_this_program_is_no_damage(suffix, tmp_path, monkeypatch):
    path = write(tmp_path / f"a.{suffix}", pa.array([1.0, 2.0]))
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

    monkeypatch.setattr(columns, "arrow_column", wrong)
    in_child(look)  # which has no threads, so that its workers are forks and make the mistake too
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
