"""Record dimensions of HDF5 that differ in length: the error names the dimension."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from command import refused, run


def test_records_of_different_number(tmp_path):
    for number in (3, 4):
        with h5py.File(tmp_path / f"r{number}.h5", "w") as file:
            file.create_dataset("t", data=np.zeros((2, number)), maxshape=(2, None))
    reason = "rank 1 has length 4 along the unlimited axis 1 in 't', but rank 0 ('r3.h5') has 3"
    refused(run("reduce", "--op", "sum", "-o", "s.h5", "r3.h5", "r4.h5", cwd=tmp_path), 3, f"r4.h5: {reason}")


@pytest.mark.parametrize("words", [[], ["--follow-links"]], ids=["here", "elsewhere"])
def test_records_are_named_by_the_first_scale(words, tmp_path):
    """Those of an array in another file, too."""
    for number in (3, 4):
        name = f"{'o' if words else 'r'}{number}.h5"
        with h5py.File(tmp_path / name, "w") as file:
            array = file.create_dataset("t", data=np.zeros((number, 2)), maxshape=(None, 2))
            for scale in ("first", "second"):
                file.create_dataset(f"scales/{scale}", data=np.arange(float(number))).make_scale(scale)
                array.dims[0].attach_scale(file[f"scales/{scale}"])
        if words:
            with h5py.File(tmp_path / f"r{number}.h5", "w") as file:
                file["t"] = h5py.ExternalLink(name, "/t")
    reason = "rank 1 has length 4 along the record dimension 'first' in 't', but rank 0 ('r3.h5') has 3"
    words = ["--columns", "t", *words, "r3.h5", "r4.h5"]
    refused(run("reduce", "--op", "sum", "-o", "s.npy", *words, cwd=tmp_path), 3, f"r4.h5: {reason}")
