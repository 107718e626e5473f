"""Zarr stores as ranks and results, compared with zarr, xarray and NumPy; codecs; damaged ones give one line."""

import json
import os
import shutil
import warnings
import zipfile

import netCDF4
import numpy as np
import pytest
from command import refused, run, succeeded
from rows import together
from setups import without

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import numcodecs
    import xarray as xr
    import zarr

import mpired
from mpired.context import NO_LIMITS
from mpired.errors import ChangedError
from mpired.sources.open import open_source

pytestmark = pytest.mark.filterwarnings("ignore")
VERSIONS = pytest.mark.parametrize("version", [2, 3])
DRAW = np.random.default_rng(21)
SUM = ("reduce", "-q", "-f", "--op", "sum")


def month(number):
    """A month of a climate model, with missing values, coordinates and texts."""
    t = DRAW.standard_normal((6, 5, 4)).astype("f4")
    t[number, 2] = np.nan
    times = xr.DataArray(np.arange(6), dims="time", attrs={"units": "days since 2000-01-01"})
    coords = {"time": times, "lat": np.linspace(-1, 1, 5), "site": ("lat", np.array(list("abcde"))), "height": 2.0}
    n = np.arange(5, dtype="i4") + number
    n[number] = -9
    attrs = {"units": "K"}
    return xr.Dataset({"t": (("time", "lat", "lon"), t, attrs), "n": ("lat", n)}, coords, {"title": "a run"})


def write(folder, version, **settings):
    """Write three months, and return their names and what xarray reads of them."""
    encoding = {"t": {"chunks": (4, 3, 4), "_FillValue": 1e20}, "n": {"_FillValue": -9}}
    names = [f"r{i}.zarr" for i in range(3)]
    for i, name in enumerate(names):
        month(i).to_zarr(folder / name, zarr_format=version, encoding=encoding, **settings)
    return names, [xr.open_zarr(folder / name) for name in names]


def opened(path, **settings):
    return xr.open_zarr(zarr.storage.ZipStore(path, mode="r"), **settings)


def arrays_in(path):
    return zarr.open_group(zarr.storage.ZipStore(path, mode="r"), mode="r")


def change_document(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@VERSIONS
def test_what_xarray_writes_and_reads(tmp_path, version):
    names, months = write(tmp_path, version, consolidated=True)
    words = ("--op", "mean", "--nulls", "ignore", "--nan", "ignore", "-j")
    for jobs in "12":
        succeeded(run("reduce", "-q", *words, jobs, "-o", f"mean{jobs}.zarr.zip", *names, cwd=tmp_path))
    assert (tmp_path / "mean1.zarr.zip").read_bytes() == (tmp_path / "mean2.zarr.zip").read_bytes()
    result = opened(tmp_path / "mean1.zarr.zip", consolidated=True)
    rest = ["t", "n"]
    xr.testing.assert_identical(result.drop_vars(rest).load(), months[0].drop_vars(rest).load())
    stacked = xr.concat(months, "rank", join="exact", coords="minimal", compat="override")
    for name in rest:
        np.testing.assert_allclose(result[name], stacked[name].mean("rank", skipna=True), rtol=1e-5)
    assert (result.t.attrs, result.t.encoding["chunks"], result.t.dtype) == ({"units": "K"}, (4, 3, 4), "f4")
    old = zarr.open_group(tmp_path / "r0.zarr")["t"]
    new = arrays_in(tmp_path / "mean1.zarr.zip")["t"]
    assert (new.compressors, new.metadata.zarr_format) == (old.compressors, version)
    found = mpired.reduce([tmp_path / name for name in names], op="count", nulls="ignore")
    np.testing.assert_array_equal(found["n"], [2, 2, 2, 3, 3])
    assert (found["site"].tolist(), found["lat"].tolist()) == (list("abcde"), months[0].lat.values.tolist())
    zarr.open_group(tmp_path / "r1.zarr", use_consolidated=False)["lat"][2] = 7
    words = ("reduce", "-q", "--op", "max", "--nulls", "ignore", "-o", "out.zarr.zip", *names)
    refused(run(*words, cwd=tmp_path), 3, "'lat' differs from that of rank 0")
    succeeded(run(*words, "--no-check-coordinates", cwd=tmp_path))
    assert opened(tmp_path / "out.zarr.zip").lat[2] == 0


def test_groups_shards_and_chunks_that_are_not_there(tmp_path):
    arrays = [DRAW.integers(-9, 9, (7, 6)).astype(">i2") for _ in range(2)]
    for i, values in enumerate(arrays):
        group = zarr.create_group(tmp_path / f"r{i}.zarr", attributes={"run": 1})
        options = {"shape": (7, 6), "dtype": ">i2", "chunks": (2, 2), "shards": (4, 4), "fill_value": 5}
        group.create_array("a/b", **options)[:4] = values[:4]
        group.create_array("other", shape=(3,), dtype="f8")
    succeeded(run(*SUM, "--columns", "a/*", "-o", "sum.zarr.zip", "r0.zarr", "r1.zarr", cwd=tmp_path))
    result = arrays_in(tmp_path / "sum.zarr.zip")
    expected = sum(np.concatenate([values[:4], np.full((3, 6), 5)]) for values in arrays)
    np.testing.assert_array_equal(result["a/b"][...], expected)
    assert (result["a/b"].shards, result.attrs["run"], "other" in result) == ((4, 4), 1, False)


def test_missing_floats_of_other_formats_are_declared(tmp_path):
    values = [np.ma.masked_invalid([1, np.nan, 3]), np.ma.masked_invalid([2, np.nan, np.nan])]
    for i, each in enumerate(values):
        with netCDF4.Dataset(tmp_path / f"{i}.nc", "w") as file:
            file.createDimension("x", 3)
            file.createVariable("t", "f4", "x", fill_value=-9)[:] = each
    for name in ("sum.nc", "sum.zarr.zip"):
        succeeded(run(*SUM, "--nulls", "ignore", "-o", name, "0.nc", "1.nc", cwd=tmp_path))
    expected = np.ma.stack(values).sum(axis=0)
    np.testing.assert_array_equal(opened(tmp_path / "sum.zarr.zip").t, expected.filled(np.nan))
    succeeded(run(*SUM, "--nulls", "ignore", "-o", "again.nc", "sum.zarr.zip", cwd=tmp_path))
    assert opened(tmp_path / "sum.zarr.zip").t.dims == xr.open_dataset(tmp_path / "again.nc").t.dims == ("x",)
    stored = arrays_in(tmp_path / "sum.zarr.zip")["t"]
    assert stored[1] == stored.fill_value == np.float32(netCDF4.default_fillvals["f4"])
    assert mpired.diff(tmp_path / "sum.nc", tmp_path / "sum.zarr.zip").equal


HUGE_CHUNK = {"name": "regular", "configuration": {"chunk_shape": [1 << 40]}}
DAMAGES = {
    "no JSON": lambda folder: (folder / "v/zarr.json").write_bytes(b"{"),
    "no shape": lambda folder: change_document(folder / "v/zarr.json", shape="x"),
    "huge": lambda folder: change_document(folder / "v/zarr.json", shape=[1 << 62]),
    "huge chunk": lambda folder: change_document(folder / "v/zarr.json", chunk_grid=HUGE_CHUNK),
    "no codec": lambda folder: change_document(folder / "v/zarr.json", codecs=[{"name": "none such"}]),
    "attributes": lambda folder: change_document(folder / "v/zarr.json", attributes=[1]),
    "cut chunk": lambda folder: os.truncate(folder / "v/c/0", 9),
    "long chunk": lambda folder: os.truncate(folder / "v/c/0", 1 << 30),
    "link": lambda folder: os.symlink("/etc/passwd", folder / "v/c/9"),
    "cycle": lambda folder: os.symlink("..", folder / "v/again"),
    "fifo": lambda folder: os.mkfifo(folder / "v/c/1"),
    "empty": lambda folder: (folder / "zarr.json").write_bytes(b""),
}
GROUPS = {f"group {text}": text for text in ('{"zarr_format": 7}', "[]", "{")}


def test_damaged(tmp_path):
    whole = tmp_path / "r.zarr"
    zarr.create_group(whole).create_array("v", data=np.arange(8.0), chunks=(8,))
    with together(tmp_path) as case:
        for name, damage in DAMAGES.items():
            with case(name) as folder:
                shutil.copytree(whole, folder / "r.zarr")
                damage(folder / "r.zarr")
                refused(run("reduce", "-q", "--op", "sum", "r.zarr", cwd=folder), 3, "r.zarr")
        for (name, text), version in ((each, version) for each in GROUPS.items() for version in (2, 3)):
            with case(name, version) as folder:
                zarr.create_group(folder / "r.zarr", zarr_format=version).create_array("grp/v", data=np.arange(3.0))
                (folder / "r.zarr/grp" / (".zgroup" if version == 2 else "zarr.json")).write_text(text)
                refused(run("reduce", "--op", "max", "r.zarr", cwd=folder), 3, "r.zarr: ", "'grp'")
        with case("no library"):
            refused(run("info", "r.zarr", cwd=tmp_path, setup=without("zarr")), 2, "install 'mpired[zarr]'")


STALE = {
    "an attribute": (lambda group: group["grp/v"].attrs.update(units="m"), [0, 1, 2]),
    "an array more": (lambda group: group.create_array("grp/w", data=np.arange(3)), [0, 1, 2]),
    "a longer array": (lambda group: group["grp/v"].resize((2,)), [0, 1]),
}


@VERSIONS
def test_consolidated_metadata(tmp_path, version):
    """The documents of the nodes count, and a result has those of its nodes; there may be none, also in a document."""
    words = ("reduce", "-qf", "--op", "max", "r.zarr", "-o", "s.zarr.zip")
    with together(tmp_path) as case:
        for change, (make_stale, expected) in STALE.items():
            with case(change) as folder:
                group = zarr.create_group(folder / "r.zarr", zarr_format=version)
                group.create_array("grp/v", data=np.arange(3.0), fill_value=np.nan)
                zarr.consolidate_metadata(folder / "r.zarr")
                make_stale(documents := zarr.open_group(folder / "r.zarr", use_consolidated=False))
                succeeded(run(*words, cwd=folder))
                store = zarr.storage.ZipStore(folder / "s.zarr.zip", mode="r")
                result = zarr.open_group(store, mode="r", use_consolidated=True)
                assert sorted(result["grp"].array_keys()) == sorted(documents["grp"].array_keys())
                assert result["grp/v"][:].tolist() == expected
                assert dict(result["grp/v"].attrs) == dict(documents["grp/v"].attrs)
        for content in (None, {}) if version == 3 else ():
            with case("none", content) as folder:
                zarr.create_group(folder / "r.zarr").create_array("v", data=np.arange(3.0))
                change_document(folder / "r.zarr/zarr.json", consolidated_metadata=content)
                succeeded(run(*words, cwd=folder))
                assert arrays_in(folder / "s.zarr.zip")["v"][:].tolist() == [0, 1, 2]


def test_a_store_that_changes(tmp_path):
    path = tmp_path / "r.zarr"
    for change in (
        lambda: change_document(path / "v/zarr.json", attributes={"new": 1}),
        lambda: zarr.open_group(path)["v"].__setitem__(0, 7.0),
    ):
        zarr.create_group(path, overwrite=True).create_array("v", data=np.arange(8.0), chunks=(8,))
        source = open_source(str(path), NO_LIMITS)
        source.check_unchanged()
        change()
        with pytest.raises(ChangedError):
            source.open()


CODECS = {
    "zstd": {"level": 1}, "lz4": {}, "blosc": {"cname": "zstd"}, "gzip": {"level": 1}, "zlib": {}, "bz2": {},
    "lzma": {"preset": 1},
}  # fmt: skip
OWN = {"zstd": zarr.codecs.ZstdCodec, "blosc": zarr.codecs.BloscCodec, "gzip": zarr.codecs.GzipCodec}  # of version 3


def refuses(folder, *reasons):
    refused(run(*SUM, "r.zarr", "-o", "s.zarr.zip", cwd=folder), 3, "r.zarr: ", *reasons)


@VERSIONS
def test_files_beside_the_arrays_of_a_changed_archive_stay(tmp_path, version):
    zarr.create_group(tmp_path / "r.zarr", zarr_format=version).create_array("v", data=np.arange(6), chunks=(4,))
    path = tmp_path / "t.zarr.zip"
    for words in ("reduce {} r.zarr --in-place", "reduce-local r.zarr {}", "accumulate {} r.zarr"):
        mpired.reduce([tmp_path / "r.zarr"], "max", output=path, overwrite=True)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("README", "1")
            archive.writestr("v/notes", "2")
        succeeded(run(*words.format(path.name).split(), "--op", "sum", "-q", cwd=tmp_path))
        with zipfile.ZipFile(path) as archive:
            assert (archive.read("README"), archive.read("v/notes")) == (b"1", b"2")
        assert arrays_in(path)["v"][:].tolist() == [0, 2, 4, 6, 8, 10]


@VERSIONS
def test_codecs_and_chunks_of_another_length(tmp_path, version):
    values = DRAW.integers(0, 9, 1 << 16).astype("i4")
    group = zarr.create_group(tmp_path / "r.zarr", zarr_format=version)
    for codec, options in CODECS.items():
        encoder = numcodecs.get_codec({"id": codec, **options})
        if version == 3:
            kind = OWN.get(codec) or zarr.registry.get_codec_class(f"numcodecs.{codec}")
            encoder = kind() if codec in OWN else kind(**options)
        group.create_array(codec, data=values, chunks=values.shape, compressors=encoder)
    found = mpired.reduce([tmp_path / "r.zarr"], "max")
    assert [name for name in CODECS if not np.array_equal(found[name], values)] == []
    content = numcodecs.get_codec({"id": "lzma"}).encode(values[:-1])
    (tmp_path / "r.zarr/lzma" / ("c/0" if version == 3 else "0")).write_bytes(content)
    refuses(tmp_path, "cannot reshape")


def test_pickles_are_never_loaded(tmp_path):
    zarr.create_group(tmp_path / "r.zarr", zarr_format=2).create_array("v", shape=(2,), dtype="f8")
    change_document(tmp_path / "r.zarr/v/.zarray", dtype="|O", filters=[{"id": "pickle"}])
    refuses(tmp_path, "array 'v' cannot be opened (", "pickle")
