"""The row of a file format, and what its module supplies."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import NamedTuple, Protocol, TypeAlias, cast

from mpired import installed
from mpired.buffers.declared import Declared
from mpired.buffers.flat import FlatBuffer, FlatLayout
from mpired.buffers.model import Model
from mpired.buffers.rank import RankFile
from mpired.buffers.source import Source
from mpired.datatypes.times import TIMES
from mpired.errors import BufferFileError, DatatypeError, MpiredError, UsageError
from mpired.storage import calls, interruptions

Encoder: TypeAlias = Callable[[Sequence[FlatBuffer], int], None]
"""Writes results, given as flat buffers of native elements, to an open file in some other form."""


class InputModule(Protocol):
    """What the module of a format that can be read supplies."""

    def inspect(self, source: Source, declared: Declared) -> RankFile: ...


class OutputModule(Protocol):
    """What the module of every format supplies; all that can be refused is refused here."""

    def prepare(self, model: Model) -> FlatLayout | Encoder: ...


class RewritingModule(Protocol):
    """What the module of a format supplies besides, whose files are updated by writing them again."""

    def rewrite(self, source: Source, changed: Sequence[FlatBuffer], fd: int) -> None: ...


class Format(NamedTuple):
    """A file format: a row of the table. All that is particular to a format is said here, or done by its module.

    Parameters
    ----------
    name
        The word for `--from` and `--to`.
    suffixes
        File name endings that mean it, in small letters with their dot.
    magic
        The first bytes of every such file, empty if there are none.
    readable
        Whether it can be an input; else it is for results only.
    needs_type
        Whether its files say nothing of their elements, so that the user declares datatype, count and byte order.
    has_columns
        Whether it holds any number of buffers, each with a name; else one.
    keeps
        Whether its files can have columns of any type beside those that are buffers, which `prepare` then looks after.
    streamed
        Whether its elements can only be decoded in sequence; it is then read in larger blocks.
    updatable
        Whether its files can be windows. Those of a format that is not streamed are changed where their elements lie,
        and can be made new; those of another are written again.
    doc
        A line of documentation.
    address_space
        Bytes that its libraries need to be loaded; some crash where they cannot be mapped.
    place
        The module that knows an installed format, as `PACKAGE.MODULE`; "" for those of mpired itself. It supplies
        `inspect` if the format is `readable`, `prepare`, and `rewrite` if it is `updatable` and `streamed`.

    Examples
    --------
    A package registers a row by an entry point of the group `mpired.formats`, which has the name of the format:

    >>> row = Format("grid", (".grid",), b"GRID", updatable=True, place="mpired_grid.reader")
    >>> row.streamed
    False
    """

    name: str
    suffixes: tuple[str, ...] = ()
    magic: bytes = b""
    readable: bool = True
    needs_type: bool = False
    has_columns: bool = False
    keeps: bool = False
    streamed: bool = False
    updatable: bool = False
    doc: str = ""
    address_space: int = 0
    place: str = ""

    @property
    def module(self) -> ModuleType:
        """The module that knows the format; imported only where the format is used."""
        own = f"mpired.buffers.{'' if self.readable else 'to_'}{self.name}"
        return _imported(self.place or own, self.address_space)

    def inspect(self, source: Source, declared: Declared) -> RankFile:
        """Describe a file of this format, from its header.

        Raises
        ------
        BufferFileError
            If the file is damaged, or the package of an installed format fails.
        DatatypeError
            If its elements are of no MPI datatype, or of another than is declared.
        """
        with self._blamed(source.name):
            return cast("InputModule", self.module).inspect(source, declared)._replace(format=self.name)

    def prepare(self, model: Model) -> FlatLayout | Encoder:
        """Say how a result like `model` is written in this format, or why it cannot be.

        Raises
        ------
        UsageError
            If it has several buffers, and this format holds one.
        DatatypeError
            If the format has no form for the elements.
        """
        if len(model.buffers) > 1 and not self.has_columns:
            names = ", ".join(buffer.name for buffer in model.buffers)
            reason = f"holds one buffer, but there are {len(model.buffers)} ({names}); choose one with `columns`"
            raise UsageError(f"`to={self.name!r}`", reason)
        if not self.keeps and (times := [each.datatype for each in model.buffers if each.datatype.group in TIMES]):
            raise DatatypeError(f"{times[0]}", f"has no form in {self.name}; use `to='parquet'` or `to='arrow'`")
        if model.kept and not self.keeps:
            raise UsageError("`keep`", f"is for parquet and arrow results, and this one is {self.name}; leave it out")
        if model.format != self.name:  # what a file of another format has besides its elements means nothing here
            model = replace(model, source=None)
        with self._blamed(f"`to={self.name!r}`"):
            return cast("OutputModule", self.module).prepare(model)

    def rewrite(self, source: Source, changed: Sequence[FlatBuffer], fd: int) -> None:
        """Write a file again, some of its buffers with new elements.

        Parameters
        ----------
        source
            The old file.
        changed
            The new elements, each buffer named as its column.
        fd
            The new file.
        """
        with self._blamed(source.name):
            cast("RewritingModule", self.module).rewrite(source, changed, fd)

    @contextlib.contextmanager
    def _blamed(self, subject: str) -> Iterator[None]:
        """Turn what goes wrong in an installed package into an error of its file; in mpired itself it is a bug."""
        try:
            yield
        except (Exception, SystemExit) as error:
            if not self.place or isinstance(error, MpiredError | OSError | MemoryError):
                raise
            what = f"{type(error).__name__}: {error}"
            reason = f"the format {self.name} of {self.place} failed ({what}); repair or remove the package"
            raise BufferFileError(subject, reason) from error


@functools.cache
def _imported(name: str, address_space: int) -> ModuleType:
    """Import a module; not out of `sys.modules`, where it stands already while another thread imports it."""
    calls.check_address_space(address_space)
    # An exception within an import is taken for another error, or lost.
    with interruptions.blocked(), contextlib.nullcontext() if name.startswith("mpired.") else installed.loading():
        return importlib.import_module(name)
