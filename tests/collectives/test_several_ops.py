"""Several ops in one call: each gives what it gives alone, and the ranks are read once."""

import netCDF4
import numpy as np
import pytest
from command import run
from rows import check_refusals, each

import mpired

NRANKS, COUNT = 4, 3000


def some(code, rank, count=COUNT):
    random = np.random.default_rng(rank)
    if code[-2] in "iu":
        return random.integers(0, 100, count).astype(code)
    array = (random.standard_normal(count) * 100).astype(code)
    array[random.integers(0, count, 50)] = np.nan
    array[random.integers(0, count, 50)] = -0.0
    return array


def test_results_are_those_of_numpy():
    ranks = [np.random.default_rng(rank).standard_normal(COUNT) for rank in range(NRANKS)]
    stack = np.stack(ranks)
    mean = (((ranks[0] + ranks[1]) + ranks[2]) + ranks[3]) / 4
    expected = {"max": stack.max(0), "min": stack.min(0), "mean": mean, "range": np.ptp(stack, axis=0)}
    expected |= {"count": np.full(COUNT, 4), "first": ranks[0], "last": ranks[3]}
    for jobs in (1, 2):
        found = mpired.reduce(ranks, list(expected), jobs=jobs)
        assert list(found) == list(expected)
        assert all(np.array_equal(found[op], expected[op]) for op in expected)
        assert np.allclose(mpired.reduce(ranks, "std,max", jobs=jobs)["std"], np.std(stack, axis=0))
    assert np.array_equal(mpired.reduce(ranks, [mpired.SUM, max, np.mean])["mean"], expected["mean"])
    assert list(mpired.reduce(ranks, [mpired.SUM])) == ["sum"]


ALL = "sum,prod,max,min,mean,std,var,rms,count,range,absmax,absmin,first,last,median,quantile:0.25"
NO_ORDER = "sum,prod,mean,std,var,rms,count,first,last"
EVERYWHERE = {"nan", "nulls", "missing", "overflow"}
OF = {
    "ddof": {"std", "var"},
    "weights": {"mean"},
    "exact": {"sum", "mean", "std", "var", "rms"},
    "accumulate_in": {"sum", "prod", "mean", "std", "var", "rms", "range", "absmax", "absmin"},
    "index": {"maxloc", "minloc"},
}


@each("code, ops, options", [
    ("f8", ALL, {}),
    (">f8", ALL, {}),
    ("f4", ALL, {"nan": "ignore"}),
    ("f2", ALL, {"ddof": 1, "weights": (1, 2, 3, 4)}),
    ("i4", ALL, {"missing": 7, "nulls": "ignore", "overflow": "wrap"}),
    ("u1", ALL, {"missing": 7, "nulls": "propagate"}),
    ("c16", NO_ORDER, {}),
    ("f4", ALL, {"accumulate_in": "double"}),
    ("f4", NO_ORDER, {"exact": True, "nan": "ignore"}),
    ("f8", f"maxloc,{ALL},minloc", {"index": "rank"}),
    ("i4", "minloc,max,maxloc", {"index": "global"}),
    ("f4", "max,minloc,mean,maxloc", {"index": "global", "nan": "ignore"}),
    ("f4", "minloc,maxloc", {"index": "rank", "nan": "ignore"}),
])  # fmt: skip
def test_each_has_the_bits_that_it_has_alone(tmp_path, monkeypatch, code, ops, options):
    monkeypatch.setattr("mpired.collectives.plan._STATE_BLOCK_BYTES", 1 << 14)
    monkeypatch.setattr("mpired.collectives.plan.SMALL_NBYTES", 1)
    ranks = [some(code, rank) for rank in range(NRANKS)]
    one, two = (mpired.reduce(ranks, ops.split(","), jobs=jobs, **options) for jobs in (1, 2))
    assert list(one) == [op.replace(":", "_") for op in ops.split(",")]
    for name, op in zip(one, ops.split(","), strict=True):
        own = {key: value for key, value in options.items() if key in EVERYWHERE or op in OF[key]}
        alone = mpired.reduce(ranks, op, jobs=1, **own)
        for found in (one[name], two[name]):
            assert (found.dtype, found.shape) == (alone.dtype, alone.shape), op
            assert np.ma.getdata(found).tobytes() == np.ma.getdata(alone).tobytes(), op
            assert np.array_equal(np.ma.getmaskarray(found), np.ma.getmaskarray(alone)), op


@each("form", ["NETCDF4", "NETCDF3_64BIT_OFFSET"])
def test_netcdf_keeps_what_the_variable_has(tmp_path, form):
    masked = []
    for rank in range(3):
        values = np.ma.array(some("i4", rank, 30).reshape(6, 5).astype("f4"), mask=some("i4", rank + 5, 30) < 30)
        masked.append(values)
        with netCDF4.Dataset(tmp_path / f"{rank}.nc", "w", format=form) as file:
            file.createDimension("time", 6)
            file.createDimension("x", 5)
            time = file.createVariable("time", "f8", ("time",))
            time.units, time[:] = "days since 2000-01-01", np.arange(6)
            tas = file.createVariable("tas", "f4", ("time", "x"), fill_value=-999.0)
            tas.units, tas[:] = "K", values
    names = [f"{rank}.nc" for rank in range(3)]
    words = ["reduce", "--op", "max,count,mean", "--nulls", "ignore", *names]
    assert run(*words, "-o", f"{form}.nc", cwd=tmp_path).status == 0
    with netCDF4.Dataset(tmp_path / f"{form}.nc") as file:
        assert {*file.variables} == {"time", "tas_max", "tas_count", "tas_mean"}
        largest = np.ma.max(np.ma.stack(masked), axis=0)
        assert np.array_equal(np.ma.getmaskarray(file["tas_max"][:]), np.ma.getmaskarray(largest))
        assert np.array_equal(file["tas_max"][:].compressed(), largest.compressed())
        assert np.array_equal(file["tas_count"][:], np.ma.stack(masked).count(axis=0))
        for name in ("tas_max", "tas_mean"):
            assert (file[name].units, file[name].dimensions) == ("K", ("time", "x"))
            assert file[name].getncattr("_FillValue") == np.float32(-999)


def test_user_defined_ops(tmp_path):
    ops = "def add(a, b):\n    return a + b\ndef sub(a, b):\n    return a - b\n"
    ranks = [np.arange(5.0), np.arange(5.0) * 3]
    for name in ("ops.py", "my,ops.py"):
        (tmp_path / name).write_text(ops)
    for rank, array in enumerate(ranks):
        np.save(tmp_path / f"{rank}.npy", array)
    words = ("reduce", "--op", "ops.py:add,max,ops.py:sub", "--no-commute", "0.npy", "1.npy", "-o", "out.npz")
    assert run(*words, cwd=tmp_path).status == 0
    found = np.load(tmp_path / "out.npz")
    assert found.files == ["add", "max", "sub"]
    assert np.array_equal(found["add"], ranks[0] + ranks[1])
    assert np.array_equal(found["sub"], ranks[0] - ranks[1])
    assert run("reduce", "--op", "my,ops.py:add", "0.npy", "1.npy", "-o", "alone.npy", cwd=tmp_path).status == 0
    assert np.array_equal(np.load(tmp_path / "alone.npy"), ranks[0] + ranks[1])
    both = mpired.reduce(ranks, [lambda a, b: a - b, "max"])
    assert np.array_equal(both["lambda"], ranks[0] - ranks[1])
    assert np.array_equal(both["max"], ranks[1])


def test_patterns_of_several_files(tmp_path):
    """`{op}` has its meaning in each name that the call writes to."""
    ranks = [some("f8", rank) for rank in range(NRANKS)]
    names = [f"{rank}.npy" for rank in range(NRANKS)]
    for name, rank in zip(names, ranks, strict=True):
        np.save(tmp_path / name, rank)
    words = ("reduce", "-q", "--nan", "ignore", *names)
    both = ("--op", "maxloc,minloc", "--index", "rank")
    assert run(*words, *both, "--split", "v_{op}.npy,i_{op}.npy", cwd=tmp_path).status == 0
    assert run(*words, *both, "--split", "w_{op}.npy,i.npz", cwd=tmp_path).status == 0
    assert run(*words, "--op", "mean,max", "-o", "{op}.npy", "--count-valid", "n_{op}.npy", cwd=tmp_path).status == 0
    assert run(*words, "--op", "mean,max", "-o", "o.npz", "--count-valid", "n.npy", cwd=tmp_path).status == 0
    found = {path.name for path in tmp_path.iterdir()} - {*names}
    pairs = [f"{part}_{op}.npy" for part in "viw" for op in ("maxloc", "minloc")]
    assert found == {*pairs, "i.npz", "mean.npy", "max.npy", "n_mean.npy", "n_max.npy", "o.npz", "n.npy"}
    expected = mpired.reduce(ranks, ["maxloc", "minloc"], index="rank", nan="ignore")
    with np.load(tmp_path / "i.npz") as indices:
        for op, pair in expected.items():
            for name in "vw":
                assert np.array_equal(np.load(tmp_path / f"{name}_{op}.npy"), pair["value"], equal_nan=True)
            assert np.array_equal(np.load(tmp_path / f"i_{op}.npy"), pair["index"])
            assert np.array_equal(indices[f"{op}_index"], pair["index"])
    counts = np.count_nonzero(~np.isnan(np.stack(ranks)), axis=0)
    assert all(np.array_equal(np.load(tmp_path / f"n{end}.npy"), counts) for end in ("", "_mean", "_max"))


def test_lists_that_are_refused(tmp_path):
    for rank in range(2):
        np.save(tmp_path / f"{rank}.npy", some("i4", rank))
        with netCDF4.Dataset(tmp_path / f"{rank}.nc", "w") as file:
            file.createDimension("x", 3)
            file.createVariable("tas", "f4", ("x",))[:] = np.arange(3)
            name = file.createVariable("tas_max", "f8", ("x",))
            name.units, name[:] = "degrees_north", np.arange(3)
    (tmp_path / "ops.py").write_text("def f(a, b):\n    return a + b\n")
    both, several = "0.npy 1.npy", "is a list of ops, which `mpired reduce` and `mpired locate` take; name one op"
    check_refusals(tmp_path, [
        (f"reduce --op max,min {both} -o out.npy", 2, "holds one array, but there are 2 (max, min); put {op} into the"),
        (f"reduce --op max,min {both} --in-place", 2, "--in-place: has the place of one result, and there are 2 ops"),
        (f"reduce --op max,MPI_MAX {both} -o out.npz", 2, "has two ops whose results would be named 'max'"),
        (f"reduce --op max, {both} -o out.npz", 2, "'': is not an MPI op"),
        (f"reduce --op max,min --weights 1,2 {both} -o out.npz", 2, "--weights: is for weighted means, and the op is"),
        (f"reduce --op max,mean --commute {both} -o out.npz", 2, "--commute: is for user-defined ops"),
        (f"reduce --op mean,ops.py:f --nan ignore {both} -o o.npz", 2, "--nan: is for predefined ops"),
        (f"reduce --op mean,max --index rank {both} -o out.npz", 2, "is for maxloc and minloc, not for mean"),
        (f"reduce --op max,maxloc --index rank {both} --split v.npz,i.npz", 2, "writes the two parts of pairs, and"),
        ("reduce --op max,min 0.nc 1.nc -o out.nc", 2, "gives a result the name 'tas_max', which another array of"),
        (f"scan --op max,min {both} -o {{rank}}.npy", 2, several),
        (f"allreduce --op max,min {both} -o x{{rank}}.npy", 2, several),
        (f"accumulate --op sum,max {both}", 2, "sum,max: "),
        (f"locate --op maxloc,mean {both}", 3, "mean: does not find an extreme"),
    ])  # fmt: skip
    with pytest.raises(mpired.errors.UsageError, match="has no op"):
        mpired.reduce([np.zeros(3)], [])
