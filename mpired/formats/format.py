"""`Format`, the row of a file format in the table, and the calls of the module that implements the format."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from mpired import installed, interrupts
from mpired.datatypes import TIMES, Group, value_type
from mpired.datatypes.dtypes import has_numpy_type
from mpired.datatypes.predefined import FIELDS, column_name, field_type
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
    join_fields,
    reads_back,
)
from mpired.formats.memory import MemorySource
from mpired.formats.missing import Missing
from mpired.formats.rank import Cells, KeptContent, Model, RankFile
from mpired.sources.source import Source
from mpired.values import listed

_MAX_COUNTS_SHOWN = 8


class Format(NamedTuple):
    """A file format: a row of the table. All differences between formats are in their rows and modules."""

    name: str  # name for the options `from` and `to`
    suffixes: tuple[str, ...] = ()  # suffixes of file names, in lower case with the dot
    magic: bytes = b""  # first bytes of every such file, empty if there are none
    # kinds of file with a longer signature that are read as this format; of two rows with a kind the suffix decides,
    # else the row that lists the kind first
    kinds: tuple[object, ...] = ()
    readable: bool = True  # the format can be an input, and not only a result
    needs_type: bool = False  # files do not describe their elements: the user declares datatype, count and byte order
    has_columns: bool = False  # a file has any number of named buffers, not a single one
    has_arrays: bool = False  # each buffer has a shape of its own; else all are columns of one length
    unnamed: str = "value"  # name of an array without a name in formats with arrays, with {} for its number
    c_order: bool = False  # arrays in Fortran order cannot be stored
    has_provenance: bool = False  # files can contain the provenance, which `provenance` of the module reads
    keeps: str = ""  # `prepare` can copy other "columns" or "arrays" of any type from the model; "" if it cannot
    has_nulls: bool = False  # elements can be null; the encoder of `prepare` gets masks from the reader of a result
    has_strings: bool = False  # arrays from a file of another format can be strings
    has_times: bool = False  # elements can be times; `prepare` refuses those that it cannot store
    streamed: bool = False  # elements are decoded in sequence only, and therefore read in larger blocks
    # files can be windows. Flat files are changed in place, and can be created; the others are rewritten
    updatable: bool = False
    in_place: bool = False  # flat arrays can be changed in place: no checksum includes them
    directories: tuple[str, ...] = ()  # suffixes of directories that are read as files; a result has another suffix
    forward: bool = False  # `inspect` and the readers accept a sequential source; else they get a seekable copy
    noun: str = "array"  # word for an array, in messages
    doc: str = ""  # a line of documentation
    decoding_nbytes: int = 0  # memory for reading a file, with the libraries, besides the blocks
    encoding_nbytes: int = 0  # maximum memory for writing a result, with the libraries
    address_space: int = 0  # bytes that the libraries map when they are loaded; some crash without them
    module_name: str = ""  # module of mpired that implements the format, if its name is not that of the format
    # module that implements an installed format, such as `PACKAGE.MODULE`; "" for the formats of mpired. It has
    # `inspect` if the format is `readable`, `prepare`, and `rewrite` if it is `updatable` and `streamed`
    place: str = ""

    @property
    def is_flat(self) -> bool:
        """Whether a file is a run of elements after an optional header."""
        return self.readable and not (self.streamed or self.has_arrays)

    @property
    def is_text(self) -> bool:
        """Whether it is a text format, which is never read."""
        return not (self.readable or self.place)

    @property
    def module(self) -> Any:
        """The module that implements the format; imported at its first use."""
        return _import(self.place or f"mpired.formats.{self.module_name or self.name}", self.address_space)

    def inspect(self, source: Source, inputs: InputOptions) -> RankFile:
        """Describe a file of this format from its header."""
        if inputs.noun != self.noun:  # a copy for each of thousands of ranks takes time
            inputs = inputs._replace(noun=self.noun)
        # A package's exceptions become errors of the file; the modules of mpired are called directly, for speed.
        args = source, inputs
        file: RankFile = self._call("inspect", source.name, *args) if self.place else self.module.inspect(*args)
        return file._replace(format=self)

    def prepare(self, model: Model) -> Layout:
        """Return the layout of a result like `model`; raise an error if the format cannot store it."""
        kept, buffers = model.kept, model.buffers
        is_foreign = kept and (self.keeps != kept.kind or (self.has_arrays and model.format != self))
        if kept and is_foreign and not kept.chosen:
            model = model._replace(kept=None)
        is_rare = any(result.only_op_name is not None or result.datatype.group in TIMES for result in buffers)
        if self.c_order or buffers[1:] or is_rare:
            self._check(model)
        if is_foreign and model.kept:
            return self._prepare_with_foreign(model, kept)
        if self.has_arrays and (buffers[1:] or model.kept):
            check_names(self._names(buffers), model.kept.names if model.kept else (), self.name)
        if model.format != self:  # the schema and attributes of another format have no meaning here
            model = model._replace(format=self, source=None, cells=Cells())
        fields = [FIELDS if self._splits(pairs) else ("",) for pairs in buffers] if self.has_arrays else []
        if FIELDS in fields:
            parts = [
                result.of_field(field_type(result.datatype, field), field)
                for result, names in zip(buffers, fields, strict=True)
                for field in names
            ]
            return join_fields(self.prepare(model._replace(buffers=tuple(parts))), fields)
        layout = self._call("prepare", f"`to={self.name!r}`", model) if self.place else self.module.prepare(model)
        return layout if isinstance(layout, FlatLayout | ArrayLayout | Encoder) else Encoder(layout)

    def _check(self, model: Model) -> None:
        """Raise an error if the format cannot hold the results, or a result of several ops has the name of an array."""
        buffers, names = model.buffers, [result.name for result in model.buffers]
        if len(buffers) > 1 and not self.has_columns:
            hint = "choose one with `columns`"
            if buffers[0].only_op_name is not None:
                hint = "put {op} into the name of `output`, for a file of each op, or use `to='npz'`"
            reason = f"holds one array, but there are {len(buffers)} ({', '.join(names)}); {hint}"
            raise UsageError(f"`to={self.name!r}`", reason)
        if not self.has_times and (times := [array.datatype for array in buffers if array.datatype.group in TIMES]):
            hint = "`to='npy'`" if has_numpy_type(times[0]) else "`to='parquet'` or `to='arrow'`"
            raise DatatypeError(f"{times[0]}", f"has no form in {self.name}; use {hint}")
        if not self.has_arrays and any(column.count != buffers[0].count for column in buffers[1:]):
            counts = ", ".join(f"{column.name} has {column.count}" for column in buffers[:_MAX_COUNTS_SHOWN])
            reason = f"holds columns of one length, but {counts} elements; choose some with `columns`"
            raise UsageError(f"`to={self.name!r}`", reason)
        if self.c_order and any(array.fortran_order for array in buffers):
            raise DatatypeError("arrays in Fortran order", f"have no form in {self.name}; use `to='npy'` or `to='npz'`")
        new = [result.name for result in buffers if result.only_op_name is not None]
        names = [*new, *(model.kept.names if model.kept else ())]
        if len({*names}) < len(names) and (twice := next((name for name in new if names.count(name) > 1), None)):
            reason = f"gives a result the name {twice!r}, which another array of the file has"
            raise UsageError("`op`", f"{reason}; put {{op}} into the name of `output`, for a file of each op")

    def _splits(self, result: Array) -> bool:
        """Return whether pairs become two arrays or columns: they have two names, or may be missing."""
        may_be_missing = result.nullable and self.has_nulls
        return result.datatype.group is Group.PAIR and (len(result.columns) == len(FIELDS) or may_be_missing)

    def _names(self, buffers: Sequence[Array]) -> list[str]:
        """Return the names of the arrays that results become."""
        names: list[str] = []
        for number, result in enumerate(buffers):
            if self._splits(result):
                names += [column_name(result.name, result.columns, field) for field in FIELDS]
            else:
                names.append(result.name or self.unnamed.format(number))
        return names

    def _prepare_with_foreign(self, model: Model, kept: KeptContent) -> Layout:
        """Return the layout of a result with kept arrays of another format, those that this format can store."""
        first = model.buffers[0]
        # Columns store all arrays in the order of the results; readers of decoded arrays have one order.
        fortran_order = first.fortran_order and not self.has_arrays
        can_keep = self.keeps and (self.has_columns or self.is_text)
        arrays = kept.buffers(fortran_order=fortran_order) if can_keep else []
        for number, array in enumerate(arrays):
            if (values := model.cells.values.get(array.name)) is not None:  # times of all ranks
                source, stored = MemorySource(array.source.name, values.tobytes()), values.dtype
                arrays[number] = array._replace(source=source, offset=0, stored=stored, reader=None, isolated=False)
        arrays = [array._replace(nullable=array.nulls != 0) for array in arrays]
        storable = [candidate for array in arrays if (candidate := self._storable(array, model)) is not None]
        names = {array.name for array in storable}
        if not storable:
            lacking = [array.name for array in arrays if array.nullable]
            refused = listed(lacking or [*kept.chosen])
            why = f", which cannot {'mark missing elements of' if lacking else 'hold'} '{refused}'" if can_keep else ""
            reason = f"carries {kept.kind} into results that can hold them, and this one is {self.name}{why}"
            raise UsageError("`keep`", f"{reason}; leave it out, or write {model.format.name}")
        check_names(self._names(model.buffers), names, self.name)
        models = () if self.is_text else (array.result._replace(nullable=array.nullable) for array in storable)
        layout: Any = self.prepare(model._replace(buffers=(*model.buffers, *models), kept=None))

        def encode(results: Sequence[Array], fd: int) -> None:
            with contextlib.ExitStack() as stack:
                arrays = [*results]
                for array in storable:
                    is_flat = array.datatype.form.hasobject or (array.reader is None and not array.isolated)
                    arrays.append(array if is_flat else in_scratch(array, stack.enter_context(Scratch())))
                layout.encode(arrays, fd)

        left_out = tuple(name for name in kept.chosen if name not in names)
        return Encoder(encode, layout.missing[: len(model.buffers)], left_out)

    def _storable(self, array: Array, model: Model) -> Array | None:
        """Return a kept array with a datatype that a result like `model` can store; None if it cannot store it."""
        first, datatype, candidates = model.buffers[0], array.datatype, [array]
        is_transposed = array.fortran_order != first.fortran_order and sum(dim > 1 for dim in array.dimensions) > 1
        is_unlike = not self.has_arrays and (array.count != first.count or is_transposed)
        if is_unlike or (array.nullable and not self.has_nulls):
            return None
        if datatype.group is Group.VALUE:  # objects of Python, or elements of a NumPy dtype that are only copied
            is_string = self.has_strings and datatype.name in {"string", "binary"} and not array.nullable
            copied = value_type(datatype.name, array.stored.newbyteorder("="))
            candidates = [array] if self.is_text or is_string else []
            candidates += [array._replace(datatype=copied)] if copied is not datatype and copied.itemsize else []
        for candidate in candidates:
            with contextlib.suppress(DatatypeError):
                result = candidate.result._replace(nullable=candidate.nullable)
                layout = self.prepare(Model(self, (result,), context=model.context))
                marked = next(iter(getattr(layout, "missing", ())), None)
                if candidate.nullable and self.has_arrays:
                    marked = marked or Missing(nan=True)  # as NaN in Zarr, which needs no attribute
                if self.is_text or reads_back(candidate, marked):
                    return candidate
        return None

    def provenance(self, source: Source) -> str | None:
        """Return the provenance in a file, or None."""
        return cast("str | None", self._call("provenance", source.name, source)) if self.has_provenance else None

    def rewrite(self, source: Source, changed: Sequence[Array], fd: int) -> None:
        """Write a copy of a file with new elements in the changed arrays."""
        with calls.errors_name(source.name):
            self._call("rewrite", source.name, source, changed, fd)

    def rewrite_nbytes(self, source: Source) -> int:
        """Return the approximate bytes of memory for rewriting a file; 0 if it is copied piece by piece."""
        return int(self._call("rewrite_nbytes", source.name, source)) if hasattr(self.module, "rewrite_nbytes") else 0

    def _call(self, function: str, subject: str, *args: Any) -> Any:
        """Call a function of the module; any exception in an installed package becomes an error of the subject."""
        try:
            return getattr(self.module, function)(*args)
        except (Exception, SystemExit) as error:
            if not self.place or isinstance(error, MpiredError | OSError | MemoryError):
                raise
            text = f"{type(error).__name__}: {error}"
            reason = f"the format {self.name} of {self.place} failed ({text}); repair or remove the package"
            raise BufferFileError(subject, reason) from error


@functools.cache
def _import(name: str, address_space: int) -> Any:
    """Import a module. `sys.modules` may have it already while another thread still imports it."""
    calls.check_address_space(address_space)
    # A signal in an import could be taken for another error, or lost.
    with (
        interrupts.defer_signals(),
        contextlib.nullcontext() if name.startswith("mpired.") else installed.redirect_output(),
    ):
        return importlib.import_module(name)
