"""The libraries of formats: a worker loads one ahead, and one that is broken is told by its name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import h5py
import netCDF4
import numpy as np
import pytest
from command import COMMAND, PIP, become_nobody, refused, run, unchanged
from needs import needs
from rows import together
from running import end_in_time, running

# Runs the command, and tells whether its own process has loaded h5py.
TELLING = """
import sys
from mpired.cli import main
status = main()
print("h5py" in sys.modules)
sys.exit(status)
"""
# The first fork fails, as where there may be no more processes.
NO_FIRST = """
import os
fork, failed = os.fork, []
def refuse():
    if not failed:
        failed.append(True)
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()
os.fork = refuse
"""
# Tells how many workers there were, too.
COUNTING = """
import os
fork, made = os.fork, []
os.fork = lambda: made.append(fork()) or made[-1]
"""
# The first worker stops before it does anything.
STANDING = """
import os, signal, sys
fork = os.fork
def stop():
    pid = fork()
    if not pid:
        os.kill(os.getpid(), signal.SIGSTOP)
    return pid
os.fork = stop
sys.argv[:] = sys.argv[1:]
from mpired.cli import main
sys.exit(main())
"""
THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
SUM = ("reduce", "-q", "--op", "sum", "-o")  # a result that is there would be the first file


@pytest.fixture
def ranks(tmp_path):
    """Return three contiguous files and three in chunks, of which rank i has i + 1 everywhere."""
    made = {kind: [f"{kind}{i}.h5" for i in range(3)] for kind in ("contiguous", "chunked")}
    for kind, names in made.items():
        for i, name in enumerate(names):
            with h5py.File(tmp_path / name, "w") as file:
                file.create_dataset("x", data=np.full(100, i + 1.0), chunks=(10,) if kind == "chunked" else None)
    return made


def script(text, *words, cwd):
    done = subprocess.run([sys.executable, "-c", text, *words], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_a_worker_loads_it_for_elements_that_lie_as_they_are(ranks, tmp_path):
    """Those who decode are forked when it is loaded; the classic form of netCDF needs no library and no worker."""
    for kind, is_loaded in (("contiguous", False), ("chunked", True)):
        assert script(TELLING, *SUM, f"{kind}.h5", *ranks[kind], cwd=tmp_path).split() == [str(is_loaded)]
        with h5py.File(tmp_path / f"{kind}.h5") as file:
            assert set(file["x"][()]) == {6.0}
    words = ("accumulate", "-q", "--op", "sum", *ranks["contiguous"][:2])
    assert script(TELLING, *words, cwd=tmp_path).split() == ["False"]
    with h5py.File(tmp_path / "contiguous0.h5") as file:
        assert set(file["x"][()]) == {3.0}
    for form, nworkers in (("NETCDF4", 1), ("NETCDF3_CLASSIC", 0)):
        with netCDF4.Dataset(tmp_path / "r.nc", "w", format=form) as file:
            file.createDimension("x", 3)
            file.createVariable("v", "f8", ("x",))[:] = 1.0
        text = COUNTING + TELLING.replace("print(", "print(len(made), ")
        assert script(text, "info", "r.nc", cwd=tmp_path).splitlines()[-1] == f"{nworkers} False"


@pytest.mark.parametrize("before", [NO_FIRST, THREAD], ids=["no worker", "threads"])
def test_where_it_cannot_be_loaded_ahead(before, ranks, tmp_path):
    for kind in ("contiguous", "chunked"):
        script(before + TELLING, *SUM, f"{kind}.npy", *ranks[kind], cwd=tmp_path)
        assert set(np.load(tmp_path / f"{kind}.npy")) == {6.0}


def test_first_file_of_another_kind(ranks, tmp_path):
    """A file of another kind, or none, comes first: a pipe is not read ahead."""
    np.save(tmp_path / "one.npy", np.ones(100))
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["sh", "-c", "cat one.npy > pipe"], cwd=tmp_path):
        for first in ("pipe", "one.npy"):
            script(TELLING, *SUM, f"{first}.sum.npy", first, *ranks["contiguous"], cwd=tmp_path)
            assert set(np.load(tmp_path / f"{first}.sum.npy")) == {7.0}


def test_first_file_that_cannot_be_read(tmp_path):
    """It is no error of a command that does not use it."""
    needs("root")
    tmp_path.chmod(0o755)
    (tmp_path / "secret.h5").touch(0)
    assert b"Usage" in run("info", "--help", "secret.h5", cwd=tmp_path, setup=become_nobody).out
    refused(run("info", "secret.h5", cwd=tmp_path, setup=become_nobody), 4, "secret.h5: Permission denied")


def test_the_room_for_numpy_is_asked_for_once(tmp_path):
    """The command needs no more address space because it has loaded NumPy to look ahead."""
    np.save(tmp_path / "one.npy", np.ones(100))
    words = ["sh", "-c", f"ulimit -v 150000; exec {COMMAND} info one.npy"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def fake(tmp_path_factory):
    """Return what runs the command with another text of a package."""

    def environment(name, text):
        package = tmp_path_factory.mktemp("path") / name
        package.mkdir()
        (package / "__init__.py").write_text(text)
        return os.environ | {"PYTHONPATH": str(package.parent)}

    return environment


def installed(*words, **settings):
    done = subprocess.run([COMMAND, *words], capture_output=True, text=True, check=False, **settings)
    return done.returncode, done.stdout, done.stderr


def test_one_that_is_broken_is_told(ranks, fake, tmp_path):
    """By one line that names it, not the file, and not only where its file is first; what it prints is no output."""
    np.save(tmp_path / "one.npy", np.ones(100))
    (tmp_path / "r.zarr").mkdir()
    array = '{"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "<f8", "order": "C", "fill_value": 0.0, '
    (tmp_path / "r.zarr" / ".zarray").write_text(f'{array}"compressor": null, "filters": null}}')
    with together(tmp_path) as case:
        for error, library, out, *names in (
            ("ValueError('numpy.dtype size changed')", "h5py", "o.npy", *ranks["contiguous"]),
            ("ImportError('no such name')", "h5py", "o.npy", *ranks["chunked"]),
            ("ValueError('numpy.dtype size changed')", "zarr", "o.npy", "r.zarr"),
            ("ImportError('no such name')", "h5py", "o.h5", "one.npy"),
            ("ImportError('no such name')", "zarr", "o.zarr.zip", "one.npy"),
        ):
            with case(error, library, names), unchanged(tmp_path):
                env = fake(library, f"raise {error}")
                outcome = installed("reduce", "--op", "sum", "-o", out, *names, cwd=tmp_path, env=env)
                what = error.replace("('", ": ").removesuffix("')")
                way_out = f"install it again with `{PIP} install --force-reinstall {library}`"
                assert outcome == (2, "", f"mpired: {library}: cannot be imported ({what}); {way_out}\n")
    env = fake("h5py", "print('hello'); raise ValueError('no')")
    status, out, err = installed("info", *ranks["contiguous"], cwd=tmp_path, env=env)
    assert (status, out, err.splitlines()[0]) == (2, "", "hello")


@pytest.mark.parametrize("how", ["os.abort()", "os._exit(3)"])
def test_one_that_ends_the_worker_is_not_told_as_damage(how, ranks, fake, tmp_path):
    """The command loads it then, and ends as it does."""
    outcome = installed("info", *ranks["contiguous"], cwd=tmp_path, env=fake("h5py", f"import os; {how}"))
    assert outcome == (3 if "exit" in how else -signal.SIGABRT, "", "")


def test_interrupted_while_it_is_loaded(ranks, fake, tmp_path):
    """Nothing is left of a worker that does not end: one that loads, and one that stops before its first answer."""
    env = fake("h5py", "import signal\nwhile True: signal.pause()")
    for prefix in (("env", f"PYTHONPATH={env['PYTHONPATH']}"), (sys.executable, "-c", STANDING)):
        with unchanged(tmp_path), running("info", *ranks["contiguous"], cwd=tmp_path, prefix=prefix) as command:
            workers = command.workers(1)
            os.kill(command.pid, signal.SIGINT)
            assert command.end()[0] == -signal.SIGINT
            end_in_time(workers)


def test_it_is_loaded_while_the_command_is(ranks, tmp_path):
    """Before the modules of the command are, of which one is made to wait for the worker."""
    needs("strace")
    words = ["strace", "-f", "-qq", "-e", "trace=openat,clone,fork,vfork", "-o", "calls", COMMAND, "info"]
    subprocess.run([*words, *ranks["contiguous"]], cwd=tmp_path, check=True, capture_output=True)
    calls = [line.split(maxsplit=1) for line in (tmp_path / "calls").read_text().splitlines()]
    command = calls[0][0]
    forked = next(i for i, (pid, call) in enumerate(calls) if pid == command and call.startswith("clone"))
    own = [i for i, (pid, call) in enumerate(calls) if pid == command and "/mpired/cli/" in call and "info" in call]
    assert forked < min(own)
    loaders = {pid for pid, call in calls if "libhdf5" in call and "ENOENT" not in call}
    assert loaders
    assert command not in loaders
