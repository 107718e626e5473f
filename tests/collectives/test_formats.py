"""Ranks and results of `reduce` in every format: texts, headers, pairs, and what is refused."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import reduce, succeeded
from rows import check_refusals
from values import A, B

PAIR = np.dtype([("value", "f8"), ("index", "i4")], align=True)


def test_ranks_that_are_refused(folder):
    pq.write_table(pa.table({"v": [1.0], "i": pa.array([1], pa.int32())}), folder / "vi.parquet")
    table = {"x": [1, 2], "name": ["a", "b"], "y": [3.0, 4.0]}
    pq.write_table(pa.table(table), folder / "named.parquet")
    rows = [
        ("reduce --op sum --type <f8 --byte-order big a.bin", 2, "--byte-order / big / <f8"),
        ("reduce --op sum named.parquet -o out.parquet", 3, "named.parquet / 'name' / --columns"),
        ("reduce --op sum named.parquet --columns x,x", 2, "--columns / twice"),
        ("reduce --op sum named.parquet --columns x,", 2, "--columns"),
    ]
    pairs = "--pair v", "--pair v,i,j", "--pair v,v", "--pair v,i --columns v"
    rows += [(f"reduce --op maxloc {words} vi.parquet", 2, "--pair") for words in pairs]
    check_refusals(folder, rows)


def test_last_pair_of_a_raw_file_without_its_padding(tmp_path):
    pairs = np.array([(1.0, 5), (2.0, 6)], PAIR)
    (tmp_path / "whole.bin").write_bytes(pairs.tobytes())
    (tmp_path / "cut.bin").write_bytes(pairs.tobytes()[:-4])
    words = ("--op", "maxloc", "--type", "double_int", "whole.bin", "cut.bin")
    assert reduce(*words, "--to", "text", cwd=tmp_path) == (0, b"1.0 5\n2.0 6\n", "")


def test_a_parquet_result_is_like_rank_0(tmp_path):
    """Types, order and metadata of the columns, the rows of a group, and how each column is compressed."""
    fields = [
        pa.field("z", pa.int32(), nullable=False, metadata={"unit": "K"}), pa.field("a", pa.float64()),
        pa.field("m", pa.uint8(), metadata={"unit": "m"}),
    ]  # fmt: skip
    table = pa.table([np.arange(1000) % 9] * 3, pa.schema(fields, metadata={"run": "7"}))
    codecs = {"z": "gzip", "a": "none", "m": "zstd"}
    pq.write_table(table, tmp_path / "a.parquet", compression=codecs, row_group_size=300)
    pq.write_table(table.replace_schema_metadata({"run": "8"}), tmp_path / "b.parquet", row_group_size=77)
    succeeded(reduce("--op", "sum", "a.parquet", "b.parquet", "-o", "sum.parquet", cwd=tmp_path))
    with pq.ParquetFile(tmp_path / "sum.parquet") as file:
        groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
        assert [group.num_rows for group in groups] == [300, 300, 300, 100]
        found = {tuple(group.column(i).compression for i in range(3)) for group in groups}
        assert found == {("GZIP", "UNCOMPRESSED", "ZSTD")}
        assert file.read().equals(pa.table([np.arange(1000) % 9 * 2] * 3, table.schema), check_metadata=True)


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


def test_calls_that_are_refused(folder):
    pq.write_table(pa.table({"x": [1], "y": [2]}), folder / "two.parquet")
    in_place = "reduce --op sum --in-place"
    rows = [
        ("reduce --op sum a.npy b.npy --max-memory 0.5T", 2, "--max-memory / 0.5T"),
        (f"{in_place} a.npy b.npy --to csv", 2, "--in-place / --to"),
        (f"{in_place} - b.npy --type double", 2, "--in-place / standard input"),
        (f"{in_place} two.parquet two.parquet --columns x", 2, "--in-place: would lose 'y'; carry"),
        (f"{in_place} --type double --count 3 /dev/zero a.bin", 2, "/dev/zero"),
    ]
    check_refusals(folder, rows, stdin=A.tobytes())


def test_a_result_has_the_header_of_a_stream(tmp_path):
    """Of raw ranks of six integers behind a header of 16 bytes."""
    first, *others = (b"header of rank %d" % i + (np.arange(6) * (i + 1)).astype(">i4").tobytes() for i in range(3))
    for name, content in zip("bc", others, strict=True):
        (tmp_path / name).write_bytes(content)
    copy = ("--op", "sum", "--type", ">i4", "--offset", "16", "--header", "copy")
    outcome = reduce(*copy, "-", "b", "c", cwd=tmp_path, stdin=first)
    expected = b"header of rank 0" + (np.arange(6) * 6).astype(">i4").tobytes()
    assert outcome == (0, expected, "")
