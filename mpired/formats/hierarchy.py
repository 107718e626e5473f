"""Arrays of an HDF5 file as the library h5py shows them: objects, types, storage and values.

This module runs in a worker, because a damaged file may end the process that reads it.
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

_MAX_VIRTUAL = 64  # virtual datasets whose sources are virtual
_ATTRIBUTE_NBYTES = 1 << 20  # the maximum for attributes that are read
_SMALL_NBYTES = 64 << 20
_MAX_RATIO = 1 << 16  # of the bytes of an array to those of the file
_FILTERS = {
    307: "bzip2", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd", 32017: "sz",
    32018: "fcidecomp", 32024: "sz3", 32026: "blosc2", 32028: "sperr", 32033: "htj2k",
}  # fmt: skip
"""Names of the filters of the package hdf5plugin; the names in files may be whole sentences."""
_MEANING = frozenset(name.encode() for name in ("CLASS", "NAME", "history", *conventions.MEANING))
_KINDS = {
    h5t.TypeStringID: "strings", h5t.TypeVlenID: "lists", h5t.TypeReferenceID: "references",
    h5t.TypeOpaqueID: "opaque bytes", h5t.TypeBitfieldID: "bits", h5t.TypeArrayID: "arrays", h5t.TypeTimeID: "times",
}  # fmt: skip
with contextlib.suppress(ImportError):
    importlib.import_module("hdf5plugin")  # registers its filters
_Filter: TypeAlias = tuple[int, str, Sequence[int]]  # number, name, settings
DIMENSION_ONLY = "This is a netCDF dimension but not a netCDF variable"


class HdfFile(ArrayFile):
    """An open HDF5 file. The caller closes it."""

    def __init__(self, source: Source, memory: int = DECODED_NBYTES, *, outside: bool = False) -> None:
        self._outside = outside  # whether links to other files are followed
        super().__init__(source, memory)

    def begin(self) -> None:
        """Open the file with the library."""
        path = f"/proc/self/fd/{self._bytes.fd}"
        real = "" if self._bytes.fd is None else os.readlink(path)
        access = _access(self._memory)
        if not os.path.exists(real):  # without a path the library would resolve links to other files in this file
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

    def blocks(self, location: str, start: int = 0) -> Iterator[np.ndarray]:
        """Yield the elements of an array from `start` on, in blocks of whole rows of chunks."""
        dataset = self.file[location]
        tid, dtype = dataset.id.get_type(), _dtype(dataset.id)
        if dtype.base.kind == "V" and dtype.base.names is None:  # opaque, or of a type that NumPy does not have
            octets = np.empty(dataset.shape, f"V{tid.get_size()}")
            dataset.id.read(h5s.ALL, h5s.ALL, octets, tid)
            yield octets.reshape(-1)[start:]
        else:
            yield from self.rows(location, dataset, dataset.chunks or (), start, self._memory // 2)

    def arrays(self, leaf: ArrayLeaf, start: int) -> Iterator[Values]:
        """Yield the values of a leaf; lists and references as objects that can be pickled."""
        _, field, _ = leaf
        for values, valid in super().arrays(leaf, start):
            if not field and (values.dtype.hasobject or values.ndim > 1):
                yield np.fromiter(self.plain(values), object, len(values)), None
            else:
                yield values, valid

    def plain(self, value: Any) -> Any:
        """Return a value with lists in place of arrays, and names of objects in place of references."""
        if not isinstance(value, h5r.Reference):
            return super().plain(value)
        name = text_of(h5r.get_name(value, self.file.id) or b"") if value else None
        if not isinstance(value, h5r.RegionReference) or not value:
            return name
        region = h5r.get_region(value, self.file.id)
        return name, str(region.get_select_bounds()) if region.get_select_npoints() else ""

    def whole(self, location: str) -> np.ndarray:
        """Return all values of an array in one dimension."""
        dataset = self.file[location]
        if dataset.shape is None:
            return np.empty(0, _dtype(dataset.id))
        is_text = h5py.check_string_dtype(_dtype(dataset.id)) is not None
        return np.asarray(dataset.asstr()[()]).reshape(-1) if is_text else super().whole(location)

    def described(self, inputs: InputOptions) -> list[ArrayHeader]:
        """Return the headers of all arrays, including those that the library cannot read."""
        nodes = list(walk(self.file["/"].id))
        scales = {node.address: node.name for node in nodes if node.dataset is not None}
        arrays = [(node, _dims(node, scales)) for node in nodes if node.is_array]
        groups = (node for node in nodes if isinstance(node.object, h5g.GroupID))
        variables = [Variable("", (), attributes_of(self.file.id))]
        variables += [Variable(f"{group.name}/", (), group.attributes) for group in groups]
        variables += [Variable(array.name, dims, array.attributes) for array, dims in arrays]
        auxiliary = conventions.auxiliary_names(variables)
        return [
            self._describe(array, inputs, is_auxiliary=array.name in auxiliary)._replace(dims=dims)
            for array, dims in arrays
        ]

    def _describe(self, node: Node, inputs: InputOptions, *, is_auxiliary: bool) -> ArrayHeader:
        """Return the header of an array; its data may be in other files."""
        name, dataset, elsewhere = node.name, node.dataset, node.external
        if dataset is not None and dataset.external:
            elsewhere = dataset.external[0][0]
        elif dataset is not None and dataset.is_virtual:  # its shape may depend on other files
            elsewhere = "a virtual dataset"
        if elsewhere and (not self._outside or inputs.window):
            hint = "" if inputs.follow_links or inputs.window else "read it with `follow_links`"
            label, reason = f"elements in another file ({elsewhere})", f"{name!r} {ELSEWHERE} ({elsewhere})"
            return ArrayHeader(name, None, None, label=label, reason=reason, hint=hint)
        try:
            if dataset is None:
                link = self.file.get(name, getlink=True)
                dataset = _open_linked(self.file, link.filename, link.path)
                node, is_auxiliary = node._replace(attributes=attributes_of(dataset.id)), False
            if elsewhere:
                _check_sources(dataset)
            return self._describe_data(node, dataset, inputs, is_auxiliary=is_auxiliary and not inputs.any_type)
        except MpiredError:
            raise
        except (OSError, *ERRORS) as error:  # the library cannot read this array, but perhaps others
            if isinstance(error, OSError) and (is_auxiliary or error.errno is not None):
                raise  # results could not keep a coordinate that cannot be compared
            reason = f"{name!r} cannot be read ({' '.join(str(error).split())[:200]})"
            return ArrayHeader(name, None, None, label="elements that cannot be read", reason=reason)

    def _describe_data(
        self, node: Node, dataset: h5py.Dataset, inputs: InputOptions, *, is_auxiliary: bool
    ) -> ArrayHeader:
        """Return the header of a dataset."""
        name, shape, tid = node.name, dataset.shape, dataset.id.get_type()
        if shape is None:
            if inputs.any_type:
                return ArrayHeader(name, None, (0,), label="no elements")
            reason, type_digest = f"{name!r} has no elements", digest(tid.encode()).digest()
            return ArrayHeader(
                name, None, None, label="no elements", reason=reason, digest=type_digest, is_auxiliary=True
            )
        plist = dataset.id.get_create_plist()
        filters: list[_Filter] = []
        for number in range(plist.get_nfilters() if dataset.chunks else 0):
            code, _, settings, text = plist.get_filter(number)
            filters.append((code, _FILTERS.get(code) or text_of(text)[:40] or f"filter {code}", settings))
        if undecodable := self._undecodable(name, dataset, filters, is_auxiliary=is_auxiliary):
            return undecodable
        numbers, label, reason = _number_form(name, dataset)
        nbytes = math.prod(shape) * max(1, _dtype(dataset.id).itemsize)
        if not self._outside and nbytes > _SMALL_NBYTES and nbytes > _MAX_RATIO * self._source.nbytes:
            reason = f"{name!r} claims {nbytes} bytes, and the file has {self._source.nbytes}"
            raise BufferFileError(self._source.name, f"{reason}; it is damaged, or made to fill the memory")
        if numbers is None:
            is_auxiliary = is_auxiliary or (isinstance(tid, h5t.TypeStringID | h5t.TypeEnumID) and not inputs.any_type)
            header = conventions.array_header(name, shape, node.attributes, None, inputs, "")
            header = header._replace(label=label, reason=reason, stored=_object_form(dataset))
        else:
            header = self._describe_numbers(node, dataset, numbers, inputs)
        storage = [f"chunks of {dataset.chunks}"] if dataset.chunks else []
        storage += ["compact"] if plist.get_layout() == h5d.COMPACT else []
        for code, text, settings in filters:
            storage.append(f"{text} {settings[0]}" if code == h5z.FILTER_DEFLATE and settings else text)
        is_in_file = not (node.external or dataset.is_virtual or dataset.external)
        return header._replace(
            is_auxiliary=is_auxiliary, keeps=is_in_file, chunk=dataset.chunks or (), storage=", ".join(storage)
        )

    def _describe_numbers(
        self, node: Node, dataset: h5py.Dataset, numbers: np.dtype, inputs: InputOptions
    ) -> ArrayHeader:
        """Return the header of a dataset of numbers, whose form is `numbers`."""
        name, plist = node.name, dataset.id.get_create_plist()
        attributes, dtype = conventions.with_sign(node.attributes, numbers)
        header = conventions.array_header(name, dataset.shape, attributes, dtype, inputs, f"{name!r}")
        if header.packing is None and not node.external:
            header = header._replace(offset=self._offset(dataset, numbers))
        has_fill = plist.fill_value_defined() != h5d.FILL_VALUE_UNDEFINED
        if header.unset is not None and not (has_fill and dataset.fillvalue == conventions.default_fill(dtype)):
            header = header._replace(unset=None)
        offset_filter = plist.get_filter_by_id(h5z.FILTER_SCALEOFFSET)
        # The setting 0 keeps as many bits as the values of a chunk need.
        is_cut = offset_filter is not None and tuple(offset_filter[1][:2]) != (h5z.SO_INT, 0)
        if inputs.window and numbers.kind in "iu" and (is_cut or not has_numpy_type(dataset)):
            reason = f"{name!r} has elements of fewer bits than {dtype_text(dtype)}, which new ones may not fit"
            header = header._replace(dtype=None, label=dtype_text(dtype), reason=reason, hint="")
        return header

    def _undecodable(
        self, name: str, dataset: h5py.Dataset, filters: Sequence[_Filter], *, is_auxiliary: bool
    ) -> ArrayHeader | None:
        """Return the header of an array with a chunk whose filters the library does not have; None of other arrays."""
        missing = {position: entry for position, entry in enumerate(filters) if not h5z.filter_avail(entry[0])}
        bits = sum(1 << position for position in missing)
        if not missing or not dataset.id.chunk_iter(lambda chunk: True if bits & ~chunk.filter_mask else None):
            return None
        names = {code: text if str(code) in text else f"{text} (filter {code})" for code, text, _ in missing.values()}
        filter_list = " and ".join(names.values())
        reason = f"array {name!r} is encoded by {filter_list}, for which HDF5 needs a plugin"
        hint = "set HDF5_PLUGIN_PATH"
        if names.keys() <= _FILTERS.keys() and "hdf5plugin" not in sys.modules:
            hint = f"install it with {installation('hdf5plugin')}"
        if is_auxiliary:  # results could not keep a coordinate that cannot be compared
            raise BufferFileError(self._source.name, f"{reason}; {hint}")
        label = f"elements encoded by {filter_list}"
        return ArrayHeader(name, None, dataset.shape, label=label, reason=reason, hint=hint, keeps=False)

    def _offset(self, dataset: h5py.Dataset, dtype: np.dtype) -> int | None:
        """Return the offset of elements that are contiguous and have the form `dtype` in the file, or None."""
        nbytes = math.prod(dataset.shape) * dtype.itemsize
        offset: int | None = dataset.id.get_offset() if nbytes else None  # None unless they are contiguous
        if offset is None or not _is_same_type(dataset.id.get_type(), dtype):
            return None
        if offset + nbytes > self._source.nbytes:
            reason = f"{dataset.name!r} ends at byte {offset + nbytes}, and the file has {self._source.nbytes}"
            raise BufferFileError(self._source.name, f"{reason}; it is cut off or damaged")
        return offset


@functools.cache
def _access(memory: int) -> h5p.PropFAID:
    """Return the properties for opening a file: to make them takes as long as opening it."""
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_cache(0, 10007, memory // 2, 1.0)  # 1.0: fully read chunks leave the cache first
    access.set_file_locking(False, False)  # noqa: FBT003 - it takes no keywords
    return access


class Node(NamedTuple):
    """An object of a file, or a link to an object."""

    name: str
    object: Any = None  # its identifier; None of a link
    address: tuple[int, int] | None = None
    attributes: Mapping[str, Attribute] = {}
    dataset: h5py.Dataset | None = None  # None of a group or a link
    external: str = ""  # the file and path of a link to another file
    soft: bytes = b""  # the path of a soft link

    @property
    def is_array(self) -> bool:
        """Whether this is an array, in this file or another, and not a dimension of netCDF without values."""
        is_scale = self.attributes.get("CLASS") == "DIMENSION_SCALE"
        is_empty = is_scale and DIMENSION_ONLY in str(self.attributes.get("NAME"))
        return bool(self.external) or (self.dataset is not None and not is_empty)


def walk(group: h5g.GroupID, prefix: str = "", seen: set[tuple[int, int]] | None = None) -> Iterator[Node]:
    """Yield all objects in a group, each under the first of its names, and links for its other names."""
    seen = {address(group)} if seen is None else seen
    for link in group:  # in the order of their creation if the file has it, else of their names
        name, kind = prefix + text_of(link), group.links.get_info(link).type
        if kind == h5py.h5l.TYPE_EXTERNAL:
            yield Node(name, external=":".join(map(text_of, group.links.get_val(link))))
        elif kind == h5py.h5l.TYPE_SOFT:  # its target is described under its own name
            yield Node(name, soft=group.links.get_val(link))
        elif kind == h5py.h5l.TYPE_HARD:
            opened = h5o.open(group, link)
            if (target := address(opened)) in seen:
                yield Node(name, address=target)
                continue
            seen.add(target)
            # A dataset that is opened for reading caches its properties.
            dataset = h5py.Dataset(opened, readonly=True) if isinstance(opened, h5d.DatasetID) else None
            yield Node(name, opened, target, attributes_of(opened), dataset)
            if isinstance(opened, h5g.GroupID):
                yield from walk(opened, f"{name}/", seen)


def address(identifier: Any) -> tuple[int, int]:
    """Return the identity of an object, which all of its names share: the number of the file, and the address."""
    info = h5o.get_info(identifier)
    return info.fileno, info.addr


def attributes_of(identifier: Any) -> dict[str, Attribute]:
    """Return the attributes of an object that mpired uses, if they are numbers or a string, and small."""
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


def open_attributes(identifier: Any) -> Iterator[Any]:
    """Yield the attributes of an object in the order of their creation if the file has it, else of their names."""
    names: list[bytes] = []
    try:
        h5a.iterate(identifier, names.append, index_type=h5.INDEX_CRT_ORDER)
    except (KeyError, RuntimeError, OSError):
        names.clear()
        h5a.iterate(identifier, names.append)
    for name in names:  # to open an attribute by its number takes as long as to sort all
        yield h5a.open(identifier, name)


def _dims(node: Node, scales: Mapping[Any, str]) -> tuple[str, ...]:
    """Return the names of an array's dimensions: its own name if it is a dimension scale, else those of its scales."""
    dataset = node.dataset
    if dataset is None or dataset.is_virtual:
        return ()
    if node.attributes.get("CLASS") == "DIMENSION_SCALE":
        return (node.name.rpartition("/")[2],)
    names: list[str] = [""] * len(dataset.shape or ())
    if h5a.exists(dataset.id, b"DIMENSION_LIST"):
        for number, dimension in enumerate(dataset.dims):
            for scale in dimension.values():
                names[number] = scales.get(address(scale.id), "").rpartition("/")[2]
    return tuple(names)


def _open_linked(file: h5py.File, name: str, path: str) -> h5py.Dataset:
    """Open a dataset of another file that `file` names; "" is the name of `file` itself."""
    if name:
        folder = os.path.dirname(file.filename)
        real = os.path.join(folder, name)
        if os.path.isabs(name) and not os.path.exists(real):  # the library looks in the folder, too
            real = os.path.join(folder, os.path.basename(name))
        if not os.path.isfile(real):
            raise ValueError(f"{name!r} is not a regular file" if os.path.exists(real) else f"there is no {name!r}")
        try:
            file = h5py.File(real, "r", locking=False)
        except OSError as error:
            raise ValueError(f"{name!r} cannot be opened ({' '.join(str(error).split())[:100]})") from None
    node: Any = file["/"]
    for part in filter(None, path.split("/")):  # soft and external links may lead to a pipe, which would block
        is_hard = isinstance(node, h5py.Group) and isinstance(node.get(part, getlink=True), h5py.HardLink)
        node = node[part] if is_hard else None
    if isinstance(node, h5py.Dataset):
        return node
    raise ValueError(f"{os.path.basename(file.filename)!r} has no array {path!r}, or only a link to one")


def _check_sources(dataset: h5py.Dataset, parents: tuple[object, ...] = ()) -> None:
    """Raise an error if a file with elements of an array is missing, in place of which the library reads zeros."""
    identity = os.path.realpath(dataset.file.filename), address(dataset.id)[1]
    if identity in parents or len(parents) >= _MAX_VIRTUAL:
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
        name, path = (text.replace("%%", "%") for text in source[1:3])
        _check_sources(_open_linked(dataset.file, "" if name == "." else name, path), (*parents, identity))


def _number_form(name: str, dataset: h5py.Dataset) -> tuple[np.dtype | None, str, str]:
    """Return the NumPy form of an array of numbers; else None, the kind of elements, and the reason."""
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


def _object_form(dataset: h5py.Dataset) -> np.dtype | None:
    """Return the NumPy form of elements that are not numbers; None if NumPy cannot describe them completely."""
    tid, dtype = dataset.id.get_type(), _dtype(dataset.id)
    if dtype.subdtype or (dtype.hasobject and not isinstance(tid, h5t.TypeVlenID)):
        return None
    try:
        is_same = tid.equal(h5t.py_create(dtype, logical=True))
    except (TypeError, ValueError):
        return None
    return (np.dtype(dtype.str) if dtype.kind == "S" else dtype) if is_same and not has_references(tid) else None


def _dtype(identifier: h5d.DatasetID) -> np.dtype:
    """Return the NumPy form of the elements of an array; bytes if NumPy has none."""
    try:
        dtype: np.dtype = identifier.dtype
    except (TypeError, ValueError):  # a ValueError if a number is larger than those of NumPy
        dtype = np.dtype(f"V{identifier.get_type().get_size()}")
    return dtype


def has_numpy_type(dataset: h5py.Dataset) -> bool:
    """Return whether NumPy has the type of an array's elements; for numbers a wider type is not enough."""
    tid = dataset.id.get_type()
    is_number = isinstance(tid, h5t.TypeIntegerID | h5t.TypeFloatID)
    return not is_number or _is_same_type(tid, dataset.dtype)


def _is_same_type(tid: Any, dtype: np.dtype) -> bool:
    """Return whether a type of a file is a type of NumPy."""
    if isinstance(tid, h5t.TypeIntegerID) and dtype.itemsize == 1:  # files may declare a byte order for single bytes
        tid = tid.copy()
        tid.set_order(h5t.ORDER_LE)
    return bool(tid.equal(h5t.py_create(dtype, logical=True)))


def has_references(tid: Any) -> bool:
    """Return whether values of a type are references, or contain references."""
    if isinstance(tid, h5t.TypeCompoundID):
        return any(has_references(tid.get_member_type(number)) for number in range(tid.get_nmembers()))
    if isinstance(tid, h5t.TypeVlenID | h5t.TypeArrayID):
        return has_references(tid.get_super())
    return isinstance(tid, h5t.TypeReferenceID)
