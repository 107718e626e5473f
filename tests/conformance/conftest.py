"""Fixtures for the comparison with a real MPI."""

from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def mpi() -> ModuleType:
    """The module of mpi4py; importing it starts MPI in this process alone."""
    from mpi4py import MPI

    assert MPI.Get_library_version().startswith("MPICH"), "the expectations here are MPICH's"
    return MPI
