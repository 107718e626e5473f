"""The engine dask: a real scheduler with workers of one and of three threads, in a process that `test_dask` starts."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import eager_command
import numpy as np
import pytest
from command import unchanged

import mpired
from mpired.collectives import plan as planning
from mpired.errors import UsageError, UserOpError, WorkerError

del sys.modules["dask"]  # which conftest.py blocks, for the tests that share a process
distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")

# Its connections are closed when they are forgotten.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

DASK = os.path.join(sysconfig.get_path("scripts"), "dask")
RANKS = [f"r{rank}.npy" for rank in range(4)]


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A scheduler, whose file is `scheduler.json`, and a worker of one thread; what is started, in order."""
    environment = os.environ | {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}
    started = []

    def start(*words: str) -> None:
        command = [DASK, *words, "--no-dashboard", "--scheduler-file", str(folder / "scheduler.json")]
        output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen(command, cwd=folder, env=environment, **output))

    start("scheduler", "--host", "127.0.0.1", "--port", "0")
    start("worker", "--no-nanny", "--nthreads", "1", "--death-timeout", "60", "--local-directory", str(folder))
    try:
        wait_for(folder / "scheduler.json")
        yield started
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(path: Path) -> None:
    """Wait until a file is there, with a line."""
    until = time.monotonic() + 60
    while not (path.exists() and path.read_text().endswith(("\n", "}"))):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A scheduler in this process, with a worker process of one thread and one of three."""
    settings = {
        "distributed.comm.timeouts.connect": "60s",
        "distributed.scheduler.allowed-failures": 1,
        "distributed.worker.multiprocessing-method": "forkserver",  # workers that are lost are soon there again
        "distributed.worker.profile.enabled": False,
    }
    here = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    own = {**here, "local_directory": str(tmp_path_factory.mktemp("dask"))}
    workers = {n: {"cls": distributed.Nanny, "options": {**own, "nthreads": n}} for n in (1, 3)}
    scheduler = {"cls": distributed.Scheduler, "options": here}
    with (
        dask.config.set(settings),
        distributed.SpecCluster(workers=workers, scheduler=scheduler, silence_logs="CRITICAL") as cluster,
    ):
        yield cluster.scheduler_address


@pytest.fixture(scope="module")
def client(address):
    with distributed.Client(address, timeout=60, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


@pytest.fixture
def here(here, monkeypatch) -> Path:
    """Ranks in the working directory, which is not that of the workers; little data is enough for these."""
    for name, nbytes in eager_command.SIZES.items():
        monkeypatch.setattr(planning, name, nbytes)
    return here


def results(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("out*"))}


@pytest.mark.parametrize(("verb", "op", "output"), [
    ("reduce", "sum", "out.npy"),
    ("reduce", "ops.py:add", "out.parquet"),
    ("scan", "prod", "out{rank}.npy"),
    ("reduce_scatter_block", "sum", "out{rank}.npy"),
    ("allreduce", "sum", "out{rank}.npy"),
    ("reduce", "mean,std,ops.py:add", "out.npz"),
])  # fmt: skip
@pytest.mark.sampled(2)
def test_the_same_bits(verb, op, output, here, client):
    call = getattr(mpired, verb)
    call(RANKS, op, output=output, overflow="wrap" if op == "prod" else None)
    expected = results(here)
    summary = call(RANKS, op, output=output, overflow="wrap" if op == "prod" else None, overwrite=True, engine=client)
    assert results(here) == expected
    assert (summary.engine, summary.machines) == ("dask", 1)
    assert summary.workers >= 2
    assert not list(here.glob(".*"))


def test_workers_that_stay_load_an_op_that_has_changed(here, client):
    first = mpired.reduce(RANKS, "ops.py:add", engine=client)
    ops = Path("ops.py").read_text()
    Path("ops.py").write_text(ops.replace("invec + inoutvec", "invec - inoutvec"))
    arrays = [np.load(name) for name in RANKS]
    assert np.array_equal(first, arrays[0] + arrays[1] + arrays[2] + arrays[3])
    assert np.array_equal(
        mpired.reduce(RANKS, "ops.py:add", engine=client), arrays[0] - arrays[1] - arrays[2] - arrays[3]
    )


def test_an_error_of_an_op_is_that_error(here, client):
    with unchanged(here), pytest.raises(UserOpError, match="raised ValueError: no"):
        mpired.reduce(RANKS, "ops.py:refuse", output="out.npy", engine=client)


def test_every_worker_has_something_to_do(here, client):
    """The scheduler alone would give the first tasks to the worker that has the function already."""
    for _ in range(3):
        mpired.reduce(RANKS, "ops.py:sign", jobs=2, engine=client)
        signatures = list(here.glob("in_it.*"))
        assert len(signatures) == 2
        for path in signatures:
            path.unlink()


def test_an_op_that_ends_its_workers_is_to_blame(here, client):
    with unchanged(here), pytest.raises(UserOpError, match="a task has ended the process of its worker, 2 times"):
        mpired.reduce(RANKS, "ops.py:end", output="out.npy", engine=client)
    client.wait_for_workers(2, timeout=60)


def test_others_do_what_a_lost_worker_has_not_done(here, client):
    def kill(_) -> None:
        wait_for(Path("in_it"))
        os.kill(int(Path("in_it").read_text()), signal.SIGKILL)

    with ThreadPoolExecutor(1) as thread:
        killed = thread.submit(kill, None)
        summary = mpired.reduce(RANKS, "ops.py:first_waits", output="out.npy", engine=client)
        killed.result()
    assert np.array_equal(np.load("out.npy"), mpired.reduce(RANKS, "sum"))
    assert summary.repeated >= 1
    assert re.search(r"workers? on 1 machine \(dask\), \d segments? repeated -> out.npy", summary.line())
    client.wait_for_workers(2, timeout=60)


def test_a_worker_that_does_not_answer_is_an_error(here, client):
    def stop() -> int:
        wait_for(Path("in_it"))
        pid = int(Path("in_it").read_text())
        os.kill(pid, signal.SIGSTOP)
        return pid

    with ThreadPoolExecutor(1) as thread:
        stopped = thread.submit(stop)
        try:
            with pytest.raises(WorkerError, match="does not answer for 2 s; nothing was written"):
                mpired.reduce(RANKS, "ops.py:first_waits", output="out.npy", engine=client, engine_timeout=2)
        finally:
            os.kill(stopped.result(), signal.SIGKILL)
    assert not results(here)
    client.wait_for_workers(2, timeout=60)


def test_the_command_finds_the_scheduler(here, address, client):
    words = ["reduce", "--op", "sum", *RANKS, "--engine", "dask", "--scheduler", address, "-o", "out.npy", "--json"]
    command = [sys.executable, eager_command.__file__, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert [summary[name] for name in ("engine", "machines", "repeated")] == ["dask", 1, 0]
    assert summary["workers"] >= 1  # a worker that was killed before may not be there again
    assert np.array_equal(np.load("out.npy"), mpired.reduce(RANKS, "sum"))


@contextlib.contextmanager
def in_an_op(address: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command, at work in a call of an op that does not come back by itself."""
    words = ["reduce", "--op", "ops.py:first_waits", *RANKS, "-o", "out.npy", *options]
    command = [sys.executable, eager_command.__file__, *words, "--engine", "dask", "--scheduler", address]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as started:
        try:
            wait_for(Path("in_it"))
            yield started
        finally:
            started.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.sampled(3)
def test_a_command_that_is_ended_leaves_nothing(number, here, address, client):
    with in_an_op(address) as command:
        command.send_signal(number)
        _, messages = command.communicate(timeout=60)
    end_the_op()
    assert command.returncode == -number
    assert messages == ("mpired: interrupted; no result was written\n" if number == signal.SIGINT else "")
    assert not results(here)
    assert not list(here.glob(".*"))
    client.wait_for_workers(2, timeout=60)


def end_the_op() -> None:
    """Kill the worker that waits in it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(Path("in_it").read_text()), signal.SIGKILL)


@pytest.mark.parametrize(("end", "said"), [
    (lambda _scheduler, worker: worker.terminate(), "has had no worker for 2 s; nothing was written"),
    (lambda scheduler, _worker: scheduler.send_signal(signal.SIGSTOP), "does not answer"),
    (lambda scheduler, _worker: scheduler.kill(), "was lost, or has forgotten the tasks; nothing was written"),
], ids=["no worker", "a scheduler that stands", "no scheduler"])  # fmt: skip
@pytest.mark.sampled(3)
def test_a_cluster_that_is_lost_leaves_nothing(end, said, here):
    (here / "dask").mkdir()
    limit = "60" if "was lost" in said else "2"  # a busy machine may see the end of a connection after 2 s
    with (
        cluster(here / "dask") as started,
        in_an_op(str(here / "dask" / "scheduler.json"), "--engine-timeout", limit) as it,
    ):
        end(*started)
        _, messages = it.communicate(timeout=60)
        end_the_op()
        started[0].send_signal(signal.SIGCONT)
    assert it.returncode == 8
    assert said in messages
    assert "Traceback" not in messages
    assert not results(here)
    assert not list(here.glob(".*"))


def test_a_scheduler_that_is_not_there(here, monkeypatch):
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    refusals = [
        ({}, UsageError, "`scheduler`: is missing; start one by `dask scheduler`"),
        ({"scheduler": "none.json"}, UsageError, "`scheduler`: 'none.json' is neither the address of one"),
        ({"scheduler": "tcp://127.0.0.1:1", "engine_timeout": 0.2}, WorkerError, "does not answer"),
    ]
    for options, error, said in refusals:
        with unchanged(here), pytest.raises(error, match=re.escape(said)):
            mpired.reduce(RANKS, "sum", output="out.npy", engine="dask", **options)
