"""The same op over the same files in mpired and in a real MPI, in Python (mpi4py) and in C.

MPI may bracket as it likes, so its MPI_Reduce is compared on small integers, where brackets do not show.
Where they do, MPI_Reduce_local applied rank by rank is the left fold.
"""

import functools
import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command import run, succeeded
from needs import needs

NRANKS = 4
COUNT = 1000
EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = Path(sys.executable).parent
COMPLEX = np.dtype([("re", "f8"), ("im", "f8")])
MATRIX = np.dtype([(row + column, "f8") for row in "xy" for column in "xy"])

# Arguments: the file of ops, and the folder. Each rank reads its files; rank 0 writes the results.
PYTHON = """
import importlib.util, sys
import numpy as np
from mpi4py import MPI

spec = importlib.util.spec_from_file_location("ops", sys.argv[1])
ops = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ops)
folder, comm = sys.argv[2], MPI.COMM_WORLD

def reduce(name, function, form, commute):
    def called(invec, inoutvec, datatype):
        lower, upper = np.frombuffer(invec, form), np.frombuffer(inoutvec, form)
        function(lower, upper, len(upper), datatype)

    datatype = MPI.DOUBLE.Create_contiguous(form.itemsize // 8).Commit()
    op = MPI.Op.Create(called, commute)
    send = np.load(f"{folder}/{name}{comm.rank}.npy")
    receive = np.zeros_like(send)
    comm.Reduce([send, len(send), datatype], [receive, len(send), datatype], op, root=0)
    if comm.rank == 0:
        receive.tofile(f"{folder}/{name}.{commute}.python")
        for rank in range(1, comm.size):
            upper = np.load(f"{folder}/{name}{rank}.npy")
            op.Reduce_local([send, len(send), datatype], [upper, len(send), datatype])
            send = upper
        send.tofile(f"{folder}/{name}.left.python")

for commute in True, False:
    for name in "exact", "rounded":
        reduce(name, ops.complex_product, np.dtype([("re", "f8"), ("im", "f8")]), commute)
matrix = np.dtype([(row + column, "f8") for row in "xy" for column in "xy"])
reduce("matrix", ops.matrix_product, matrix, False)
"""

C = r"""
#include <mpi.h>
#include <stdio.h>
#include <string.h>

void complex_product(void *invec, void *inoutvec, int *len, void *datatype);

enum { COUNT = 1000 };

static double *load(const char *folder, const char *name, int rank, double *numbers)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s%d.bin", folder, name, rank);
    FILE *file = fopen(path, "rb");
    if (!file || fread(numbers, 16, COUNT, file) != COUNT)
        MPI_Abort(MPI_COMM_WORLD, 1);
    fclose(file);
    return numbers;
}

static void save(const char *folder, const char *name, const char *how, const double *numbers)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.%s.c", folder, name, how);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(numbers, 16, COUNT, file) != COUNT || fclose(file))
        MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv)
{
    static double send[2 * COUNT], receive[2 * COUNT];
    const char *names[] = {"exact", "rounded"};
    int rank, size;
    MPI_Datatype datatype;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Type_contiguous(2, MPI_DOUBLE, &datatype);
    MPI_Type_commit(&datatype);
    for (int commute = 0; commute < 2; commute++)
        for (int i = 0; i < 2; i++) {
            MPI_Op op;
            MPI_Op_create((MPI_User_function *)complex_product, commute, &op);
            load(argv[1], names[i], rank, send);
            MPI_Reduce(send, receive, COUNT, datatype, op, 0, MPI_COMM_WORLD);
            if (rank == 0) {
                save(argv[1], names[i], commute ? "True" : "False", receive);
                for (int upper = 1; upper < size; upper++) {
                    load(argv[1], names[i], upper, receive);
                    MPI_Reduce_local(send, receive, COUNT, datatype, op);
                    memcpy(send, receive, sizeof send);
                }
                save(argv[1], names[i], "left", send);
            }
        }
    MPI_Finalize();
}
"""


def mpiexec(*words):
    """Run a program as four ranks of a real MPI."""
    launcher = [SCRIPTS / "mpiexec", "-n", str(NRANKS)]
    done = subprocess.run([*launcher, *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def exact(draw, combine, width, subsets):
    """Draw integers for each rank, of which no product of some ranks has a zero: its sign would show the brackets."""
    ranks = draw.integers(-5, 6, (NRANKS, 20 * COUNT, width))
    kept = np.ones(20 * COUNT, bool)
    for subset in subsets:
        kept &= (functools.reduce(combine, ranks[list(subset)]) != 0).all(axis=1)
    assert kept.sum() >= COUNT
    return ranks[:, kept][:, :COUNT].astype("f8")


def complex_product(lower, upper):
    (a, b), (c, d) = lower.T, upper.T
    return np.stack([a * c - b * d, a * d + b * c], axis=1)


def matrix_product(lower, upper):
    return (lower.reshape(-1, 2, 2) @ upper.reshape(-1, 2, 2)).reshape(-1, 4)


def data(draw):
    """Return the elements of each rank by name, with their form."""
    ranks = range(NRANKS)
    subsets = [subset for count in ranks for subset in itertools.combinations(ranks, count + 1)]
    neighbours = [range(start, stop) for start in ranks for stop in range(start + 1, NRANKS + 1)]
    return {
        "exact": (exact(draw, complex_product, 2, subsets), COMPLEX),
        "rounded": (draw.normal(size=(NRANKS, COUNT, 2)), COMPLEX),
        "matrix": (exact(draw, matrix_product, 4, neighbours), MATRIX),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The ranks of each kind of data, and what MPI makes of them."""
    needs("mpicc")
    folder = tmp_path_factory.mktemp("ranks")
    for name, (ranks, form) in data(np.random.default_rng(7)).items():
        for rank, numbers in enumerate(ranks):
            np.save(folder / f"{name}{rank}.npy", numbers.view(form)[:, 0])
            numbers.tofile(folder / f"{name}{rank}.bin")
    (folder / "program.py").write_text(PYTHON)
    mpiexec(sys.executable, folder / "program.py", EXAMPLES / "ops.py", folder)
    (folder / "program.c").write_text(C)
    source = EXAMPLES / "complex_product.c"
    compiler = [SCRIPTS / "mpicc", "-O2", "-ffp-contract=off", folder / "program.c", source, "-o", folder / "program"]
    subprocess.run(compiler, check=True)
    mpiexec(folder / "program", folder)
    library = folder / "libcomplex_product.so"
    subprocess.run(["gcc", "-O2", "-ffp-contract=off", "-shared", "-fPIC", source, "-o", library], check=True)
    return folder


PLACES = (
    f"{EXAMPLES}/ops.py:complex_product",
    "./libcomplex_product.so:complex_product",
    "./libcomplex_product.so:complex_product_c:count",
)


def by_mpired(folder, name, op, *options):
    files = [f"{name}{rank}.npy" for rank in range(NRANKS)]
    succeeded(run("reduce", "-q", "-f", "--op", op, *options, "--to", "raw", "-o", "mpired", *files, cwd=folder))
    return (folder / "mpired").read_bytes()


def by_mpi(folder, name, how, language):
    return (folder / f"{name}.{how}.{language}").read_bytes()


def test_the_complex_product_is_that_of_mpi(folder):
    """Of MPI_Reduce where no rounding shows the brackets; where one does, the left fold by MPI_Reduce_local."""
    languages = ("python", "c")
    exact = {by_mpi(folder, "exact", how, each) for how in ("True", "False", "left") for each in languages}
    left = {by_mpi(folder, "rounded", "left", each) for each in languages}
    assert len(left | {by_mpi(folder, "rounded", "False", each) for each in languages}) > len(left) == 1
    for place, option in zip(PLACES, ("--commute", "--no-commute", "--commute"), strict=True):
        assert {by_mpired(folder, "exact", place, option)} == exact, place
        assert {by_mpired(folder, "rounded", place)} == left, place


def test_a_matrix_product_keeps_the_order_of_the_ranks(folder):
    result = by_mpired(folder, "matrix", f"{EXAMPLES}/ops.py:matrix_product")
    assert result == by_mpi(folder, "matrix", "False", "python") == by_mpi(folder, "matrix", "left", "python")
    matrices = [np.fromfile(folder / f"matrix{rank}.bin").reshape(COUNT, 2, 2) for rank in range(NRANKS)]
    assert result == (matrices[0] @ matrices[1] @ matrices[2] @ matrices[3]).tobytes()
    assert result != (matrices[3] @ matrices[2] @ matrices[1] @ matrices[0]).tobytes()
