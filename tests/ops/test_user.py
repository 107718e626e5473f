"""User-defined ops in Python: what is accepted, how it is called, and the order of the fold."""

import functools
import itertools
import math
import os
import pickle
import random
import re
import struct
import sys
import traceback
from pathlib import Path

import matrix
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import reference
import values

import mpired
from mpired import ops
from mpired.errors import OpError, UnknownDatatypeError, UnknownOpError, UsageError, UserOpError
from mpired.ops.clibrary import LibraryKernel
from mpired.ops.contract import Properties, as_op, same_bits
from mpired.ops.user import PythonKernel

EXAMPLES = Path(__file__).parents[2] / "examples" / "ops.py"


def in_child(function):
    """Call a function in a forked child, where workers can be forked too, and return what it returns."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writing, pickle.dumps(function()))
            status = 0
        except BaseException:  # noqa: BLE001 - it ends here
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as pipe:
        result = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return pickle.loads(result)


def saved(folder, arrays):
    """Write each array as a rank, and return the paths."""
    paths = [str(folder / f"rank{rank}.npy") for rank in range(len(arrays))]
    for path, array in zip(paths, arrays, strict=True):
        np.save(path, array)
    return paths


# ---- the two conventions


def four(invec, inoutvec, len, datatype):  # noqa: A002 - MPI's name
    np.subtract(invec, inoutvec, out=inoutvec)


def two(invec, inoutvec):
    return invec - inoutvec


def wrapper(*arguments):
    return four(*arguments)


def optional(invec, inoutvec, scale=1, offset=0):
    return scale * invec - inoutvec + offset


def lower(invec, inoutvec):
    return invec


def upper(invec, inoutvec):
    return inoutvec


class Instance:
    __hash__ = None

    def __call__(self, invec, inoutvec, count, datatype):
        four(invec, inoutvec, count, datatype)

    def method(self, invec, inoutvec):
        return two(invec, inoutvec)


CALLABLES = {
    "four": (four, 4),
    "two": (two, 2),
    "ufunc": (np.subtract, 2),
    "wrapper": (wrapper, 4),
    "optional": (optional, 2),
    "instance": (Instance(), 4),
    "method": (Instance().method, 2),
    "partial": (functools.partial(four), 4),
}


@pytest.mark.parametrize(("function", "arguments"), CALLABLES.values(), ids=CALLABLES)
def test_both_conventions(tmp_path, function, arguments):
    arrays = [np.array([10.0, 20.0]), np.array([1.0, 2.0]), np.array([0.5, 4.0])]
    paths = saved(tmp_path, arrays)
    assert as_op(function, "op").arguments == arguments
    assert mpired.reduce(paths, function).tolist() == [8.5, 14.0]


@pytest.mark.parametrize(
    "function",
    [lambda: 0, lambda _: 0, lambda _1, _2, _3: 0, lambda *, _1, _2: 0, np.cos, np.divmod, max, 3, "text", None, np],
    ids=["none", "one", "three", "keywords", "unary", "two results", "silent", "number", "text", "None", "module"],
)
def test_what_cannot_be_called_as_an_op(function):
    with pytest.raises(UserOpError, match=r"^place: (is \w+, not a function|takes neither|takes three)"):
        as_op(function, "place")


def test_invec_is_the_lower_rank_and_cannot_be_written_to(tmp_path):
    seen = []

    def look(invec, inoutvec, count, datatype):
        seen.append((invec.copy(), inoutvec.copy(), count, datatype))
        assert not invec.flags.writeable
        inoutvec[:] = 7

    paths = saved(tmp_path, [np.array([rank, rank], np.int16) for rank in range(3)])
    mpired.reduce(paths, look)
    assert [(invec.tolist(), inoutvec.tolist()) for invec, inoutvec, _, _ in seen] == [
        ([0, 0], [1, 1]),
        ([0], [1]),
        ([0], [1]),
        ([7, 7], [2, 2]),
    ]
    assert [count for _, _, count, _ in seen] == [2, 1, 1, 2]
    assert {datatype for *_, datatype in seen} == {mpired.datatypes.INT16_T}


@pytest.mark.parametrize(
    ("function", "name"),
    [(sum, "sum"), (max, "max"), (min, "min"), (np.sum, "sum"), (np.prod, "prod"), (np.max, "max"), (np.min, "min")],
)
@pytest.mark.parametrize("dtype", ["i1", "f4"])
def test_functions_of_one_array_mean_the_predefined_ops(function, name, dtype, tmp_path):
    ranks = [np.array([100, 7, -3], dtype), np.array([100, -9, 2], dtype)]
    expected = {
        "sum": ranks[0] + ranks[1], "prod": ranks[0] * ranks[1],
        "max": np.maximum(*ranks), "min": np.minimum(*ranks),
    }[name]  # fmt: skip
    paths = saved(tmp_path, ranks)
    for op in (function, f"{function.__module__}:{function.__name__}"):
        found = mpired.reduce(paths, op)
        assert (found.dtype, found.tolist()) == (ranks[0].dtype, expected.tolist())
        np.save(tmp_path / "t.npy", ranks[0])
        mpired.Window(tmp_path / "t.npy").accumulate(ranks[1], op)
        assert np.load(tmp_path / "t.npy").tolist() == expected.tolist()
    with pytest.raises(mpired.errors.UsageError, match="`commute`"):
        mpired.reduce(paths, function, commute=True)


NEIGHBOURS = {
    "sorted": lambda a, b: np.sort(a) + b,
    "mean": lambda a, b: a + b.mean(),
    "shifted": lambda a, b: a + np.roll(b, 1),
    "of the greater": lambda a, b: a if a.sum() > b.sum() else b,
    "count": lambda a, b: a + len(b),
    "index": lambda a, b: np.where(np.arange(len(a)) == 0, a, b + 1),
    "reversed": lambda a, b: b[::-1],
}


@pytest.mark.parametrize("count", [2, 3, 100, 1000, 100_000])
@pytest.mark.parametrize("name", NEIGHBOURS)
def test_an_op_that_looks_at_neighbours_is_refused(name, count, tmp_path):
    chance = np.random.default_rng(count)
    ranks = [chance.permutation(np.arange(float(count))) + rank for rank in range(2)]
    ranks[0][0], ranks[0][-1] = 2 * count, -1  # so that it shows in every one
    with pytest.raises(UserOpError, match=r"gives other bits for .* must depend on its two operands alone"):
        mpired.reduce(saved(tmp_path, ranks), NEIGHBOURS[name], output=tmp_path / "out.npy")
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize("arguments", [2, 4])
def test_the_first_elements_are_combined_whole_and_in_two_pieces_and_all_others_once(arguments, tmp_path):
    seen = []

    def add(invec, inoutvec, *_rest):
        seen.append(len(invec))
        inoutvec += invec

    def added(invec, inoutvec):
        seen.append(len(invec))
        return invec + inoutvec

    ranks = [np.array([0.5 * rank, np.nan, -0.0, np.inf, 4]) for rank in range(4)]
    found = mpired.reduce(saved(tmp_path, ranks), add if arguments == 4 else added)
    assert seen == [5, 2, 3, 5, 5]
    assert np.array_equal(found, ranks[0] + ranks[1] + ranks[2] + ranks[3], equal_nan=True)


@pytest.mark.parametrize("dtypes", [("f8", "f8"), ("f4", "f8")])
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("where", ["file", "function"])
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


def test_one_element_is_combined_once(tmp_path):
    seen = []
    mpired.reduce(saved(tmp_path, [np.ones(1)] * 3), lambda a, b: seen.append(len(a)) or a + b)
    assert seen == [1, 1]


@pytest.mark.parametrize(
    ("op", "refused_"),
    [
        (lambda a, b: max(b, a), True),
        (lambda a, b: max(a, b), True),
        (lambda a, b: np.full_like(a, math.hypot(a, b)), True),
        (lambda a, b: np.maximum(a, b), False),
    ],
    ids=["comparison", "max", "math", "arrays"],
)
def test_an_op_for_numbers_is_told_of_arrays(op, refused_, tmp_path):
    paths = saved(tmp_path, [np.arange(3.0), np.ones(3)])
    if refused_:
        with pytest.raises(UserOpError, match=r"an op gets arrays, not numbers: use numpy\.maximum, numpy\.where"):
            mpired.reduce(paths, op)
    else:
        assert mpired.reduce(paths, op).tolist() == [1, 1, 2]


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


def test_what_is_done_to_the_arrays_themselves_stays_without_effect(tmp_path):
    def reshape(invec, inoutvec, count, datatype):
        inoutvec += invec
        inoutvec.dtype, inoutvec.shape = np.uint8, (-1, 1)

    paths = saved(tmp_path, [np.arange(5.0)] * 3)
    assert mpired.reduce(paths, reshape).tolist() == [0.0, 3.0, 6.0, 9.0, 12.0]


def test_a_view_of_an_operand_is_a_result(tmp_path):
    paths = saved(tmp_path, [np.arange(4) + 10 * rank for rank in range(3)])
    assert mpired.reduce(paths, lower).tolist() == [0, 1, 2, 3]
    assert mpired.reduce(paths, upper).tolist() == [20, 21, 22, 23]
    assert mpired.reduce(paths, lambda _, inoutvec: inoutvec[::-1][::-1]).tolist() == [20, 21, 22, 23]


def test_the_result_of_one_rank_is_its_copy(tmp_path):
    def never(invec, inoutvec):
        raise AssertionError("called")

    assert mpired.reduce(saved(tmp_path, [np.arange(3)]), never).tolist() == [0, 1, 2]
    assert mpired.reduce(saved(tmp_path, [np.arange(0)] * 2), never).tolist() == []


def test_floating_point_flags_raise_no_warning(tmp_path):
    paths = saved(tmp_path, [np.array([1e308, 0.0]), np.array([10.0, 0.0])])
    assert mpired.reduce(paths, lambda a, b: a * b / (a * 0)).tolist()[0] == np.inf


# ---- errors of functions of this process


def test_an_exception_keeps_its_cause(tmp_path):
    def fails(invec, inoutvec):
        raise ZeroDivisionError("by\nnothing")

    paths, output = saved(tmp_path, [np.arange(3)] * 2), tmp_path / "output.npy"
    with pytest.raises(UserOpError, match=r"^fails: raised ZeroDivisionError: by nothing \(test_user.py, line") as e:
        mpired.reduce(paths, fails, output=output)
    assert isinstance(e.value.__cause__, ZeroDivisionError)
    assert sorted(os.listdir(tmp_path)) == ["rank0.npy", "rank1.npy"]


def test_an_abort_says_why(tmp_path):
    def aborts(invec, inoutvec):
        raise mpired.Abort("the norm is zero")

    with pytest.raises(UserOpError, match=r"^aborts: aborted: the norm is zero$"):
        mpired.reduce(saved(tmp_path, [np.arange(3)] * 2), aborts)


@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit])
def test_what_is_to_end_this_process_does(tmp_path, exception):
    def ends(invec, inoutvec):
        raise exception

    with pytest.raises(exception):
        mpired.reduce(saved(tmp_path, [np.arange(3)] * 2), ends)


def test_a_function_of_this_process_cannot_be_stopped(tmp_path):
    with pytest.raises(UsageError, match="`op_timeout`"):
        mpired.reduce(saved(tmp_path, [np.arange(3)] * 2), two, op_timeout=1)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_impossible_timeouts(tmp_path, seconds):
    with pytest.raises(UsageError, match="`op_timeout`"):
        mpired.reduce(saved(tmp_path, [np.arange(3)] * 2), "numpy:add", op_timeout=seconds)


# ---- what a text names


@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        ("FILE:func", PythonKernel("FILE:func")),
        ("FILE:count", PythonKernel("FILE:count")),
        ("FILE:group.func", PythonKernel("FILE:group.func")),
        ("package.module:func", PythonKernel("package.module:func")),
        ("package.sort:func", PythonKernel("package.sort:func")),
        ("LIB:func", LibraryKernel("LIB", "func")),
        ("LIB:func:count", LibraryKernel("LIB", "func", "count")),
        ("LIB:count", LibraryKernel("LIB", "count")),
        ("LIB.1.2:func", LibraryKernel("LIB.1.2", "func")),
    ],
)
def test_text_to_kernel(tmp_path, text, kernel):
    files = {"FILE": tmp_path / "my.sorted.py", "LIB": tmp_path / "lib.so", "LIB.1.2": tmp_path / "lib.so.1.2"}
    for path in files.values():
        path.touch()
    home = text.partition(":")[0]
    path = str(files.get(home, home))
    op = ops.resolve(text.replace(home, path))
    assert type(op.kernel) is type(kernel)
    assert str(op.kernel) == str(kernel).replace(f"'{home}", f"'{path}")
    assert (op.user, op.isolated, op.commute) == (True, True, False)


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("nothing", UnknownOpError, "is not an MPI op"),
        ("./ops.py", UnknownOpError, r"say which function in it, as ./ops.py:FUNCTION"),
        ("lib.so", UnknownOpError, r"say which function in it, as lib.so:FUNCTION"),
        ("lib.so:func", UserOpError, r"write ./lib.so:func"),
        ("./lib.so:func:long", UserOpError, "only :count"),
        ("./missing.py:func", UserOpError, "there is no file"),
        ("./missing.so:func", UserOpError, "there is no file"),
        ("/tmp:func", UserOpError, "not a regular file"),
        (":func", UserOpError, "names no function"),
        ("module:", UserOpError, "names no function"),
    ],
)
def test_text_that_names_no_op(text, error, reason):
    with pytest.raises(error, match=reason):
        ops.resolve(text)


def test_predefined_ops_are_not_shadowed_by_texts():
    assert ops.resolve("sum") is ops.resolve("MPI_SUM") is ops.get("SUM")


# ---- properties


def test_properties():
    decorated = mpired.op(
        commute=np.bool_(1), datatypes=["double", mpired.datatypes.INT, "<f4"], identity=np.float32(1), name="name"
    )
    said = ops.of_function(decorated(functools.partial(two)))
    assert (said.name, said.commute, ops.neutral(said, mpired.datatypes.DOUBLE)) == ("name", True, 1.0)
    assert said.datatypes == ("MPI_DOUBLE", "MPI_INT", "MPI_FLOAT")
    assert ops.of_function(two).name == "two"
    assert ops.of_function(two).commute is False
    assert ops.of_function(two, commute=True).commute is True
    assert ops.of_function(decorated(two), commute=False).commute is False


@pytest.mark.parametrize(
    ("identity", "kept"),
    [(None, None), (0, 0), (np.int8(3), 3), ((1, 0.5), [1.0, 0.5]), (-np.inf, -np.inf), (np.array(2j), 2j)],
)
def test_identities_are_plain_numbers(identity, kept):
    @mpired.op(identity=identity)
    def function(invec, inoutvec):
        """First line.

        More.
        """

    assert function.mpired_op == Properties(identity=kept, doc="First line.")


@pytest.mark.parametrize("identity", ["text", object(), [object()], {1: 2}])
def test_identities_that_are_no_numbers(identity):
    with pytest.raises(TypeError, match="identity"):
        mpired.op(identity=identity)


def test_unknown_datatypes_of_an_op():
    with pytest.raises(UnknownDatatypeError):
        mpired.op(datatypes=["duble"])


def test_an_op_takes_only_its_datatypes(tmp_path):
    only = mpired.op(datatypes="double")(lambda a, b: a + b)
    paths = saved(tmp_path, [np.ones(3)] * 2)
    assert mpired.reduce(paths, only).tolist() == [2.0] * 3
    with pytest.raises(OpError, match="it takes MPI_DOUBLE"):
        mpired.reduce(saved(tmp_path, [np.ones(3, np.float32)] * 2), only)


# ---- any element


def mixed(invec, inoutvec, count, datatype):
    """An op on bytes that is neither commutative nor blind to one: 3 * lower + upper in each byte."""
    octets = inoutvec.view(np.uint8)
    octets += 3 * invec.view(np.uint8)


BYTES = {
    "left": (lower, lower),
    "right": (upper, upper),
    "mixed": (mixed, lambda lower, upper: bytes((3 * a + b) % 256 for a, b in zip(lower, upper, strict=True))),
}


def folded(combine, ranks):
    result = ranks[0]
    for rank in ranks[1:]:
        result = combine(result, rank)
    return result


def without_padding(name, octets):
    return b"".join(reference.without_padding(name, element) for element in reference.elements(name, octets))


@pytest.mark.parametrize("name", matrix.AVAILABLE)
@pytest.mark.parametrize("op", BYTES)
def test_every_datatype(tmp_path, op, name):
    function, combine = BYTES[op]
    ranks = [without_padding(name, rank) for rank in values.ranks(name, 4, 50)]
    paths = [tmp_path / f"rank{rank}.bin" for rank in range(4)]
    for path, rank in zip(paths, ranks, strict=True):
        path.write_bytes(rank)
    seen = []

    def watched(invec, inoutvec):
        seen.append(inoutvec.dtype)
        result = inoutvec.copy()
        returned = function(invec, inoutvec) if op != "mixed" else function(invec, result, len(result), None)
        return result if returned is None else returned

    mpired.reduce(paths, watched, type=name, output=tmp_path / "result.bin")
    (row,) = (row for row in mpired.DATATYPES if row.name == name)
    assert set(seen) == {row.dtype}
    assert (tmp_path / "result.bin").read_bytes() == without_padding(name, folded(combine, ranks))


@pytest.mark.parametrize("order", ["<", ">"])
def test_byte_order_of_the_file_is_kept_and_not_seen(tmp_path, order):
    arrays = [np.arange(6, dtype=f"{order}f8") + rank for rank in range(3)]

    def add(invec, inoutvec):
        assert invec.dtype.isnative
        return invec + inoutvec

    mpired.reduce(saved(tmp_path, arrays), add, output=tmp_path / "result.npy")
    result = np.load(tmp_path / "result.npy")
    assert result.dtype == arrays[0].dtype
    assert result.tolist() == sum(arrays).tolist()


STRUCTURES = {
    "quaternion": [("w", "f8"), ("x", "f8"), ("y", "f8"), ("z", "f8")],
    "complex": [("re", "f8"), ("im", "f8")],
    "mixed": [("flag", "?"), ("small", "i1"), ("number", "f4"), ("large", "u8"), ("half", "f2")],
    "pair": [("energy", "f8"), ("cell", "i4")],
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


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("fields", STRUCTURES.values(), ids=STRUCTURES)
def test_structures_of_npy_keep_the_names_of_their_fields(tmp_path, fields, align):
    arrays = structured(fields, 20, 3, align=align)
    mpired.reduce(saved(tmp_path, arrays), take_turns, output=tmp_path / "result.npy")
    result = np.load(tmp_path / "result.npy")
    assert result.dtype == arrays[0].dtype
    for position, name in enumerate(result.dtype.names):
        assert result[name].tolist() == arrays[0 if position % 2 == 0 else 2][name].tolist()


def table_of(array):
    fields = [pa.array(array[name]) for name in array.dtype.names]
    return pa.table(
        {"first": pa.array(np.arange(len(array))), "it": pa.StructArray.from_arrays(fields, array.dtype.names)}
    )


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("fields", STRUCTURES.values(), ids=STRUCTURES)
def test_columns_of_structures_keep_the_names_of_their_fields(tmp_path, fields, suffix):
    arrays = structured(fields, 20, 3)
    paths = [tmp_path / f"rank{rank}.{suffix}" for rank in range(3)]
    for path, array in zip(paths, arrays, strict=True):
        if suffix == "parquet":
            pq.write_table(table_of(array), path, row_group_size=7)
        else:
            with pa.ipc.new_file(path, table_of(array).schema) as file:
                file.write_table(table_of(array), max_chunksize=7)
    output = tmp_path / f"result.{suffix}"
    mpired.reduce(paths, take_turns, columns=["it"], output=output)
    result = pq.read_table(output) if suffix == "parquet" else pa.ipc.open_file(output).read_all()
    assert result.schema.field("it").type == table_of(arrays[0]).schema.field("it").type
    for position, name in enumerate(arrays[0].dtype.names):
        column = pc.struct_field(result["it"], name).to_pylist()
        assert column == arrays[0 if position % 2 == 0 else 2][name].tolist()


def test_a_pair_of_columns_has_value_and_index(tmp_path):
    tables = [pa.table({"energy": [1.0, 2.0], "cell": pa.array([rank, rank], pa.int32())}) for rank in range(2)]
    paths = [tmp_path / f"rank{rank}.parquet" for rank in range(2)]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path)

    def later(invec, inoutvec, count, datatype):
        assert datatype == mpired.datatypes.DOUBLE_INT
        assert set(inoutvec["value"].tolist()) <= {1.0, 2.0}
        inoutvec["index"] -= 5

    result = mpired.reduce(paths, later, pair=("energy", "cell"))
    assert result["index"].tolist() == [-4, -4]


def test_a_declared_type_of_pairs_renames_the_fields(tmp_path):
    paths = saved(tmp_path, structured(STRUCTURES["pair"], 5, 2))
    seen = []
    mpired.reduce(paths, lambda _, inoutvec: seen.append(inoutvec.dtype.names) or inoutvec, type="double_int")
    mpired.reduce(paths, lambda _, inoutvec: seen.append(inoutvec.dtype.names) or inoutvec)
    assert list(dict.fromkeys(seen)) == [("value", "index"), ("energy", "cell")]


def matrix_product(invec, inoutvec, count, datatype):
    shape = count, 40, 40
    inoutvec["f0"] = (invec["f0"].reshape(shape) @ inoutvec["f0"].reshape(shape)).reshape(count, -1)


def stacks_of_matrices(draw):
    """Three ranks of five matrices of integers, so that every product is exact."""
    return [draw.integers(-9, 9, (5, 40, 40)).astype(float) for _ in range(3)]


@pytest.mark.parametrize("suffix", ["bin", "npy"])
@pytest.mark.parametrize("byte_order", ["little", "big"])
def test_elements_of_many_entries_are_fields_with_a_shape(tmp_path, suffix, byte_order):
    stacks = stacks_of_matrices(np.random.default_rng(7))
    form = np.dtype([("f0", {"little": "<f8", "big": ">f8"}[byte_order], (1600,))])
    paths = [tmp_path / f"rank{rank}.{suffix}" for rank in range(3)]
    for path, stack in zip(paths, stacks, strict=True):
        array = stack.astype(form["f0"].base).reshape(5, 1600).view(form).reshape(5)
        np.save(path, array) if suffix == "npy" else array.tofile(path)
    said = {"type": "contiguous(1600,double)", "byte_order": byte_order} if suffix == "bin" else {}
    mpired.reduce(paths, matrix_product, output=tmp_path / f"result.{suffix}", **said)
    if suffix == "npy":
        assert np.load(tmp_path / "result.npy").dtype == form
        result = np.load(tmp_path / "result.npy")["f0"]
    else:
        result = np.fromfile(tmp_path / "result.bin", form["f0"].base)
    assert np.array_equal(result.reshape(5, 40, 40), stacks[0] @ stacks[1] @ stacks[2])


@pytest.mark.parametrize("to", ["csv", "json", "text"])
def test_every_number_of_a_field_with_a_shape_is_in_the_text(tmp_path, to):
    array = np.arange(12.0).reshape(2, 6).view([("w", "f8", (2, 2)), ("n", "f8"), ("m", "f8", (1,))]).reshape(2)
    np.save(tmp_path / "rank.npy", array)
    mpired.reduce([tmp_path / "rank.npy"] * 2, lambda _, inoutvec: inoutvec, to=to, output=tmp_path / "result")
    text = (tmp_path / "result").read_text()
    if to == "csv":
        assert text.startswith("w[0][0],w[0][1],w[1][0],w[1][1],n,m[0]\n")
    assert re.findall(r"\d+\.0", text) == [f"{number}.0" for number in range(12)]


def test_long_doubles_in_a_field_keep_their_padding_and_go_to_external32(tmp_path):
    numbers = np.arange(1, 2401, dtype=np.longdouble) / 3
    octets = numbers.view(np.uint8).reshape(-1, 16).copy()
    octets[:, 10:] = 0xFF
    (tmp_path / "rank.bin").write_bytes(octets.tobytes())
    said = {"type": "contiguous(1200,long_double)"}

    def keep(invec, inoutvec):
        return inoutvec

    mpired.reduce([tmp_path / "rank.bin"] * 2, keep, output=tmp_path / "native.bin", **said)
    octets[:, 10:] = 0
    assert (tmp_path / "native.bin").read_bytes() == octets.tobytes()
    mpired.pack(tmp_path / "native.bin", output=tmp_path / "packed.bin", datarep="external32", **said)
    external = {"datarep": "external32", "to": "raw", **said}
    mpired.reduce([tmp_path / "packed.bin"] * 2, keep, output=tmp_path / "result.bin", **external)
    assert (tmp_path / "result.bin").read_bytes() == (tmp_path / "packed.bin").read_bytes()


@pytest.mark.parametrize(
    ("descr", "reason"),
    [
        ("[('a', '<f8', (0,))]", "tuple of counts"),
        ("[('a', '<f8', 3)]", "tuple of counts"),
        ("[('a', '<f8', (True,))]", "tuple of counts"),
        ("[('a', '<f8', (1048577,))]", "more than 1048576 numbers"),
        ("[('a', '<f8', (65536, 65536, 65536, 65536))]", "more than 1048576 numbers"),
        (f"[('a', '<f8', {(1,) * 40})]", "tuple of counts"),
        ("[('a', [('b', '<f8')])]", "fields of their own"),
        (f"{[(f'f{i}', '<f8', (1048576,)) for i in range(300)]}", "more than NumPy can hold"),
    ],
)
def test_fields_with_a_bad_shape(tmp_path, descr, reason):
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (0,), }}\n".encode()
    (tmp_path / "rank.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(mpired.MpiredError, match=reason):
        mpired.reduce([tmp_path / "rank.npy"] * 2, take_turns)


@pytest.mark.parametrize("op", matrix.REDUCE_OPS)
@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_predefined_ops_refuse_structures(tmp_path, op, suffix):
    array = structured(STRUCTURES["quaternion"], 5, 1)[0]
    path = tmp_path / f"rank.{suffix}"
    if suffix == "npy":
        np.save(path, array)
    else:
        pq.write_table(table_of(array), path)
    with pytest.raises(OpError, match=r"struct\(f8 w, f8 x, f8 y, f8 z\)") as e:
        mpired.reduce([path, path], op, **({"columns": ["it"]} if suffix == "parquet" else {}))
    assert e.value.exit_status == 3
    assert e.value.mpi_class == "MPI_ERR_OP"


def test_structures_that_differ_in_a_name_are_not_of_one_datatype(tmp_path):
    arrays = [structured(STRUCTURES[name], 5, 1)[0] for name in ("complex", "complex")]
    arrays[1].dtype.names = ("real", "imag")
    with pytest.raises(mpired.MpiredError, match="f8 real, f8 imag"):
        mpired.reduce(saved(tmp_path, arrays), take_turns)


# ---- order: ops that show any reordering

ORDERED = '''
import numpy as np

def left(invec, inoutvec):
    return invec

def right(invec, inoutvec, count, datatype):
    pass

def compose(invec, inoutvec, count, datatype):
    """Product of permutation matrices, each as the places of its ones."""
    lower, upper = (vec.view("u1").reshape(count, -1) for vec in (invec, inoutvec))
    upper[...] = np.take_along_axis(lower, upper.astype(int), 1)

def concatenate(invec, inoutvec, count, datatype):
    """Join texts: how many letters, then the letters."""
    lower, upper = (vec.view("u1").reshape(count, -1) for vec in (invec, inoutvec))
    place = np.arange(1, lower.shape[1]) - lower[:, :1]
    moved = np.take_along_axis(upper, np.clip(place, 0, None), 1)
    upper[:, 1:] = np.where(place > 0, moved, lower[:, 1:])
    upper[:, 0] += lower[:, 0]
'''
DEGREE = 5
MAX_RANKS = 17
RANK_COUNTS = (1, 2, 3, 4, 5, 8, 11, 16, MAX_RANKS)
PERMUTATION = np.dtype([(f"image{i}", "u1") for i in range(DEGREE)])
TEXT = np.dtype([("length", "u1"), *((f"letter{i}", "u1") for i in range(MAX_RANKS))])
BLOCK = 8  # elements
COUNTS = (0, 1, 7, 8, 9, 15, 16, 17, 55, 56, 57, 63, 64, 65, 127, 128, 129)


def drawn(op, nranks, count):
    """Draw each rank's elements: a list of tuples of small numbers."""
    draw = random.Random(nranks)
    if op == "concatenate":
        letters = [[draw.randrange(1, 255) for _ in range(count)] for _ in range(nranks)]
        return [[(1, letter, *[0] * (MAX_RANKS - 1)) for letter in rank] for rank in letters]
    if op == "compose":
        return [[tuple(draw.sample(range(DEGREE), DEGREE)) for _ in range(count)] for _ in range(nranks)]
    return [[(draw.randrange(256),) for _ in range(count)] for _ in range(nranks)]


def compose(lower, upper):
    return tuple(lower[image] for image in upper)


def concatenate(lower, upper):
    letters = [*lower[1 : 1 + lower[0]], *upper[1 : 1 + upper[0]]]
    return (len(letters), *letters, *[0] * (MAX_RANKS - len(letters)))


TWINS = {
    "left": (np.dtype("u1"), lower),
    "right": (np.dtype("u1"), upper),
    "compose": (PERMUTATION, compose),
    "concatenate": (TEXT, concatenate),
}


def ordered(folder, op, nranks, count):
    """Write ranks for an op, and return their paths and the bytes of the result."""
    dtype, combine = TWINS[op]
    ranks = drawn(op, nranks, count)
    paths = []
    for i, rank in enumerate(ranks):
        paths.append(folder / f"{op}{count}.rank{i}.npy")
        np.save(paths[-1], np.frombuffer(b"".join(map(bytes, rank)), dtype))
    elements = [folded(combine, element) for element in zip(*ranks, strict=True)]
    return paths, b"".join(map(bytes, elements))


@pytest.fixture
def small_blocks(monkeypatch):
    """Return a function that makes blocks of so many bytes, and lets little data be enough for a pool."""

    def cut(nbytes):
        monkeypatch.setattr("mpired.collectives.plan._BLOCK_BYTES", nbytes)
        monkeypatch.setattr("mpired.collectives.plan._SMALL_BYTES", 0)

    return cut


@pytest.mark.parametrize("nranks", RANK_COUNTS)
def test_the_order_of_ranks_for_any_count(tmp_path, small_blocks, nranks):
    functions = {}
    exec(ORDERED, functions)
    for op, (dtype, _) in TWINS.items():
        small_blocks(BLOCK * dtype.itemsize)
        for count in COUNTS:
            paths, expected = ordered(tmp_path, op, nranks, count)
            result = mpired.reduce(paths, functions[op], commute=(True, False, None)[count % 3])
            assert result.tobytes() == expected, (op, count)


@pytest.mark.parametrize("nranks", RANK_COUNTS)
def test_the_order_of_ranks_for_any_workers(tmp_path, small_blocks, nranks):
    place = tmp_path / "ordered.py"
    place.write_text(ORDERED)

    def compare():
        for i, (op, jobs) in enumerate(itertools.product(TWINS, (1, 2, 7))):
            small_blocks(BLOCK * TWINS[op][0].itemsize)
            paths, expected = ordered(tmp_path, op, nranks, COUNTS[(nranks + i) % len(COUNTS)])
            for commute in (True, False) if op == "compose" else (i % 2 == 0,):
                result = mpired.reduce(paths, f"{place}:{op}", jobs=jobs, commute=commute)
                assert result.tobytes() == expected, (op, jobs, commute, len(result))
        return "compared"

    assert in_child(compare) == "compared"


@pytest.mark.parametrize("op", ["compose", "concatenate"])
def test_the_data_shows_any_exchange_of_neighbours(tmp_path, op):
    paths, expected = ordered(tmp_path, op, 6, 50)
    functions = {}
    exec(ORDERED, functions)
    assert mpired.reduce(paths, functions[op]).tobytes() == expected
    for i in range(5):
        exchanged = [*paths[:i], paths[i + 1], paths[i], *paths[i + 2 :]]
        assert mpired.reduce(exchanged, functions[op]).tobytes() != expected


# ---- the examples of docs/user-ops.md


def complexes(count, nranks):
    draw = np.random.default_rng(5)
    pairs = draw.normal(size=(nranks, count, 2))
    return [pair.view([("re", "f8"), ("im", "f8")])[:, 0].copy() for pair in pairs]


def test_complex_product_is_that_of_the_predefined_op(tmp_path):
    arrays = complexes(1000, 5)
    result = in_child(lambda: mpired.reduce(saved(tmp_path, arrays), f"{EXAMPLES}:complex_product").tobytes())
    expected = mpired.reduce(saved(tmp_path, [array.view("c16") for array in arrays]), "prod")
    assert result == expected.tobytes()


def test_one_op_for_several_datatypes(tmp_path):
    tables = [
        pa.table({"energy": [1.5 * rank, 1.0], "cell": pa.array([rank, -rank], pa.int32()), "hits": [rank, 5]})
        for rank in range(3)
    ]
    paths = [tmp_path / f"rank{rank}.parquet" for rank in range(3)]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path)
    place = f"{EXAMPLES}:sum_or_max"
    result = in_child(lambda: {name: array.tolist() for name, array in mpired.reduce(paths, place).items()})
    assert result == {"energy": [4.5, 3.0], "cell": [2, 0], "hits": [2, 5]}


def test_an_op_for_several_datatypes_refuses_another(tmp_path):
    def refused():
        with pytest.raises(UserOpError) as e:
            mpired.reduce(saved(tmp_path, [np.ones(2, np.float32)] * 2), f"{EXAMPLES}:sum_or_max")
        return e.value.reason

    assert in_child(refused) == "aborted: sum_or_max takes no MPI_FLOAT"


def test_matrix_product(tmp_path):
    draw = np.random.default_rng(6)
    matrices = draw.integers(-4, 5, size=(7, 30, 2, 2)).astype("f8")
    form = np.dtype([(row + column, "f8") for row in "xy" for column in "xy"])
    paths = saved(tmp_path, [matrix.reshape(30, 4).view(form)[:, 0] for matrix in matrices])
    result = in_child(lambda: mpired.reduce(paths, f"{EXAMPLES}:matrix_product", jobs=2).tobytes())
    product = folded(np.matmul, list(matrices))
    assert result == product.tobytes()
    assert result != folded(np.matmul, list(matrices[::-1])).tobytes()
