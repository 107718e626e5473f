"""A C op that calls functions of MPI: what it needs for that, and what is said if it has not got it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command import Outcome, installed, unchanged
from needs import needs

from mpired.ops.clibrary import LibraryKernel

SCRIPTS = Path(sys.executable).parent

SOURCE = r"""
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

void initialises(void *in, void *inout, int *len, MPI_Datatype *datatype)
{
    int there;
    MPI_Initialized(&there);
    if (!there)
        MPI_Init(0, 0);
    asks(in, inout, len, datatype);
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two ranks, and the ops compiled for the ABI, for MPICH's own handles, and linked with no MPI."""
    needs("mpicc")
    folder = tmp_path_factory.mktemp("ops")
    (folder / "ops.c").write_text(SOURCE)
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
    (folder / "alone.c").write_text((folder / "handles.c").read_text())
    subprocess.run(["gcc", "-shared", "-fPIC", "alone.c", "-o", "alone.so"], cwd=folder, check=True)
    include = SCRIPTS.parent / "include"
    subprocess.run(["gcc", f"-I{include}", *shared, "unlinked.so"], cwd=folder, check=True)
    return folder


def reduced(folder: Path, op: str) -> Outcome:
    """Run the command, in a process whose parent has no MPI."""
    return installed("reduce", "-q", "--op", op, "r0.npy", "r1.npy", "--to", "text", cwd=folder)


LOOKS = "was killed by SIGSEGV; nothing was written; it is linked with {}: compile it with mpicc_abi"
REASONS = {
    "./abi.so:asks": "; nothing was written",
    "./alone.so:compares": "is compiled for the handles of Open MPI, compile it with mpicc_abi",
    "./own.so:compares": LOOKS.format("libmpi.so.12"),
    "./own.so:initialises": LOOKS.format("libmpi.so.12"),
    "./open.so:compares": LOOKS.format("libmpi.so.40"),
    "./unlinked.so:asks": "symbol: MPI_Type_size); link it with MPI's ABI build (libmpi_abi.so), by mpicc_abi",
}


@pytest.mark.parametrize("op", REASONS)
def test_a_call_that_mpi_ends_is_explained(op, folder):
    with unchanged(folder):
        outcome = reduced(folder, op)
    assert outcome.status == 7
    line = outcome.err.splitlines()[-1]
    assert line.startswith(f"mpired: {op}: ")
    assert REASONS[op] in line


def test_the_mpi_that_a_library_is_linked_with(folder):
    for name, linked in ("abi", ""), ("unlinked", ""), ("own", "libmpi.so.12"), ("open", "libmpi.so.40"):
        reason = LibraryKernel(str(folder / f"{name}.so"), "adds").explained("reason")
        assert reason.removeprefix("reason").startswith(f"; it is linked with {linked}:" if linked else ""), name
        assert (reason == "reason") == (not linked), name
