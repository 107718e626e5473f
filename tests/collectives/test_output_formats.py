"""Results in every format, and the suffixes that choose it."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import reduce, succeeded
from rows import check_refusals
from three_ranks import PAIR, A, B, pairs_of

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


def test_what_is_refused(folder):
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
