"""Errors survive the way between processes."""

import copy
import errno
import importlib
import inspect
import itertools
import pickle
import pkgutil
import sys

import mpired
from mpired import errors
from mpired.errors import MpiredError, RanksError, WorkerError

WAYS = [*(lambda error, n=n: pickle.loads(pickle.dumps(error, n)) for n in range(6)), copy.copy, copy.deepcopy]


def _kinds(kind: type[MpiredError]):
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


TWO = errors.CountError("r0.npy", "has count 3"), FileNotFoundError(errno.ENOENT, "No such file", "r1.npy")
MADE = {RanksError: lambda: RanksError(4, [*TWO], "outputs"), WorkerError: lambda: WorkerError("workers", "died", -9)}


def test_an_error_is_the_same_after_it():
    kinds = set(_kinds(MpiredError))
    assert errors.CountError in kinds
    for kind, way in itertools.product(kinds, WAYS):
        error = MADE.get(kind, lambda kind=kind: kind("r3.npy", "has count 999"))()
        error.add_note("a note")
        found = way(error)
        assert type(found) is kind
        assert str(found) == str(error) != ""
        assert found.args == error.args, kind
        assert (found.exit_status, found.mpi_class) == (error.exit_status, error.mpi_class), kind
        assert getattr(found, "errno", None) == getattr(error, "errno", None), kind
        assert getattr(found, "strerror", None) == getattr(error, "strerror", None), kind
        left, right = dict(vars(found)), dict(vars(error))
        assert list(map(repr, left.pop("errors", ()))) == list(map(repr, right.pop("errors", ()))), kind
        assert left == right, kind


def test_all_errors_of_the_program_are_known_here():
    """An error of another module is one of the tree, or one of these, which never leave their process."""
    found = set()
    for module in pkgutil.walk_packages(mpired.__path__, "mpired."):
        if "__main__" not in module.name:
            members = vars(importlib.import_module(module.name)).values()
            found |= {each for each in members if inspect.isclass(each) and issubclass(each, BaseException)}
    ours = {each for each in found if each.__module__.startswith("mpired")}
    outside = {each.__name__ for each in ours if not issubclass(each, MpiredError | errors.MpiredWarning)}
    known = "Abort CreatedMeanwhile GoneError Interrupted Stopped _LeftError DamageError Misfit"
    assert sorted(outside) == sorted(known.split())


def test_hints_name_the_interpreter_that_runs(monkeypatch, tmp_path):
    """One of the system whose packages Debian manages gets an environment first (PEP 668)."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    monkeypatch.setattr("sys.executable", "/a b/python3")
    assert errors.installation("mpired[ml]") == "`'/a b/python3' -m pip install 'mpired[ml]'`"
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    monkeypatch.setattr("sys.prefix", sys.base_prefix)
    assert errors.installation("numpy") == "`'/a b/python3' -m venv .venv && .venv/bin/python -m pip install numpy`"


def test_hints_work_where_python_cannot_put_pip_into_an_environment(monkeypatch, tmp_path):
    """Debian's cannot without python3-venv: its own pip works on the environment from outside."""
    base, python = tmp_path / "base", tmp_path / "python"
    base.touch()
    python.symlink_to(base)
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert errors.installation("numpy") == f"`{base} -m pip --python {python} install numpy`"
    monkeypatch.setattr("sys.prefix", sys.base_prefix)
    made, pip = f"{python} -m venv --without-pip .venv", f"{python} -m pip --python .venv/bin/python"
    assert errors.installation("numpy") == f"`{made} && {pip} install numpy`"


def test_a_reason_has_an_end_but_all_reasons_are_told():
    long = errors.CountError("r.npy", f"has {'9' * 100_000}; say fewer")
    assert len(str(long)) < 2100
    assert str(long).endswith("say fewer")
    names = [f"r{rank}.npy" for rank in range(1000)]
    every = RanksError(1001, [errors.CountError(name, f"has count {rank}") for rank, name in enumerate(names)])
    assert all(f"{name}: has count {rank}" in str(every) for rank, name in enumerate(names))
    alike = RanksError(1001, [errors.CountError(name, "has count 3") for name in names])
    assert str(alike) == "1000 of 1001 ranks: count 3: r0.npy, r1.npy, r2.npy, ... (1000 ranks)"
    whole = RanksError(1000, alike.errors)
    assert str(whole) == "1000 of 1000 ranks: count 3: r0.npy, r1.npy, r2.npy, ..."
    assert [error.subject for error in whole.errors] == names
    hints = RanksError(3, [errors.CountError(name, f"rank 1 lacks 'x'; choose {name}") for name in "ab"])
    assert str(hints) == "2 of 3 ranks: lack 'x': a, b; choose a"
    assert str(pickle.loads(pickle.dumps(every))) == str(every)
