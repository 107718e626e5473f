"""The commands as they are declared, for shells that ask what can stand in a line.

A command's options, arguments and help are in its module, and so is what carries it out, which needs NumPy and most of
the program. A shell asks at each press of a key, so that is left out here: modules of the rooms that a declaration
needs nothing of are empty while the command's module is imported, and whatever is taken from them is a mere name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import click

_NEEDED = frozenset({"cli", "errors", "installed", "options", "progress", "storage", "values"})


class _Name(type):
    """The class of what is taken from an empty module."""

    def __getattr__(cls, name: str) -> _Name:
        return _Name(name, (), {})

    def __iter__(cls) -> Iterator[_Name]:
        return iter(())


class _Empty(ModuleType):
    """A module without its content."""

    def __getattr__(self, name: str) -> _Name:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(name, (), {})


class _Finder(MetaPathFinder, Loader):
    """Finds empty modules in the place of all rooms that are not needed."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        if package != "mpired" or rest.partition(".")[0] in _NEEDED:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


def declared(name: str) -> click.Command:
    """Return a command that can be asked for all but to be carried out."""
    finder, before = _Finder(), set(sys.modules)
    sys.meta_path.insert(0, finder)
    try:
        word = name.replace("-", "_")
        command: click.Command = getattr(importlib.import_module(f"mpired.cli.{word}"), word)
        return command
    finally:
        sys.meta_path.remove(finder)
        # What is imported from now on is whole.
        for each in sys.modules.keys() - before:
            module = sys.modules.pop(each)
            parent, _, last = each.rpartition(".")
            if vars(sys.modules.get(parent, ModuleType(""))).get(last) is module:
                delattr(sys.modules[parent], last)
