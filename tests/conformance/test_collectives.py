"""Every collective against a real MPI, with 1 to 8 ranks: what each rank gets is compared.

MPI may bracket as it likes, and where an op commutes also reorder. So the data is integers, or doubles that
hold small integers, on which no order shows; and for an op that does not commute, products of matrices of
small integers, on which brackets do not show but the order does.
"""

import inspect
import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mpired

SCRIPTS = Path(sys.executable).parent
MATRIX = np.dtype([(row + column, "i8") for row in "xy" for column in "xy"])
PAIR = np.dtype([("value", "f8"), ("index", "i4")], align=True)
NRANKS = (1, 3, 8)  # one, an odd number, and a power of two
ORDINARY = 7
COUNTS = (0, 1, ORDINARY, 64)
# The MPI name of each datatype, its form, and the ops that it is combined with.
DATA = {
    "i4": ("INT", np.dtype("i4"), ("SUM", "PROD", "MAX", "MIN", "BXOR", "BAND", "LAND", "LXOR")),
    "u1": ("UNSIGNED_CHAR", np.dtype("u1"), ("SUM", "BOR", "LOR")),
    "f8": ("DOUBLE", np.dtype("f8"), ("SUM", "MAX")),
    "pair": ("DOUBLE_INT", PAIR, ("MAXLOC", "MINLOC")),
    "matrix": (None, MATRIX, ("matrix_product",)),
}
REQUESTS = [(data, op) for data, (_, _, ops) in DATA.items() for op in ops]
# The first op of each datatype with every count, the others with one.
CASES = [(data, op, count) for data, op in REQUESTS for count in COUNTS if op == DATA[data][2][0] or count == ORDINARY]
OF_THE_USER = ("matrix", "matrix_product", ORDINARY)


def matrix_product(invec, inoutvec, count, datatype):
    """Multiply two by two, in integers, which wrap."""
    left = {name: invec[name].copy() for name in invec.dtype.names}
    right = {name: inoutvec[name].copy() for name in inoutvec.dtype.names}
    for row in "xy":
        for column in "xy":
            inoutvec[row + column] = left[row + "x"] * right["x" + column] + left[row + "y"] * right["y" + column]


# Arguments: the folder. Each rank reads its buffers, and writes what it gets of every collective, one file each.
PROGRAM = """
import json, sys
import numpy as np
from mpi4py import MPI

folder, comm = sys.argv[1], MPI.COMM_WORLD
rank, size = comm.rank, comm.size
plan = json.load(open(f"{folder}/plan.json"))
matrix = np.dtype([(row + column, "i8") for row in "xy" for column in "xy"])
# Two groups: the first ranks are A, the others B.
cut = plan["cut"]
inter = None
if 0 < cut < size:
    local = comm.Split(rank >= cut, rank)
    inter = local.Create_intercomm(0, comm, cut if rank < cut else 0)

def called(invec, inoutvec, datatype):
    lower, upper = np.frombuffer(invec, matrix), np.frombuffer(inoutvec, matrix)
    matrix_product(lower, upper, len(upper), datatype)

product = MPI.Op.Create(called, commute=False)
matrices = MPI.LONG.Create_contiguous(4).Commit()

def save(name, data, call, array):
    array.tofile(f"{folder}/{name}.{call}.{rank}.mpi")

for name, mpi_name, extent, op_name, count in plan["cases"]:
    datatype = matrices if mpi_name is None else getattr(MPI, mpi_name)
    op = product if mpi_name is None else getattr(MPI, op_name)
    data = np.fromfile(f"{folder}/{name}.{count}.{rank}.bin", np.uint8)
    key = f"{name}.{op_name}.{count}"

    def receive(nelements):
        return np.zeros(nelements * extent, np.uint8)

    def do(call, function, nelements, *arguments, given=count):
        into = receive(nelements)
        function([data, given, datatype], [into, nelements, datatype], *arguments)
        save(key, data, call, into)

    do("allreduce", comm.Allreduce, count, op)
    do("scan", comm.Scan, count, op)
    do("reduce", comm.Reduce, count, op, size - 1)
    into = receive(count)
    comm.Exscan([data, count, datatype], [into, count, datatype], op)
    if rank:
        save(key, data, "exscan", into)
    mine = plan["recvcounts"][str(count)]
    do("reduce_scatter", lambda s, r, o: comm.Reduce_scatter(s, r, mine, o), mine[rank], op)
    if count % size == 0:
        # Here mpi4py counts the elements of a block on both sides.
        do("reduce_scatter_block", comm.Reduce_scatter_block, count // size, op, given=count // size)
    # In place: what is received lies where the rank's own elements were.
    for call in "scan", "exscan", "allreduce":
        own = data.copy()
        getattr(comm, call.capitalize())(MPI.IN_PLACE, [own, count, datatype], op)
        save(key, data, f"{call}_in_place", own)
    if rank == 0 and size > 1:
        upper = np.fromfile(f"{folder}/{name}.{count}.1.bin", np.uint8)
        op.Reduce_local([data, count, datatype], [upper, count, datatype])
        save(key, data, "reduce_local", upper)
    if inter is not None:
        do("inter_allreduce", inter.Allreduce, count, op)
        groups = plan["inter_recvcounts"][str(count)]
        mine = groups[rank >= cut]
        here = rank - cut if rank >= cut else rank
        do("inter_reduce_scatter", lambda s, r, o: inter.Reduce_scatter(s, r, mine, o), mine[here], op)
        if count % cut == 0 and count % (size - cut) == 0:
            blocks = count // (cut if rank < cut else size - cut)
            do("inter_reduce_scatter_block", inter.Reduce_scatter_block, blocks, op, given=blocks)
        root = (MPI.ROOT if rank == 0 else MPI.PROC_NULL) if rank < cut else 0
        into = receive(count)
        inter.Reduce([data, count, datatype], [into, count, datatype], op, root)
        if rank == 0:
            save(key, data, "inter_reduce", into)
"""


def elements(data, count, draw):
    """Draw a rank's elements, on which the order of evaluation does not show."""
    form = DATA[data][1]
    array = np.zeros(count, form)
    if data == "pair":
        array["value"], array["index"] = draw.integers(-3, 4, count), draw.integers(0, 5, count)
    elif data == "matrix":
        for name in form.names:
            array[name] = draw.integers(-9, 10, count)
    else:
        array[:] = draw.integers(0, 4 if data == "f8" else 256, count)
    return array


def cut_counts(count, nranks, draw):
    """Cut a count into as many, some of them zero."""
    cuts = sorted(draw.integers(0, count + 1, nranks - 1).tolist())
    counts = [stop - start for start, stop in itertools.pairwise([0, *cuts, count])]
    if nranks > 2:  # one rank at least gets nothing
        counts[-1], counts[1] = counts[-1] + counts[1], 0
    return counts


class World:
    """Some ranks: their buffers, and what MPI made of them in some cases."""

    def __init__(self, folder: Path, nranks: int, cases: list[tuple[str, str, int]]) -> None:
        self.folder, self.nranks, self.cut, self.cases = folder, nranks, max(1, nranks // 3), cases
        draw = np.random.default_rng(nranks)
        folder.mkdir()
        for data, count, rank in itertools.product(DATA, COUNTS, range(nranks)):
            array = elements(data, count, draw)
            array.tofile(folder / f"{data}.{count}.{rank}.bin")
            np.save(folder / f"{data}.{count}.{rank}.npy", array)  # which can hold structures
        self.recvcounts = {count: cut_counts(count, nranks, draw) for count in COUNTS}
        sizes = (self.cut, nranks - self.cut)
        self.inter_recvcounts = {
            count: [cut_counts(count, size, draw) for size in sizes] if nranks > 1 else [] for count in COUNTS
        }
        plan = {
            "cases": [(data, DATA[data][0], DATA[data][1].itemsize, op, count) for data, op, count in cases],
            "recvcounts": self.recvcounts,
            "inter_recvcounts": self.inter_recvcounts,
            "cut": self.cut,
        }
        (folder / "plan.json").write_text(json.dumps(plan))
        (folder / "program.py").write_text(inspect.getsource(matrix_product) + PROGRAM)
        words = [SCRIPTS / "mpiexec", "-n", str(nranks), sys.executable, folder / "program.py", folder]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr

    def paths(self, data, count):
        return [self.folder / f"{data}.{count}.{rank}.npy" for rank in range(self.nranks)]

    def mpi(self, data, op, count, call, rank):
        return cleared(np.fromfile(self.folder / f"{data}.{op}.{count}.{call}.{rank}.mpi", DATA[data][1]))


def cleared(array):
    """Return the bytes of elements with zeros in their padding, which MPI leaves as it is."""
    if array.dtype.names is None:
        return array.tobytes()
    clean = np.zeros(len(array), array.dtype)
    for name in array.dtype.names:
        clean[name] = array[name]
    return clean.tobytes()


@pytest.fixture(scope="module", params=NRANKS)
def world(request, tmp_path_factory):
    """A third of the cases for each number of ranks; all of them with --long."""
    third = CASES[NRANKS.index(request.param) :: 3]
    cases = CASES if request.config.getoption("--long") else sorted({*third, OF_THE_USER})
    return World(tmp_path_factory.mktemp("world") / "ranks", request.param, cases)


def function(op):
    """Return an op as this process can apply it: workers, which load it from its file, take their time."""
    return matrix_product if op == "matrix_product" else op


def ours(world, verb, data, op, count, *arguments, **options):
    """Return the bytes that mpired gives every rank, None for a rank that gets nothing."""
    arrays = getattr(mpired, verb)(world.paths(data, count), function(op), *arguments, **options)
    return [None if array is None else cleared(array) for array in arrays]


def theirs(world, data, op, count, call, ranks=None):
    return [world.mpi(data, op, count, call, rank) for rank in (range(world.nranks) if ranks is None else ranks)]


def test_every_rank_gets_what_mpi_gives_it(world):
    for case in world.cases:
        data, op, count = case
        for verb in "allreduce", "scan":
            assert ours(world, verb, *case) == theirs(world, *case, verb), case
        later = theirs(world, *case, "exscan", range(1, world.nranks))
        assert ours(world, "exscan", *case) == [None, *later], case
        blocks = ours(world, "reduce_scatter", *case, world.recvcounts[count])
        assert blocks == theirs(world, *case, "reduce_scatter"), case
        if count % world.nranks == 0:
            assert ours(world, "reduce_scatter_block", *case) == theirs(world, *case, "reduce_scatter_block"), case
        whole = mpired.reduce(world.paths(data, count), function(op))
        assert cleared(whole) == world.mpi(*case, "reduce", world.nranks - 1), case


def test_in_place_and_reduce_local(world, directory):
    for case in world.cases:
        data, op, count = case
        paths = [directory / path.name for path in world.paths(data, count)]

        def copy(data=data, count=count, paths=paths):
            for path, source in zip(paths, world.paths(data, count), strict=True):
                path.write_bytes(source.read_bytes())

        for verb in "scan", "exscan", "allreduce":
            copy()
            getattr(mpired, verb)(paths, function(op), in_place=True)
            assert [cleared(np.load(path)) for path in paths] == theirs(world, *case, f"{verb}_in_place"), (case, verb)
        if world.nranks > 1:
            copy()
            mpired.reduce_local(*paths[:2], function(op))
            assert cleared(np.load(paths[1])) == world.mpi(*case, "reduce_local", 0), case


def test_two_groups(world):
    cut = world.cut
    for case in world.cases if world.nranks > 1 else ():
        data, op, count = case
        paths, combine = world.paths(data, count), function(op)
        calls = {"inter_allreduce": mpired.allreduce(paths[:cut], combine, group_b=paths[cut:])}
        for_a, for_b = world.inter_recvcounts[count]
        both = mpired.reduce_scatter(paths[:cut], combine, for_a, counts_b=for_b, group_b=paths[cut:])
        calls["inter_reduce_scatter"] = both
        if count % cut == 0 and count % (world.nranks - cut) == 0:
            both = mpired.reduce_scatter_block(paths[:cut], combine, group_b=paths[cut:])
            calls["inter_reduce_scatter_block"] = both
        for call, lists in calls.items():
            assert [cleared(array) for array in itertools.chain(*lists)] == theirs(world, *case, call), (case, call)
        one = mpired.reduce(paths[:cut], combine, group_b=paths[cut:])
        assert cleared(one) == world.mpi(*case, "inter_reduce", 0), case
