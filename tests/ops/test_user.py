"""User-defined ops: what the text of an op names, what is accepted in Python, how it is called, what errors become."""

import functools
import math
import os
import struct
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from user_ops import lower, saved, two, upper

import mpired
from mpired import ops
from mpired.errors import OpError, UnknownDatatypeError, UnknownOpError, UsageError, UserOpError
from mpired.ops.clibrary import LibraryKernel
from mpired.ops.contract import Properties, as_op, same_bits
from mpired.ops.user import PythonKernel


def four(invec, inoutvec, len, datatype):  # noqa: A002 - MPI's name
    np.subtract(invec, inoutvec, out=inoutvec)


def wrapper(*arguments):
    return four(*arguments)


def optional(invec, inoutvec, scale=1, offset=0):
    return scale * invec - inoutvec + offset


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


def test_both_conventions(tmp_path):
    paths = saved(tmp_path, [np.array([10.0, 20.0]), np.array([1.0, 2.0]), np.array([0.5, 4.0])])
    for name, (function, arguments) in CALLABLES.items():
        assert as_op(function, "op").arguments == arguments, name
        assert mpired.reduce(paths, function).tolist() == [8.5, 14.0], name


def test_what_cannot_be_called_as_an_op(monkeypatch):
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)  # with it three arguments are of its functions
    none, one, three, keywords = lambda: 0, lambda _: 0, lambda _1, _2, _3: 0, lambda *, _1, _2: 0
    for function in (none, one, three, keywords, np.cos, np.divmod, max, 3, "text", None, np):
        with pytest.raises(UserOpError, match=r"^place: (is \w+, not a function|must take two arrays|takes three)"):
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


NEIGHBOURS = (
    lambda a, b: np.sort(a) + b,
    lambda a, b: a + b.mean(),
    lambda a, b: a + np.roll(b, 1),
    lambda a, b: a if a.sum() > b.sum() else b,
    lambda a, b: a + len(b),
    lambda a, b: np.where(np.arange(len(a)) == 0, a, b + 1),
    lambda _, b: b[::-1],
)


def test_an_op_that_looks_at_neighbours_is_refused(tmp_path):
    for count in (2, 3, 100, 1000, 100_000):
        chance = np.random.default_rng(count)
        ranks = [chance.permutation(np.arange(float(count))) + rank for rank in range(2)]
        ranks[0][0], ranks[0][-1] = 2 * count, -1  # so that it shows in every one
        paths = saved(tmp_path, ranks)
        for function in NEIGHBOURS:
            with pytest.raises(UserOpError, match=r"gives other bits for .* must depend on its two operands alone"):
                mpired.reduce(paths, function, output=tmp_path / "out.npy")
            assert not (tmp_path / "out.npy").exists()


def test_the_first_elements_are_combined_whole_and_in_two_pieces_and_all_others_once(tmp_path):
    seen = []

    def add(invec, inoutvec, *_rest):
        seen.append(len(invec))
        inoutvec += invec

    def added(invec, inoutvec):
        seen.append(len(invec))
        return invec + inoutvec

    ranks = [np.array([0.5 * rank, np.nan, -0.0, np.inf, 4]) for rank in range(4)]
    for function in (add, added):
        seen.clear()
        found = mpired.reduce(saved(tmp_path, ranks), function)
        assert seen == [5, 2, 3, 5, 5]
        assert np.array_equal(found, ranks[0] + ranks[1] + ranks[2] + ranks[3], equal_nan=True)
    seen.clear()
    mpired.reduce(saved(tmp_path, [np.ones(1)] * 3), added)
    assert seen == [1, 1]


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


def test_an_op_for_numbers_is_told_of_arrays(tmp_path):
    paths = saved(tmp_path, [np.arange(3.0), np.ones(3)])
    for op in (lambda a, b: max(b, a), lambda a, b: max(a, b), lambda a, b: np.full_like(a, math.hypot(a, b))):
        with pytest.raises(UserOpError, match=r"an op gets arrays, not numbers: use numpy\.maximum, numpy\.where"):
            mpired.reduce(paths, op)
    assert mpired.reduce(paths, lambda a, b: np.maximum(a, b)).tolist() == [1, 1, 2]


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


def test_what_is_to_end_this_process_does(tmp_path):
    for exception in KeyboardInterrupt, SystemExit:

        def ends(invec, inoutvec, exception=exception):
            raise exception

        with pytest.raises(exception):
            mpired.reduce(saved(tmp_path, [np.arange(3)] * 2), ends)


def test_timeouts_that_cannot_be_kept(tmp_path):
    """A function of this process cannot be stopped."""
    for op, seconds in (two, 1), *(("numpy:add", each) for each in (0, -1, math.nan, math.inf)):
        with pytest.raises(UsageError, match="`op_timeout`"):
            mpired.reduce(saved(tmp_path, [np.arange(3)] * 2), op, op_timeout=seconds)


# Texts and properties


KERNELS = {
    "FILE:func": PythonKernel("FILE:func"),
    "FILE:count": PythonKernel("FILE:count"),
    "FILE:group.func": PythonKernel("FILE:group.func"),
    "package.module:func": PythonKernel("package.module:func"),
    "package.sort:func": PythonKernel("package.sort:func"),
    "LIB:func": LibraryKernel("LIB", "func"),
    "LIB:func:count": LibraryKernel("LIB", "func", "count"),
    "LIB:count": LibraryKernel("LIB", "count"),
    "LIB.1.2:func": LibraryKernel("LIB.1.2", "func"),
}


def test_text_to_kernel(tmp_path):
    files = {"FILE": tmp_path / "my.sorted.py", "LIB": tmp_path / "lib.so", "LIB.1.2": tmp_path / "lib.so.1.2"}
    for path in files.values():
        path.touch()
    for text, kernel in KERNELS.items():
        home = text.partition(":")[0]
        path = str(files.get(home, home))
        op = ops.resolve(text.replace(home, path))
        assert type(op.kernel) is type(kernel), text
        assert str(op.kernel) == str(kernel).replace(f"'{home}", f"'{path}"), text
        assert (op.user, op.isolated, op.commute) == (True, True, False), text


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


def test_predefined_ops_are_not_shadowed_by_texts():
    assert ops.resolve("sum") is ops.resolve("MPI_SUM") is ops.get("SUM")


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


def test_unknown_datatypes_of_an_op():
    with pytest.raises(UnknownDatatypeError):
        mpired.op(datatypes=["duble"])


def test_an_op_takes_only_its_datatypes(tmp_path):
    only = mpired.op(datatypes="double")(lambda a, b: a + b)
    paths = saved(tmp_path, [np.ones(3)] * 2)
    assert mpired.reduce(paths, only).tolist() == [2.0] * 3
    with pytest.raises(OpError, match="it takes MPI_DOUBLE"):
        mpired.reduce(saved(tmp_path, [np.ones(3, np.float32)] * 2), only)
