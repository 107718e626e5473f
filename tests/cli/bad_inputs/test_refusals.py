"""Bad inputs: a line on standard error that names file and reason, and no file touched."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from bad_files import DATA, PICKLED, THREE, Case, Content, Payload, header, npy, npy_of, parquet, zip_of
from rows import check_refused, each


def _bad_npy(label: str, content: Content, *reasons: str, status: int = 3) -> Case:
    words = ("--op", "sum", "good.npy", "bad.npy", "-o", "out", "-f")
    return Case(label, {"bad.npy": content}, words, status, ("bad.npy", *reasons))


def _bad_raw(label: str, content: Content, words: str, *reasons: str, status: int = 3) -> Case:
    arguments = ("--op", "sum", *words.split(), "bad.bin", "-o", "out", "-f")
    return Case(label, {"bad.bin": content}, arguments, status, reasons)


def _bad_parquet(label: str, content: Content, *reasons: str) -> Case:
    arguments = ("--op", "sum", "bad.parquet", "good.parquet", "-o", "out", "-f")
    return Case(label, {"bad.parquet": content}, arguments, 3, ("bad.parquet", *reasons))


def _bad_words(label: str, words: str, *reasons: str, status: int = 2) -> Case:
    return Case(label, {}, tuple(words.split()), status, reasons)


# Other headers that make no sense are in formats/test_npy.py.
NPY = (
    _bad_npy("empty", b"", "empty"),
    _bad_npy("gzip", gzip.compress(npy_of(THREE)), "gzip"),
    _bad_npy("pickle", PICKLED, "is a pickle, which is never loaded"),
    _bad_npy("9.0", npy(header(), DATA, b"\x09\x00"), "the header cannot be read"),
    _bad_npy("4 GiB header", b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 58, "the header is of 4294967307 bytes"),
    _bad_npy("1 byte long", npy(header(), DATA + b"\0"), "expected 24 data bytes", "found 25"),
    _bad_npy("32 GiB claimed", npy(header(shape="(65536, 65536)"), DATA), "34359738368", "found 24"),
    _bad_npy("2^63", npy(header(shape="(0, 9223372036854775808)"), b""), "shape"),
    _bad_npy("5000 digits", npy(header(shape=f"({'9' * 5000},)"), DATA)),
    _bad_npy("(True,)", npy(header(shape="(True,)"), DATA[:8]), "shape"),
    _bad_npy("65 dimensions", npy(header(shape=f"({'1, ' * 64}3)"), DATA), "65 dimensions"),
    _bad_npy("pickled objects", npy(header("'|O'"), PICKLED), "objects"),
    _bad_npy("saved by NumPy", lambda: npy_of(np.array([None, {}, Payload()], dtype=object)), "objects"),
    _bad_npy("U3", npy(header("'<U3'"), bytes(36)), "U3"),
    _bad_npy("M8", npy(header("'<M8[ns]'"), DATA), "timestamp[ns]"),
    _bad_npy("a pair no type has", npy(header("[('a', '<i4'), ('b', '<f8')]"), bytes(36)), "struct(i4 a, f8 b)"),
    _bad_npy("doubled field", npy(header("[('a', '<f4'), ('a', '<f4')]"), bytes(24)), "name already used"),
    _bad_npy("3f8", npy(header("'3f8'"), bytes(72)), "which no MPI datatype has"),
    _bad_npy("0", npy(header(order="0"), DATA), "fortran_order"),
    _bad_npy("no shape", npy("{'descr': '<f8', 'fortran_order': False}", DATA), "keys"),
    _bad_npy("two descr", npy(header(more="'descr': '<f4'"), DATA), "once"),
    _bad_npy("code", npy("__import__('os').mkdir('the-header-ran')", DATA)),
    _bad_npy("9000 braces", npy("{'descr': " * 6000, DATA)),
    _bad_npy("bad UTF-8", npy(header("'<f8'").encode() + b"\xff", DATA, b"\x03\x00"), "header"),
    _bad_npy("parquet in npy", lambda: parquet({"x": THREE}), "parquet", "suffix"),
    _bad_npy("shape", npy_of(THREE.reshape(3, 1)), "good.npy", "(3, 1)", "(3,)"),
    _bad_npy("empty npz named npy", zip_of(), "zip archive"),
)

RAW = (
    _bad_raw("1001 bytes", bytes(1001), "--type double", "bad.bin", "1001 bytes is not a multiple of 8"),
    _bad_raw("npy in raw", npy_of(THREE), "--type double", "bad.bin", "npy", "suffix"),
    _bad_raw("one of two empty", b"", "--type double good.bin", "good.bin", "bad.bin", "count 0", "3"),
    _bad_raw("nearly right", DATA, "--type duoble", "duoble", "double", status=2),
    _bad_raw("empty", DATA, "--type=", "datatype", status=2),
    _bad_raw("a list", DATA, "--type f8,f8", "f8^,f8", status=2),
    _bad_raw("count beyond the end", DATA, "--type double --count 4", "bad.bin", "3 elements", "--count 4"),
    _bad_raw("offset beyond the end", DATA, "--type double --offset 25", "bad.bin", "24 bytes", "--offset 25"),
    _bad_raw("negative count", DATA, "--type double --count -1", "--count", "-1", status=2),
    _bad_raw("2^64", DATA, "--type double --offset 18446744073709551616", "--offset", status=2),
    _bad_words("endless device", "--op sum --type double /dev/zero -o out -f", "/dev/zero", "--count"),
)

PARQUET = (
    _bad_parquet("empty", b"", "empty"),
    _bad_parquet("no footer", b"PAR1" + bytes(4) + b"PAR1"),
    _bad_parquet("2 GiB footer", b"PAR1" + b"\x00\x00\x00\x80" + b"PAR1"),
    _bad_parquet("without statistics", parquet({"x": [None, 2.0, None]}, write_statistics=False), "2 nulls", "'x'"),
    _bad_parquet("no columns", parquet({})),
    _bad_parquet("strings", parquet({"x": ["a", "b", "c"]}), "'x'", "string"),
    _bad_parquet("datatype", parquet({"x": [1, 2, 3]}), "good.parquet", "MPI_INT64_T", "MPI_DOUBLE"),
    _bad_parquet("number of rows", parquet({"x": [1.0, 2.0]}), "good.parquet", "count"),
    _bad_parquet("npy in parquet", npy_of(THREE), "npy", "suffix"),
)
WORDS = (
    _bad_words("folder", "--op sum . -o out -f", "directory", status=3),
    _bad_words("two standard inputs", "--op sum --type double - - -o out -f", "-", "standard input"),
    _bad_words("below a file", "--op sum good.npy -o good.bin/out -f", "good.bin/out", status=4),
)


@pytest.fixture
def folder(furnished: Path) -> Iterator[Path]:
    """The same folder for all cases, because a refusal leaves it as it was; the files of a case are removed."""
    before = set(furnished.iterdir())
    yield furnished
    for path in set(furnished.iterdir()) - before:
        path.unlink()


@each("case", NPY + RAW + PARQUET + WORDS)
def test_bad_inputs(case: Case, folder: Path):
    for name, content in case.files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content())
    check_refused(folder, ("reduce", "-q", *case.words), case.status, *case.reasons)
