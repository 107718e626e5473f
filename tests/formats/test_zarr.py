"""Zarr stores as ranks and results, compared with zarr, xarray and NumPy; damaged ones give one line."""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
import zipfile

import numpy as np
import pytest
from command import refused, run, succeeded, unchanged

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import xarray as xr
    import zarr

import mpired
from mpired.context import NO_LIMITS

pytestmark = pytest.mark.filterwarnings("ignore")
VERSIONS = pytest.mark.parametrize("version", [2, 3])
DRAW = np.random.default_rng(21)


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


def test_a_coordinate_that_differs(tmp_path):
    names, _ = write(tmp_path, 3)
    zarr.open_group(tmp_path / "r1.zarr")["lat"][2] = 7
    words = ("reduce", "-q", "--op", "max", "--nulls", "ignore", "-o", "out.zarr.zip", *names)
    refused(run(*words, cwd=tmp_path), 3, "'lat' differs from that of rank 0")
    succeeded(run(*words, "--no-check-coordinates", cwd=tmp_path))
    assert opened(tmp_path / "out.zarr.zip").lat[2] == 0


@VERSIONS
def test_groups_shards_and_chunks_that_are_not_there(tmp_path, version):
    arrays = [DRAW.integers(-9, 9, (7, 6)).astype(">i2") for _ in range(2)]
    for i, values in enumerate(arrays):
        group = zarr.create_group(tmp_path / f"r{i}.zarr", zarr_format=version, attributes={"run": 1})
        shards = {"shards": (4, 4)} if version == 3 else {}
        inner = group.create_array("a/b", shape=(7, 6), dtype=">i2", chunks=(2, 2), fill_value=5, **shards)
        inner[:4] = values[:4]
        group.create_array("other", shape=(3,), dtype="f8")
    words = ("--columns", "a/*", "-o", "sum.zarr.zip", "r0.zarr", "r1.zarr")
    succeeded(run("reduce", "-q", "--op", "sum", *words, cwd=tmp_path))
    expected = sum(np.concatenate([values[:4], np.full((3, 6), 5)]) for values in arrays)
    result = arrays_in(tmp_path / "sum.zarr.zip")
    np.testing.assert_array_equal(result["a/b"][...], expected)
    assert (result["a/b"].shards, result.attrs["run"]) == ((4, 4) if version == 3 else None, 1)
    assert "other" not in result


@VERSIONS
def test_packed(tmp_path, version):
    t = DRAW.uniform(200, 300, 12)
    t[3] = np.nan
    encoding = {"t": {"dtype": "i2", "scale_factor": 0.01, "add_offset": 250.0, "_FillValue": -32768}}
    xr.Dataset({"t": ("x", t)}).to_zarr(tmp_path / "r.zarr", zarr_format=version, encoding=encoding)
    words = ("reduce", "-q", "--op", "sum", "-o", "sum.zarr.zip", "r.zarr", "r.zarr")
    refused(run(*words, cwd=tmp_path), 3, "array 't' is packed by `scale_factor` and `add_offset`", "--unpack")
    text = run("info", "r.zarr", cwd=tmp_path).out.decode()
    assert "t: 12 x packed MPI_INT16_T (int16), shape (12,), " in text
    assert "; unpack it with --unpack, and skip missing values with --nulls ignore, no op takes it as it is" in text
    refused(run(*words, "--unpack", cwd=tmp_path), 3, "'t' has 1 null")
    succeeded(run(*words, "--unpack", "--nulls", "ignore", cwd=tmp_path))
    result = opened(tmp_path / "sum.zarr.zip").t
    np.testing.assert_allclose(result, 2 * xr.open_zarr(tmp_path / "r.zarr").t, rtol=1e-12)
    assert "scale_factor" not in result.encoding
    shutil.make_archive(tmp_path / "p.zarr", "zip", tmp_path / "r.zarr")
    for more in ((), ("--unpack",)):
        with unchanged(tmp_path):
            words = ("accumulate", "--op", "sum", *more, "p.zarr.zip", "sum.zarr.zip")
            refused(run(*words, cwd=tmp_path), 3, "array 't' is packed", "packed elements are not updated")


@VERSIONS
def test_elements_that_come_out_as_missing_ones_are_told_of(tmp_path, version):
    t = xr.DataArray([100.0, 200.0, 300.0], dims="x", attrs={"valid_min": 0, "valid_max": 330})
    xr.Dataset({"t": t}).to_zarr(tmp_path / "r.zarr", zarr_format=version, encoding={"t": {"_FillValue": 200.0}})
    words = ("reduce", "-q", "--nulls", "ignore", "-f", "-o", "r.zarr.zip", "r.zarr", "r.zarr", "--op")
    found = run(*words, "sum", cwd=tmp_path)
    said = "came out outside of its valid range (from 0 to 330) or as its fill value (200)"
    assert (found.status, f"mpired: warning: 2 elements of t {said}" in found.err) == (0, True)
    succeeded(run(*words, "max", cwd=tmp_path))


def test_in_python(tmp_path):
    names, months = write(tmp_path, 2)
    found = mpired.reduce([tmp_path / name for name in names], op="count", nulls="ignore")
    np.testing.assert_array_equal(found["n"], [2, 2, 2, 3, 3])
    assert (found["site"].tolist(), found["lat"].tolist()) == (list("abcde"), months[0].lat.values.tolist())


@pytest.mark.parametrize("content", [None, {}])
def test_a_root_that_has_no_consolidated_metadata_in_it(tmp_path, content):
    group = zarr.create_group(tmp_path / "r.zarr")
    group.create_array("v", data=np.arange(3.0))
    _document(tmp_path / "r.zarr/zarr.json", consolidated_metadata=content)
    succeeded(run("reduce", "-q", "--op", "sum", "r.zarr", "-o", "s.zarr.zip", cwd=tmp_path))
    assert arrays_in(tmp_path / "s.zarr.zip")["v"][:].tolist() == [0, 1, 2]


def test_directories_are_not_written(tmp_path):
    names, _ = write(tmp_path, 3)
    for status, reason, *words in (
        (2, "name it sum.zarr.zip", "reduce", "--op", "max", "-o", "sum.zarr", *names),
        (2, "cannot be replaced as one", "reduce", "--op", "max", "--nulls", "ignore", "--in-place", *names),
        (2, "cannot be replaced as one", "accumulate", "--op", "max", *names),
    ):
        with unchanged(tmp_path):
            refused(run(*words, cwd=tmp_path), status, reason)
    os.mkdir(tmp_path / "plain.zarr")
    refused(run("info", "plain.zarr", cwd=tmp_path), 3, "is a directory, not a file")


def _document(path, **changes):
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | changes))


DAMAGES = {
    "no JSON": lambda folder: (folder / "r.zarr/v/zarr.json").write_bytes(b"{"),
    "no object": lambda folder: (folder / "r.zarr/v/zarr.json").write_bytes(b"[]"),
    "nested": lambda folder: (folder / "r.zarr/v/zarr.json").write_bytes(b"[" * 100_000),
    "no shape": lambda folder: _document(folder / "r.zarr/v/zarr.json", shape="x"),
    "negative": lambda folder: _document(folder / "r.zarr/v/zarr.json", shape=[-1]),
    "huge": lambda folder: _document(folder / "r.zarr/v/zarr.json", shape=[1 << 62]),
    "huge chunk": lambda folder: _document(
        folder / "r.zarr/v/zarr.json", chunk_grid={"name": "regular", "configuration": {"chunk_shape": [1 << 40]}}
    ),
    "no codec": lambda folder: _document(folder / "r.zarr/v/zarr.json", codecs=[{"name": "none such"}]),
    "no type": lambda folder: _document(folder / "r.zarr/v/zarr.json", data_type=[{}]),
    "attributes": lambda folder: _document(folder / "r.zarr/v/zarr.json", attributes=[1]),
    "cut chunk": lambda folder: os.truncate(folder / "r.zarr/v/c/0", 9),
    "long chunk": lambda folder: os.truncate(folder / "r.zarr/v/c/0", 1 << 30),
    "link": lambda folder: os.symlink("/etc/passwd", folder / "r.zarr/v/c/9"),
    "cycle": lambda folder: os.symlink("..", folder / "r.zarr/v/again"),
    "fifo": lambda folder: os.mkfifo(folder / "r.zarr/v/c/1"),
    "empty": lambda folder: (folder / "r.zarr/zarr.json").write_bytes(b""),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "r.zarr"
    zarr.create_group(folder).create_array("v", data=np.arange(8.0), chunks=(8,))
    return folder


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged(tmp_path, whole, damage):
    shutil.copytree(whole, tmp_path / "r.zarr")
    DAMAGES[damage](tmp_path)
    refused(run("reduce", "-q", "--op", "sum", "r.zarr", cwd=tmp_path), 3, "r.zarr")


@VERSIONS
def test_archives_with_several_members_of_one_name(tmp_path, version):
    for i in range(2):
        store = zarr.storage.ZipStore(tmp_path / f"r{i}.zarr.zip", mode="w")
        month(i).drop_vars("n").to_zarr(store, zarr_format=version)
        zarr.open_group(store)["t"][0] = i + 1.5
        store.close()
    with zipfile.ZipFile(tmp_path / "r0.zarr.zip") as archive:
        assert len(set(archive.namelist())) < len(archive.namelist())
    outcome = run("info", "r0.zarr.zip", cwd=tmp_path)
    assert b"t: 120 x MPI_FLOAT (float32), shape (6, 5, 4), C order, little-endian, in K" in outcome.out
    words = ("--op", "sum", "-q", "--nan", "ignore")
    succeeded(run("reduce", *words, "r0.zarr.zip", "r1.zarr.zip", "-o", "s.zarr.zip", cwd=tmp_path))
    succeeded(run("accumulate", *words, "r0.zarr.zip", "r1.zarr.zip", cwd=tmp_path))
    for name in ("s.zarr.zip", "r0.zarr.zip"):
        assert (arrays_in(tmp_path / name)["t"][0] == 4).all()


def test_archives_whose_documents_come_later(tmp_path):
    """As `zip -r` makes them, and shutil: members of directories first."""
    names, months = write(tmp_path, 3)
    shutil.make_archive(tmp_path / "a.zarr", "zip", tmp_path / names[0])
    with zipfile.ZipFile(tmp_path / "b.zarr.zip", "w") as archive:
        for path in sorted(tmp_path.glob(f"{names[0]}/**/*"), key=lambda path: path.suffix == ".json"):
            archive.write(path, path.relative_to(tmp_path / names[0]))
    for name in ("a.zarr.zip", "b.zarr.zip"):
        found = mpired.reduce([tmp_path / name], op="max", columns=["t"], nulls="ignore")
        np.testing.assert_array_equal(found["t"], months[0].t)


@VERSIONS
@pytest.mark.parametrize("text", ["{}", '{"zarr_format": 7}', "[]", "{"])
def test_documents_of_groups_that_zarr_would_not_open(tmp_path, version, text):
    group = zarr.create_group(tmp_path / "r.zarr", zarr_format=version)
    group.create_array("grp/v", data=np.arange(3.0))
    (tmp_path / "r.zarr/grp" / (".zgroup" if version == 2 else "zarr.json")).write_text(text)
    with unchanged(tmp_path):
        refused(run("reduce", "--op", "max", "r.zarr", "-o", "s.zarr.zip", cwd=tmp_path), 3, "r.zarr: ", "'grp/")


STALE = {
    "an attribute": lambda group: group["grp/v"].attrs.update(scale_factor=2.0),
    "an array more": lambda group: group.create_array("grp/w", data=np.arange(3)),
    "an array less": lambda group: group.__delitem__("grp/v"),
    "a longer array": lambda group: group["grp/v"].resize((4,)),
}


@VERSIONS
@pytest.mark.parametrize("change", STALE)
def test_consolidated_metadata_that_are_not_those_of_the_nodes(tmp_path, version, change):
    group = zarr.create_group(tmp_path / "r.zarr", zarr_format=version)
    group.create_array("grp/v", data=np.arange(3.0), fill_value=np.nan)
    group["grp/v"].attrs["limit"] = float("nan")
    zarr.consolidate_metadata(tmp_path / "r.zarr")
    succeeded(run("reduce", "-q", "--op", "max", "r.zarr", "-o", "s.zarr.zip", cwd=tmp_path))
    STALE[change](zarr.open_group(tmp_path / "r.zarr", use_consolidated=False))
    words = ("reduce", "-f", "--op", "max", "r.zarr", "-o", "s.zarr.zip")
    reason = "r.zarr: the consolidated metadata of the root is not what the documents say of 'grp/"
    refused(run(*words, cwd=tmp_path), 3, reason, "write it again with `zarr.consolidate_metadata`")
    zarr.consolidate_metadata(tmp_path / "r.zarr")
    if change == "a longer array":
        succeeded(run(*words, "-q", cwd=tmp_path))


def test_a_store_that_changes(tmp_path, whole):
    from mpired.errors import ChangedError
    from mpired.sources.open import open_source

    for name, change in (
        ("document", lambda folder: _document(folder / "v/zarr.json", attributes={"new": 1})),
        ("chunk", lambda folder: zarr.open_group(folder)["v"].__setitem__(0, 7.0)),
    ):
        shutil.copytree(whole, folder := tmp_path / name / "r.zarr")
        source = open_source(str(folder), NO_LIMITS)
        source.check_unchanged()
        change(folder)
        with pytest.raises(ChangedError):
            source.open()


def test_without_the_library(tmp_path, whole):
    def without():
        sys.modules["zarr"] = None

    refused(run("info", str(whole), cwd=tmp_path, setup=without), 2, "install 'mpired[zarr]'")


@pytest.mark.parametrize("fill", [0, None])
def test_integers_whose_missing_values_are_left_out_have_a_form(fill, tmp_path):
    for rank in range(2):
        group = zarr.create_group(zarr.storage.LocalStore(tmp_path / f"r{rank}.zarr"))
        group.create_array("v", data=np.array([1, 2, 3], "i4") * (rank + 1), fill_value=fill)
    words = ("reduce", "-q", "--op", "sum", "--nulls", "ignore", "r0.zarr", "r1.zarr", "-o", "out.zarr.zip")
    succeeded(run(*words, cwd=tmp_path))
    with zarr.storage.ZipStore(tmp_path / "out.zarr.zip", mode="r") as store:
        assert zarr.open_group(store, mode="r")["v"][:].tolist() == [3, 6, 9]
