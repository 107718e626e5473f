"""User-defined ops in C: the order of the ranks, handles of datatypes, and ops that call functions of MPI."""

import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import matrix
import numpy as np
import pytest
from command import installed, run, succeeded
from needs import needs

import mpired
from mpired.ops.clibrary import CFunction

SCRIPTS = Path(sys.executable).parent
MPI_H = Path(sysconfig.get_path("data")) / "include" / "mpi_abi.h"


def test_handles_are_those_of_mpi_h(tmp_path):
    """Of an MPI with the ABI of MPI-5.0."""
    text = MPI_H.read_text()
    known = {name: int(value, 16) for name, value in re.findall(r"#define +(\w+) +\(\(MPI_Datatype\)(0x\w+)\)", text)}
    synonyms = re.findall(r"#define +(\w+) +(MPI_\w+)$", text, re.MULTILINE)
    known |= {name: known[other] for name, other in synonyms if other in known}
    assert len(known) > 60
    for row in mpired.DATATYPES:
        for name in (row.name, *row.synonyms):
            assert row.handle == known[f"MPI_{name}"], name
    assert {row.name for row in mpired.DATATYPES} >= set(matrix.AVAILABLE)
    listed = json.loads(run("types", "--json", cwd=tmp_path).out)
    assert {row["name"]: row["handle"] for row in listed} == {f"MPI_{row.name}": row.handle for row in mpired.DATATYPES}


IN_C = r"""
#include <string.h>

void concatenate(unsigned char *in, unsigned char *inout, int *len, void *datatype)
{
    for (int i = 0; i < *len; i++, in += 18, inout += 18) {
        memmove(inout + 1 + in[0], inout + 1, 17 - in[0]);
        memcpy(inout + 1, in + 1, in[0]);
        inout[0] += in[0];
    }
}
"""
IN_PYTHON = """
import numpy as np
def concatenate(invec, inoutvec, count, datatype):
    lower, upper = (vec.view("u1").reshape(count, -1) for vec in (invec, inoutvec))
    place = np.arange(1, 18) - lower[:, :1]
    upper[:, 1:] = np.where(place > 0, np.take_along_axis(upper, np.clip(place, 0, None), 1), lower[:, 1:])
    upper[:, 0] += lower[:, 0]
"""


@pytest.mark.parametrize(
    ("nranks", "words"), [(2, ("-j", "7", "--commute")), (3, ("-j", "2")), (17, ("-j", "1", "--no-commute"))]
)
def test_order(tmp_path, monkeypatch, nranks, words):
    """Texts of the ranks, how many letters and then the letters, joined in C and in Python."""
    needs("gcc")
    (tmp_path / "ops.py").write_text(IN_PYTHON)
    gcc = ["gcc", "-Wall", "-Wno-unused-parameter", "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", "ops.so"]
    subprocess.run(gcc, input=IN_C, text=True, check=True, cwd=tmp_path)
    monkeypatch.setattr("mpired.collectives.plan._BLOCK_BYTES", 8 * 18)
    monkeypatch.setattr("mpired.collectives.plan.SMALL_NBYTES", 0)
    form = np.dtype([("length", "u1"), *((f"letter{i}", "u1") for i in range(17))])
    octets = np.zeros((nranks, 129, 18), np.uint8)
    octets[:, :, 0] = 1
    octets[:, :, 1] = np.random.default_rng(nranks).permuted(np.tile(np.arange(1, 130), (nranks, 1)), axis=1)
    expected = np.zeros((129, 18), np.uint8)
    expected[:, 0] = nranks
    expected[:, 1 : 1 + nranks] = octets[:, :, 1].T
    names = [f"rank{rank}.npy" for rank in range(nranks)]
    for name, rank in zip(names, octets, strict=True):
        np.save(tmp_path / name, rank.view(form)[:, 0])
    for place in "./ops.so", "ops.py":
        words_ = ("--op", f"{place}:concatenate", *words, *names, "-f", "-o", "result.npy")
        succeeded(run("reduce", "-q", *words_, cwd=tmp_path))
        assert np.load(tmp_path / "result.npy").tobytes() == expected.tobytes(), place


WITH_MPI = r"""
#include <mpi.h>

static void add(void *in, void *inout, int n)
{
    for (int i = 0; i < n; i++)
        ((double *)inout)[i] += ((double *)in)[i];
}

/* Needs nothing of MPI but its handles. */
void compares(void *in, void *inout, int *len, MPI_Datatype *datatype)
{
    if (*datatype == MPI_DOUBLE)
        add(in, inout, *len);
}

/* Needs nothing of MPI. */
void adds(void *in, void *inout, int *len, MPI_Datatype *datatype)
{
    add(in, inout, *len);
}

void asks(void *in, void *inout, int *len, MPI_Datatype *datatype)
{
    int size;
    MPI_Type_size(*datatype, &size);
    add(in, inout, *len * size / sizeof(double));
}

"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two ranks, and the ops compiled for the ABI, for MPICH's own handles, and linked with no MPI."""
    needs("mpicc")
    folder = tmp_path_factory.mktemp("ops")
    (folder / "ops.c").write_text(WITH_MPI)
    for rank in range(2):
        np.save(folder / f"r{rank}.npy", np.arange(5.0) + rank)
    shared = ("-shared", "-fPIC", "ops.c", "-o")
    subprocess.run([SCRIPTS / "mpicc_abi", *shared, "abi.so"], cwd=folder, check=True)
    subprocess.run([SCRIPTS / "mpicc", *shared, "own.so"], cwd=folder, check=True)
    # As Open MPI has it: a datatype is the address of a variable of the library.
    (folder / "open.c").write_text("char ompi_mpi_double[8];")
    stub = ("-shared", "-fPIC", "open.c", "-Wl,-soname,libmpi.so.40", "-o", "libmpi.so.40")
    subprocess.run(["gcc", *stub], cwd=folder, check=True)
    (folder / "handles.c").write_text(
        "extern char ompi_mpi_double[8];\n"
        "void compares(double *in, double *inout, int *len, void **datatype)\n"
        "{ for (int i = 0; i < *len && *datatype == ompi_mpi_double; i++) inout[i] += in[i]; }\n"
    )
    linked = ("-shared", "-fPIC", "handles.c", "libmpi.so.40", "-Wl,-rpath,$ORIGIN", "-o", "open.so")
    subprocess.run(["gcc", *linked], cwd=folder, check=True)
    include = SCRIPTS.parent / "include"
    subprocess.run(["gcc", f"-I{include}", *shared, "unlinked.so"], cwd=folder, check=True)
    return folder


def test_the_mpi_that_a_library_is_linked_with(folder):
    for name, linked in ("abi", ""), ("unlinked", ""), ("own", "libmpi.so.12"), ("open", "libmpi.so.40"):
        reason = CFunction.explained(str(folder / f"{name}.so"), "reason")
        assert reason.removeprefix("reason").startswith(f"; it is linked with {linked}:" if linked else ""), name
        assert (reason == "reason") == (not linked), name
    words = ("reduce", "-q", "--op", "./abi.so:compares", "r0.npy", "r1.npy", "--to", "text")
    # In a process whose parent has no MPI.
    assert installed(*words, cwd=folder) == (0, b"1.0\n3.0\n5.0\n7.0\n9.0\n", "")
