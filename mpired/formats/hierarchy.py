"""The arrays of an HDF5 file, as its library shows them: which there are, and their values.

All of this is done in a worker, because the library may end the process that reads a damaged file.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import h5py
import numpy as np
from h5py import h5, h5a, h5d, h5f, h5fd, h5g, h5o, h5p, h5r, h5s, h5t, h5z

from mpired.datatypes import from_dtype
from mpired.errors import BufferFileError, DatatypeError, MpiredError, installation
from mpired.files.places import digest
from mpired.formats import conventions
from mpired.formats.arrays import ArrayFile, ArrayHeader, ArrayLeaf
from mpired.formats.conventions import Attribute, Variable, octets_of, text_of
from mpired.formats.hdf5 import ERRORS
from mpired.formats.input_options import InputOptions
from mpired.formats.rank import ELSEWHERE, dtype_text
from mpired.formats.streamed import DECODED_NBYTES, SourceFile, Values
from mpired.sources.source import Source

_MAX_VIRTUAL = 64  # virtual datasets of virtual ones
_ATTRIBUTE_NBYTES = 1 << 20
_SMALL_NBYTES = 64 << 20
_MOST_UNFOLDED = 1 << 16  # times the size of the file
_FILTERS = {
    307: "bzip2", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd", 32017: "sz",
    32018: "fcidecomp", 32024: "sz3", 32026: "blosc2", 32028: "sperr", 32033: "htj2k",
}  # fmt: skip
"""Those of the package hdf5plugin: in files some have sentences for names."""
_MEANING = frozenset(name.encode() for name in ("CLASS", "NAME", "history", *conventions.MEANING))
_KINDS = {
    h5t.TypeStringID: "strings", h5t.TypeVlenID: "lists", h5t.TypeReferenceID: "references",
    h5t.TypeOpaqueID: "opaque bytes", h5t.TypeBitfieldID: "bits", h5t.TypeArrayID: "arrays", h5t.TypeTimeID: "times",
}  # fmt: skip
with contextlib.suppress(ImportError):
    importlib.import_module("hdf5plugin")  # registers them
_Filter: TypeAlias = tuple[int, str, Sequence[int]]  # its number, its name and its settings
DIMENSION_ONLY = "This is a netCDF dimension but not a netCDF variable"


class HdfFile(ArrayFile):
    """An open file. The caller closes it."""

    def __init__(self, source: Source, memory: int = DECODED_NBYTES, *, outside: bool = False) -> None:
        self._outside = outside  # whether it may lead to other files; else it is opened by its descriptor
        super().__init__(source, memory)

    def begin(self) -> None:
        """Open it by the library."""
        path = f"/proc/self/fd/{self._bytes.fd}"
        real = "" if self._bytes.fd is None else os.readlink(path)
        access = _access(self._memory)
        if not os.path.exists(real):  # else the library would look for other files in this one
            self._outside, access = False, access.copy()
            access.set_fileobj_driver(h5fd.fileobj_driver, SourceFile(self._bytes, self._source.nbytes))
        if self._outside:
            os.environ["HDF5_EXTFILE_PREFIX"] = os.environ["HDF5_VDS_PREFIX"] = "${ORIGIN}"
            os.environ.pop("HDF5_EXT_PREFIX", None)
            path = real
        try:
            self.file = h5py.File(h5f.open(os.fsencode(path), h5f.ACC_RDONLY, access))
        except OSError as error:
            if "already open for write" not in str(error):
                raise
            reason = "was not closed by the program that writes it; let that end"
            raise BufferFileError(self._source.name, f"{reason}, or clear its mark with `h5clear -s`") from None

    def blocks(self, place: str, start: int = 0) -> Iterator[np.ndarray]:
        """Yield the elements of an array from one on, in blocks of whole rows of chunks."""
        dataset = self.file[place]
        tid, dtype = dataset.id.get_type(), _dtype(dataset.id)
        if dtype.base.kind == "V" and dtype.base.names is None:  # bytes of no type, or of one that NumPy has not
            octets = np.empty(dataset.shape, f"V{tid.get_size()}")
            dataset.id.read(h5s.ALL, h5s.ALL, octets, tid)
            yield octets.reshape(-1)[start:]
        else:
            yield from self.rows(place, dataset, dataset.chunks or (), start, self._memory // 2)

    def arrays(self, leaf: ArrayLeaf, start: int, *, nullable: bool) -> Iterator[Values]:
        """Yield the values of a leaf; lists and references as objects that can be sent to other processes."""
        _, field, _ = leaf
        for values, there in super().arrays(leaf, start, nullable=nullable):
            if not field and (values.dtype.hasobject or values.ndim > 1):
                yield np.fromiter(self.plain(values), object, len(values)), None
            else:
                yield values, there

    def plain(self, value: Any) -> Any:
        """Return a value with lists in the places of arrays, and the names of objects in those of references."""
        if not isinstance(value, h5r.Reference):
            return super().plain(value)
        name = text_of(h5r.get_name(value, self.file.id) or b"") if value else None
        if not isinstance(value, h5r.RegionReference) or not value:
            return name
        region = h5r.get_region(value, self.file.id)
        return name, str(region.get_select_bounds()) if region.get_select_npoints() else ""

    def whole(self, place: str) -> np.ndarray:
        """Return all values of an array."""
        dataset = self.file[place]
        if dataset.shape is None:
            return np.empty(0, _dtype(dataset.id))
        is_text = h5py.check_string_dtype(_dtype(dataset.id)) is not None
        return np.asarray(dataset.asstr()[()]).reshape(-1) if is_text else super().whole(place)

    def described(self, inputs: InputOptions) -> list[ArrayHeader]:
        """Describe all arrays, those too that the library does not know."""
        found = list(walk(self.file["/"].id))
        scales = {each.address: each.name for each in found if each.dataset is not None}
        arrays = [(each, _dims(each, scales)) for each in found if each.is_array]
        groups = (each for each in found if isinstance(each.object, h5g.GroupID))
        variables = [Variable("", (), attributes_of(self.file.id))]
        variables += [Variable(f"{each.name}/", (), each.attributes) for each in groups]
        variables += [Variable(each.name, dims, each.attributes) for each, dims in arrays]
        carried = conventions.carried(variables)
        return [self._array(each, inputs, is_carried=each.name in carried)._replace(dims=dims) for each, dims in arrays]

    def _array(self, found: Found, inputs: InputOptions, *, is_carried: bool) -> ArrayHeader:
        name, dataset, where = found.name, found.dataset, found.outside
        if dataset is not None and dataset.external:
            where = dataset.external[0][0]
        elif dataset is not None and dataset.is_virtual:  # to ask for its shape may open other files
            where = "a virtual dataset"
        if where and (not self._outside or inputs.window):
            hint = "" if inputs.follow_links or inputs.window else "read it with `follow_links`"
            label, reason = f"elements in another file ({where})", f"{name!r} {ELSEWHERE} ({where})"
            return ArrayHeader(name, None, None, label=label, reason=reason, hint=hint)
        try:
            if dataset is None:
                link = self.file.get(name, getlink=True)
                dataset = _dataset_beside(self.file, link.filename, link.path)
                found, is_carried = found._replace(attributes=attributes_of(dataset.id)), False
            if where:
                _check_sources(dataset)
            return self._described(found, dataset, inputs, is_carried=is_carried and not inputs.any_type)
        except MpiredError:
            raise
        except (OSError, *ERRORS) as error:  # the library does not know it; others may be read
            if isinstance(error, OSError) and (is_carried or error.errno is not None):
                raise  # a coordinate could not be compared
            reason = f"{name!r} cannot be read ({' '.join(str(error).split())[:200]})"
            return ArrayHeader(name, None, None, label="elements that cannot be read", reason=reason)

    def _described(self, found: Found, dataset: h5py.Dataset, inputs: InputOptions, *, is_carried: bool) -> ArrayHeader:
        name, attributes, shape, tid = found.name, found.attributes, dataset.shape, dataset.id.get_type()
        if shape is None:
            if inputs.any_type:
                return ArrayHeader(name, None, (0,), label="no elements")
            reason, form = f"{name!r} has no elements", digest(tid.encode()).digest()
            return ArrayHeader(name, None, None, label="no elements", reason=reason, digest=form, carried=True)
        plist = dataset.id.get_create_plist()
        filters: list[_Filter] = []
        for number in range(plist.get_nfilters() if dataset.chunks else 0):
            code, _, values, octets = plist.get_filter(number)
            filters.append((code, _FILTERS.get(code) or text_of(octets)[:40] or f"filter {code}", values))
        if encoded := self._encoded(name, dataset, filters, is_carried=is_carried):
            return encoded
        plain, label, reason = _form(name, dataset)
        nbytes = math.prod(shape) * max(1, _dtype(dataset.id).itemsize)
        if not self._outside and nbytes > _SMALL_NBYTES and nbytes > _MOST_UNFOLDED * self._source.nbytes:
            reason = f"{name!r} claims {nbytes} bytes, and the file has {self._source.nbytes}"
            raise BufferFileError(self._source.name, f"{reason}; it is damaged, or made to fill the memory")
        if plain is None:
            is_carried = is_carried or (isinstance(tid, h5t.TypeStringID | h5t.TypeEnumID) and not inputs.any_type)
            header = conventions.header(name, shape, attributes, None, inputs, "")
            header = header._replace(label=label, reason=reason, stored=_copied_form(dataset))
        else:
            attributes, dtype = conventions.viewed(attributes, plain)
            header = conventions.header(name, shape, attributes, dtype, inputs, f"{name!r}")
            if header.packing is None and not found.outside:
                header = header._replace(offset=self._offset(dataset, plain, nbytes))
            has_fill = plist.fill_value_defined() != h5d.FILL_VALUE_UNDEFINED
            if header.unset is not None and not (has_fill and dataset.fillvalue == conventions.default_fill(dtype)):
                header = header._replace(unset=None)
            scaled = plist.get_filter_by_id(h5z.FILTER_SCALEOFFSET)
            is_cut = scaled is not None and tuple(scaled[1][:2]) != (h5z.SO_INT, 0)  # 0: as many as a chunk needs
            if inputs.window and plain.kind in "iu" and (is_cut or not is_plain(dataset)):
                reason = f"{name!r} has elements of fewer bits than {dtype_text(dtype)}, which new ones may not fit"
                header = header._replace(dtype=None, label=dtype_text(dtype), reason=reason, hint="")
        is_here = not (found.outside or dataset.is_virtual or dataset.external)
        header = header._replace(carried=is_carried, keeps=is_here)
        storage = [f"chunks of {dataset.chunks}"] if dataset.chunks else []
        storage += ["compact"] if plist.get_layout() == h5d.COMPACT else []
        storage += [f"{text} {own[0]}" if code == h5z.FILTER_DEFLATE and own else text for code, text, own in filters]
        return header._replace(chunk=dataset.chunks or (), storage=", ".join(storage))

    def _encoded(
        self, name: str, dataset: h5py.Dataset, filters: Sequence[_Filter], *, is_carried: bool
    ) -> ArrayHeader | None:
        """Describe an array of which a chunk needs filters that the library has not; None if there is none."""
        missing = {at: each for at, each in enumerate(filters) if not h5z.filter_avail(each[0])}
        bits = sum(1 << at for at in missing)
        if not missing or not dataset.id.chunk_iter(lambda chunk: True if bits & ~chunk.filter_mask else None):
            return None
        gone = {code: text if str(code) in text else f"{text} (filter {code})" for code, text, _ in missing.values()}
        texts = " and ".join(gone.values())
        reason = f"array {name!r} is encoded by {texts}, for which HDF5 needs a plugin"
        hint = "set HDF5_PLUGIN_PATH"
        if gone.keys() <= _FILTERS.keys() and "hdf5plugin" not in sys.modules:
            hint = f"install it with {installation('hdf5plugin')}"
        if is_carried:  # a coordinate could not be compared
            raise BufferFileError(self._source.name, f"{reason}; {hint}")
        label = f"elements encoded by {texts}"
        return ArrayHeader(name, None, dataset.shape, label=label, reason=reason, hint=hint, keeps=False)

    def _offset(self, dataset: h5py.Dataset, dtype: np.dtype, nbytes: int) -> int | None:
        """Return where the elements of an array of the file lie, in one piece as NumPy has them; else None."""
        offset: int | None = dataset.id.get_offset() if nbytes else None  # None unless they are in one piece
        if offset is None or not _is_of(dataset.id.get_type(), dtype):
            return None
        if offset + nbytes > self._source.nbytes:
            reason = f"{dataset.name!r} ends at byte {offset + nbytes}, and the file has {self._source.nbytes}"
            raise BufferFileError(self._source.name, f"{reason}; it is cut off or damaged")
        return offset


@functools.cache
def _access(memory: int) -> h5p.PropFAID:
    """Return how files are opened; h5py makes that afresh for each, which takes as long as opening it."""
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_cache(0, 10007, memory // 2, 1.0)  # chunks that were read leave the cache at once
    access.set_file_locking(False, False)  # noqa: FBT003 - it takes no keywords
    return access


class Found(NamedTuple):
    """An object of a file, or a further link to one."""

    name: str
    object: Any = None  # what opens it; None for a link
    address: tuple[int, int] | None = None
    attributes: Mapping[str, Attribute] = {}
    dataset: h5py.Dataset | None = None  # if it is one
    outside: str = ""  # where it leads if that is in another file
    soft: bytes = b""  # the path of a soft link

    @property
    def is_array(self) -> bool:
        """Whether it is an array, in this file or another one, and not only a dimension of netCDF without values."""
        is_scale = self.attributes.get("CLASS") == "DIMENSION_SCALE"
        is_empty = is_scale and DIMENSION_ONLY in str(self.attributes.get("NAME"))
        return bool(self.outside) or (self.dataset is not None and not is_empty)


def walk(group: h5g.GroupID, prefix: str = "", seen: set[tuple[int, int]] | None = None) -> Iterator[Found]:
    """Yield all objects in a group, each once, by the first of its names, and the other links."""
    seen = {address(group)} if seen is None else seen
    for link in group:  # in the order in which they were made, or else of their letters
        name, kind = prefix + text_of(link), group.links.get_info(link).type
        if kind == h5py.h5l.TYPE_EXTERNAL:
            yield Found(name, outside=":".join(map(text_of, group.links.get_val(link))))
        elif kind == h5py.h5l.TYPE_SOFT:  # its target is read by its own name
            yield Found(name, soft=group.links.get_val(link))
        elif kind == h5py.h5l.TYPE_HARD:
            opened = h5o.open(group, link)
            if (at := address(opened)) in seen:
                yield Found(name, address=at)
                continue
            seen.add(at)
            # The dataset keeps the answers to earlier questions.
            dataset = h5py.Dataset(opened, readonly=True) if isinstance(opened, h5d.DatasetID) else None
            yield Found(name, opened, at, attributes_of(opened), dataset)
            if isinstance(opened, h5g.GroupID):
                yield from walk(opened, f"{name}/", seen)


def address(identifier: Any) -> tuple[int, int]:
    """Return what an object is known by, whatever its name."""
    info = h5o.get_info(identifier)
    return info.fileno, info.addr


def attributes_of(identifier: Any) -> dict[str, Attribute]:
    """Return the attributes of an object that have a meaning here, if they are numbers or a text, and not large."""
    names: list[bytes] = []
    h5a.iterate(identifier, names.append)
    values: dict[str, Attribute] = {}
    for name in filter(_MEANING.__contains__, names):
        attribute = h5a.open(identifier, name)
        space, tid = attribute.get_space(), attribute.get_type()
        is_text, count = isinstance(tid, h5t.TypeStringID), space.get_simple_extent_npoints()
        if space.get_simple_extent_type() == h5s.NULL or count * tid.get_size() > _ATTRIBUTE_NBYTES:
            continue
        if count != 1 if is_text else not isinstance(tid, h5t.TypeIntegerID | h5t.TypeFloatID):
            continue
        array = np.empty(space.get_simple_extent_dims(), tid.dtype.newbyteorder("="))
        attribute.read(array)
        value: Attribute = array.reshape(-1)
        if is_text:
            octets = octets_of(value[0]) if isinstance(value[0], str) else bytes(value[0] or b"")
            value = text_of(octets.split(b"\0")[0])
        values[text_of(name)] = value
    return values


def each_attribute(identifier: Any) -> Iterator[Any]:
    """Yield the attributes of an object, in the order in which they were made, or else of their letters."""
    names: list[bytes] = []
    try:
        h5a.iterate(identifier, names.append, index_type=h5.INDEX_CRT_ORDER)
    except (KeyError, RuntimeError, OSError):
        names.clear()
        h5a.iterate(identifier, names.append)
    for name in names:  # to open one by its number takes as long as to sort all
        yield h5a.open(identifier, name)


def _dims(found: Found, scales: Mapping[Any, str]) -> tuple[str, ...]:
    """Return the names of the dimensions of an array that is itself one, or has a scale for each."""
    dataset = found.dataset
    if dataset is None or dataset.is_virtual:
        return ()
    if found.attributes.get("CLASS") == "DIMENSION_SCALE":
        return (found.name.rpartition("/")[2],)
    names: list[str] = [""] * len(dataset.shape or ())
    if h5a.exists(dataset.id, b"DIMENSION_LIST"):
        for number, dimension in enumerate(dataset.dims):
            for scale in dimension.values():
                names[number] = scales.get(address(scale.id), "").rpartition("/")[2]
    return tuple(names)


def _dataset_beside(file: h5py.File, name: str, place: str) -> h5py.Dataset:
    """Return a dataset of a file that another one names, "" for itself."""
    if name:
        path = os.path.join(folder := os.path.dirname(file.filename), name)
        if os.path.isabs(name) and not os.path.exists(path):  # the last part of it may be in the folder
            path = os.path.join(folder, os.path.basename(name))
        if not os.path.isfile(path):
            raise ValueError(f"{name!r} is not a regular file" if os.path.exists(path) else f"there is no {name!r}")
        try:
            file = h5py.File(path, "r", locking=False)
        except OSError as error:
            raise ValueError(f"{name!r} cannot be opened ({' '.join(str(error).split())[:100]})") from None
    found: Any = file["/"]
    for part in filter(None, place.split("/")):  # further links may lead to a pipe, for which the library would wait
        is_here = isinstance(found, h5py.Group) and isinstance(found.get(part, getlink=True), h5py.HardLink)
        found = found[part] if is_here else None
    if isinstance(found, h5py.Dataset):
        return found
    raise ValueError(f"{os.path.basename(file.filename)!r} has no array {place!r}, or only a link to one")


def _check_sources(dataset: h5py.Dataset, above: tuple[object, ...] = ()) -> None:
    """Raise an error if elements of an array are in no file, which the library would read as zeros."""
    at = os.path.realpath(dataset.file.filename), address(dataset.id)[1]
    if at in above or len(above) >= _MAX_VIRTUAL:
        raise ValueError(f"it is a virtual dataset that is made of itself, or of more than {_MAX_VIRTUAL} in turn")
    left = dataset.nbytes if dataset.external else 0
    for name, offset, size in dataset.external or ():
        path, end = os.path.join(os.path.dirname(dataset.file.filename), name), offset + min(size, left)
        left -= min(size, left)
        if (nbytes := os.path.getsize(path) if os.path.isfile(path) else 0) < end:
            raise ValueError(f"{name!r} has {nbytes} bytes of {end}")
    for source in dataset.virtual_sources() if dataset.is_virtual else ():
        if "%" in f"{source.file_name}{source.dset_name}".replace("%%", ""):
            raise ValueError("it is in files by a pattern of their names, which is not read")
        name, array = (each.replace("%%", "%") for each in source[1:3])
        _check_sources(_dataset_beside(dataset.file, "" if name == "." else name, array), (*above, at))


def _form(name: str, dataset: h5py.Dataset) -> tuple[np.dtype | None, str, str]:
    """Return the form of an array of numbers, else the kind of its elements, and why it is not a buffer."""
    tid, dtype = dataset.id.get_type(), _dtype(dataset.id)
    label = next((text for kind, text in _KINDS.items() if isinstance(tid, kind)), "")
    if not label and dtype.kind == "V" and not dtype.names:
        label = f"elements of {8 * dtype.itemsize} bits of a type that NumPy has not"
    if isinstance(tid, h5t.TypeEnumID) and dtype != np.bool_:
        label = "an enumeration"
    if not label and dtype.hasobject:
        label = "structures with strings or lists"
    if label:
        return None, label, ""
    if dtype.names and not dtype.isalignedstruct:
        is_dense = sum(dtype[field].itemsize for field in dtype.names) == dtype.itemsize
        dtype = np.dtype([(field, dtype[field]) for field in dtype.names]) if is_dense else dtype
    try:
        from_dtype(dtype)
    except DatatypeError as error:
        return None, dtype_text(dtype), f"{name!r}: {error.reason}"
    return dtype, "", ""


def _copied_form(dataset: h5py.Dataset) -> np.dtype | None:
    """Return NumPy's form of elements that are not numbers; None if it does not describe them completely."""
    tid, dtype = dataset.id.get_type(), _dtype(dataset.id)
    if dtype.subdtype or (dtype.hasobject and not isinstance(tid, h5t.TypeVlenID)):
        return None
    try:
        is_same = tid.equal(h5t.py_create(dtype, logical=True))
    except (TypeError, ValueError):
        return None
    return (np.dtype(dtype.str) if dtype.kind == "S" else dtype) if is_same and not leads(tid) else None


def _dtype(identifier: h5d.DatasetID) -> np.dtype:
    """Return NumPy's form of the elements of an array, bytes if it has none."""
    try:
        found: np.dtype = identifier.dtype
    except (TypeError, ValueError):  # a number that is larger than those of NumPy is a wrong value for h5py
        return np.dtype(f"V{identifier.get_type().get_size()}")
    return found


def is_plain(dataset: h5py.Dataset) -> bool:
    """Return whether NumPy has the type of an array, if that is a number, and not only a wider one."""
    tid = dataset.id.get_type()
    is_number = isinstance(tid, h5t.TypeIntegerID | h5t.TypeFloatID)
    return not is_number or _is_of(tid, dataset.dtype)


def _is_of(tid: Any, dtype: np.dtype) -> bool:
    """Return whether a type of a file is the same as one of NumPy."""
    if isinstance(tid, h5t.TypeIntegerID) and dtype.itemsize == 1:  # the file may declare an order of the one byte
        tid = tid.copy()
        tid.set_order(h5t.ORDER_LE)
    return bool(tid.equal(h5t.py_create(dtype, logical=True)))


def leads(tid: Any) -> bool:
    """Return whether values of a type are references, or hold some."""
    if isinstance(tid, h5t.TypeCompoundID):
        return any(leads(tid.get_member_type(number)) for number in range(tid.get_nmembers()))
    if isinstance(tid, h5t.TypeVlenID | h5t.TypeArrayID):
        return leads(tid.get_super())
    return isinstance(tid, h5t.TypeReferenceID)
