"""What the text of an op names, and the properties of a user-defined op."""

import functools

import numpy as np
import pytest
from user_ops import saved, two

import mpired
from mpired import ops
from mpired.errors import OpError, UnknownDatatypeError, UnknownOpError, UserOpError
from mpired.ops.clibrary import LibraryKernel
from mpired.ops.contract import Properties
from mpired.ops.user import PythonKernel

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
