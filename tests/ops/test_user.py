"""User-defined ops: what an op's text names, what is accepted in Python, how it is called, and on which elements."""

import itertools
import math
import re
import struct
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mpired
from mpired import ops
from mpired.errors import OpError, UnknownDatatypeError, UnknownOpError, UsageError, UserOpError
from mpired.ops.user import Properties, as_op, same_bits


def saved(folder, arrays):
    """Write each array as a rank, and return the paths."""
    paths = [str(folder / f"rank{rank}.npy") for rank in range(len(arrays))]
    for path, array in zip(paths, arrays, strict=True):
        np.save(path, array)
    return paths


def upper(invec, inoutvec):
    return inoutvec


def test_what_cannot_be_called_as_an_op(monkeypatch):
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)  # with it three arguments are of its functions
    none, one, three, keywords = lambda: 0, lambda _: 0, lambda _1, _2, _3: 0, lambda *, _1, _2: 0
    for function in (none, one, three, keywords, np.cos, np.divmod, max, 3, "text", None, np):
        with pytest.raises(UserOpError, match=r"^place: (is \w+, not a function|must take two arrays|takes three)"):
            as_op(function, "place")


@pytest.mark.parametrize("dtype", ["i1", "f4"])
def test_functions_of_one_array_mean_the_predefined_ops(dtype, tmp_path):
    ranks = [np.array([100, 7, -3], dtype), np.array([100, -9, 2], dtype)]
    expected = {
        "sum": ranks[0] + ranks[1], "prod": ranks[0] * ranks[1],
        "max": np.maximum(*ranks), "min": np.minimum(*ranks),
    }  # fmt: skip
    paths = saved(tmp_path, ranks)
    for function in (sum, max, min, np.sum, np.prod, np.max, np.min):
        wanted = expected[function.__name__.removeprefix("a")]
        for op in (function, f"{function.__module__}:{function.__name__}"):
            found = mpired.reduce(paths, op)
            assert (found.dtype, found.tolist()) == (ranks[0].dtype, wanted.tolist()), op
            np.save(tmp_path / "t.npy", ranks[0])
            mpired.Window(tmp_path / "t.npy").accumulate(ranks[1], op)
            assert np.load(tmp_path / "t.npy").tolist() == wanted.tolist(), op
        with pytest.raises(mpired.errors.UsageError, match="`commute`"):
            mpired.reduce(paths, function, commute=True)


@pytest.mark.parametrize(("where", "jobs", "dtypes"), [("file", 2, ("f4", "f8")), ("function", 1, ("f8", "f8"))])
def test_an_op_is_tried_on_every_buffer(where, jobs, dtypes, tmp_path):
    """All elements of the first column are zeros, which show no neighbours."""
    (tmp_path / "op.py").write_text("import numpy as np\n\ndef rolled(a, b):\n    return a + np.roll(b, 1)\n")
    columns = {"x": np.zeros(1000, dtypes[0]), "y": np.arange(1000, dtype=dtypes[1])}
    pq.write_table(pa.table(columns), tmp_path / "r.parquet")
    op = f"{tmp_path}/op.py:rolled" if where == "file" else lambda a, b: a + np.roll(b, 1)
    found = mpired.reduce([tmp_path / "r.parquet"] * 2, op, columns="x", jobs=jobs)
    assert not found.any()
    with pytest.raises(UserOpError, match="gives other bits for 1000 elements"):
        mpired.reduce([tmp_path / "r.parquet"] * 2, op, output=tmp_path / "out.parquet", jobs=jobs)
    assert not (tmp_path / "out.parquet").exists()


def test_what_a_nan_carries_and_padding_are_no_difference():
    nans = np.array([np.nan, 1], "f8"), np.frombuffer(struct.pack("<Qd", 0xFFF8_0000_0000_0007, 1.0), "f8")
    assert same_bits(*nans)
    assert same_bits(nans[0] + 1j, nans[1] + 1j)
    padded = np.dtype([("value", "f8"), ("index", "i1")], align=True)
    left, right = np.zeros(2, padded), np.frombuffer(b"\0" * 9 + b"\7" * 7 + b"\0" * 16, padded)
    assert same_bits(left, right)
    assert not same_bits(np.array([0.0]), np.array([-0.0]))
    assert not same_bits(np.array([0j]), np.array([-0.0j]))
    assert not same_bits(left, np.ones(2, padded))
    assert not same_bits(np.array([1]), np.array([2]))


def test_floating_point_flags_raise_no_warning(tmp_path):
    paths = saved(tmp_path, [np.array([1e308, 0.0]), np.array([10.0, 0.0])])
    assert mpired.reduce(paths, lambda a, b: a * b / (a * 0)).tolist()[0] == np.inf


def test_an_abort_says_why(tmp_path):
    def aborts(invec, inoutvec):
        raise mpired.Abort("the norm is zero")

    with pytest.raises(UserOpError, match=r"^aborts: aborted: the norm is zero$"):
        mpired.reduce(saved(tmp_path, [np.arange(3)] * 2), aborts)


def test_timeouts_that_cannot_be_kept(tmp_path):
    """A function of this process cannot be stopped."""
    for op, seconds in (upper, 1), *(("numpy:add", each) for each in (0, -1, math.nan, math.inf)):
        with pytest.raises(UsageError, match="`op_timeout`"):
            mpired.reduce(saved(tmp_path, [np.arange(3)] * 2), op, op_timeout=seconds)


REFUSALS = {
    **dict.fromkeys(("nothing", "op_null", "avg", "", "MPI_", "mpi_mpi_sum"), (UnknownOpError, "is not an MPI op")),
    "./ops.py": (UnknownOpError, r"write ./ops.py:FUNCTION"),
    "lib.so": (UnknownOpError, r"write lib.so:FUNCTION"),
    "lib.so:func": (UserOpError, r"write ./lib.so:func"),
    "./lib.so:func:long": (UserOpError, "only :count"),
    "./missing.py:func": (UserOpError, "the file does not exist"),
    "./missing.so:func": (UserOpError, "the file does not exist"),
    "/tmp:func": (UserOpError, "not a regular file"),
    ":func": (UserOpError, "names no function"),
    "module:": (UserOpError, "names no function"),
}


def test_text_that_names_no_op():
    for text, (error, reason) in REFUSALS.items():
        with pytest.raises(error, match=reason) as caught:
            ops.resolve(text)
        assert caught.value.exit_status == (2 if error is UnknownOpError else 7), text


def test_identities_are_plain_numbers():
    rows = [(None, None), (0, 0), (np.int8(3), 3), ((1, 0.5), [1.0, 0.5]), (-np.inf, -np.inf), (np.array(2j), 2j)]
    for identity, kept in rows:

        @mpired.op(identity=identity)
        def function(invec, inoutvec):
            """First line.

            More.
            """

        assert function.mpired_op == Properties(identity=kept, doc="First line.")
    for identity in ("text", object(), [object()], {1: 2}):
        with pytest.raises(TypeError, match="identity"):
            mpired.op(identity=identity)


def test_an_op_takes_only_its_datatypes(tmp_path):
    only = mpired.op(datatypes="double")(lambda a, b: a + b)
    assert mpired.reduce(saved(tmp_path, [np.ones(3)] * 2), only).tolist() == [2.0] * 3
    with pytest.raises(OpError, match="it takes MPI_DOUBLE"):
        mpired.reduce(saved(tmp_path, [np.ones(3, np.float32)] * 2), only)
    with pytest.raises(UnknownDatatypeError):
        mpired.op(datatypes=["duble"])


STRUCTURES = {
    "quaternion": [("w", "f8"), ("x", "f8"), ("y", "f8"), ("z", "f8")],
    "complex": [("re", "f8"), ("im", "f8")],
    "mixed": [("flag", "?"), ("small", "i1"), ("number", "f4"), ("large", "u8"), ("half", "f2")],
    "one": [("only", "f4"), ("other", "i8")],
}


def structured(fields, count, nranks, *, align=False):
    draw = np.random.default_rng(count)
    dtype = np.dtype(fields, align=align)
    arrays = [np.zeros(count, dtype) for _ in range(nranks)]
    for array in arrays:
        for name in dtype.names:
            array[name] = draw.integers(0, 2 if dtype[name].kind == "b" else 100, count)
    return arrays


def take_turns(invec, inoutvec, count, datatype):
    """Every other field of the lower rank, the others of the upper: not commutative."""
    for name in inoutvec.dtype.names[::2]:
        inoutvec[name] = invec[name]


def test_structures_of_npy_keep_the_names_of_their_fields(tmp_path):
    for fields, align in itertools.product(STRUCTURES.values(), (False, True)):
        arrays = structured(fields, 20, 3, align=align)
        mpired.reduce(saved(tmp_path, arrays), take_turns, output=tmp_path / "result.npy", overwrite=True)
        result = np.load(tmp_path / "result.npy")
        assert result.dtype == arrays[0].dtype
        for position, name in enumerate(result.dtype.names):
            assert result[name].tolist() == arrays[0 if position % 2 == 0 else 2][name].tolist(), (fields, align)


def test_every_number_of_a_field_with_a_shape_is_in_the_text(tmp_path):
    array = np.arange(12.0).reshape(2, 6).view([("w", "f8", (2, 2)), ("n", "f8"), ("m", "f8", (1,))]).reshape(2)
    np.save(tmp_path / "rank.npy", array)
    for to in "csv", "json", "text":
        mpired.reduce([tmp_path / "rank.npy"] * 2, upper, to=to, output=tmp_path / f"result.{to}")
        text = (tmp_path / f"result.{to}").read_text()
        assert to != "csv" or text.startswith("w[0][0],w[0][1],w[1][0],w[1][1],n,m[0]\n")
        assert re.findall(r"\d+\.0", text) == [f"{number}.0" for number in range(12)], to


def test_long_doubles_in_a_field_keep_their_padding_and_go_to_external32(tmp_path):
    numbers = np.arange(1, 2401, dtype=np.longdouble) / 3
    octets = numbers.view(np.uint8).reshape(-1, 16).copy()
    octets[:, 10:] = 0xFF
    (tmp_path / "rank.bin").write_bytes(octets.tobytes())
    said = {"type": "contiguous(1200,long_double)"}

    mpired.reduce([tmp_path / "rank.bin"] * 2, upper, output=tmp_path / "native.bin", **said)
    octets[:, 10:] = 0
    assert (tmp_path / "native.bin").read_bytes() == octets.tobytes()
    mpired.pack(tmp_path / "native.bin", output=tmp_path / "packed.bin", datarep="external32", **said)
    external = {"datarep": "external32", "to": "raw", **said}
    mpired.reduce([tmp_path / "packed.bin"] * 2, upper, output=tmp_path / "result.bin", **external)
    assert (tmp_path / "result.bin").read_bytes() == (tmp_path / "packed.bin").read_bytes()


BAD_SHAPES = [
    ("[('a', '<f8', (0,))]", "the field 'a' has no number, or more than 1048576"),
    ("[('a', '<f8', (True,))]", "the header cannot be read"),
    ("[('a', '<f8', (1048577,))]", "the field 'a' has no number, or more than 1048576"),
    ("[('a', '<f8', (65536, 65536, 65536, 65536))]", "the header cannot be read"),
    (f"[('a', '<f8', {(1,) * 70})]", "the header cannot be read"),
    ("[('a', [('b', '<f8')])]", "which no MPI datatype has"),
    (f"{[(f'f{i}', '<f8', (1048576,)) for i in range(300)]}", "the header cannot be read"),
]


def test_fields_with_a_bad_shape(tmp_path):
    for descr, reason in BAD_SHAPES:
        header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (0,), }}\n".encode()
        (tmp_path / "rank.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        with pytest.raises(mpired.MpiredError, match=reason):
            mpired.reduce([tmp_path / "rank.npy"] * 2, take_turns)
