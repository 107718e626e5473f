"""The row of a file format, and what its module supplies."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from mpired import installed, interrupts
from mpired.datatypes import TIMES, Group, value_type
from mpired.datatypes.pairs import FIELDS, column_of, field_type
from mpired.datatypes.times import is_of_numpy
from mpired.errors import BufferFileError, DatatypeError, MpiredError, UsageError
from mpired.files import calls
from mpired.files.scratch import Scratch
from mpired.formats.array import Array
from mpired.formats.input_options import InputOptions
from mpired.formats.layout import (
    ArrayLayout,
    Encoder,
    FlatLayout,
    Layout,
    check_names,
    in_scratch,
    in_two,
    paired,
    reads_back,
)
from mpired.formats.memory import MemorySource
from mpired.formats.missing import Missing
from mpired.formats.rank import Cells, Kept, Model, RankFile
from mpired.sources.source import Source
from mpired.values import listed

_FEW = 8


class Format(NamedTuple):
    """A file format: a row of the table. Everything particular to a format is here, or in its module."""

    name: str  # that of `--from` and `--to`
    suffixes: tuple[str, ...] = ()  # file name endings that mean it, in small letters with their dot
    magic: bytes = b""  # the first bytes of every such file, empty if there are none
    # kinds of file, known by more than their first bytes, that are of this format: by their content if no other row
    # has them earlier, or by their suffix
    kinds: tuple[object, ...] = ()
    readable: bool = True  # whether it can be an input; else it is for results only
    # whether its files do not describe their elements, so that the user declares datatype, count and byte order
    needs_type: bool = False
    has_columns: bool = False  # whether it holds any number of buffers, each with a name; else one
    has_arrays: bool = False  # whether each of its buffers has a shape of its own; else they are columns of one length
    unnamed: str = "value"  # the name that such a format gives an array without one, with {} for its number
    c_order: bool = False  # whether its arrays have no form in Fortran order
    has_provenance: bool = (
        False  # whether its files can say where they come from, which `provenance` of its module reads
    )
    # which others its files can have beside those that are buffers, "columns" of any type or "arrays"; `prepare` then
    # looks after them. "" for none
    keeps: str = ""
    # whether its elements can be null; `FlatReader.read` of a result then tells `prepare`'s encoder which are there
    has_nulls: bool = False
    has_strings: bool = False  # whether arrays that it gets from a file of another format can be strings
    has_times: bool = False  # whether its elements can be times; `prepare` refuses those that it does not have
    streamed: bool = False  # whether its elements can only be decoded in sequence; it is then read in larger blocks
    # whether its files can be windows. Those of a flat format are changed where their elements lie, and can be made
    # new; those of another are written again
    updatable: bool = False
    # whether flat arrays of its files can be changed in place: no checksum includes them
    in_place: bool = False
    # endings of the names of directories that are read as its files; a result has another name
    directories: tuple[str, ...] = ()
    # whether `inspect` and its readers take a source that is read forward; else they get a copy of it
    forward: bool = False
    noun: str = "array"  # the format's word for one of its arrays, in messages
    doc: str = ""  # a line of documentation
    decoding: int = 0  # bytes of memory that a process holds to read a file, with its libraries, besides the blocks
    encoding: int = 0  # bytes of memory that it takes at most to write a result, with its libraries
    address_space: int = 0  # bytes that its libraries need to be loaded; some crash where they cannot be mapped
    own: str = ""  # the module of mpired that knows the format, if it has not its name
    # the module that knows an installed format, such as `PACKAGE.MODULE`; "" for those of mpired itself. It supplies
    # `inspect` if the format is `readable`, `prepare`, and `rewrite` if it is `updatable` and `streamed`
    place: str = ""

    @property
    def is_flat(self) -> bool:
        """Whether a file is one run of elements, perhaps behind a header."""
        return self.readable and not (self.streamed or self.has_arrays)

    @property
    def is_text(self) -> bool:
        """Whether it is a text, which is only written."""
        return not (self.readable or self.place)

    @property
    def module(self) -> Any:
        """The module that knows the format; imported only where the format is used."""
        return _imported(self.place or f"mpired.formats.{self.own or self.name}", self.address_space)

    def inspect(self, source: Source, inputs: InputOptions) -> RankFile:
        """Describe a file of this format, from its header."""
        if inputs.noun != self.noun:  # with thousands of ranks a copy for each takes time
            inputs = inputs._replace(noun=self.noun)
        # Most formats are not of packages, whose mistakes are errors of the file.
        args = source, inputs
        file: RankFile = self._call("inspect", source.name, *args) if self.place else self.module.inspect(*args)
        return file if file.format == self.name else file._replace(format=self.name, noun=self.noun)

    def prepare(self, model: Model) -> Layout:
        """Say how a result like `model` is written in this format, or why it cannot be."""
        kept, buffers = model.kept, model.buffers
        is_other = kept and (self.keeps != kept.kind or (self.has_arrays and model.format != self.name))
        if kept and is_other and not kept.chosen:
            model = model._replace(kept=None)
        is_rare = any(each.alone is not None or each.datatype.group in TIMES for each in buffers)
        if self.c_order or buffers[1:] or is_rare:
            self._check(model)
        if is_other and model.kept:
            return self._carrying(model, kept)
        if self.has_arrays and (buffers[1:] or model.kept):
            check_names(self._names(buffers), model.kept.names if model.kept else (), self.name)
        if model.format != self.name:  # what a file of another format has besides its elements means nothing here
            model = model._replace(format=self.name, source=None, cells=Cells())
        if self.has_arrays and self.has_nulls and any(map(in_two, buffers)):
            fields = [FIELDS if in_two(each) else ("",) for each in buffers]
            split = zip(buffers, fields, strict=True)
            parts = [each.of_field(field_type(each.datatype, field), field) for each, own in split for field in own]
            return paired(self.prepare(model._replace(buffers=tuple(parts))), fields)
        layout = self._call("prepare", f"`to={self.name!r}`", model) if self.place else self.module.prepare(model)
        return layout if isinstance(layout, FlatLayout | ArrayLayout | Encoder) else Encoder(layout)

    def _check(self, model: Model) -> None:
        """Raise an error if the format cannot hold results, or one of several ops has the name of another array."""
        buffers, names = model.buffers, [each.name for each in model.buffers]
        if len(buffers) > 1 and not self.has_columns:
            ways = "choose one with `columns`"
            if buffers[0].alone is not None:
                ways = "put {op} into the name of `output`, for a file of each op, or use `to='npz'`"
            reason = f"holds one array, but there are {len(buffers)} ({', '.join(names)}); {ways}"
            raise UsageError(f"`to={self.name!r}`", reason)
        if not self.has_times and (times := [each.datatype for each in buffers if each.datatype.group in TIMES]):
            ways = "`to='npy'`" if is_of_numpy(times[0]) else "`to='parquet'` or `to='arrow'`"
            raise DatatypeError(f"{times[0]}", f"has no form in {self.name}; use {ways}")
        if not self.has_arrays and any(each.count != buffers[0].count for each in buffers[1:]):
            counts = ", ".join(f"{each.name} has {each.count}" for each in buffers[:_FEW])
            reason = f"holds columns of one length, but {counts} elements; choose some with `columns`"
            raise UsageError(f"`to={self.name!r}`", reason)
        if self.c_order and any(each.fortran_order for each in buffers):
            raise DatatypeError("arrays in Fortran order", f"have no form in {self.name}; use `to='npy'` or `to='npz'`")
        new = [each.name for each in buffers if each.alone is not None]
        names = [*new, *(model.kept.names if model.kept else ())]
        if len({*names}) < len(names) and (twice := next((name for name in new if names.count(name) > 1), None)):
            reason = f"gives a result the name {twice!r}, which another array of the file has"
            raise UsageError("`op`", f"{reason}; put {{op}} into the name of `output`, for a file of each op")

    def _names(self, buffers: Sequence[Array]) -> list[str]:
        """Return the names that results get."""
        names: list[str] = []
        for number, each in enumerate(buffers):
            parts = [column_of(each.name, each.columns, field) for field in FIELDS]
            names += parts if self.has_nulls and in_two(each) else [each.name or self.unnamed.format(number)]
        return names

    def _carrying(self, model: Model, kept: Kept) -> Layout:
        """Say how a result is written with arrays from a file of another format, as far as they have a form here."""
        first = model.buffers[0]
        # Columns have the elements in the order of the results, in which arrays that a library decodes are not read.
        fortran_order = first.fortran_order and not self.has_arrays
        can_keep = self.keeps and (self.has_columns or self.is_text)
        arrays = kept.buffers(fortran_order=fortran_order) if can_keep else []
        for number, each in enumerate(arrays):
            if (values := model.cells.values.get(each.name)) is not None:  # times of all ranks
                source, stored = MemorySource(each.source.name, values.tobytes()), values.dtype
                arrays[number] = each._replace(source=source, offset=0, stored=stored, reader=None, isolated=False)

        arrays = [each._replace(nullable=each.nulls != 0) for each in arrays]
        carried = [held for each in arrays if (held := self._held(each, model)) is not None]
        names = {each.name for each in carried}
        if not carried:
            lacking = [each.name for each in arrays if each.nullable]
            refused = listed(lacking or [*kept.chosen])
            why = f", which cannot {'mark missing elements of' if lacking else 'hold'} '{refused}'" if can_keep else ""
            reason = f"carries {kept.kind} into results that can hold them, and this one is {self.name}{why}"
            raise UsageError("`keep`", f"{reason}; leave it out, or write {model.format}")
        check_names(self._names(model.buffers), names, self.name)
        others = () if self.is_text else (each.result._replace(nullable=each.nullable) for each in carried)
        layout: Any = self.prepare(model._replace(buffers=(*model.buffers, *others), kept=None))

        def encode(results: Sequence[Array], fd: int) -> None:
            with contextlib.ExitStack() as stack:
                parts = [*results]
                for each in carried:
                    is_flat = each.datatype.form.hasobject or (each.reader is None and not each.isolated)
                    parts.append(each if is_flat else in_scratch(each, stack.enter_context(Scratch())))
                layout.encode(parts, fd)

        left_out = tuple(each for each in kept.chosen if each not in names)
        return Encoder(encode, layout.missing[: len(model.buffers)], left_out)

    def _held(self, array: Array, model: Model) -> Array | None:
        """Return a kept array in the form in which a result like `model` holds it; None if there is none."""
        first, datatype, forms = model.buffers[0], array.datatype, [array]
        is_transposed = array.fortran_order != first.fortran_order and sum(dim > 1 for dim in array.dimensions) > 1
        is_unlike = not self.has_arrays and (array.count != first.count or is_transposed)
        if is_unlike or (array.nullable and not self.has_nulls):
            return None
        if datatype.group is Group.VALUE:  # as objects of Python, or as NumPy has them
            is_string = self.has_strings and datatype.name in {"string", "binary"} and not array.nullable
            copied = value_type(datatype.name, array.stored.newbyteorder("="))
            forms = [array] if self.is_text or is_string else []
            forms += [array._replace(datatype=copied)] if copied is not datatype and copied.itemsize else []
        for each in forms:
            with contextlib.suppress(DatatypeError):
                alone = each.result._replace(nullable=each.nullable)
                layout = self.prepare(Model(self.name, (alone,), context=model.context))
                marked = next(iter(getattr(layout, "missing", ())), None)
                if each.nullable and self.has_arrays:
                    marked = marked or Missing(nan=True)  # as NaN in Zarr, which needs no attribute
                if self.is_text or reads_back(each, marked):
                    return each
        return None

    def provenance(self, source: Source) -> str | None:
        """Return what a file says of where it comes from; None for nothing."""
        provenance: str | None = self._call("provenance", source.name, source) if self.has_provenance else None
        return provenance

    def rewrite(self, source: Source, changed: Sequence[Array], fd: int) -> None:
        """Write a file again, some of its buffers with new elements."""
        with calls.errors_name(source.name):
            self._call("rewrite", source.name, source, changed, fd)

    def rewriting(self, source: Source) -> int:
        """Return about how many bytes of a file are in memory at once when it is written again, if its module tells."""
        nbytes: int = self._call("rewriting", source.name, source) if hasattr(self.module, "rewriting") else 0
        return nbytes

    def _call(self, function: str, subject: str, *args: Any) -> Any:
        """Call a function of the module; what goes wrong in an installed package is an error of the subject."""
        try:
            return getattr(self.module, function)(*args)
        except (Exception, SystemExit) as error:
            if not self.place or isinstance(error, MpiredError | OSError | MemoryError):
                raise
            what = f"{type(error).__name__}: {error}"
            reason = f"the format {self.name} of {self.place} failed ({what}); repair or remove the package"
            raise BufferFileError(subject, reason) from error


@functools.cache
def _imported(name: str, address_space: int) -> Any:
    """Import a module; not from `sys.modules`, where it is already while another thread imports it."""
    calls.check_address_space(address_space)
    # An exception within an import is taken for another error, or lost.
    with interrupts.defer_signals(), contextlib.nullcontext() if name.startswith("mpired.") else installed.loading():
        return importlib.import_module(name)
