"""An engine that is not this process's tree and has another working directory gives the same bits as the pool.

It is a row of this test alone. Ranks and ops are named by relative paths, as a user in the working directory does.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import stat
import threading
import tomllib
import types
from importlib import metadata
from pathlib import Path

import foreign_engine as foreign
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run, unchanged

import mpired
from mpired.collectives import plan as planning
from mpired.engines import ENGINES, LOCAL, Engine
from mpired.errors import UsageError, UserOpError, WorkerError
from mpired.files import calls
from mpired.files.scratch import Scratch
from mpired.files.transaction import Draft
from mpired.values import ENGINE_NAME

FOREIGN = Engine("foreign", "foreign_engine", same_tree=False)
NRANKS, COUNT = 3, 3000


@pytest.fixture(scope="module", autouse=True)
def workers():
    yield
    foreign.end()


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The working directory, with a folder for temporary files beside it; small data is cut into many segments."""
    for name in ("here", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(planning, "_BLOCK_BYTES", 4096)
    monkeypatch.setattr(planning, "_STREAMED_BLOCK_BYTES", 4096)
    yield tmp_path / "here"
    assert os.listdir(tmp_path / "tmp") == []


def choose_foreign(monkeypatch):
    """Let the next plans be for the foreign engine."""
    original = planning._engine  # noqa: SLF001 - the seam
    monkeypatch.setattr(planning, "_engine", lambda op, files, _, **how: original(op, files, FOREIGN, **how))


@pytest.fixture
def elsewhere(monkeypatch):
    """Let the next plans be for the foreign engine."""
    monkeypatch.setattr(foreign, "sent", [])
    monkeypatch.setattr(foreign, "before", [])
    return lambda: choose_foreign(monkeypatch)


def arrays(code: str = "f8") -> list[np.ndarray]:
    """Return numbers whose sum shows the order in which they were added."""
    return [
        (np.random.default_rng(rank).standard_normal(COUNT) * 10.0 ** (rank * 3)).astype(code) for rank in range(NRANKS)
    ]


def saved(suffix: str) -> list[str]:
    """Write the ranks into the working directory, and return their names."""
    names = [f"r{rank}.{suffix}" for rank in range(NRANKS)]
    for name, array in zip(names, arrays(), strict=True):
        table = pa.table({"value": array})
        if suffix == "npy":
            np.save(name, array)
        elif suffix == "bin":
            Path(name).write_bytes(array.tobytes())
        elif suffix == "parquet":
            pq.write_table(table, name, row_group_size=700)
        else:
            with pa.ipc.new_file(name, table.schema) as file:
                file.write_table(table, max_chunksize=700)
    return names


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def check_sent() -> None:
    """What was sent can be used by any process of this user: neither a file of this process nor a relative path."""
    assert foreign.sent
    for task in foreign.sent:
        assert b"/proc/" not in task
        for name in re.findall(rb"[ -~]*r\d\.(?:npy|bin|parquet|arrow)", task):
            assert name in {f"r{rank}.{name.rpartition(b'.')[2].decode()}".encode() for rank in range(NRANKS)} or (
                os.getcwd().encode() in name
            )


VERBS = ("reduce", "allreduce", "scan", "exscan", "reduce_scatter", "reduce_scatter_block", "reduce_local")


def call(verb: str, ranks: list[str], suffix: str, **options) -> None:
    function = getattr(mpired, verb)
    if verb == "reduce_local":
        function(ranks[0], ranks[1], "sum", **options)
        return
    counts = ([1000, 0, 2000],) if verb == "reduce_scatter" else ()
    output = f"out.{suffix}" if verb == "reduce" else f"out_{{rank}}.{suffix}"
    function(ranks, "sum", *counts, output=output, **options)


@pytest.mark.parametrize("suffix", ["npy", "bin", "parquet", "arrow"])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.sampled(2)
def test_every_collective_gives_the_same_files(verb, suffix, here, elsewhere):
    options = {"type": "double"} if suffix == "bin" else {}
    ranks = saved(suffix)
    call(verb, ranks, suffix, **options)
    expected = files(here)
    for path in here.iterdir():
        path.unlink()
    ranks = saved(suffix)
    elsewhere()
    call(verb, ranks, suffix, **options)
    assert files(here) == expected
    check_sent()


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_queries_give_the_same_answers(suffix, here, elsewhere, monkeypatch):
    monkeypatch.setattr(planning, "SMALL_NBYTES", 0)
    ranks = saved(suffix)

    def answers() -> list[object]:
        return [str(mpired.diff(*ranks[:2])), *map(str, mpired.locate(ranks, "maxloc", top=3))]

    expected = answers()
    elsewhere()
    assert answers() == expected
    check_sent()


@pytest.mark.parametrize("verb", ["reduce", "scan"])
def test_in_place(verb, here, elsewhere):
    """Bytes between the entries of a derived type stay, which a worker reads from the file that is replaced."""
    Path("ops.py").write_text("def add(invec, inoutvec):\n    inoutvec = inoutvec.copy()\n"
                              "    for name in inoutvec.dtype.names or ():\n"
                              "        inoutvec[name] += invec[name]\n    return inoutvec\n")  # fmt: skip
    options = {"type": "struct([1,1],[0,8],[int,double])", "in_place": True, "format": "raw"}
    ranks = [f"r{rank}.bin" for rank in range(NRANKS)]
    contents = [np.random.default_rng(rank).integers(0, 99, 16 * 600, "u1").tobytes() for rank in range(NRANKS)]

    def done() -> dict[str, bytes]:
        for name, content in zip(ranks, contents, strict=True):
            Path(name).write_bytes(content)
        getattr(mpired, verb)(ranks, "ops.py:add", **options)
        return files(here)

    expected = done()
    assert expected["r0.bin" if verb == "reduce" else "r1.bin"] not in contents
    elsewhere()
    assert done() == expected
    check_sent()


def test_results_for_a_stream(here, elsewhere):
    ranks = saved("npy")
    mpired.reduce(ranks, "sum", output="expected.npy")
    elsewhere()
    os.mkfifo("fifo")
    expected, got = Path("expected.npy").read_bytes(), []

    def read() -> None:
        with open("fifo", "rb") as fifo:
            got.append(fifo.read(len(expected)))

    reader = threading.Thread(target=read)
    reader.start()
    mpired.reduce(ranks, "sum", output="fifo")
    reader.join()
    assert got == [expected]
    check_sent()


def test_user_ops_by_relative_paths(here, elsewhere):
    """The same place in two directories is two ops, also for workers that stay."""
    found = []
    elsewhere()
    for name, sign in (("one", "+"), ("two", "-")):
        os.mkdir(name)
        os.chdir(name)
        Path("my_ops.py").write_text(f"def combine(invec, inoutvec):\n    return invec {sign} inoutvec\n")
        found.append(mpired.reduce(saved("npy"), "my_ops.py:combine"))
        os.chdir(here)
    first, second, third = arrays()
    assert np.array_equal(found[0], first + second + third)
    assert np.array_equal(found[1], first - second - third)


def test_a_function_of_this_process_stays_in_it(here, elsewhere):
    expected = np.add.reduce(arrays())
    elsewhere()
    assert np.array_equal(mpired.reduce(saved("npy"), lambda invec, inoutvec: invec + inoutvec), expected)
    assert foreign.sent == []


# What is not named on the way is never found by others


def test_drafts_have_private_names_while_they_are_filled(here, elsewhere):
    seen: list[tuple[str, int]] = []
    ranks = saved("npy")
    elsewhere()
    foreign.before.append(lambda: seen.extend((path.name, path.stat().st_mode) for path in here.glob(".*")))
    mpired.reduce(ranks, "sum", output="out.parquet")
    # The result, and the elements that it is encoded from.
    assert sorted(name for name, _ in seen) == [".out.parquet.mpired-new", ".out.parquet.mpired-scratch-0"]
    assert {stat.S_IMODE(mode) for _, mode in seen} == {0o600}
    assert sorted(files(here)) == ["out.parquet", *ranks]


@pytest.mark.parametrize("output", ["out.npy", "out.parquet", None])
def test_nothing_is_left_if_a_worker_fails(output, here, elsewhere):
    ranks = saved("npy")
    Path("my_ops.py").write_text("def combine(invec, inoutvec):\n    raise ValueError('no')\n")
    elsewhere()
    with unchanged(here), pytest.raises(UserOpError, match="no"):
        mpired.reduce(ranks, "my_ops.py:combine", output=output)


@pytest.mark.parametrize("verb", ["reduce", "scan"])
def test_a_lost_worker_is_an_error_of_the_engine(verb, here, elsewhere):
    """The engine does not know how it ended, so that the op is not blamed."""
    ranks = saved("npy")
    Path("my_ops.py").write_text("import os\ndef combine(invec, inoutvec):\n    os.kill(os.getpid(), 9)\n")
    elsewhere()
    output = "out.npy" if verb == "reduce" else "out_{rank}.npy"
    with unchanged(here), pytest.raises(WorkerError, match="foreign engine: a worker was lost") as caught:
        getattr(mpired, verb)(ranks, "my_ops.py:combine", output=output)
    assert caught.value.exit_status == 8


@pytest.mark.parametrize("output", ["out.npy", "out.parquet"])
def test_the_next_command_removes_what_a_killed_one_has_left(output, here, monkeypatch, elsewhere):
    def die(*_words, **_options):
        os.kill(os.getpid(), signal.SIGKILL)

    ranks = saved("npy")
    fatal = types.SimpleNamespace(limits=foreign.limits, run=die)
    pid = os.fork()
    if not pid:
        monkeypatch.setattr(Engine, "runner", fatal)
        choose_foreign(monkeypatch)
        mpired.reduce(ranks, "sum", output=output)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    left = [path.name for path in here.iterdir() if path.name not in ranks]
    assert len(left) == (2 if output == "out.parquet" else 1)
    elsewhere()
    mpired.reduce(ranks, "sum", output=output)
    assert sorted(files(here)) == [output, *ranks]


def test_a_stream_cannot_be_a_rank(here, elsewhere):
    ranks = saved("npy")
    os.mkfifo("fifo")

    def write() -> None:
        Path("fifo").write_bytes(Path(ranks[0]).read_bytes())

    elsewhere()
    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(UsageError, match=r"fifo: is a stream of this process, .* engine foreign cannot open"):
        mpired.reduce(["fifo", *ranks], "sum", output="out.npy")
    writer.join()
    assert sorted(os.listdir()) == ["fifo", *ranks]


@pytest.mark.parametrize("kind", ["output", "scratch"])
def test_something_else_under_the_name_of_a_draft_is_not_opened(kind, here):
    made = Draft("out.npy", named=True) if kind == "output" else Scratch(str(here), "out.npy", named=True)
    with made:
        shared = made.shared
        (name,) = os.listdir()
        os.close(shared.open())
        os.rename(name, "moved")
        Path("precious").write_bytes(b"precious")
        os.link("precious", name)
        with pytest.raises(OSError, match="something took its name"):
            shared.open()
        os.unlink(name)
        os.symlink("precious", name)
        with pytest.raises(OSError, match="symbolic links"):
            shared.open()
        os.unlink(name)
    assert Path("precious").read_bytes() == b"precious"


# The table


def test_the_pool_is_the_engine_that_nobody_has_to_choose():
    assert list(ENGINES) == [*ENGINE_NAME.words]
    assert next(iter(ENGINES.values())) is LOCAL
    assert LOCAL.same_tree
    assert (LOCAL.runner.__name__, LOCAL.extra) == ("mpired.engines.pool", "")
    limits = LOCAL.runner.limits()
    assert limits.workers >= 1
    assert limits.descriptors != 0


def test_other_rows_are_whole():
    project = tomllib.loads((Path(mpired.__file__).parent.parent / "pyproject.toml").read_text())["project"]
    others = [row for row in ENGINES.values() if row is not LOCAL]
    assert [re.split(r"[<>=]", *project["optional-dependencies"][row.extra])[0] for row in others] == [
        row.package for row in others
    ]
    assert not any(row.same_host or row.same_tree for row in others)  # children of this process are on its host
    assert all(row.doc and callable(importlib.import_module(row.module).connect) for row in others)


def test_paths_are_absolute_in_a_pickle_alone(here):
    import pickle

    from mpired.ops.clibrary import LibraryKernel
    from mpired.ops.user import PythonKernel
    from mpired.sources.local import LocalSource

    (name, *_) = saved("npy")
    source = LocalSource.of(name, name)
    assert source.path == name
    copy = pickle.loads(pickle.dumps(source))
    assert (copy.name, copy.path) == (name, str(here / name))
    assert calls.absolute(name) == str(here / name)
    for kernel in (PythonKernel("my_ops.py:f"), LibraryKernel("./ops.so", "f")):
        copy = pickle.loads(pickle.dumps(kernel))
        assert (kernel.directory, copy.directory) == ("", str(here))
        assert copy.place == kernel.place


def test_the_command_lists_the_engines(tmp_path):
    lines = run("engines", cwd=tmp_path).out.decode().splitlines()
    assert [line.split()[0] for line in lines] == list(ENGINES)
    rows = {row["engine"]: row for row in json.loads(run("engines", "--json", cwd=tmp_path).out)}
    assert rows["local"]["workers"] >= 1
    for name, package in (("mpi", "mpi4py"), ("dask", "distributed")):
        assert rows[name]["version"] == metadata.version(package)
