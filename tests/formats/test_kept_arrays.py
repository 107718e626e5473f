"""`--keep`: arrays of every type are carried into results, as the library of each format reads them."""

import csv
import json

import h5py
import ml_dtypes
import netCDF4
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors
import safetensors.numpy
import zarr
from command import run, succeeded
from rows import check_refusals, each

import mpired

PLAIN = {
    "mask": np.array([True, False, True]),
    "step": np.array(2**53 + 1),
    "gaps": np.zeros(2, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    "half": np.arange(5, dtype="f2"),
}
WORDS = {
    "names": np.array(["ab", "c"]),
    "when": np.array(["2020-01-01", "NaT"], "M8[D]"),
    "raw": np.array([b"a\0b"], "V3"),
    "deep": np.array([(1, (b"x", 0.5)), (2, (b"", 1.5))], [("a", "i2"), ("b", [("s", "S2"), ("f", "f8")])]),
}


def weights(rank: int) -> np.ndarray:
    return np.arange(6, dtype="f4").reshape(2, 3) + rank


def save_npz(path, rank):
    np.savez(path, w=weights(rank), **PLAIN, **WORDS)


def save_safetensors(path, rank):
    short = {"short": np.arange(3).astype(ml_dtypes.bfloat16)}
    plain = {name: each for name, each in PLAIN.items() if each.dtype.names is None}
    safetensors.numpy.save_file({"w": weights(rank), **plain, **short}, path, {"format": "np"})


def save_hdf5(path, rank):
    with h5py.File(path, "w") as file:
        for name, each in {"w": weights(rank), **PLAIN}.items():
            file[f"g/{name}"] = each
        file["names"], file["raw"], file["deep"] = ["ab", "c"], WORDS["raw"], WORDS["deep"]
        file.create_dataset("lists", (2,), h5py.vlen_dtype("f4"))[:] = [np.arange(2000, dtype="f4"), np.arange(0)]
        kind = np.dtype([("n", "i4"), ("name", h5py.string_dtype())])
        file.create_dataset("mixed", (2,), kind)[:] = np.array([(1, "one"), (2, "two")], kind)
        file.create_dataset("cubes", (2,), np.dtype(("i2", (3,))))
        file.create_dataset("packed", data=np.arange(100), chunks=(7,), compression="gzip")
        file["nothing"], file["no words"] = h5py.Empty("f8"), h5py.Empty(h5py.string_dtype())
        odd = h5py.h5t.STD_I32LE.copy()
        odd.set_size(3)
        made = h5py.h5d.create(file.id, b"odd", odd, h5py.h5s.create_simple((3,)))
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(3, dtype="i4"))


def save_netcdf(path, rank):
    with netCDF4.Dataset(path, "w") as file:
        for dimension, length in {"y": 2, "x": 3, "t": None}.items():
            file.createDimension(dimension, length)
        file.createVariable("w", "f4", ("y", "x"))[:] = weights(rank)
        file.createVariable("step", "i4", ())[:] = 7
        file.createVariable("mask", "i1", ("x",))[:] = PLAIN["mask"]
        for name in ("r", "s"):
            file.createVariable(name, "i2", ("t", "x"))[:] = np.arange(6).reshape(2, 3)


def save_zarr(path, rank):
    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    for name, array in {"w": weights(rank), **PLAIN, **WORDS}.items():
        if name != "deep":  # which version 2 has not
            group.create_array(name, data=array)


def all_npz(path):
    with np.load(path) as file:
        return dict(file)


def all_hdf5(path):
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, each: found.update({name: _of_hdf5(each)} if hasattr(each, "shape") else {}))
    return found


def _of_hdf5(dataset):
    if dataset.shape is None or dataset.name == "/odd":
        return np.array(str(dataset.id.get_type().encode()))
    return np.asarray(dataset[()])


def all_netcdf(path):
    with netCDF4.Dataset(path) as file:
        file.set_auto_maskandscale(False)
        return {name: v[...] == 1 if "dtype" in v.ncattrs() else v[...] for name, v in file.variables.items()}


def all_zarr(path):
    store = zarr.storage.ZipStore(path, mode="r") if path.suffix == ".zip" else str(path)
    members = zarr.open_group(store, mode="r").members(max_depth=None)
    return {name: each[...] for name, each in members if hasattr(each, "shape")}


FORMS = {  # what saves and loads, the suffix of a file, and that of a result
    "npz": (save_npz, all_npz, ".npz", ".npz"),
    "safetensors": (save_safetensors, safetensors.numpy.load_file, ".safetensors", ".safetensors"),
    "hdf5": (save_hdf5, all_hdf5, ".h5", ".h5"),
    "netcdf": (save_netcdf, all_netcdf, ".nc", ".nc"),
    "zarr": (save_zarr, all_zarr, ".zarr", ".zarr.zip"),
}


def saved(folder, form):
    """Write two ranks, and return their paths, what the first one holds, and the names of the combined and the kept."""
    save, load, suffix, _ = FORMS[form]
    ranks = [folder / f"r{rank}{suffix}" for rank in range(2)]
    for rank, path in enumerate(ranks):
        save(path, rank)
    old = load(ranks[0])
    combined = next(name for name in old if name.rpartition("/")[2] == "w")  # and not "raw"
    return ranks, old, combined, [name for name in old if name not in {combined, "nothing", "no words"}]


@pytest.mark.parametrize("form", FORMS)
def test_every_array_is_in_the_result(form, tmp_path):
    _, load, _, to = FORMS[form]
    ranks, old, combined, kept = saved(tmp_path, form)
    out = tmp_path / f"out{to}"
    words = ("--columns", combined, "--keep", ",".join(kept))
    succeeded(run("reduce", "-q", "--op", "mean", *words, *map(str, ranks), "-o", str(out), cwd=tmp_path))
    new = load(out)
    assert sorted(new) == sorted(old)
    for name, array in old.items():
        expected = (weights(0) + weights(1)) / 2 if name == combined else array
        assert new[name].dtype == expected.dtype, name
        assert repr(new[name].tolist()) == repr(expected.tolist()), name
    if form == "safetensors":
        with safetensors.safe_open(out, "np") as file:
            assert file.metadata() == {"format": "np"}
    found = mpired.reduce(ranks, "mean", columns=combined, keep=kept)
    for name in set(kept) - {"odd"}:
        there = old[name].astype(str) if name == "names" else old[name]
        assert repr(np.asarray(found[name]).astype(there.dtype).tolist()) == repr(there.tolist()), name


@each("form, to, without", [
    ("npz", ".safetensors", "gaps names when raw deep"),
    ("npz", ".nc", "gaps half names when raw deep"),
    ("npz", ".zarr.zip", ""),
    ("npz", ".h5", "when"),
    ("safetensors", ".zarr.zip", ""),
    ("hdf5", ".npz", "cubes lists mixed names odd"),
    ("hdf5", ".zarr.zip", "cubes lists mixed odd"),
    ("netcdf", ".safetensors", ""),
    ("zarr", ".h5", "when"),
    ("zarr", ".npz", ""),
])  # fmt: skip
def test_another_format_has_the_arrays_of_numbers(form, to, without, tmp_path_factory, monkeypatch):
    """With their names and types; the summary names the others. Numbers of machine learning become floats."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")  # the history of results has the time
    folder = tmp_path_factory.mktemp("other")
    ranks, old, combined, kept = saved(folder, form)
    for jobs in (1, 2):
        out = folder / f"{jobs}{to}"
        done = mpired.reduce(ranks, "mean", columns=combined, keep=kept, output=out, jobs=jobs)
        assert sorted(done.left_out) == sorted([*without.split(), *({"nothing", "no words"} & old.keys())])
    assert (folder / f"1{to}").read_bytes() == (folder / f"2{to}").read_bytes()
    load = next(load for _, load, _, suffix in FORMS.values() if suffix == to)
    new = load(folder / f"1{to}")
    assert sorted(new) == sorted({combined, *kept} - {*without.split()})
    for name, found in new.items():
        expected = (weights(0) + weights(1)) / 2 if name == combined else old[name]
        assert name.endswith(("gaps", "names")) or found.dtype == {"short": "f4"}.get(name, expected.dtype), name
        assert found.shape == expected.shape
        assert repr(found.tolist()).replace("b'", "'") == repr(expected.tolist()).replace("b'", "'"), name


def test_what_differs_or_has_no_place_is_refused(tmp_path):
    for rank in range(2):
        np.savez(tmp_path / f"r{rank}.npz", w=weights(rank), step=np.array(rank), o=np.array([None]))
        safetensors.numpy.save_file({"w": weights(rank), "step": np.array(rank)}, tmp_path / f"r{rank}.safetensors")
        with h5py.File(tmp_path / f"r{rank}.h5", "w") as file:
            file["w"], file["b"], file["none"] = weights(rank), [1, 2], h5py.Empty("f4")
            file.create_dataset("links", (1,), h5py.ref_dtype)[0] = file["b"].ref
    long = np.arange(3, dtype="g")
    np.savez(tmp_path / "t.npz", w=weights(0), text=WORDS["names"], long=long)
    keep = "reduce --op mean --columns w --keep"
    words = f"{keep} step"
    differs = "'step' differs from that of rank 0 / and results carry it / --no-check-coordinates / --columns"
    both = ("npz", "safetensors")
    rows = [
        *((f"{words} r0.{form} r1.{form} -o out.{form}", 3, f"r1.{form}: {differs}") for form in both),
        (f"{keep} o r0.npz r1.npz -o out.npz", 3, "does not carry in this format"),
        (f"{keep} links r0.h5 r1.h5 -o out.h5", 3, "'links': has references to 'b'"),
        (f"{keep} none r0.h5 r1.h5 -o out.npz", 2, "this one is npz, which cannot hold 'none'"),
        (f"{words} r0.npz r0.npz -o out.npy", 2, "--keep: carries arrays into results that can hold them"),
        (f"{keep} text t.npz -o out.nc", 2, "--keep: carries arrays into results"),
        (f"{keep} long t.npz -o out.zarr.zip", 2, "--keep: carries arrays into results"),
        ("reduce --op sum --columns long t.npz -o out.zarr.zip", 3, "MPI_LONG_DOUBLE / has no form in zarr"),
    ]
    check_refusals(tmp_path, rows)
    for form in both:
        args = "--columns", "w", "--keep", "step", "--no-check-coordinates", f"r0.{form}", f"r1.{form}"
        succeeded(run("reduce", "-q", "--op", "mean", *args, "-o", f"out.{form}", cwd=tmp_path))
        assert FORMS[form][1](tmp_path / f"out.{form}")["step"] == 0


def test_references_mean_the_same_objects(tmp_path):
    kind = np.dtype([("n", "i4"), ("to", h5py.ref_dtype)])
    for rank in range(2):
        with h5py.File(tmp_path / f"r{rank}.h5", "w") as file:
            file["w"], file["g/b"] = weights(rank), [1, 2]
            file.create_dataset("links", (4,), h5py.ref_dtype)[:3] = [file["w"].ref, file["g"].ref, file.ref]
            file.create_dataset("parts", (2, 1), h5py.regionref_dtype, chunks=(1, 1))[1, 0] = file["g/b"].regionref[1:]
            file["mixed"] = np.array([(1, file["g/b"].ref), (2, file["links"].ref)], kind)
            file.create_dataset("lists", (1,), h5py.vlen_dtype(h5py.ref_dtype))[0] = np.array([file["w"].ref])
            file.create_dataset("rows", (1,), np.dtype((h5py.ref_dtype, (2,))))[0] = [file["w"].ref, file["g/b"].ref]
            file["w"].attrs["coordinates"] = "links"
            file["w"].attrs.update({"part": file["g/b"].regionref[1:], "null": h5py.Reference(), "to": file["g"].ref})
            file["w"].attrs.create("all", np.array([(1, file["g/b"].ref), (2, file["w"].ref)], kind))
            lists = np.fromiter([np.array([file["g"].ref, file["links"].ref])], object, 1)
            file["g"].attrs.create("lists", lists, dtype=h5py.vlen_dtype(h5py.ref_dtype))
    ranks = [tmp_path / f"r{rank}.h5" for rank in range(2)]
    words = "reduce --op mean --columns w r0.h5 r1.h5 -o plain.h5"
    check_refusals(tmp_path, [(f"{words} --keep mixed", 3, "'mixed': has references to 'g/b' / --keep g/b")])
    out = run(*words.split(), cwd=tmp_path).err
    assert "attribute 'w.all' (also 'w.part') is left out: it has references to 'g/b', which" in out
    with h5py.File(tmp_path / "plain.h5") as file:
        assert (list(file["w"].attrs), bool(file["w"].attrs["null"])) == (["coordinates", "null", "to"], False)
        objects = file["w"].attrs["to"], *file["g"].attrs["lists"][0]
        assert [file[each].name for each in objects] == ["/g", "/g", "/links"]
    mpired.reduce(ranks, "mean", columns="w", keep="*", output=tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        assert [file[each].name if each else None for each in file["links"]] == ["/w", "/g", "/", None]
        part = file["parts"][1, 0]
        assert (file[part].name, file[part][part].tolist(), bool(file["parts"][0, 0])) == ("/g/b", [2], False)
        assert [file[each].name for each in file["mixed"]["to"]] == ["/g/b", "/links"]
        assert [file[each].name for each in file["lists"][0]] == ["/w"]
        assert [file[each].name for each in file["rows"][0]] == ["/w", "/g/b"]
        part, every = (file["w"].attrs[name] for name in ("part", "all"))
        assert (file[part][part].tolist(), [file[each].name for each in every["to"]]) == ([2], ["/g/b", "/w"])


@pytest.mark.parametrize("form", ["NETCDF3_CLASSIC", "NETCDF4"])
def test_packed_and_missing_values_in_another_format(form, tmp_path):
    """They are decoded, in Python too, and missing; a format that has none leaves such arrays out, coordinates stay."""
    with netCDF4.Dataset(tmp_path / "r.nc", "w", format=form) as file:
        file.createDimension("x", 4)
        for name in ("w", "x", "height"):
            file.createVariable(name, "f8", ("x",))[:] = np.arange(4)
        for name, code, scale in (("packed", "i2", 0.5), ("all_there", "i4", 0.25), ("marked", "i4", None)):
            made = file.createVariable(name, code, ("x",), fill_value=-9)
            if scale is not None:
                made.scale_factor, made.add_offset = scale, 10.0
            made[:] = np.ma.MaskedArray([10, 11.5, 12, 13], [0, name != "all_there", 0, 0])
        made = file.createVariable("unsigned", "i1", ("x",))
        made.setncattr("_Unsigned", "true")
        made[:] = np.array([1, 255, 2, 254], "u1")
    with netCDF4.Dataset(tmp_path / "r.nc") as file:
        expected = {name: each[...].tolist() for name, each in file.variables.items() if name not in {"w", "x"}}
    found = mpired.reduce([tmp_path / "r.nc"], "sum", columns="w", keep=[*expected])
    assert {name: found[name].tolist() for name in expected} == expected
    assert {name for name, each in found.items() if np.ma.isMaskedArray(each)} == {"packed", "marked"}
    words = ("reduce", "--op", "sum", "--columns", "w", "--keep", ",".join(expected), "r.nc", "-o")
    for to in ("h5", "zarr.zip", "parquet", "csv"):
        succeeded(run(*words, f"o.{to}", "-q", cwd=tmp_path))
    columns = pq.read_table(tmp_path / "o.parquet").to_pydict()
    assert {name: columns[name] for name in expected} == expected
    rows = list(csv.DictReader((tmp_path / "o.csv").read_text().splitlines()))
    group = zarr.open_group(zarr.storage.ZipStore(tmp_path / "o.zarr.zip", mode="r"), mode="r")
    with h5py.File(tmp_path / "o.h5") as file:
        assert sorted(file) == sorted([*expected, "w"])
        for name, values in expected.items():
            assert [row[name] for row in rows] == ["" if each is None else str(each) for each in values]
            fill = file[name].attrs.get("_FillValue", [None])[0]
            assert file[name][...].tolist() == [fill if each is None else each for each in values], name
    assert group["marked"][...].tolist() == [10, group["marked"].attrs["_FillValue"], 12, 13]
    told = run(*words, "o.npz", cwd=tmp_path).err
    assert told.endswith(" -> o.npz (npz), without x, packed, all_there, 1 more\n")
    assert sorted(all_npz(tmp_path / "o.npz")) == sorted(["height", "unsigned", "w"])


ODD = {  # of files with arrays that results cannot carry, what is said of each
    "hdf5": {"far": "'far' is stored in another file (nowhere.h5:x)"},
    "npz": {"o": "array 'o': holds Python objects, which are pickled code and never loaded"},
    "zarr": {"o": "array 'o' cannot be opened (ValueError: No Zarr data type found"},
}


@each("form", ODD)
def test_a_pattern_leaves_out_what_cannot_be_carried(form, tmp_path_factory):
    """And a warning says what and why; a name that is written out makes it an error."""
    folder, odd, (_, load, suffix, to) = tmp_path_factory.mktemp(form), ODD[form], FORMS[form]
    path, out, arrays = folder / f"r{suffix}", folder / f"o{to}", {"w": weights(0), "k": np.arange(3)}
    if form == "hdf5":
        with h5py.File(path, "w") as file:
            file["w"], file["k"], file["far"] = *arrays.values(), h5py.ExternalLink("nowhere.h5", "x")
    elif form == "npz":
        np.savez(path, **arrays, o=np.array([None]))
    else:
        group = zarr.open_group(str(path), mode="w", zarr_format=2)
        for name, array in {**arrays, "o": np.arange(2)}.items():
            group.create_array(name, data=array)
        document = path / "o" / ".zarray"
        document.write_text(document.read_text().replace('"<i8"', '"|O"'))
    words = ("reduce", "--op", "sum", "--columns", "w", "-f", "-o", out.name, path.name, path.name, "--keep")
    for keep, kept in ("*", {"k": [0, 1, 2]}), (",".join(f"{name[:-1]}?" if name[1:] else "[o]" for name in odd), {}):
        outcome = run(*words, keep, cwd=folder)
        assert outcome.status == 0, outcome.err
        lacking = [each for each in (*odd.values(), ", without ", " --keep does not carry ") if each not in outcome.err]
        assert lacking == []
        assert {name: each.tolist() for name, each in load(out).items()} == {"w": (2 * weights(0)).tolist(), **kept}
    check_refusals(folder, [([*words, name], 3, "does not carry in this format; leave it out") for name in odd])


def test_columns_of_tables_in_files_of_arrays(tmp_path):
    plain = {"n": pa.array([1, 2, 3], "i2"), "gaps": pa.array([1.5, None, 2.5]), "ok": pa.array([True, False, True])}
    others = {"key": pa.array(["a", "b", "c"]), "when": pa.array([1, 2, 3], pa.timestamp("s")), "tags": [[1], [], None]}
    # Truth values with nulls, a fill value that is an element, and bytes that are no text of HDF5.
    never = {"maybe": pa.array([True, None, False]), "edge": pa.array([-127, None, 127], pa.int8()),
             "nul": [b"a\0b", b"", b""], "octets": [b"\xff", b"", b""],
             "pairs": [{"a": 1, "b": 2}, None, None]}  # fmt: skip
    some = {"nan": pa.array([np.nan, None, 1.0]), "half": pa.array([np.float16(1), None, None])}
    pq.write_table(pa.table({"x": np.arange(3.0), **plain, **others, **never, **some}), tmp_path / "r.parquet")
    left_out = {".npz": {"gaps", "key", "tags"}, ".nc": {"key", "when", "tags"}, ".h5": {"when", "tags"},
                ".zarr.zip": {"tags"}, ".safetensors": {"gaps", "key", "when", "tags"}}  # fmt: skip
    made = {name: each.to_pylist() for name, each in plain.items()} | {"key": [b"a", b"b", b"c"]}
    made["when"] = np.array([1, 2, 3], "M8[s]").tolist()
    made |= {name: each.to_pylist() for name, each in some.items()}
    for _, load, _, to in FORMS.values():
        out = tmp_path / f"out{to}"
        done = mpired.reduce([tmp_path / "r.parquet"], "sum", columns="x", keep="*", output=out)
        left_out[to] |= {".h5": {"half"}, ".nc": {"half"}, ".zarr.zip": set()}.get(to, some.keys())
        assert {*done.left_out} == left_out[to] | never.keys(), to
        found = load(out)
        assert found.keys() == {"x", *made, "tags"} - left_out[to]
        for name in found.keys() - {"x"}:
            values = [each for each in found[name].tolist() if each == each and each != 9.969209968386869e36]  # noqa: PLR0124
            there = [each for each in made[name] if each is not None and each == each]  # noqa: PLR0124
            assert [*map(str.encode, values)] == there if to == ".zarr.zip" and name == "key" else values == there, name
    for to in (".h5", ".nc", ".zarr.zip"):
        words = f"reduce --op land --columns maybe --nulls ignore r.parquet -f -o out{to}"
        check_refusals(tmp_path, [(words, 3, "has no value for missing elements in / use --to parquet")])


def test_arrays_of_any_type_in_tables_and_types_of_netcdf_in_hdf5(tmp_path):
    names, deep = np.array(["é", ""]), WORDS["deep"]
    raw = np.array([b"\xff", b"a\0b"])
    np.savez(tmp_path / "r.npz", w=np.arange(2.0), names=names, raw=raw, deep=deep, c=np.arange(2) * 1j)
    for to, read in (("parquet", pq.read_table), ("arrow", lambda path: pa.ipc.open_file(path).read_all())):
        done = mpired.reduce([tmp_path / "r.npz"], "sum", columns="w", keep="*", output=tmp_path / f"o.{to}")
        assert done.left_out == ["c"]
        found = read(tmp_path / f"o.{to}").to_pydict()
        assert (found["names"], found["raw"]) == (names.tolist(), raw.tolist())
        assert [(each["a"], tuple(each["b"].values())) for each in found["deep"]] == deep.tolist()
    with netCDF4.Dataset(tmp_path / "r.nc", "w") as file:
        file.createDimension("x", 2)
        file.createVariable("w", "f8", ("x",))[:] = np.arange(2)
        flags = file.createVariable("flags", file.createEnumType("i1", "answer", {"no": 0, "yes": 1}), ("x",))
        lists = file.createVariable("lists", file.createVLType("i4", "list"), ("x",))
        flags[:], lists[0], lists[1] = [0, 1], np.arange(2, dtype="i4"), np.arange(2, dtype="i4")
    assert not mpired.reduce([tmp_path / "r.nc"], "sum", columns="w", keep="*", output=tmp_path / "o.h5").left_out
    with h5py.File(tmp_path / "o.h5") as file:
        assert h5py.check_enum_dtype(file["flags"].dtype) == {"no": 0, "yes": 1}
        assert (file["flags"][...].tolist(), [*map(list, file["lists"])]) == ([0, 1], [[0, 1], [0, 1]])


def test_arrays_of_one_length_in_texts(tmp_path):
    """Of any type, in the order of the elements that are combined; others are left out."""
    w = np.asfortranarray(np.arange(4.0).reshape(2, 2))
    words = np.array([["ä", "b"], ["", "d"]])
    pairs = np.array([[(0, 0.5), (1, 1)], [(2, 2), (3, 3)]], [("a", "i4"), ("b", "f8")])
    arrays = {"k": np.arange(4).reshape(2, 2), "day": np.arange(4).astype("M8[D]").reshape(2, 2), "pairs": pairs}
    np.savez(tmp_path / "r.npz", w=w, words=np.asfortranarray(words), long=np.arange(5), **arrays)
    done = mpired.reduce([tmp_path / "r.npz"], "sum", columns="w", keep="*", output=tmp_path / "o.json")
    assert done.left_out == ["long"]
    found = {each["name"]: each["data"] for each in json.loads((tmp_path / "o.json").read_text())["buffers"]}
    made = {"w": w, "words": words, **arrays, "day": arrays["day"].astype(str)}
    assert found.pop("pairs") == [list(each) for each in pairs.ravel(order="F").tolist()]
    assert found == {name: made[name].ravel(order="F").tolist() for name in ("w", "words", "k", "day")}
    named = np.array([("a", [1, 2]), ('"', [3, 4])], [("n", "S1"), ("v", "i4", 2)])
    np.savez(tmp_path / "n.npz", w=w[0], named=named)
    mpired.reduce([tmp_path / "n.npz"], "sum", columns="w", keep="named", output=tmp_path / "n.csv")
    rows = csv.DictReader((tmp_path / "n.csv").read_text().splitlines())
    assert [json.loads(row["named"]) for row in rows] == [[n.decode(), v.tolist()] for n, v in named.tolist()]
    with h5py.File(tmp_path / "r.h5", "w") as file:
        file["w"], file["key"], file["step"] = np.arange(3.0), ["a", "b,c", "é"], 7
    words = ("reduce", "--op", "sum", "--columns", "w", "--keep", "*", "r.h5", "-o", "o.csv")
    assert run(*words, cwd=tmp_path).err.endswith("-> o.csv (csv), without step\n")
    lines = [*csv.reader((tmp_path / "o.csv").read_text().splitlines())]
    assert lines == [["w", "key"], ["0.0", "a"], ["1.0", "b,c"], ["2.0", "é"]]
