"""Ranks and results of every format: what a result keeps of its ranks, and the suffixes that choose its format."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import reduce, succeeded
from rows import check_refusals
from three_ranks import PACKED, PAIR, A, B, fold, loaded, pairs_of

import mpired


@pytest.mark.parametrize("order", ["<", ">"])
def test_raw_of_either_byte_order(order, tmp_path):
    for name, array in (("a", A), ("b", B)):
        (tmp_path / name).write_bytes(b"16 bytes of head" + array.astype(f"{order}f8").tobytes() + b"tail")
    word = {"<": "little", ">": "big"}[order]
    expected = (A + B).astype(f"{order}f8").tobytes()
    for words in (("--type", "double", "--byte-order", word), ("--type", f"{order}f8")):
        outcome = reduce("--op", "sum", *words, "--offset", "16", "--count", "3", "a", "b", cwd=tmp_path)
        assert outcome == (0, expected, "")
    outcome = reduce("--op", "sum", *words, "--offset", "24", "--count", "1", "a", "b", cwd=tmp_path)
    assert outcome == (0, expected[8:16], "")
    outcome = reduce("--op", "sum", *words, "--offset", "40", "--count", "0", "a", "b", cwd=tmp_path)
    assert outcome == (0, b"", "")


def test_ranks_that_are_refused(folder):
    pq.write_table(pa.table({"v": [1.0], "i": pa.array([1], pa.int32())}), folder / "vi.parquet")
    table = {"x": [1, 2], "name": ["a", "b"], "y": [3.0, 4.0]}
    pq.write_table(pa.table(table), folder / "named.parquet")
    rows = [
        *((f"reduce --op sum {words} a.npy", 2, "raw") for words in ("--offset 8", "--count 3", "--byte-order big")),
        ("reduce --op sum --type <f8 --byte-order big a.bin", 2, "--byte-order / big / <f8"),
        ("reduce --op sum named.parquet -o out.parquet", 3, "named.parquet / 'name' / --columns"),
        ("reduce --op sum named.parquet --columns x,x", 2, "--columns / twice"),
        ("reduce --op sum named.parquet --columns x,", 2, "--columns"),
    ]
    pairs = "--pair v", "--pair v,i,j", "--pair v,v", "--pair v,i --columns v"
    rows += [(f"reduce --op maxloc {words} vi.parquet", 2, "--pair") for words in pairs]
    check_refusals(folder, rows)


def test_last_pair_of_a_raw_file_without_its_padding(tmp_path):
    pairs = pairs_of([(1.0, 5), (2.0, 6)])
    (tmp_path / "whole.bin").write_bytes(pairs.tobytes())
    (tmp_path / "cut.bin").write_bytes(pairs.tobytes()[:-4])
    words = ("--op", "maxloc", "--type", "double_int", "whole.bin", "cut.bin")
    assert reduce(*words, "--to", "text", cwd=tmp_path) == (0, b"1.0 5\n2.0 6\n", "")


# What is kept of npy


def test_npy_keeps_shape_order_and_byte_order(tmp_path):
    codes, shapes = ["<f8", ">f8", ">i2", "|u1", "|b1", ">c8"], [(), (6,), (2, 3), (1, 2, 3), (3, 2, 1, 1)]
    out = tmp_path / "out.npy"
    for code, shape, order in itertools.product(codes, shapes, "CF"):
        count = int(np.prod(shape))
        ranks = [np.array(np.arange(start, start + count).reshape(shape), code, order=order) for start in (0, 1)]
        paths = [tmp_path / "a.npy", tmp_path / "b.npy"]
        for path, rank in zip(paths, ranks, strict=True):
            np.save(path, rank)
        op, function = ("lxor", np.logical_xor) if code == "|b1" else ("sum", np.add)
        mpired.reduce(paths, op, output=out, overwrite=True)
        result, expected = np.load(out), fold(function, *ranks)
        assert (result.dtype.str, result.shape) == (code, shape)
        assert result.flags.f_contiguous == expected.flags.f_contiguous, (code, shape, order)
        np.testing.assert_array_equal(result, expected)
        assert (out.stat().st_size - result.nbytes) % 64 == 0


def test_npy_of_different_byte_orders_is_like_the_root(tmp_path):
    np.save(tmp_path / "big.npy", A.astype(">f8"))
    np.save(tmp_path / "little.npy", B.astype("<f8"))
    for ranks, root, code in (
        (("big.npy", "little.npy"), "0", ">f8"),
        (("big.npy", "little.npy"), "1", "<f8"),
        (("little.npy", "big.npy"), "0", "<f8"),
    ):
        result = loaded(reduce("--op", "sum", *ranks, "--root", root, cwd=tmp_path).out)
        assert result.dtype.str == code
        np.testing.assert_array_equal(result, A + B)


@pytest.mark.parametrize("dtype", [PAIR, PACKED, PAIR.newbyteorder(">"), PACKED.newbyteorder(">")], ids=str)
def test_npy_keeps_how_pairs_lie(dtype, tmp_path):
    renamed = np.dtype({"names": ["energy", "cell"], "formats": [dtype[0], dtype[1]], **_places(dtype)})
    np.save(tmp_path / "a.npy", np.array([(1.0, 7), (4.0, 8), (2.0, 6)], renamed))
    np.save(tmp_path / "b.npy", np.array([(3.0, 1), (0.5, 2), (2.0, 3)], dtype))
    outcome = reduce("--op", "maxloc", "a.npy", "b.npy", cwd=tmp_path)
    result = loaded(outcome.out)
    assert result.dtype == renamed
    assert result.tolist() == [(3.0, 1), (4.0, 8), (2.0, 3)]


def _places(dtype: np.dtype) -> dict[str, object]:
    return {"offsets": [dtype.fields[name][1] for name in dtype.names], "itemsize": dtype.itemsize}


def test_npy_of_packed_and_padded_pairs_together(tmp_path):
    rows = [(1.0, 7), (4.0, 8)]
    np.save(tmp_path / "packed.npy", np.array(rows, PACKED))
    np.save(tmp_path / "padded.npy", np.array(rows[::-1], PAIR))
    np.array(rows, PAIR).tofile(tmp_path / "raw.bin")
    words = ("--op", "minloc", "--type", "double_int")
    expected = [(1.0, 7), (1.0, 7)]
    assert loaded(reduce(*words, "packed.npy", "padded.npy", "raw.bin", cwd=tmp_path).out).tolist() == expected
    outcome = reduce(*words, "packed.npy", "padded.npy", "raw.bin", "--to", "raw", cwd=tmp_path)
    assert outcome.out == pairs_of(expected).tobytes()


def test_npy_of_each_version(tmp_path):
    for version in (1, 0), (2, 0), (3, 0):
        with open(tmp_path / "a.npy", "wb") as file:
            np.lib.format.write_array(file, A.reshape(3, 1), version=version)
        result = loaded(reduce("--op", "sum", "a.npy", "a.npy", cwd=tmp_path).out)
        assert result.tolist() == (A + A).reshape(3, 1).tolist(), version


# What is kept of parquet


def test_parquet_keeps_schema_columns_and_compression(tmp_path):
    """Of rank 0: types, order and metadata of the columns, and how each is compressed."""
    random = np.random.default_rng(11)
    fields = [
        pa.field("z", pa.int32(), nullable=False, metadata={"unit": "K"}),
        pa.field("a", pa.float64(), metadata={"unit": "m/s"}),
        pa.field("m", pa.uint8()),
        pa.field("flag", pa.bool_()),
    ]
    schema = pa.schema(fields[:3], metadata={"run": "7", "made by": "a test"})
    tables = [
        pa.table(
            [pa.array(random.integers(0, 9, 1000), pa.int32()), random.random(1000), random.integers(0, 9, 1000, "u1")],
            schema,
        )
        for _ in range(2)
    ]
    compression = {"z": "gzip", "a": "none", "m": "zstd"}
    pq.write_table(tables[0], tmp_path / "a.parquet", compression=compression, row_group_size=300)
    pq.write_table(tables[1].replace_schema_metadata({"run": "8"}), tmp_path / "b.parquet", row_group_size=77)
    succeeded(reduce("--op", "sum", "a.parquet", "b.parquet", "-o", "sum.parquet", cwd=tmp_path))
    with pq.ParquetFile(tmp_path / "sum.parquet") as file:
        assert file.schema_arrow.equals(schema, check_metadata=True)
        groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
        assert [group.num_rows for group in groups] == [300, 300, 300, 100]
        codecs = [[group.column(i).compression for i in range(3)] for group in groups]
        assert codecs == [["GZIP", "UNCOMPRESSED", "ZSTD"]] * 4
        result = file.read()
    for name in ("z", "a", "m"):
        expected = np.add(tables[0][name].to_numpy(), tables[1][name].to_numpy())
        np.testing.assert_array_equal(result[name].to_numpy(), expected)


def test_parquet_columns_chosen(tmp_path):
    table = pa.table({"x": [1, 2], "name": ["a", "b"], "y": [3.0, 4.0], "z": [5, 6]})
    pq.write_table(table, tmp_path / "a.parquet")
    words = ("--op", "sum", "a.parquet", "a.parquet")
    succeeded(reduce(*words, "--columns", "z,y", "-o", "out.parquet", cwd=tmp_path))
    assert pq.read_table(tmp_path / "out.parquet").to_pydict() == {"y": [6.0, 8.0], "z": [10, 12]}
    assert reduce(*words, "--columns", "z,y", "--to", "csv", cwd=tmp_path).out == b"z,y\n10,6.0\n12,8.0\n"
    assert reduce(*words, "--columns", "x", "--to", "raw", cwd=tmp_path).out == np.array([2, 4]).tobytes()


def test_parquet_columns_in_different_places(tmp_path):
    pq.write_table(pa.table({"x": [1, 2], "y": [3.0, 4.0]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"y": [5.0, 6.0], "x": [7, 8]}), tmp_path / "b.parquet")
    words = ("--op", "sum", "a.parquet", "b.parquet")
    assert reduce(*words, "--columns", "x,y", "--to", "csv", cwd=tmp_path).out == b"x,y\n8,8.0\n10,10.0\n"


def test_parquet_pairs_as_structure_and_as_two_columns(tmp_path):
    values, indices = [1.0, 4.0, 2.0], pa.array([7, 8, 6], pa.int32())
    kind = pa.struct([("v", pa.float64()), ("i", pa.int32())])
    rows = [{"v": v, "i": i} for v, i in ((3.0, 1), (0.5, 2), (2.0, 3))]
    pq.write_table(pa.table({"v": values, "other": ["a", "b", "c"], "i": indices}), tmp_path / "two.parquet")
    pq.write_table(pa.table({"best": pa.array(rows, kind)}), tmp_path / "struct.parquet")
    np.save(tmp_path / "npy.npy", np.array([(0.0, 0), (9.0, 9), (0.0, 0)], PACKED))
    expected = [(3.0, 1), (9.0, 9), (2.0, 3)]
    words = ("--op", "maxloc", "--pair", "v,i", "two.parquet", "two.parquet")
    succeeded(reduce(*words, "-o", "two_out.parquet", cwd=tmp_path))
    assert pq.read_table(tmp_path / "two_out.parquet").to_pydict() == {"v": values, "i": indices.to_pylist()}
    words = ("--op", "maxloc", "struct.parquet", "npy.npy", "struct.parquet")
    succeeded(reduce(*words, "-o", "out.parquet", cwd=tmp_path))
    result = pq.read_table(tmp_path / "out.parquet")
    assert result.schema.field("best").type == kind
    assert result["best"].to_pylist() == [{"v": v, "i": i} for v, i in expected]
    assert reduce(*words, "--to", "csv", cwd=tmp_path).out == b"best.value,best.index\n3.0,1\n9.0,9\n2.0,3\n"


# Results


STARTS = {
    **dict.fromkeys(("out.npy", "OUT.NPY", "out", "-", "out.dat --to npy", "out.csv --to npy"), b"\x93NUMPY"),
    **dict.fromkeys(("x", "out.0", "out.0017", ".hidden", "a.b/x"), b"\x93NUMPY"),  # without a suffix as the inputs
    **dict.fromkeys(("out.bin", "out.raw", "out.npy --to raw"), (A + B).tobytes()),
    **dict.fromkeys(("out.parquet", "out.pq", "- --to parquet"), b"PAR1"),
    "out.arrow": b"ARROW1",
    "out.txt": b"11.5\n2.25\n2.0\n",
    "- --to text": b"11.5\n",
    "out.csv": b"value\n11.5\n2.25\n2.0\n",
    "out.json": b'{"buffers": [',
    "out.bin --to table": b"element  value\n      0   11.5\n",
}


def test_format_of_the_output(folder):
    (folder / "a.b").mkdir()
    for words, start in STARTS.items():
        name, *rest = words.split()
        outcome = reduce("--op", "sum", "a.npy", "b.npy", "-f", "-o", name, *rest, cwd=folder)
        assert (outcome.status, outcome.err) == (0, ""), words
        assert (outcome.out if name == "-" else (folder / name).read_bytes()).startswith(start), words


def test_pairs_become_parquet_and_come_back(tmp_path):
    pairs = pairs_of([(1.0, 5), (2.0, 6)])
    pairs.tofile(tmp_path / "a.bin")
    succeeded(reduce("--op", "maxloc", "--type", "double_int", "a.bin", "-o", "a.parquet", cwd=tmp_path))
    table = pq.read_table(tmp_path / "a.parquet")
    assert [field.type for field in table.schema] == [pa.struct([("value", pa.float64()), ("index", pa.int32())])]
    assert reduce("--op", "maxloc", "a.parquet", "--to", "raw", cwd=tmp_path) == (0, pairs.tobytes(), "")


_TEXTS = [
    (np.array([1.5, np.nan, np.inf, -np.inf, -0.0]), "sum", "1.5\nnan\ninf\n-inf\n-0.0\n"),
    (np.array([0.1, 1e-7, 1e30], "f4"), "sum", "0.1\n1e-07\n1e+30\n"),
    (np.array([0.1, 500.5], "f2"), "sum", "0.1\n500.5\n"),
    (np.array([1 / 3, 1e300]), "sum", "0.3333333333333333\n1e+300\n"),
    (np.array([2**63 - 1, -(2**63)]), "sum", "9223372036854775807\n-9223372036854775808\n"),
    (np.array([2**64 - 1, 0], "u8"), "sum", "18446744073709551615\n0\n"),
    (np.array([True, False]), "lor", "1\n0\n"),
    (np.array([1 + 2j, -0.5j]), "sum", "1.0 2.0\n-0.0 -0.5\n"),
    (np.array([(1.0, 7), (4.0, 8)], PAIR), "maxloc", "1.0 7\n4.0 8\n"),
    (np.array([[1, 2], [3, 4]], "i2"), "sum", "1\n2\n3\n4\n"),
    (np.zeros(0), "sum", ""),
]


def test_text_csv_and_json(tmp_path):
    for array, op, text in _TEXTS:
        np.save(tmp_path / "a.npy", array)
        assert reduce("--op", op, "a.npy", "--to", "text", cwd=tmp_path) == (0, text.encode(), "")
        head = "value,index" if op == "maxloc" else "real,imag" if array.dtype.kind == "c" else "value"
        outcome = reduce("--op", op, "a.npy", "--to", "csv", cwd=tmp_path)
        assert outcome == (0, f"{head}\n{text.replace(' ', ',')}".encode(), "")
        outcome = reduce("--op", op, "a.npy", "--to", "json", cwd=tmp_path)
        (buffer,) = json.loads(outcome.out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))["buffers"]
        assert (buffer["name"], buffer["count"]) == ("", array.size)
        assert buffer["datatype"].startswith("MPI_")
        elements = [element if isinstance(element, list) else [element] for element in buffer["data"]]
        assert "".join(" ".join(map(str, element)) + "\n" for element in elements) == text


def test_csv_of_columns_with_odd_names(tmp_path):
    pq.write_table(pa.table({"a,b": [1], 'say "x"': [2.0], "line\nend": [3], "größe": [4]}), tmp_path / "a.parquet")
    outcome = reduce("--op", "sum", "a.parquet", "--to", "csv", cwd=tmp_path)
    assert outcome.out.decode() == '"a,b","say ""x""",line\\nend,größe\n1,2.0,3,4\n'


def test_json_of_columns(tmp_path):
    pq.write_table(pa.table({"x": [1, 2], 'q"': [0.5, float("nan")]}), tmp_path / "a.parquet")
    outcome = reduce("--op", "sum", "a.parquet", "a.parquet", "--to", "json", cwd=tmp_path)
    assert json.loads(outcome.out) == {
        "buffers": [
            {"name": "x", "datatype": "MPI_INT64_T", "dtype": "int64", "count": 2, "data": [2, 4]},
            {"name": 'q"', "datatype": "MPI_DOUBLE", "dtype": "float64", "count": 2, "data": [1.0, "nan"]},
        ]
    }


def test_table_of_many_elements(tmp_path):
    np.save(tmp_path / "a.npy", np.array([(i / 2, i) for i in range(1000)], PAIR))
    lines = reduce("--op", "maxloc", "a.npy", "--to", "table", cwd=tmp_path).out.decode().splitlines()
    assert lines == [
        "element  value  index",
        *(f"{i:7}  {i / 2:5}  {i:5}" for i in range(10)),
        "    ...  (985 more)",
        *(f"{i:7}  {i / 2:5}  {i:5}" for i in range(995, 1000)),
    ]


def test_table_leaves_out_only_what_it_says(tmp_path):
    for count in (0, 1, 15, 16, 17):
        np.save(tmp_path / "a.npy", np.arange(count))
        lines = reduce("--op", "sum", "a.npy", "--to", "table", cwd=tmp_path).out.decode().splitlines()
        assert (lines[0], len(lines)) == ("element  value", 1 + min(count, 16))
        assert ("    ...  (2 more)" in lines) == (count == 17)


def test_results_that_are_refused(folder):
    """A result never has the suffix of another format, and one that no format has needs --to; what columns lack."""
    (folder / "link.bin").symlink_to("a.bin")
    np.save(folder / "z.npy", np.zeros(3, "c16"))
    np.save(folder / "g.npy", np.zeros(3, "g"))
    records, fetching = "-q -f --type double a.bin -o", "get-accumulate --op sum --fetch old.h4 a.npy b.npy"
    rows = [
        ("reduce --op sum z.npy -o out.parquet", 3, "MPI_C_DOUBLE_COMPLEX / column"),
        ("reduce --op sum g.npy -o out.parquet", 3, "MPI_LONG_DOUBLE / column"),
        (f"pack {records} link.bin", 2, "link.bin: is the file of the records"),
        (f"unpack {records} link.bin", 2, "link.bin: is the file of the packed elements"),
        (f"unpack {records} x.npy", 2, "x.npy: would be npy / raw binary"),
        (f"unpack {records} x.h4", 2, "x.h4: would be HDF4 / raw binary"),
        (fetching, 2, "old.h4: would be HDF4 / --to"),
        ("accumulate --op sum --create 3 t.h4 a.npy", 2, "--create:  / t.h4 would be HDF4 / another name"),
        ("pack --type double a.bin -o x.mat", 2, "x.mat: would be / --to"),
    ]
    for name, suffix in zip(("x.h4", "x.pkl", "x.tsv"), ("npy", "parquet", "bin"), strict=True):
        words = f"--op sum --type double a.{suffix} b.{suffix} -o"
        rows += [
            (f"reduce {words} {name}", 2, f"{name}: would be / --to"),
            (f"scan -q {words} {{rank}}{name}", 2, f"0{name}: would be / --to"),
        ]
    for name, suffix in zip(("x.dat", "x.npy2", "x.0x"), ("npy", "parquet", "arrow"), strict=True):
        rows.append((f"reduce --op sum a.{suffix} -o {name}", 2, f"{name}: no format has the suffix / --to {suffix}"))
    check_refusals(folder, rows)
    raw = ("--op", "sum", "--type", "double", "a.bin", "b.bin", "-o")
    for words in (["x.h4", "--to", "raw"], ["x.dat"]):
        succeeded(reduce(*raw, *words, cwd=folder))
        assert (folder / words[0]).read_bytes() == (A + B).tobytes()
