"""Objects of HDF5 that are created as those of another file are: attributes in their order."""

from __future__ import annotations

import collections

import h5py
import numpy as np
import pytest
from command import run, succeeded

from mpired.buffers import hierarchy

VERSIONS = ["earliest", "v108", "v110", "latest"]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_attributes_are_opened_by_their_names_once(version, ordered, tmp_path, monkeypatch):
    """To open one by its number takes the library as long as to sort all."""
    names = [f"a{number}" for number in range(300)]
    with h5py.File(tmp_path / "r.h5", "w", libver=version, track_order=ordered) as file:
        dataset = file.create_dataset("d", data=np.arange(6.0), track_order=ordered)
        for number, name in enumerate(names):
            dataset.attrs[name] = number
    opened: collections.Counter[str] = collections.Counter()

    class Counted:
        iterate = staticmethod(h5py.h5a.iterate)

        @staticmethod
        def open(identifier, name):
            opened[name.decode()] += 1
            return h5py.h5a.open(identifier, name)

    with h5py.File(tmp_path / "r.h5") as file, monkeypatch.context() as patch:
        patch.setattr(hierarchy, "h5a", Counted)
        found = [each.name.decode() for each in hierarchy.each_attribute(file["d"].id)]
    assert opened == dict.fromkeys(names, 1)
    assert found == names if ordered else sorted(found) == sorted(names)
    succeeded(run("reduce", "-q", "--op", "max", "-o", "o.h5", "r.h5", "r.h5", cwd=tmp_path))
    with h5py.File(tmp_path / "o.h5") as new, h5py.File(tmp_path / "r.h5") as old:
        assert [*new["d"].attrs.items()] == [*old["d"].attrs.items()]
