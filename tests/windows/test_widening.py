"""Origins of other datatypes than the target's, which holds them without loss, against NumPy."""

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run
from rows import check_refusals, each

import mpired
from mpired.errors import DatatypeError

OPS = {"sum": np.add, "max": np.maximum, "replace": lambda _, new: new, "bor": np.bitwise_or}


def elements(code: str, seed: int, shape: tuple[int, ...] = (400,)) -> np.ndarray:
    numbers = np.random.default_rng(seed).integers(0, 2 if code == "?" else 100, shape)
    return (numbers / (4 if np.dtype(code).kind == "f" else 1)).astype(code)


@each("target, origins, name", [
    ("f8", ("f4", "f2", "i4", "f8", "?"), "double"),
    ("f4", ("f2", "i2", "u1"), "float"),
    ("i8", ("i4", "u4", "?", "i1"), "int64_t"),
    ("i4", ("?", "u2"), "int"),
    ("u8", ("u1", "?"), "uint64"),
    ("g", ("i8", "u8", "f8"), "longdouble"),
])  # fmt: skip
def test_the_result_is_that_of_the_wide_elements(target, origins, name, tmp_path_factory):
    path = tmp_path_factory.mktemp("wide") / "t.npy"
    for op, combine in OPS.items():
        if op == "bor" and np.dtype(target).kind == "f":
            continue
        expected, given = elements(target, 0), [elements(code, seed) for seed, code in enumerate(origins)]
        np.save(path, expected)
        window = mpired.Window(path, accumulate_in=name)
        assert window.accumulate(given, op) == len(given)
        for each_one in given:
            expected = combine(expected, each_one.astype(target))
        np.testing.assert_array_equal(np.load(path), expected)
        old = window.get_accumulate(given[0][:9], op, map=np.arange(9)[::-1])
        np.testing.assert_array_equal(old, expected[:9][::-1])
        expected[:9] = combine(expected[:9], given[0][:9].astype(target)[::-1])
        np.testing.assert_array_equal(np.load(path), expected)


def test_refusals(tmp_path):
    for code in ("f8", "f4", "i8", "i4", "?", "c8"):
        np.save(tmp_path / f"{code.replace('?', 'b')}.npy", elements(code, 0))
    with h5py.File(tmp_path / "o.h5", "w") as file:
        file["t"] = elements("f4", 0)
    pq.write_table(pa.table({"x": [1.5], "n": [1]}), tmp_path / "t.parquet")
    pq.write_table(pa.table({"x": pa.array([1], pa.float32()), "n": [1]}), tmp_path / "o.parquet")
    add = "accumulate --op sum"
    check_refusals(tmp_path, [
        (f"{add} f8.npy f4.npy", 3, "both sides need the same one / or widen it with --accumulate-in double"),
        (f"{add} i8.npy i4.npy", 3, "or widen it with --accumulate-in int64_t"),
        (f"{add} i4.npy b.npy", 3, "or widen it with --accumulate-in int32_t"),
        (f"{add} t.parquet o.parquet", 3, "or widen it with --accumulate-in longdouble"),
        (f"{add} --accumulate-in double f8.npy c8.npy", 3, "c8.npy / does not hold all values"),
        (f"{add} --accumulate-in double f4.npy f4.npy", 2, "--accumulate-in / f4.npy has MPI_FLOAT / name the"),
        (f"{add} --accumulate-in double f4.npy f8.npy", 2, "by `mpired reduce --op sum --accumulate-in double`"),
        (f"{add} --accumulate-in double --create new.h5 o.h5", 2, "--create / another datatype"),
        (f"{add} --accumulate-in double --origin-type double f8.npy f4.npy", 2, "--origin-type / leave"),
        (f"{add} --accumulate-in double --target-type float f8.npy f4.npy", 3, "--target-type / --accumulate-in"),
        (f"{add} --accumulate-in 'vector(2,1,2,double)' f8.npy f4.npy", 2, "--accumulate-in / real numbers"),
    ])  # fmt: skip
    words = "reduce -q --op sum --accumulate-in double f4.npy f8.npy -o new.npy"  # as the error says
    assert run(*words.split(), cwd=tmp_path).status == 0
    assert np.load(tmp_path / "new.npy").tolist() == (elements("f4", 0) + elements("f8", 0)).tolist()
    outcome = run(*f"{add} -k --accumulate-in double f8.npy i8.npy f4.npy".split(), cwd=tmp_path)
    assert outcome.status == 9
    assert "1 of 2 origins left out: i8.npy" in outcome.err
    narrow = "but the target has MPI_FLOAT (float32); both sides need the same one (MPI-4.1, 12.3.4)"
    with pytest.raises(DatatypeError) as error:
        mpired.Window(tmp_path / "f4.npy").accumulate(tmp_path / "f8.npy", "sum")
    assert str(error.value).endswith(narrow)
