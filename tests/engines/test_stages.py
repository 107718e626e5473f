"""`--spread ranks` under a real mpiexec: workers are stages, and hand what is kept of their ranks to the next one."""

import json
import re
import subprocess
import sys
from pathlib import Path

import command as command_line
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mpiexec import PROGRAM, command, launched
from needs import needs
from pyarrow import feather

from mpired.engines.messages import lines_of

NRANKS, COUNT = 7, 4550
NAMES = [f"r{rank}.npy" for rank in range(NRANKS)]

OPS = """
import os, time
def halves(invec, inoutvec):
    return invec - inoutvec / 3
def waits(invec, inoutvec):
    if invec[0] != 0 and inoutvec[0] == float(os.environ["BAD"]) and len(inoutvec) > 1:
        with open(f"in_it.{os.getpid()}", "x"):
            time.sleep(100)
    return invec + inoutvec
"""
LIBRARY = """
void turned(double *invec, double *inoutvec, int *len, void *type)
{
    (void)type;
    for (int i = 0; i < *len; i++)
        inoutvec[i] = invec[i] / 2 - inoutvec[i];
}
"""
# The collective, the suffix of the ranks and of the results, the op, its options.
MATRIX: list[tuple[str, str, str, str, dict[str, object]]] = [
    ("reduce", "npy", "npy", "sum", {}),
    ("reduce", "npy", "csv", "prod", {"overflow": "wrap"}),
    ("scan", "npy", "npy", "ops.py:halves", {}),
    ("scan", "npy", "npy", "./ops.so:turned", {}),
    ("exscan", "npy", "parquet", "sum", {"exscan_first": "identity"}),
    ("allreduce", "npy", "arrow", "ops.py:halves", {}),
    ("reduce_scatter", "npy", "npy", "ops.py:halves", {}),
    ("scan", "parquet", "parquet", "sum", {"nulls": "ignore"}),
    ("reduce", "parquet", "parquet", "max", {"nulls": "propagate"}),
    ("reduce", "parquet", "npy", "count", {"nulls": "ignore", "columns": ["x"]}),
    ("scan", "bin", "bin", "maxloc", {"type": "double_int"}),
    ("reduce", "npy", "npy", "minloc", {"index": "rank"}),
    ("scan", "npy", "npy", "maxloc", {"index": "number"}),
    ("reduce", "complex.npy", "npy", "prod", {}),
    ("scan", "int.npy", "npy", "prod", {}),
    ("scan", "float.npy", "npy", "sum", {"exact": True}),
    ("scan", "float.npy", "npy", "mean", {}),
    ("reduce", "int.npy", "npy", "sum", {"accumulate_in": "double"}),
    ("reduce", "nan.npy", "npy", "sum", {"nan": "ignore"}),
    ("scan", "nan.npy", "npy", "sum", {"exact": True, "nan": "ignore"}),
    ("scan", "nan.npy", "npy", "median", {"nan": "ignore"}),
    ("reduce", "npy", "npy", "first", {}),
    ("reduce", "npy", "npz", "mean,std,quantile:0.3,max", {}),
    ("reduce", "npy", "npz", "maxloc,sum,ops.py:halves", {"index": "rank"}),
    ("reduce", "npy", "npy", "mean", {"weights": list(range(1, NRANKS + 1))}),
]

MATRIX_PROGRAM = f"""\
{PROGRAM}
import json, warnings
from mpired.collectives import fold
fold._SENT_BYTES = 1 << 15
def all_of_it(folder, step=1, **engine):
    os.mkdir(folder)
    for number, (function, suffix, to, op, options) in list(enumerate(json.load(open("matrix.json"))))[::step]:
        name = f"{{folder}}/{{number}}" + ("" if function == "reduce" else "-{{rank}}") + "." + to
        counts = [[2000, 0, 500, 500, 750, 700, 100]] if function == "reduce_scatter" else []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            done = getattr(mpired, function)(
                [f"r{{rank}}.{{suffix}}" for rank in range({NRANKS})], op, *counts, output=name, **options, **engine
            )
        json.dump([str(each.message) for each in caught], open(f"{{folder}}/{{number}}.said", "w"))
        spread = engine.get("spread", "elements") if int(sys.argv[1]) > 1 else "elements"
        assert done.spread == spread, (function, op)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Ranks in all formats and of many types, ops in Python and C, and what one machine makes of the matrix."""
    needs("gcc")
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "ops.py").write_text(OPS)
    (folder / "ops.c").write_text(LIBRARY)
    gcc = ["gcc", "-Wall", "-Werror", "-O2", "-ffp-contract=off", "-shared", "-fPIC", "-o"]
    subprocess.run([*gcc, folder / "ops.so", folder / "ops.c"], check=True)
    random = np.random.default_rng(1)
    for rank in range(NRANKS):
        array = random.standard_normal(COUNT) * 10.0 ** (3 * rank - 9)
        np.save(folder / f"r{rank}.npy", array)
        np.save(folder / f"r{rank}.complex.npy", array + 1j * random.permutation(array))
        np.save(folder / f"r{rank}.int.npy", random.integers(-(2**31), 2**31, COUNT, np.int32))
        huge = random.standard_normal(COUNT) * np.where(random.random(COUNT) < 0.02, 3e38, 1)
        np.save(folder / f"r{rank}.float.npy", np.clip(huge, -3.4e38, 3.4e38).astype("f4"))
        nothing = random.random(COUNT) < 0.2
        np.save(folder / f"r{rank}.nan.npy", np.where(nothing, np.nan, array))
        whole = pa.table({"x": pa.array(array, mask=nothing), "y": random.integers(0, 9, COUNT)})
        pq.write_table(whole, folder / f"r{rank}.parquet", row_group_size=1000)
        feather.write_feather(whole, folder / f"r{rank}.arrow", compression="uncompressed")
        pairs = np.zeros(COUNT, np.dtype([("value", "f8"), ("index", "i4")], align=True))
        pairs["value"], pairs["index"] = random.integers(0, 4, COUNT), rank
        pairs.tofile(folder / f"r{rank}.bin")
    (folder / "matrix.json").write_text(json.dumps(MATRIX))
    (folder / "local.py").write_text(MATRIX_PROGRAM + "all_of_it('local')\n")
    subprocess.run([sys.executable, "local.py", "1"], cwd=folder, check=True)
    block = "with mpired.mpi() as engine:\n    for spread, step in (('ranks', 1), ('elements', int(sys.argv[2]))):\n"
    block += "        all_of_it(f'{sys.argv[1]}-{spread}', step, engine=engine, spread=spread)\n"
    (folder / "program.py").write_text(MATRIX_PROGRAM + block)
    return folder


@pytest.fixture
def here(folder, tmp_path, monkeypatch) -> Path:
    """A folder with ranks of doubles."""
    for name in (*NAMES, "ops.py"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.sampled(4)
@pytest.mark.parametrize("nprocesses", [5, 1, 2, 3])
def test_every_collective_op_and_form_gives_the_same_bits(nprocesses, folder, monkeypatch, long):
    """One call after another in the same processes, spread over ranks, and some over elements, with their warnings."""
    monkeypatch.chdir(folder)
    one_in = 1 if long else 3
    done = launched(nprocesses, sys.executable, "program.py", str(nprocesses), str(one_in))
    assert done.returncode == 0, done.stderr
    expected = {path.name: path.read_bytes() for path in (folder / "local").iterdir()}
    assert len(expected) > 2 * len(MATRIX)
    assert any(b"overflowed" in content for name, content in expected.items() if name.endswith(".said"))
    for spread, step in (("ranks", 1), ("elements", one_in)):
        wanted = {name: each for name, each in expected.items() if int(re.split("[-.]", name)[0]) % step == 0}
        found = {path.name: path.read_bytes() for path in (folder / f"{nprocesses}-{spread}").iterdir()}
        assert [name for name in wanted | found if wanted.get(name) != found.get(name)] == [], spread


BLOCK = f"""\
{PROGRAM}
with mpired.mpi() as engine:
    for number, bad in enumerate(os.environ["ALL_BAD"].split()):
        os.environ["BAD"] = bad
        try:
            mpired.reduce({NAMES!r}, f"ops.py:refuses_{{number}}", engine=engine, spread="ranks")
        except UserOpError as error:
            print("refused", "raised ValueError: no" in str(error))
        mpired.scan({NAMES!r}, "sum", engine=engine, spread="ranks", output=f"out{{number}}-{{{{rank}}}}.npy")
"""


def firsts(*ranks: int) -> list[str]:
    return [repr(float(np.load(NAMES[rank])[0])) for rank in ranks]


def test_after_an_error_in_any_stage_the_same_processes_go_on(here):
    """The first, one in the middle and the last of three stages, each while the others wait for it."""
    bad = firsts(1, 3, 6)
    refuses = "def refuses_{}(invec, inoutvec):\n    if inoutvec[0] == {} and len(inoutvec) > 1:\n"
    refuses += "        raise ValueError('no')\n    return invec + inoutvec\n"
    (here / "ops.py").write_text("".join(refuses.format(*each) for each in enumerate(bad)))
    (here / "program.py").write_text(BLOCK)
    done = launched(4, sys.executable, "program.py", ALL_BAD=" ".join(bad))
    assert (done.returncode, done.stdout) == (0, "refused True\n" * 3), done.stderr
    expected = np.cumsum([np.load(name) for name in NAMES], axis=0)
    for number in range(3):
        assert all(np.array_equal(np.load(f"out{number}-{rank}.npy"), expected[rank]) for rank in range(NRANKS))


LINES = [
    *(("a", 9, [[0]]), ("aaaa", 9, [[0, 1, 2, 3]]), ("aaaa", 3, [[0, 1, 2]]), ("abab", 9, [[0, 1], [2, 3]])),
    *((hosts, most, [[0, 2], [1, 3]]) for hosts, most in (("aaaaa", 2), ("aabb", 9), ("aabbb", 9), ("aabbcc", 2))),
]


def test_a_machine_is_a_stage_and_its_workers_are_in_different_lines():
    found = [(hosts, most, [*map(list, lines_of(hosts, most))]) for hosts, most, _ in LINES]
    assert found == LINES


@pytest.mark.needs("mount")
def test_two_machines_with_two_workers_each(here):
    """Two stages, and two lines of them; machines by namespaces with another name."""
    words = command(
        "scan", "--max-memory", "61M", "--op", "ops.py:halves", "-o", "out{rank}.npy", *NAMES, spread="ranks"
    )
    another = ("unshare", "--uts", "sh", "-c", 'hostname another && exec "$@"', "sh")
    done = launched(3, *words, ":", "-n", "2", *another, *words)
    assert done.returncode == 0, done.stderr
    assert "4 workers on 2 machines (mpi), spread over ranks -> " in done.stderr
    assert command_line.run("scan", "--op", "ops.py:halves", "-o", "one{rank}.npy", *NAMES, cwd=here).status == 0
    assert [name for name in NAMES if Path(f"out{name[1:]}").read_bytes() != Path(f"one{name[1:]}").read_bytes()] == []
