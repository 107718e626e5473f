"""One suite over every format: those of the table, and one that a package installs.

A format joins it by its row, and by an entry of `WRITERS` and `READERS` that writes and reads its files without
mpired. What is expected comes from NumPy.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tables
from command import Outcome, refused, run, succeeded, unchanged
from packages import install

from mpired.buffers import FORMATS, Format, plugins

MINI = (Path(__file__).parents[2] / "examples/mpired-mini/mpired_mini/__init__.py").read_text()
ROWS = FORMATS | {"mini": Format("mini", (".mini",), b"MINI", updatable=True, place="mpired_mini")}


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _mini(array: np.ndarray) -> bytes:
    return b"MINI" + array.dtype.str.encode().ljust(4) + len(array).to_bytes(8, "little") + array.tobytes()


def _column(form: str) -> Callable[[np.ndarray], bytes]:
    return lambda array: tables.bytes_of(pa.table({"value": array}), form)


WRITERS: dict[str, Callable[[np.ndarray], bytes]] = {
    "raw": np.ndarray.tobytes,
    "npy": _npy,
    "parquet": _column("parquet"),
    "arrow": _column("arrow"),
    "mini": _mini,
}


def _after(nlines: int) -> Callable[[bytes, np.dtype], np.ndarray]:
    """Return the reader of a text with an element at the end of each line, after a heading."""
    return lambda octets, dtype: np.array([line.split()[-1] for line in octets.decode().splitlines()[nlines:]], dtype)


READERS: dict[str, Callable[[bytes, np.dtype], np.ndarray]] = {
    "raw": np.frombuffer,
    "npy": lambda octets, _dtype: np.load(io.BytesIO(octets)),
    "parquet": lambda octets, _dtype: pq.read_table(io.BytesIO(octets))["value"].to_numpy(),
    "arrow": lambda octets, _dtype: pa.ipc.open_file(octets).read_all()["value"].to_numpy(),
    "mini": lambda octets, _dtype: np.frombuffer(octets[16:], octets[4:8].decode().strip()),
    "text": _after(0),
    "csv": _after(1),
    "table": _after(1),
    "json": lambda octets, dtype: np.array(json.loads(octets)["buffers"][0]["data"], dtype),
}

READABLE = [name for name, row in ROWS.items() if row.readable]
UPDATABLE = [name for name, row in ROWS.items() if row.updatable]
DRAW = np.random.default_rng(20)
RANKS = [DRAW.standard_normal(12) * 10.0**exponent for exponent in (0, 3, -3)]
INTEGERS = [DRAW.integers(-1000, 1000, 12, np.int32) for _ in range(3)]
NUMBERS = {"double": RANKS, "int32_t": INTEGERS}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the package of an installed format."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, "mpired-mini", {"mini": "mpired_mini:FORMAT"}, group="mpired.formats", mpired_mini=MINI)
    return folder


def seeing(site: Path) -> Callable[[], None]:
    def setup() -> None:
        sys.path.insert(0, str(site))
        for cached in vars(plugins).values():  # what the test process has found before
            getattr(cached, "cache_clear", bool)()

    return setup


class Bench:
    """A folder with ranks of one format, and the command that works on them."""

    def __init__(self, folder: Path, site: Path) -> None:
        self.folder = folder
        self.setup = seeing(site)

    def write(self, form: str, arrays: list[np.ndarray], stem: str = "rank") -> list[str]:
        """Write ranks, and return their names."""
        names = [f"{stem}{i}{ROWS[form].suffixes[0]}" for i in range(len(arrays))]
        for name, array in zip(names, arrays, strict=True):
            (self.folder / name).write_bytes(WRITERS[form](array))
        return names

    def read(self, form: str, name: str, dtype: np.dtype) -> np.ndarray:
        return READERS[form]((self.folder / name).read_bytes(), dtype)

    def run(self, *words: str, **settings: object) -> Outcome:
        return run(*words, cwd=self.folder, setup=self.setup, **settings)

    def reduce(self, *words: str) -> bytes:
        outcome = self.run("reduce", "-q", "--op", "sum", *words)
        succeeded(outcome)
        return outcome.out

    def refuses(self, status: int, *reasons: str, words: tuple[str, ...]) -> None:
        """Check that the command refuses, and leaves all files as they are."""
        with unchanged(self.folder):
            refused(self.run(*words), status, *reasons)


@pytest.fixture
def bench(tmp_path, site):
    return Bench(tmp_path, site)


def typed(form: str, name: str) -> tuple[str, ...]:
    """Return the words that say what the elements are, where the files do not."""
    return ("--type", name) if ROWS[form].needs_type else ()


def same(one: np.ndarray, other: np.ndarray) -> None:
    assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes())


every_readable = pytest.mark.parametrize("form", READABLE)
every_type = pytest.mark.parametrize("datatype", NUMBERS)


def test_every_format_is_in_the_suite():
    assert set(READERS) == set(ROWS)
    assert set(WRITERS) == set(READABLE)
    assert {"mini"} == set(ROWS) - set(FORMATS)
    assert all(FORMATS[row.name] is row and row.doc and not row.place for row in FORMATS.values())
    assert all(row.suffixes for row in ROWS.values() if row.readable)


@every_type
@every_readable
def test_reduce(bench, form, datatype):
    a, b, c = NUMBERS[datatype]
    output = f"sum{ROWS[form].suffixes[0]}"
    bench.reduce(*typed(form, datatype), "-o", output, *bench.write(form, [a, b, c]))
    same(bench.read(form, output, a.dtype), (a + b) + c)


@every_type
@pytest.mark.parametrize("to", ROWS)
def test_result(bench, to, datatype):
    a, b, c = NUMBERS[datatype]
    names = bench.write("npy", [a, b, c])
    same(READERS[to](bench.reduce("--to", to, *names), a.dtype), (a + b) + c)
    for suffix in ROWS[to].suffixes:
        bench.reduce("-o", f"sum{suffix}", *names)
        same(bench.read(to, f"sum{suffix}", a.dtype), (a + b) + c)


@every_readable
def test_scan(bench, form):
    a, b, c = RANKS
    suffix = ROWS[form].suffixes[0]
    names = bench.write(form, RANKS)
    succeeded(bench.run("scan", "-q", "--op", "sum", *typed(form, "double"), "-o", f"to_{{rank}}{suffix}", *names))
    for rank, expected in enumerate([a, a + b, (a + b) + c]):
        same(bench.read(form, f"to_{rank}{suffix}", a.dtype), expected)


@every_readable
def test_blocks_of_other_counts(bench, form):
    a, b, c = INTEGERS
    suffix = ROWS[form].suffixes[0]
    words = (*typed(form, "int32_t"), "--counts", "3,0,9", "--in-place", *bench.write(form, INTEGERS))
    succeeded(bench.run("reduce-scatter", "-q", "--op", "sum", *words))
    for rank, part in enumerate([slice(0, 3), slice(3, 3), slice(3, 12)]):
        same(bench.read(form, f"rank{rank}{suffix}", a.dtype), (a + b + c)[part])


@every_readable
def test_in_place(bench, form):
    a, b, c = RANKS
    names = bench.write(form, RANKS)
    bench.reduce(*typed(form, "double"), "--root", "1", "--in-place", *names)
    for name, expected in zip(names, [a, (a + b) + c, c], strict=True):
        same(bench.read(form, name, a.dtype), expected)


@pytest.mark.parametrize("form", UPDATABLE)
def test_accumulate(bench, form):
    a, b, c = RANKS
    target, *origins = bench.write(form, RANKS)
    succeeded(bench.run("accumulate", "-q", "--op", "sum", *typed(form, "double"), target, *origins))
    same(bench.read(form, target, a.dtype), (a + b) + c)


@pytest.mark.parametrize("form", UPDATABLE)
def test_get_accumulate(bench, form):
    a, b, _ = INTEGERS
    target, origin, _ = bench.write(form, INTEGERS)
    words = ("--op", "sum", *typed(form, "int32_t"), "--to", "npy", "--fetch", "old.npy", target, origin)
    succeeded(bench.run("get-accumulate", "-q", *words))
    same(bench.read("npy", "old.npy", a.dtype), a)
    same(bench.read(form, target, a.dtype), a + b)


@pytest.mark.parametrize("form", [name for name in UPDATABLE if not ROWS[name].streamed])
def test_target_that_is_made(bench, form):
    a, b, c = RANKS
    target = f"made{ROWS[form].suffixes[0]}"
    words = ("--op", "sum", "--type", "double", "--create", "12", target, *bench.write(form, RANKS))
    succeeded(bench.run("accumulate", "-q", *words))
    same(bench.read(form, target, a.dtype), (a + b) + c)


@every_readable
def test_mixed_with_all_others(bench, form):
    arrays = [DRAW.integers(-9, 9, 12).astype("f8") for _ in READABLE]
    others = [name for name in READABLE if name != form]
    names = [bench.write(each, [array])[0] for each, array in zip([form, *others], arrays, strict=True)]
    output = f"sum{ROWS[form].suffixes[0]}"
    bench.reduce("--type", "double", "-o", output, *names)
    same(bench.read(form, output, np.dtype("f8")), np.sum(arrays, axis=0))


@pytest.mark.parametrize("op", ["sum", "max"])
@every_readable
def test_the_bits_of_raw(bench, form, op):
    odd = np.array([0.0, -0.0, np.inf, -np.inf, 5e-324, 1 + 2**-52, np.nan, -np.nan])
    arrays = [odd, odd[::-1].copy(), np.full(8, -0.0)]
    outputs = []
    for each in ("raw", form):
        words = ("--op", op, "--type", "double", "--to", "raw", *bench.write(each, arrays))
        outputs.append(bench.run("reduce", "-q", *words))
        succeeded(outputs[-1])
    assert outputs[0].out == outputs[1].out


@every_type
@every_readable
def test_info(bench, form, datatype):
    (name,) = bench.write(form, NUMBERS[datatype][:1])
    outcome = bench.run("info", "--json", *typed(form, datatype), name)
    succeeded(outcome)
    (file,) = json.loads(outcome.out)
    (buffer,) = file["buffers"]
    nbytes = (bench.folder / name).stat().st_size
    assert (file["file"], file["format"], file["nbytes"]) == (name, form, nbytes)
    assert (buffer["datatype"], buffer["count"]) == (f"MPI_{datatype.upper()}", 12)
    assert (buffer["name"] == "value") == ROWS[form].has_columns
    assert (buffer["datarep"] is None) != ROWS[form].needs_type
    succeeded(bench.run("info", *typed(form, datatype), name))


@every_readable
def test_no_elements(bench, form):
    output = f"sum{ROWS[form].suffixes[0]}"
    bench.reduce(*typed(form, "double"), "-o", output, *bench.write(form, [np.zeros(0)] * 2))
    same(bench.read(form, output, np.dtype("f8")), np.zeros(0))


@every_readable
def test_name_without_suffix(bench, form):
    (name,) = bench.write(form, RANKS[:1])
    (bench.folder / name).rename(bench.folder / "rank.0")
    words = typed(form, "double") if ROWS[form].magic or ROWS[form].needs_type else ("--from", form)
    same(READERS["raw"](bench.reduce(*words, "--to", "raw", "rank.0"), np.dtype("f8")), RANKS[0])


@every_readable
def test_format_that_is_named(bench, form):
    (name,) = bench.write(form, RANKS[:1])
    (bench.folder / name).rename(bench.folder / "rank.csv")
    words = ("--from", form, *typed(form, "double"), "--to", "raw", "rank.csv")
    same(READERS["raw"](bench.reduce(*words), np.dtype("f8")), RANKS[0])


@every_readable
def test_type_that_is_not_that_of_the_file(bench, form):
    names = bench.write(form, RANKS)
    if ROWS[form].needs_type:
        bench.refuses(2, names[0], "give --type", words=("reduce", "--op", "sum", *names))
    else:
        words = ("reduce", "--op", "sum", "--type", "int32_t", "-o", "new.npy", *names)
        bench.refuses(3, names[0], "is not MPI_INT32_T", words=words)


@pytest.mark.parametrize("kept", [0, 1, 5, -1], ids=["empty", "one byte", "five bytes", "all but one byte"])
@every_readable
def test_rank_that_is_cut(bench, form, kept):
    names = bench.write(form, RANKS)
    (bench.folder / names[1]).write_bytes((bench.folder / names[1]).read_bytes()[:kept])
    words = ("reduce", "--op", "sum", *typed(form, "double"), "-o", "new.npy", *names)
    bench.refuses(3, names[1], words=words)


@pytest.mark.parametrize("form", UPDATABLE)
def test_target_that_is_not_like_the_origin(bench, form):
    target, origin = *bench.write(form, RANKS[:1]), *bench.write("npy", INTEGERS[:1], "other")
    words = ("accumulate", "--op", "sum", *typed(form, "double"), target, origin)
    bench.refuses(3, "DOUBLE", "INT32_T" if not ROWS[form].needs_type else origin, words=words)


@pytest.mark.parametrize("form", sorted(set(ROWS) - set(READABLE)))
def test_format_for_results_only(bench, form):
    bench.refuses(2, f"'{form}' is not one of", words=("reduce", "--op", "sum", "--from", form, "rank"))
    for suffix in ROWS[form].suffixes:
        (bench.folder / f"rank{suffix}").write_bytes(b"1\n2\n")
        reason = f"is {form} by its suffix, which cannot be an input"
        bench.refuses(3, reason, words=("reduce", "--op", "sum", f"rank{suffix}"))


# ---- installed packages, most of them broken in some way

BROKEN = """
from mpired.buffers import Format
ROW = Format({name!r}, (".{name}",), {magic!r}, place={place!r})
"""


@pytest.fixture(scope="module")
def broken_site(tmp_path_factory):
    """A folder of packages beside that of a good one."""
    folder = tmp_path_factory.mktemp("broken")

    def package(
        name: str, *, value: str = "", magic: bytes = b"", place: str = "no_such_module", text: str = ""
    ) -> None:
        code = text or BROKEN.format(name=name, magic=magic, place=place)
        point = value or f"{name}_row:ROW"
        install(folder, f"mpired-{name}", {name: point}, group="mpired.formats", **{f"{name}_row": code})

    install(folder, "mpired-mini", {"mini": "mpired_mini:FORMAT"}, group="mpired.formats", mpired_mini=MINI)
    package("absent", value="absent_package:ROW")
    package("raising", text="raise ValueError('at import')")
    package("exiting", text="raise SystemExit(0)")
    package("norow", text="ROW = 5")
    package("other", text="from mpired.buffers import Format\nROW = Format('another', ('.other',), place='x')")
    package("nomodule")
    package("failing", place="failing_code")
    (folder / "failing_code.py").write_text("def inspect(*_):\n    1 / 0\nprepare = inspect\n")
    package("printing", text=f"print('printed')\n{BROKEN.format(name='printing', magic=b'PRNT', place='x')}")
    package("npy", text="raise ValueError('a name that is taken')")  # never loaded for npy files
    for home in ("one", "two"):
        install(folder, f"twice-{home}", {"twice": f"{home}:ROW"}, group="mpired.formats")
        row = f"from mpired.buffers import Format\nROW = Format({home!r}, ('.both', '.npy'), b'BOTH', place='x')"
        install(folder, f"both-{home}", {home: f"{home}_row:ROW"}, group="mpired.formats", **{f"{home}_row": row})
    return folder


@pytest.fixture
def beside(tmp_path, broken_site):
    return Bench(tmp_path, broken_site)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent", "absent_package:ROW of mpired-absent cannot be loaded (ModuleNotFoundError: "),
        ("raising", "raising_row:ROW of mpired-raising cannot be loaded (ValueError: at import)"),
        ("exiting", "exiting_row:ROW of mpired-exiting cannot be loaded (SystemExit: 0)"),
        ("norow", "norow_row:ROW of mpired-norow is no mpired.buffers.Format"),
        ("other", "other_row:ROW of mpired-other is no mpired.buffers.Format with this name"),
        ("nomodule", "the format nomodule of no_such_module failed (ModuleNotFoundError: "),
        ("failing", "the format failing of failing_code failed (ZeroDivisionError: "),
        ("twice", "is the format of 2 entry points (one:ROW of twice-one, two:ROW of twice-two)"),
    ],
)
def test_package_that_is_broken(beside, name, reason):
    (npy,) = beside.write("npy", RANKS[:1])
    (beside.folder / f"rank.{name}").write_bytes(b"what is in the file")
    for words in (["--from", name, npy], ["--to", name, npy], [f"rank.{name}"], ["-o", f"new.{name}", npy]):
        if words[0] != "-o" or name != "twice":
            with unchanged(beside.folder):
                outcome = beside.run("reduce", "--op", "sum", *words)
            refused(outcome._replace(err=outcome.err.removeprefix("printed\n")), 3, reason)


def test_other_formats_work_beside_broken_packages(beside):
    a, b, c = RANKS
    outcome = beside.run("reduce", "-q", "--op", "sum", "-o", "sum.mini", *beside.write("npy", RANKS))
    assert (outcome.status, outcome.out, outcome.err) == (0, b"", "printed\n")
    same(beside.read("mini", "sum.mini", a.dtype), (a + b) + c)
    raw = beside.reduce("--to", "raw", *beside.write("npy", RANKS))  # without a look at packages, as nothing is printed
    same(READERS["raw"](raw, a.dtype), (a + b) + c)


def test_several_formats_of_a_file(beside):
    (beside.folder / "rank.both").write_bytes(b"BOTH")
    (beside.folder / "rank.0").write_bytes(b"BOTH")
    for name, how in (("rank.both", "by its suffix"), ("rank.0", "by its first bytes")):
        outcome = beside.run("info", name)
        assert outcome.status == 3
        assert (
            f"mpired: {name}: is one and two {how}, which are installed formats; say which with --from" in outcome.err
        )


def test_names_are_shown_and_known(bench):
    outcome = bench.run("reduce", "--help")
    assert "raw|npy|parquet|arrow|mini]" in "".join(outcome.out.decode().split())
    assert "raw|npy|parquet|arrow|text|csv|json|table|mini]" in "".join(outcome.out.decode().split())
    reason = "'minimal' is not one of 'raw', 'npy', 'parquet', 'arrow', 'mini'"
    bench.refuses(2, reason, words=("reduce", "--op", "sum", "--from", "minimal", "rank"))


def test_content_and_suffix_of_an_installed_format_agree(bench):
    (bench.folder / "rank.mini").write_bytes(WRITERS["npy"](RANKS[0]))
    bench.refuses(3, "holds npy by its first bytes, but its suffix means mini", words=("info", "rank.mini"))


def test_file_of_another_program_may_be_of_a_package(bench):
    """What mpired would refuse by its suffix or first bytes, a package may read."""
    text = """
from mpired.buffers import Format
from mpired_mini import prepare
ROW = Format("hdf", (".h5",), b"\\x89HDF\\r\\n", place="hdf_row")
def inspect(source, declared):
    raise ArithmeticError("it was asked")
"""
    install(bench.folder, "mpired-hdf", {"hdf": "hdf_row:ROW"}, group="mpired.formats", hdf_row=text)
    (bench.folder / "rank.h5").write_bytes(b"\x89HDF\r\n\x1a\n")

    def setup() -> None:
        bench.setup()
        sys.path.insert(0, str(bench.folder))

    refused(run("info", "rank.h5", cwd=bench.folder, setup=setup), 3, "it was asked")
    bench.refuses(3, "rank.h5", "is HDF5", words=("reduce", "--op", "sum", "rank.h5"))
    outcome = bench.run("info", "rank.h5")
    assert (outcome.status, outcome.out) == (
        0,
        b"rank.h5: HDF5, 8 bytes\n  is HDF5; save its numbers with numpy.save\n",
    )
