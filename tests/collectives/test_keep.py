"""`--keep`: columns that are equal in all ranks are carried into the result, as pyarrow reads them."""

import csv
import datetime as dt
import decimal
import functools
import io
import itertools
import json

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from command import refused, run, succeeded
from rows import check_refusals, each
from tables import read, write

import mpired
from mpired.errors import BufferFileError, UsageError

NROWS = 2000
DAY = dt.datetime(2024, 5, 17, tzinfo=dt.UTC)


@functools.cache
def columns_of_every_kind() -> dict[str, pa.Array]:
    words = [None if i % 7 == 3 else f"station {i % 40}" for i in range(NROWS)]
    return {
        "key": pa.array(words),
        "when": pa.array([DAY + dt.timedelta(minutes=i) for i in range(NROWS)], pa.timestamp("us", "Europe/Berlin")),
        "x": pa.array(np.arange(NROWS) * 1.0),
        "price": pa.array([decimal.Decimal(i) / 100 for i in range(NROWS)], pa.decimal128(20, 2)),
        "noise": pa.array(np.where(np.arange(NROWS) % 9, np.nan, -0.0)),
        "tags": pa.array([["a", None][: i % 3] for i in range(NROWS)]),
        "nested": pa.array([{"u": i, "v": [str(i)]} for i in range(NROWS)]),
        "code": pa.array(words).dictionary_encode(),
        "n": pa.array(np.arange(NROWS), pa.int32()),
    }


def table(rank: int = 0, **changed: pa.Array) -> pa.Table:
    """Return a table with columns of every kind around one of numbers that differs from rank to rank."""
    numbers = {"x": pa.array(np.arange(NROWS) * (rank + 1.0)), "n": pa.array(np.arange(NROWS) + rank, pa.int32())}
    return pa.table(columns_of_every_kind() | numbers | changed, metadata={"made by": "a test"})


@pytest.fixture(params=["parquet", "arrow"])
def form(request) -> str:
    return request.param


def test_every_result_has_them(form, tmp_path):
    """Of ranks whose rows are cut in different places."""
    names = [f"r{rank}.{form}" for rank in range(3)]
    for rank, name in enumerate(names):
        write(tmp_path / name, table(rank), (NROWS, 999, 1700)[rank])
    words = ("--columns", "n", "--keep", "key", *names, "-o", f"out_{{rank}}.{form}")
    for command in ("allreduce", "scan"):
        succeeded(run(command, "-qf", "--op", "sum", *words, cwd=tmp_path))
        for rank in range(3):
            out, last = read(tmp_path / f"out_{rank}.{form}"), 2 if command == "allreduce" else rank
            assert out["key"].to_pylist() == table()["key"].to_pylist()
            assert out["n"].to_pylist() == sum(np.arange(NROWS) + each for each in range(last + 1)).tolist()


def test_refusals(tmp_path):
    write(tmp_path / "r0.parquet", table())
    np.save(tmp_path / "a.npy", np.zeros(3))
    reduce, carries = "reduce --op sum r0.parquet", "carries columns into results that can hold them"
    rows = [
        (f"{reduce} --keep key -o out.parquet", 3, "column 'when'"),
        (f"{reduce} --keep nowhere -o out.parquet", 3, "no column 'nowhere'"),
        (f"{reduce} --keep x --columns x -o out.parquet", 2, "'x', which is named already"),
        (f"{reduce} --keep key,key -o out.parquet", 2, "'key', which is named already"),
        (f"{reduce} --columns n --keep key -o out.npy", 2, carries),
        (
            f"{reduce} --columns n --keep key --to npz",
            2,
            f"{carries}, and this one is npz, which cannot mark missing elements of 'key'; leave",
        ),
        (f"{reduce} --columns n --keep key --in-place", 2, "--in-place / --keep"),
        ("reduce-scatter-block --keep key --op sum a.npy", 2, "--keep"),
    ]
    check_refusals(tmp_path, rows)
    with pytest.raises(UsageError, match="`keep`: carries columns"):
        mpired.reduce([np.zeros(3)], "sum", keep="key")


def test_two_arrays_of_a_result_never_have_one_name(tmp_path):
    """Where the format names a column without a name, where `index` makes a column, and where a file has it twice."""
    pq.write_table(pa.table([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], names=["", "value", "arr_0"]), tmp_path / "r.parquet")
    write(tmp_path / "dup.arrow", pa.table([[1.0], [2], [3]], names=["x", "d", "d"]))
    with h5py.File(tmp_path / "r.h5", "w") as file:
        file.update({"w": np.arange(2.0), "w_index": np.arange(2)})
    words = ["reduce", "--op", "sum", "r.parquet", "-f", "-o"]
    twice = "--columns: names two arrays that would both be 'value' in"
    forms = ("nc", "h5", "zarr.zip", "safetensors", "csv", "arrow")
    rows = [
        *(([*words, f"o.{form}", "--columns", '"",value'], 2, twice) for form in forms),
        ([*words, "o.npz", "--columns", '"",arr_0'], 2, "would both be 'arr_0' in npz; choose one of them, or rename"),
        ([*words, "o.h5", "--columns", '""', "--keep", "value"], 2, "--keep: names 'value', and results have another"),
        ("reduce --op maxloc --index rank --columns w --keep w_index r.h5 -o o.h5", 2, "--keep: names 'w_index', and"),
        ("reduce --op sum --columns w,w_index --keep [w] r.h5 -o o.h5", 2, "only datasets of r.h5 that are combined"),
        ("reduce --op sum --keep * r.h5 -o o.h5", 3, "carry 'w', 'w_index'; choose those to combine with --columns"),
        ("reduce --op sum --columns x --keep d dup.arrow -o o.arrow", 3, "has 2 columns named 'd'"),
    ]
    check_refusals(tmp_path, rows)
    succeeded(run(*words, "o.npz", "--columns", '"",value', "-q", cwd=tmp_path))
    with np.load(tmp_path / "o.npz") as found:
        assert {name: each.tolist() for name, each in found.items()} == {"arr_0": [1, 2], "value": [3, 4]}
    succeeded(run(*words, "o.parquet", "--columns", '"",value', "-q", cwd=tmp_path))
    assert pq.read_table(tmp_path / "o.parquet").to_pydict() == {"": [1, 2], "value": [3, 4]}
    outcome = run("reduce", "--op", "sum", "--columns", "x", "--keep", "*", "dup.arrow", "-o", "o.arrow", cwd=tmp_path)
    assert (outcome.status, "2 columns named 'd'" in outcome.err) == (0, True), outcome
    assert read(tmp_path / "o.arrow").to_pydict() == {"x": [1]}


def test_arrays_of_kept_columns(tmp_path):
    """Without an output they are beside what is combined, as NumPy has them."""
    paths = [tmp_path / f"r{rank}.parquet" for rank in range(3)]
    nulls = pa.array([None if i % 3 else i for i in range(NROWS)], pa.int16())
    large = pa.array([None if i % 5 else [2**60 + 1, None, i] for i in range(NROWS)])
    for rank, path in enumerate(paths):
        write(path, table(rank).append_column("holes", nulls).append_column("large", large), 1234)
    found = mpired.reduce(paths, "sum", columns="n", keep=["key", "when", "code", "holes", "large", "price", "nested"])
    assert list(found) == ["n", "key", "when", "price", "nested", "code", "holes", "large"]
    assert found["n"].tolist() == (np.arange(NROWS) * 3 + 3).tolist()
    made = table()
    assert found["large"].tolist() == large.to_pylist()  # integers beside nulls keep their bits
    for name in ("key", "price", "code", "nested"):
        assert found[name].tolist() == made[name].to_pylist()
    assert found["when"].tolist() == made["when"].cast(pa.timestamp("us")).to_pylist()
    assert isinstance(found["holes"], np.ma.MaskedArray)
    assert found["holes"].tolist() == nulls.to_pylist()
    first, _, last = mpired.scan(paths, "sum", columns="n", keep="key")
    assert first["key"].tolist() == last["key"].tolist() == made["key"].to_pylist()
    write(paths[1], table(1, key=pa.array(["x"] * NROWS)))
    with pytest.raises(BufferFileError, match="row 0 of column 'key'"):
        mpired.reduce(paths, "sum", columns="n", keep="key")


def test_views_and_dictionaries_of_views(tmp_path):
    """As polars has them; parquet has no dictionaries of views, so its result has those of text."""
    keys = pa.array([f"k{i % 7}" for i in range(NROWS)])
    views = pa.array([f"k{i}" for i in range(7)], pa.string_view())
    encoded = pa.DictionaryArray.from_arrays(pa.array(np.arange(NROWS) % 7, pa.uint32()), views)
    for number, column in enumerate([encoded, keys.cast(pa.string_view()), keys, keys.dictionary_encode()]):
        write(tmp_path / f"{number}.arrow", pa.table({"c": column, "x": np.ones(NROWS)}), 999)
    write(tmp_path / "4.parquet", pa.table({"c": keys.cast(pa.large_string()), "x": np.ones(NROWS)}))
    paths = [tmp_path / name for name in ("0.arrow", "1.arrow", "2.arrow", "3.arrow", "4.parquet")]
    for first, kind in enumerate([encoded.type, pa.string_view(), pa.string()]):
        ranks, settings = [paths[first], *paths], {"columns": "x", "keep": "c", "overwrite": True}
        for suffix in ("arrow", "parquet"):
            mpired.reduce(ranks, "sum", output=tmp_path / f"o.{suffix}", **settings)
            out, is_encoded = read(tmp_path / f"o.{suffix}"), suffix == "parquet" and kind == encoded.type
            assert out["c"].type == (pa.dictionary(pa.uint32(), pa.string()) if is_encoded else kind)
            assert out["c"].to_pylist() == keys.to_pylist()
        mpired.reduce(ranks, "sum", output=tmp_path / "o.csv", **settings)
        assert (tmp_path / "o.csv").read_text().split() == ["c,x", *(f"{key},6.0" for key in keys.to_pylist())]
        assert mpired.reduce(ranks, "sum", columns="x", keep="c")["c"].tolist() == keys.to_pylist()


def test_no_rows(form, tmp_path):
    write(tmp_path / f"r.{form}", table().slice(0, 0))
    words = ("--columns", "x,n", "--keep", "*", f"r.{form}", f"r.{form}", "-o", f"out.{form}")
    succeeded(run("reduce", "-q", "--op", "sum", *words, cwd=tmp_path))
    assert read(tmp_path / f"out.{form}").schema.equals(read(tmp_path / f"r.{form}").schema, check_metadata=True)
    assert read(tmp_path / f"out.{form}").num_rows == 0


def test_kept_columns_are_known_by_their_names(tmp_path):
    """Their order in a file is nothing to whether they are equal."""
    first = {"u": ["a", "b"], "v": ["c", "d"], "x": [1.0, 2.0]}
    others = {"same": {"v": ["c", "d"], "u": ["a", "b"], "x": [1.0, 2.0]},
              "swapped": {"v": ["a", "b"], "u": ["c", "d"], "x": [1.0, 2.0]},
              "null": {"u": [None, "b"], "v": ["c", "d"], "x": [1.0, 2.0]}}  # fmt: skip
    for name, table in {"first": first, **others}.items():
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    words = ("reduce", "-q", "--op", "sum", "--columns", "x", "--keep", "u,v", "first.parquet")
    assert run(*words, "same.parquet", "-o", "out.parquet", cwd=tmp_path) == (0, b"", "")
    assert pq.read_table(tmp_path / "out.parquet").to_pydict() == first | {"x": [2.0, 4.0]}
    for name, value in ("swapped", "'c'"), ("null", "null"):
        outcome = run(*words, f"{name}.parquet", "-o", "new.parquet", cwd=tmp_path)
        refused(outcome, 3, f"{name}.parquet", f"row 0 of column 'u' is {value}, but 'a' in rank 0")


def test_text_results(form, tmp_path):
    """Keys stand in their place, as the csv module, json and pyarrow read them."""
    keys, lists = ["a", 'b, "c"', None, " ", "-1", "x\ny"], [[1.5, float("nan")], [], None, [0.1], [2.0], [3.0]]
    made = {"key": pa.array(keys), "x": pa.array(np.arange(6.0)), "n": pa.array([1, None, 3, 4, 5, 6], pa.uint8()),
            "day": pa.array(range(6), pa.date32()), "list": pa.array(lists), "half": pa.array(np.full(6, 0.1, "f4")),
            "price": columns_of_every_kind()["price"][:6], "octets": pa.array([b"a"] * 6)}  # fmt: skip
    for rank in range(2):
        write(tmp_path / f"r{rank}.{form}", pa.table(made), 4 - rank)
    words = ("--op", "sum", "--columns", "x", "--keep", "key,n,day,list,half,price,octets", f"r0.{form}", f"r1.{form}")
    outcome = run("reduce", "-q", *words, "--to", "csv", cwd=tmp_path)
    header, *rows = csv.reader(io.StringIO(outcome.out.decode()))
    assert header == list(made)
    for at, name in {0: "key", 2: "n", 3: "day", 6: "price"}.items():
        assert [row[at] for row in rows] == ["" if each is None else str(each) for each in made[name].to_pylist()]
    assert [row[1] for row in rows] == [str(2.0 * i) for i in range(6)]
    assert {row[5] for row in rows} == {"0.1"}
    assert rows[0][4] == '[1.5, "nan"]'
    outcome = run("reduce", "-q", *words, "--to", "json", cwd=tmp_path)
    found = {each["name"]: each["data"] for each in json.loads(outcome.out)["buffers"]}
    assert list(found) == list(made)
    assert found["key"] == keys
    assert found["list"][:2] == [[1.5, "nan"], []]
    assert found["octets"] == ["a"] * 6
    outcome = run("reduce", "-q", *words[:5], "key", *words[6:], "--to", "text", cwd=tmp_path)
    assert outcome.out.decode().startswith('a 0.0\n"b, ""c""" 2.0\nnull 4.0\n" " 6.0\n-1 8.0\n')
    outcome = run("reduce", "-q", *words[:5], "key", *words[6:], "--to", "table", cwd=tmp_path)
    assert outcome.out.decode().splitlines()[-1].split() == ["5", "x\\ny", "10.0"]


NESTED = {
    pa.list_(pa.float64()): "parquet",
    pa.large_list(pa.float32()): "arrow",
    pa.list_(pa.float64(), 2): "parquet",
    pa.struct({"u": pa.list_(pa.float64())}): "arrow",
    pa.map_(pa.string(), pa.float64()): "parquet",
}


def test_numbers_within_lists_and_structures(tmp_path):
    """NaN equals itself there, too."""
    for (kind, form), differ in itertools.product(NESTED.items(), (False, True)):
        for rank, value in enumerate((0.0, 1.0) if differ else (float("nan"), float("nan"))):
            row = {"u": [value]} if pa.types.is_struct(kind) else [value, 1.0]
            row = [("k", value)] if pa.types.is_map(kind) else row
            write(tmp_path / f"r{rank}.{form}", pa.table({"key": pa.array([None, row], kind), "x": [1.0, 2.0]}))
        words = ("--op", "sum", "--keep", "key", f"r0.{form}", f"r1.{form}", "-f", "-o", f"out.{form}")
        outcome = run("reduce", "-q", *words, cwd=tmp_path)
        if differ:
            refused(outcome, 3, "row 1 of column 'key'", "--no-check-coordinates")
            outcome = run("reduce", "-q", "--no-check-coordinates", *words, cwd=tmp_path)
        succeeded(outcome)
        old, new = (read(tmp_path / name)["key"].to_pylist() for name in (f"r0.{form}", f"out.{form}"))
        assert repr(new) == repr(old), kind


@each("columns, keep, combined, kept", [
    ("w", "k*", ["w"], ["k", "kn"]),
    ("w", "*", ["w"], ["k", "kn", "z"]),
    ("[wz]", "z", ["w"], ["z"]),  # a name goes before a pattern
    ("[wz]", "*", ["w", "z"], ["k", "kn"]),  # and what is combined before what is kept
])  # fmt: skip
@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
def test_patterns_of_names_that_are_combined_and_kept(suffix, columns, keep, combined, kept, tmp_path):
    for number in range(2):
        w = np.full(3, float(number))
        arrays = {"w": w, "k": np.array(["a", "b", "c"]), "kn": np.arange(3), "z": np.ones(3)}
        if suffix == ".npz":
            np.savez(tmp_path / f"a{number}.npz", **arrays)
        else:
            pq.write_table(pa.table(arrays), tmp_path / f"a{number}.parquet")
    words = ("--op", "sum", "--columns", columns, "--keep", keep, f"a0{suffix}", f"a1{suffix}")
    succeeded(run("reduce", "-q", *words, "-f", "-o", f"out{suffix}", cwd=tmp_path))
    found = mpired.reduce([tmp_path / f"out{suffix}"], "sum", columns=[*combined, "w"][:1], keep="*")
    expected = {"w": [1, 1, 1], "z": [2, 2, 2] if "z" in combined else [1, 1, 1], "kn": [0, 1, 2], "k": list("abc")}
    always = {"k"} if suffix == ".npz" else set()  # strings in archives are carried anyway
    assert found.keys() == {*combined, *kept} | always
    assert all(found[name].tolist() == expected[name] for name in found)
    if keep == "*":
        assert "without" not in run("reduce", *words, "-f", "-o", f"out{suffix}", cwd=tmp_path).err


def test_reduce_local_keeps_what_is_not_combined(form, tmp_path):
    """Of the second file alone, whatever the first one has; options that it lacks are not named."""
    for rank in range(2):
        write(tmp_path / f"r{rank}.{form}", table(rank, key=pa.array([f"{rank}"] * NROWS)))
    names = f"r0.{form} r1.{form}"
    words = f"reduce-local -q --op sum --accumulate-in double --columns x {names}"
    succeeded(run(*words.split(), cwd=tmp_path))
    expected = table(1, key=pa.array(["1"] * NROWS), x=pa.array(np.arange(NROWS) * 3.0))
    assert repr(read(tmp_path / f"r1.{form}").to_pydict()) == repr(expected.to_pydict())
    refusal = f"mpired: r1.{form}: would put MPI_DOUBLE (float64) in the place / `mpired reduce` writes a new file"
    check_refusals(tmp_path, [(f"reduce-local --op mean --columns n {names}", 2, refusal)])
    all_reasons = run(*f"reduce --op sum --nulls ignore {names} -o out.{form}".split(), cwd=tmp_path)
    assert all_reasons.status == 3
    assert all_reasons.err.count("choose with") == 1
    assert ", or column" not in all_reasons.err
    succeeded(run(*f"reduce-local -q --op max {names}".split(), cwd=tmp_path))  # of all columns of numbers
    assert repr(read(tmp_path / f"r1.{form}").to_pydict()) == repr(expected.to_pydict())
