"""Ops and datatypes of mpi4py, and functions as it calls them: the same bits as MPI gives, or a reason.

Whatever imports mpi4py runs in a process of its own, because MPI starts threads in it.
"""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np

HEAD = """
import itertools, sys
import numpy as np
import mpired
from mpi4py import MPI

def left_fold(op, ranks, datatype):
    upper = ranks[0]
    for rank in ranks[1:]:
        lower, upper = upper, rank.copy()
        op.Reduce_local([lower, datatype], [upper, datatype])
    return upper

def refused(call, *words):
    try:
        call()
    except (mpired.MpiredError, TypeError) as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(words)
"""


def program(folder: Path, text: str) -> str:
    """Run a program that uses mpi4py, and return what it prints."""
    words = [sys.executable, "-W", "error", "-c", HEAD + textwrap.dedent(text)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_predefined_ops_are_those_of_mpi(tmp_path):
    """By their names; what each gives is compared with MPI in conformance/test_mpich.py."""
    printed = program(
        tmp_path,
        """
        integers = [np.arange(rank, rank + 30, dtype="i4") % 5 for rank in range(3)]
        floats = [integers[rank] / 3 for rank in range(3)]
        pairs = [np.array([(0.5, rank), (rank, 1)], [("value", "f8"), ("index", "i4")]) for rank in range(3)]
        for ranks, names in (
            (integers, "MAX MIN SUM PROD LAND BAND LOR BOR LXOR BXOR"),
            (floats, "MAX MIN SUM PROD"),
            (pairs, "MAXLOC MINLOC"),
        ):
            for name in names.split():
                found, expected = (mpired.reduce(ranks, op) for op in (getattr(MPI, name), name))
                assert found.tobytes() == expected.tobytes(), name
        np.save("total.npy", floats[0])
        window = mpired.Window("total.npy")
        window.accumulate(floats[1], MPI.SUM)
        assert (window.get_accumulate(None, MPI.NO_OP) == floats[0] + floats[1]).all()
        assert window.fetch_and_op(1.5, MPI.REPLACE, target_disp=3) == floats[0][3] + floats[1][3]
        refused(lambda: mpired.reduce(floats, MPI.OP_NULL), "MPI_OP_NULL")
        refused(lambda: mpired.reduce(floats, MPI.REPLACE), "MPI_REPLACE: is for accumulate and fetch only")
        refused(lambda: mpired.reduce(floats, MPI.SUM, commute=True), "MPI_SUM is predefined")
        print("done")
        """,
    )
    assert printed == "done\n"


def test_functions_of_mpi4py_give_its_bits(tmp_path):
    printed = program(
        tmp_path,
        """
        seen = set()

        def add_twice(inbuf, inoutbuf, datatype):
            seen.add((type(inbuf), datatype.Get_name(), inbuf.readonly))
            lower, upper = np.frombuffer(inbuf, "f8"), np.frombuffer(inoutbuf, "f8")
            upper[...] = 2 * lower + upper / 3

        rng = np.random.default_rng(2)
        ranks = [rng.random(1000) for _ in range(5)]
        created = MPI.Op.Create(add_twice, commute=False)
        expected = left_fold(created, ranks, MPI.DOUBLE).tobytes()
        seen.clear()
        for op in (add_twice, created, MPI.Op.fromhandle(created.handle)):
            assert mpired.reduce(ranks, op).tobytes() == expected
            assert mpired.allreduce(ranks, op)[3].tobytes() == expected
            assert mpired.reduce(ranks, op, max_memory=1 << 28, jobs=2).tobytes() == expected
        assert {each[:2] for each in seen} == {(MPI.buffer, "MPI_DOUBLE")}, seen
        for commute in (True, False):
            summary = mpired.reduce(ranks, MPI.Op.Create(add_twice, commute), output=f"{commute}.npy")
            assert (summary.commute, summary.op) == (commute, "add_twice")

        types = []
        def kept(inbuf, inoutbuf, datatype):
            types.append((inbuf.nbytes, datatype))
        for form, expected in (
            (np.dtype([("value", "f8"), ("index", "i4")], align=True), MPI.DOUBLE_INT),
            (np.dtype([("value", "i4"), ("index", "i4")]), MPI.TWOINT),
            (np.dtype([("x", "f8"), ("y", "f8"), ("z", "i8")]), MPI.DATATYPE_NULL),
            (np.dtype("c16"), MPI.C_DOUBLE_COMPLEX),
            (np.dtype("u1"), MPI.UINT8_T),
        ):
            types.clear()
            mpired.reduce([np.zeros(1, form)] * 2, kept)
            assert types == [(form.itemsize, expected)], (form, types)

        zeros = [np.zeros(4)] * 2
        def returning(inbuf, inoutbuf, datatype):
            add_twice(inbuf, inoutbuf, datatype)
            return np.zeros(3)
        assert mpired.reduce(ranks, returning).tobytes() == mpired.reduce(ranks, add_twice).tobytes()
        refused(lambda: mpired.reduce(zeros, lambda a, b, d: 1 / 0), "raised ZeroDivisionError")
        def writes(a, b, d):
            np.frombuffer(a, "f8")[0] = 1
        refused(lambda: mpired.reduce(zeros, writes), "read-only")
        refused(lambda: mpired.Window("t.npy").accumulate(zeros[0], created), "predefined ops only")
        def neighbours(a, b, d):
            np.frombuffer(b, "f8")[...] = np.frombuffer(a, "f8").sum()
        refused(lambda: mpired.reduce([np.arange(4.0)] * 2, neighbours), "neighbours")
        np.zeros(48).tofile("gaps.bin")
        types.clear()
        gaps = MPI.DOUBLE.Create_vector(2, 1, 2)
        mpired.reduce(["gaps.bin"] * 2, kept, type=gaps, count=2)
        assert types[0] == (48, MPI.DATATYPE_NULL)
        interleaved = MPI.DOUBLE.Create_vector(2, 1, 3).Create_resized(0, 8)
        later = MPI.DOUBLE.Create_hindexed([1], [8])
        for datatype in (interleaved, later):
            call = lambda: mpired.reduce(["gaps.bin"] * 2, kept, type=datatype, count=2)
            refused(call, "are not stored one after another from displacement 0 on", "(invec, inoutvec,")

        MPI.Finalize()  # after which a call of MPI would end the program
        assert (mpired.reduce(zeros, MPI.SUM) == 0).all()
        assert (mpired.reduce(zeros, kept) == 0).all()
        refused(lambda: mpired.reduce(zeros, created), "raised RuntimeError: MPI is not initialised, or is finalised")
        refused(lambda: mpired.reduce(zeros, "sum", type=MPI.DOUBLE), "`type`: is a datatype of mpi4py, and MPI is not")
        print("done")
        """,
    )
    assert printed == "done\n"


def test_datatypes_of_mpi4py(tmp_path):
    """Each is the type that its text means; what MPI_Pack takes out of a file is what mpired takes."""
    rng = np.random.default_rng(3)
    rng.random(400).tofile(tmp_path / "records.bin")
    printed = program(
        tmp_path,
        """
        from mpired.mpi4py_objects import DatatypeText
        known = {row.name for row in mpired.DATATYPES}
        count = 0
        for name in sorted(dir(MPI)):
            datatype = getattr(MPI, name)
            mine = name.replace("TWO", "2") if name.startswith("TWO") else name
            if isinstance(datatype, MPI.Datatype) and datatype != MPI.DATATYPE_NULL and mine in known:
                text = DatatypeText(datatype)
                try:
                    parsed = mpired.datatypes.parse(text)[0]
                except mpired.errors.DatatypeError as error:
                    assert "is not available" in str(error), error
                else:
                    assert parsed is mpired.datatypes.parse(mine)[0], (name, text)
                    count += 1
        double = MPI.DOUBLE
        records = np.fromfile("records.bin")
        for made in (
            double, double.Dup(), double.Create_contiguous(3), double.Create_vector(3, 1, 2),
            double.Create_hvector(3, 1, 16), double.Create_indexed([1, 2], [0, 3]),
            double.Create_hindexed([1, 2], [0, 24]), double.Create_indexed_block(2, [0, 4]),
            double.Create_hindexed_block(2, [0, 32]), double.Create_subarray([4, 5], [2, 3], [1, 1], MPI.ORDER_C),
            double.Create_subarray([4, 5], [2, 3], [1, 1], MPI.ORDER_FORTRAN), double.Create_resized(0, 24),
            double.Create_vector(2, 1, 3).Create_resized(0, 8).Create_contiguous(2),
            MPI.Datatype.Create_struct([1, 2], [0, 16], [double, double]),
            double.Create_darray(4, 1, [8, 8], [MPI.DISTRIBUTE_BLOCK, MPI.DISTRIBUTE_CYCLIC],
                                 [MPI.DISTRIBUTE_DFLT_DARG, 2], [2, 2], MPI.ORDER_F),
            double.Create_darray(2, 1, [8, 3], [MPI.DISTRIBUTE_CYCLIC, MPI.DISTRIBUTE_NONE],
                                 [MPI.DISTRIBUTE_DFLT_DARG] * 2, [2, 1], MPI.ORDER_C),
        ):
            made.Commit()
            packed = bytearray(made.Pack_size(2, MPI.COMM_SELF))
            end = made.Pack(records.view("u1")[: 2 * made.extent], packed, 0, MPI.COMM_SELF)
            found = mpired.pack("records.bin", type=made, count=2)
            assert found.tobytes() == bytes(packed[:end]), DatatypeText(made)
            count += 1
        print(count)
        assert mpired.reduce(["records.bin"] * 2, "sum", type=double).tolist() == (records * 2).tolist()
        window = mpired.Window("records.bin", type=double)
        assert window.accumulate(np.ones(3), "sum", target_type=double.Create_vector(3, 1, 2)) == 1
        assert np.fromfile("records.bin")[:5].tolist() == (records[:5] + [1, 0, 1, 0, 1]).tolist()

        for bad, words in (
            (MPI.DATATYPE_NULL, "MPI_DATATYPE_NULL is not a datatype"),
            (MPI.Datatype.Create_f90_real(15, 300), "has no name; give that of its size"),
        ):
            refused(lambda: mpired.reduce(["records.bin"], "sum", type=bad), "`type`", words)
        called = double.Dup()
        called.Set_name("MPI_INT")
        assert DatatypeText(called) == "dup(MPI_DOUBLE)"

        class Other(MPI.Datatype):
            def Get_size(self):
                return 16
        refused(lambda: mpired.reduce(["records.bin"], "sum", type=Other(double)), "MPI_DOUBLE: has 16 bytes and")
        """,
    )
    assert int(printed) > 70


def test_mpi4py_is_not_imported_for_a_caller_who_has_not(tmp_path):
    code = """
import sys
import numpy as np
import mpired
ranks = [np.arange(4.0)] * 2
mpired.reduce(ranks, np.add)
mpired.reduce(ranks, "sum", type="double")
assert not any(name.startswith("mpi4py") for name in sys.modules)
try:
    mpired.reduce(ranks, lambda a, b, datatype: None)
except mpired.errors.UserOpError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    reason = "takes three arguments, as functions of mpi4py do, and that is not imported"
    hint = "import mpi4py.MPI, or take (invec, inoutvec, len, datatype) or two arrays"
    assert done.stdout == f"<lambda>: {reason}; {hint}\n"
