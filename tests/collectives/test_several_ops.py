"""Several ops in one call: each gives what it gives alone, and the ranks are read once."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import h5py
import netCDF4
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
import xarray as xr
from command import run
from rows import check_refusals, each, together

import mpired
from mpired.context import BASE_NBYTES
from mpired.formats.array import FlatReader

NRANKS, COUNT = 4, 3000


def some(code, rank, count=COUNT):
    random = np.random.default_rng(rank)
    if code[-2] in "iu":
        return random.integers(0, 100, count).astype(code)
    array = (random.standard_normal(count) * 100).astype(code)
    array[random.integers(0, count, 50)] = np.nan
    array[random.integers(0, count, 50)] = -0.0
    return array


def numpys(ranks):
    """Return what NumPy makes of plain ranks, whose results do not depend on the order of its steps."""
    stack = np.stack(ranks)
    return {
        "max": stack.max(0),
        "min": stack.min(0),
        "mean": (((ranks[0] + ranks[1]) + ranks[2]) + ranks[3]) / 4,
        "range": np.ptp(stack, axis=0),
        "count": np.full(len(ranks[0]), 4),
        "first": ranks[0],
        "last": ranks[3],
    }


def test_results_are_those_of_numpy():
    ranks = [np.random.default_rng(rank).standard_normal(COUNT) for rank in range(NRANKS)]
    expected = numpys(ranks)
    for jobs in (1, 2):
        found = mpired.reduce(ranks, list(expected), jobs=jobs)
        assert list(found) == list(expected)
        assert all(np.array_equal(found[op], expected[op]) for op in expected)
        assert np.allclose(mpired.reduce(ranks, "std,max", jobs=jobs)["std"], np.std(np.stack(ranks), axis=0))
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


@each(
    "code, ops, options",
    [
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
    ],
)
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


def test_ranks_are_read_once(monkeypatch):
    reads = []
    read = FlatReader.read
    monkeypatch.setattr(FlatReader, "read", lambda self, start, block: reads.append(start) or read(self, start, block))
    ranks = [some("f8", rank) for rank in range(NRANKS)]
    mpired.reduce(ranks, "max,median,mean,maxloc,std", index="rank", jobs=1)
    monkeypatch.undo()
    assert reads[:NRANKS] == [0] * NRANKS  # the last reads are those of the results
    assert len(reads) == NRANKS + 5


def test_ranks_that_can_be_read_once(tmp_path):
    ranks = [some("f8", rank, 500) for rank in range(3)]
    pipes = [os.pipe() for _ in ranks]
    writers = [threading.Thread(target=os.write, args=(fd, rank.tobytes())) for (_, fd), rank in zip(pipes, ranks)]  # noqa: B905
    for writer, (_, fd) in zip(writers, pipes, strict=True):
        writer.start()
        writer.join()
        os.close(fd)
    files = [open(fd, "rb") for fd, _ in pipes]  # noqa: SIM115 - closed below
    found = mpired.reduce(files, ["max", "mean"], type="double", output=tmp_path / "x.npz")
    for file in files:
        file.close()
    written = np.load(tmp_path / "x.npz")
    assert found.op == "MPI_MAX,mean"
    assert written.files == ["max", "mean"]
    assert np.array_equal(written["max"], np.stack(ranks).max(0), equal_nan=True)
    assert np.array_equal(written["mean"], (ranks[0] + ranks[1] + ranks[2]) / 3, equal_nan=True)


def xarrays(name, value):
    return lambda path: xr.DataArray(value, dims=("x",), name=name).to_netcdf(path)


def read_csv(path):
    names, *lines = [line.split(",") for line in path.read_text().splitlines()]
    return dict(zip(names, np.array(lines, float).T, strict=True))


def read_json(path):
    return {each["name"]: np.array(each["data"]) for each in json.loads(path.read_text())["buffers"]}


def read_zarr(path):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(zarr.storage.ZipStore(path, mode="r"), mode="r")
    return {name: array[...] for name, array in group.arrays()}


def read_hdf5(path):
    with h5py.File(path) as file:
        return {name: file[name][...] for name in file}


def read_netcdf(path):
    with netCDF4.Dataset(path) as file:
        return {name: np.ma.getdata(file[name][...]) for name in file.variables}


def columns(table):
    return {name: table[name].to_numpy() for name in table.column_names}


READERS = {
    "nc": read_netcdf, "h5": read_hdf5, "zarr.zip": read_zarr, "npz": lambda path: dict(np.load(path)),
    "safetensors": safetensors.numpy.load_file, "parquet": lambda path: columns(pq.read_table(path)),
    "arrow": lambda path: columns(pa.ipc.open_file(path).read_all()), "csv": read_csv, "json": read_json,
}  # fmt: skip


def test_files_of_every_format(tmp_path):
    a, b = ([some("i4", rank + add, 60).astype("f8") for rank in range(NRANKS)] for add in (0, 10))
    expected = {}
    for name, ranks in (("a", a), ("b", b)):
        stack = np.stack(ranks)
        expected |= {f"{name}_max": stack.max(0), f"{name}_mean": stack.mean(0), f"{name}_maxloc": stack.max(0)}
        expected[f"{name}_maxloc_index"] = stack.argmax(0)
    for rank in range(NRANKS):
        pq.write_table(pa.table({"a": a[rank], "b": b[rank]}), tmp_path / f"{rank}.parquet")
        np.savez(tmp_path / f"{rank}.npz", a=a[rank], b=b[rank])
        xr.Dataset({"a": ("x", a[rank]), "b": ("x", b[rank])}).to_netcdf(tmp_path / f"{rank}.nc")
    with together(tmp_path) as case:
        for source, suffix in [
            *((s, each) for s in ("parquet", "npz") for each in READERS),
            ("nc", "nc"),
            ("nc", "h5"),
        ]:
            with case(source, suffix) as folder:
                ranks = [tmp_path / f"{rank}.{source}" for rank in range(NRANKS)]
                output = folder / f"stats.{suffix}"
                mpired.reduce(ranks, ["max", "mean", "maxloc"], index="rank", output=output)
                found = READERS[suffix](output)
                assert {*found} == {*expected}
                assert all(np.array_equal(found[name], expected[name]) for name in expected)


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


def test_unnamed_arrays_and_files_by_op(tmp_path):
    ranks = [np.random.default_rng(rank).standard_normal((3, 5)) for rank in range(3)]
    for rank, array in enumerate(ranks):
        np.save(tmp_path / f"{rank}.npy", array)
    names, stack = ["0.npy", "1.npy", "2.npy"], np.stack(ranks)
    assert run("reduce", "--op", "max,min,maxloc", "--index", "rank", *names, "-o", "out.npz", cwd=tmp_path).status == 0
    found = np.load(tmp_path / "out.npz")
    assert found.files == ["max", "min", "maxloc", "maxloc_index"]
    assert np.array_equal(found["min"], stack.min(0))
    assert np.array_equal(found["maxloc_index"], stack.argmax(0))
    by_op = ["reduce", "--op", "max,maxloc,quantile:0.5", "--index", "rank", *names, "-o", "{op}.npy"]
    assert run(*by_op, cwd=tmp_path).status == 0
    assert np.array_equal(np.load(tmp_path / "max.npy"), stack.max(0))
    assert np.array_equal(np.load(tmp_path / "quantile_0.5.npy"), np.median(stack, axis=0))
    pairs = np.load(tmp_path / "maxloc.npy")
    assert pairs.dtype.names == ("value", "index")
    assert np.array_equal(pairs["index"], stack.argmax(0))
    assert (
        run("reduce", "--op", "maxloc,minloc", "--index", "rank", *names, "--split", "v.npz,i.npz", cwd=tmp_path).status
        == 0
    )
    index = np.load(tmp_path / "i.npz")
    assert np.array_equal(np.load(tmp_path / "v.npz")["minloc"], stack.min(0))
    assert np.array_equal(index["minloc_index"], stack.argmin(0))
    assert run("reduce", "--op", "max", *names, "-o", "one_{op}.npy", cwd=tmp_path).status == 0
    assert np.array_equal(np.load(tmp_path / "one_max.npy"), stack.max(0))


def test_summary_dry_run_and_record(tmp_path):
    for rank in range(2):
        np.save(tmp_path / f"{rank}.npy", some("i4", rank))
    words = ["reduce", "--op", "mean,std,max", "--weights", "1,3", "--ddof", "1", "0.npy", "1.npy", "-o", "out.npz"]
    dry = run(*words, "--dry-run", cwd=tmp_path)
    assert "MPI_Reduce with mean,std,MPI_MAX of 2 ranks" in dry.out.decode()
    assert not (tmp_path / "out.npz").exists()
    line = run(*words, cwd=tmp_path)
    assert "mean,std,max of 2 ranks, 3000 x int32, weighted (mean), ddof 1 (std)" in line.err
    found = json.loads(run(*words, "--json", "--force", "--provenance", cwd=tmp_path).out)
    assert (found["op"], found["rules"]) == ("mean,std,MPI_MAX", ["weighted (mean)", "ddof 1 (std)"])
    record = json.loads((tmp_path / "out.npz.json").read_text())
    assert record["op"] == "mean,std,MPI_MAX"
    assert record["policies"]["chosen"] == found["rules"]
    with pytest.warns(mpired.errors.OverflowWarning) as caught:
        mpired.reduce([np.full(3, 200, "u1")] * 2, "max,sum,prod")
    assert [str(each.message).partition(" ")[0] for each in caught] == ["MPI_SUM", "MPI_PROD"]


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


def test_results_that_workers_send(tmp_path, monkeypatch):
    monkeypatch.setattr("mpired.collectives.plan.SMALL_NBYTES", 1)
    ranks = [np.random.default_rng(rank).standard_normal(COUNT) for rank in range(NRANKS)]
    for rank, array in enumerate(ranks):
        np.save(tmp_path / f"{rank}.npy", array)
    names, expected = [tmp_path / f"{rank}.npy" for rank in range(NRANKS)], numpys(ranks)
    with ThreadPoolExecutor(2) as threads:
        found = mpired.reduce(names, list(expected), engine=threads)
        mpired.reduce(names, list(expected), engine=threads, output=tmp_path / "out.npz")
    assert all(np.array_equal(found[op], expected[op]) for op in expected)
    written = np.load(tmp_path / "out.npz")
    assert all(np.array_equal(written[op], expected[op]) for op in expected)


def test_a_limit_of_memory_counts_all_states():
    ranks = [np.zeros(1 << 20) for _ in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        counts = []
        plans = mpired.collectives.call.make_plan
        patch.setattr("mpired.collectives.call.make_plan", lambda *a, **b: counts.append(plans(*a, **b)) or counts[-1])
        for ops in ("std", "std,median,mean,var"):
            mpired.reduce(ranks, ops, max_memory=BASE_NBYTES + (2 << 20), jobs=1)
    one, several = counts
    assert several.block_counts[0] < one.block_counts[0]


def test_both_extremes(tmp_path):
    ranks = [some("i4", rank, 50 + rank) for rank in range(3)]
    for rank, array in enumerate(ranks):
        np.save(tmp_path / f"{rank}.npy", array)
    flat = np.concatenate(ranks)
    found = mpired.locate(ranks, ["maxloc", "min"])
    assert (found["maxloc"].value, found["min"].value) == (flat.max(), flat.min())
    top = mpired.locate(ranks, "maxloc,minloc", top=5)
    assert [each.value for each in top["maxloc"]] == sorted(flat.tolist(), reverse=True)[:5]
    assert [each.value for each in top["minloc"]] == sorted(flat.tolist())[:5]
    assert top["minloc"] == mpired.locate(ranks, "minloc", top=5)
    words = ["locate", "--op", "maxloc,minloc", "0.npy", "1.npy", "2.npy"]
    lines = run(*words, cwd=tmp_path).out.decode().splitlines()
    assert [line.split(" in ")[0] for line in lines] == [f"maxloc: {flat.max()}", f"minloc: {flat.min()}"]
    rows = json.loads(run(*words, "--json", cwd=tmp_path).out)
    assert [(row["op"], row["value"]) for row in rows] == [("maxloc", flat.max()), ("minloc", flat.min())]


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
        (f"reduce --op max,maxloc {both} -o out.npz", 3, "MPI_MAXLOC: is not defined for MPI_INT32_T"),
        (f"reduce --op max,maxloc --index rank {both} --split v.npz,i.npz", 2, "writes the two parts of pairs, and"),
        ("reduce --op max,min 0.nc 1.nc -o out.nc", 2, "gives a result the name 'tas_max', which another array of"),
        (f"scan --op max,min {both} -o {{rank}}.npy", 2, several),
        (f"allreduce --op max,min {both} -o x{{rank}}.npy", 2, several),
        (f"accumulate --op sum,max {both}", 2, "sum,max: "),
        (f"locate --op maxloc,mean {both}", 3, "mean: does not find an extreme"),
    ])  # fmt: skip
    with pytest.raises(mpired.errors.UsageError, match="has no op"):
        mpired.reduce([np.zeros(3)], [])
