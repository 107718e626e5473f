"""Whatever `info` offers of an array works: each command that it names, and each op that it says takes it."""

from __future__ import annotations

import json
import re
import shlex
import warnings

import h5py
import netCDF4
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy
from command import run
from rows import together

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import zarr

DRAW = np.random.default_rng(51)
N = 4
NAMES = ["a b", "a,b", 'say "x"', "x*", "[1]", "--op", "", "é", "a'b", "$HOME"]
TEXTS = ["w", "xy", "", "z"]


def typed():
    """Return arrays of Arrow of every kind."""
    ints = pa.array(DRAW.integers(0, 99, N))
    kinds = [
        *(getattr(pa, f"{u}int{bits}")() for u in ("", "u") for bits in (8, 64)),
        pa.float16(),
        pa.float32(),
        pa.bool_(),
    ]
    kinds += [pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("us"), pa.duration("s"), pa.timestamp("us", "UTC")]
    small = {pa.date32(): pa.int32(), pa.time32("ms"): pa.int32(), pa.date64(): pa.date32()}
    arrays = [ints.cast(pa.int32()).cast(small.get(kind, pa.int64())).cast(kind) for kind in kinds]
    arrays += [pa.array(TEXTS), pa.array(TEXTS).dictionary_encode(), pa.array(TEXTS, pa.binary()), pa.nulls(N)]
    arrays += [
        ints.cast(pa.int32()).cast(pa.decimal128(20, 2)),
        ints.cast(pa.int8()).cast(pa.decimal128(12, 2)),
        pa.array([[1], [], [2, 3], [4]]),
    ]
    arrays += [pa.StructArray.from_arrays(parts, ["v", "i"]) for parts in ((ints, ints), (ints, pa.array(TEXTS)))]
    return arrays


def with_nulls(array):
    return pa.concat_arrays([array[: N - 1], pa.nulls(1, array.type)])


def tables():
    """Return tables with some of the columns each, with and without nulls, and names of every kind."""
    columns = typed()
    columns += [with_nulls(each) for each in columns if each.type != pa.null()]
    order = DRAW.permutation(len(columns))
    for start in range(0, len(order), 9):
        own = [columns[number] for number in order[start:][:9]]
        yield pa.table(own, names=[NAMES[number] for number in DRAW.permutation(len(NAMES))[: len(own)]])


def files(folder):
    """Write files of every format with names."""
    for number, table in enumerate(tables()):
        if number % 2:
            pq.write_table(table, folder / f"{number}.parquet")
            continue
        with pa.ipc.new_file(folder / f"{number}.arrow", table.schema) as file:
            file.write_table(table)
    forms = ["i1", ">u2", "f8", "?", "c16", "S3", "M8[s]", "U2", "f8,i4"]
    arrays = {f"{form} {axes}": np.zeros(shape, form) for form in forms for axes, shape in enumerate([(), (2, 3)])}
    np.savez(folder / "a.npz", **arrays)
    safetensors.numpy.save_file(
        {name: array for name, array in arrays.items() if array.dtype.str in "|i1<f8|b1"}, folder / "a.safetensors"
    )
    with h5py.File(folder / "a.h5", "w") as file:
        for number, (name, array) in enumerate(arrays.items()):
            if array.dtype.kind not in "MU":
                file.create_dataset(f"g{number % 2}/{name}", data=array, chunks=(1, 3) if array.ndim else None)
        file["strings"], file["none"] = ["a", "b"], h5py.Empty("f4")
        file["table"] = np.zeros(2, [("x", "f8"), ("s", "S4")])
        file["link"] = h5py.ExternalLink("other.h5", "x")
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_chunk((3,))
        settings.set_filter(32026, h5py.h5z.FLAG_OPTIONAL, ())
        made = h5py.h5d.create(file.id, b"blosc2", h5py.h5t.NATIVE_DOUBLE, h5py.h5s.create_simple((3,)), settings)
        made.write_direct_chunk((0,), bytes(24))
    with netCDF4.Dataset(folder / "a.nc", "w") as file:
        for name, form, more in (
            ("time", "f8", {"units": "days since 2000-1-1"}),
            ("t", "f4", {"missing_value": np.float32(9)}),
            ("packed", "i2", {"scale_factor": 0.5}),
            ("s", "S1", {}),
            ("n", "u1", {}),
        ):
            if name not in file.dimensions:
                file.createDimension(name, 3)
            variable = file.createVariable(name, form, (name,))
            variable.setncatts(more)
            variable.set_auto_maskandscale(False)
            variable[:] = np.ones(3, form)
    group = zarr.open_group(folder / "a.zarr", mode="w")
    for name, array in arrays.items():
        if array.dtype.kind not in "USM" and not array.dtype.names:
            group.create_array(name.replace(">", ""), data=array)


def offered(name, use):
    """Yield the commands that work on an array: those that are named, or a reduction by an op that takes it."""
    chosen = ["--columns", '"{}"'.format(re.sub(r"([*?[])", r"[\1]", name).replace('"', '""'))]
    if use is None:
        yield "reduce", "--op", "last", *chosen
    for text in re.findall(r"`mpired (.*?)`", use or ""):
        words = shlex.split(text)
        yield "reduce", "--op", "last", *words[1:], *(() if "--keep" in words else chosen)
    if takers := re.match(r"([a-z, ]+) take it( if --columns names it)?$", use or ""):
        for op in takers[1].split(", "):
            yield "reduce", "--op", op, *chosen


def test_whatever_info_offers_works(tmp_path):
    files(tmp_path)
    noffers = 0
    with together(tmp_path) as case:
        for path in sorted(tmp_path.glob("*.*")):
            suffix = "".join(path.suffixes) + ".zip" * (path.suffix == ".zarr")
            (described,) = json.loads(run("info", "--json", path.name, cwd=tmp_path).out)
            arrays = described["buffers"] + described["other_columns"]
            combined = [words[3:] for each in described["buffers"] for words in offered(each["name"], each["use"])]
            for each in arrays:
                for words in offered(each["name"], each["use"]):
                    if "--keep" in words and not combined:
                        continue
                    more = combined[0] if "--keep" in words else ()
                    with case(path.name, *words):
                        noffers += 1
                        outcome = run(*words, *more, "-q", path.name, "-fo", f"o{suffix}", cwd=tmp_path)
                        assert (outcome.status, outcome.out, outcome.err) == (0, b"", "")
    assert noffers > 80
