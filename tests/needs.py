"""What some tests need that a machine may not have: there they are skipped with the reason, and in CI they fail."""

import functools
import importlib.util
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from typing import NamedTuple

import pytest


class Need(NamedTuple):
    """Something that a test needs: how to see whether it is there, and how to get it."""

    is_there: Callable[[], bool]
    way: str


def _runs(*words: str) -> bool:
    return (
        shutil.which(words[0]) is not None and subprocess.run(words, capture_output=True, check=False).returncode == 0
    )


def _may_mount() -> bool:
    return _runs("unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt")


def _has_bindfs() -> bool:
    return shutil.which("bindfs") is not None and os.access("/dev/fuse", os.W_OK) and _may_mount()


NEEDS = {
    "gcc": Need(lambda: shutil.which("gcc") is not None, "apt-get install gcc libc6-dev"),
    "gfortran": Need(lambda: shutil.which("gfortran") is not None, "apt-get install gfortran"),
    "mpicc": Need(
        lambda: (
            os.access(os.path.join(sysconfig.get_path("scripts"), "mpicc"), os.X_OK) and shutil.which("gcc") is not None
        ),
        "pip install mpich, apt-get install gcc libc6-dev",
    ),
    "pip": Need(
        lambda: importlib.util.find_spec("pip") is not None, "apt-get install python3-venv, and make .venv again"
    ),
    "mypy": Need(lambda: importlib.util.find_spec("mypy") is not None, "pip install mypy"),
    "ruff": Need(lambda: importlib.util.find_spec("ruff") is not None, "pip install ruff"),
    "pyright": Need(lambda: importlib.util.find_spec("pyright") is not None, "pip install 'pyright[nodejs]'"),
    "groff": Need(lambda: shutil.which("groff") is not None, "apt-get install groff-base"),
    **{
        name: Need(functools.partial(shutil.which, name), f"apt-get install {package}")
        for name, package in {"bzip2": "bzip2", "xz": "xz-utils", "zstd": "zstd", "lz4": "lz4"}.items()
    },
    "sphinx": Need(
        lambda: all(map(importlib.util.find_spec, ("sphinx", "furo", "myst_parser"))), "pip install -e '.[docs]'"
    ),
    "root": Need(lambda: os.geteuid() == 0, "run the tests as root"),
    "mount": Need(_may_mount, "run the tests as root, with the right to mount"),
    "bindfs": Need(_has_bindfs, "apt-get install bindfs, as root, with the right to mount"),
}


@functools.cache
def has(name: str) -> bool:
    """Tell whether something that tests need is there."""
    return NEEDS[name].is_there()


def needs(*names: str) -> None:
    """Skip the test that calls this, or whose fixture does, unless all that it needs is there."""
    for name in names:
        if not has(name):
            pytest.skip(f"needs {name} ({NEEDS[name].way})")
