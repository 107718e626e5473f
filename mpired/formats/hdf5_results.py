"""Results in HDF5, modelled on the file of the first rank: groups, datasets, attributes, scales, filters.

A result is a copy of that file with other elements where little else is in it, or else made object by object. This
module runs in a worker, because a damaged file may end the process that reads it.
"""

from __future__ import annotations

import io
import math
import os
import posixpath
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import h5py
import numpy as np
from h5py import h5a, h5d, h5ds, h5f, h5fd, h5g, h5o, h5p, h5r, h5s, h5t, h5z

from mpired.context import usable_cores
from mpired.datatypes import has_same_components, numeric_form
from mpired.errors import DatatypeError
from mpired.files import calls, copying
from mpired.formats import conventions, hierarchy
from mpired.formats.array import Array
from mpired.formats.arrays import copy_whole, selections
from mpired.formats.conventions import Attributes, octets_of, text_of
from mpired.formats.hierarchy import DIMENSION_ONLY, HdfFile, address, open_attributes
from mpired.formats.layout import encoded
from mpired.formats.missing import Missing
from mpired.formats.rank import Cells, Model
from mpired.formats.streamed import DECODED_NBYTES
from mpired.sources.source import Source

_MIN_THREAD_NBYTES = 64 << 10  # of a chunk that a thread deflates; for smaller chunks threads cost more than they save
_DEFLATED_NBYTES = 32 << 20  # of chunks that threads deflate at a time
_COMPACT_NBYTES = 60_000  # that fit into the header of an object
_MAX_COPY_RATIO = 1.1  # of the size of a file to its replaced elements, for a result that is a copy
_LOSSY = frozenset({32013, 32017, 32018, 32024, 32028, 32033})  # zfp, sz and others, which would change results
_BITSHUFFLE = 32008  # this filter puts three settings of its own before the others
_SCALES = (b"DIMENSION_LIST", b"REFERENCE_LIST")


class _Result(NamedTuple):
    """An array of a result, and the dataset on which it is modelled."""

    name: str
    shape: tuple[int, ...]
    type: Any  # of the elements in the file
    elements: np.dtype  # the NumPy form of the elements, which may differ from `type` in the sign
    plist: Any  # the creation properties
    template: h5py.Dataset | None
    has_same_meaning: bool  # whether the values mean the same as those of the template; indices, for example, do not
    missing: Missing | None
    attributes: Mapping[str, np.ndarray]  # that have the type of the elements
    dropped: Collection[str]  # names of attributes of the template that the result does not keep

    @property
    def alike(self) -> h5py.Dataset | None:
        """The template, or None if its shape differs, such as that of an array of which a rank gets a part."""
        return self.template if self.template is not None and self.template.shape == self.shape else None

    @classmethod
    def of(cls, buffer: Array, old: h5py.File | None, cells: Cells) -> _Result:
        """Return the result for a buffer, modelled on a dataset of the old file if one has its origin."""
        name, template = buffer.name or "value", None
        has_same_meaning = buffer.origin == buffer.own_name
        with suppress(KeyError, OSError):
            template = None if old is None else old[buffer.origin or name]
        template = template if isinstance(template, h5py.Dataset) else None
        form = dtype = np.dtype(bool) if buffer.datatype.is_bool else buffer.form or buffer.datatype.form
        order: Any = buffer.byte_order if buffer.byte_order in "<>" else "="
        dtype = h5py.string_dtype() if dtype.hasobject and not dtype.metadata else dtype.newbyteorder(order)
        try:
            tid = h5t.py_create(dtype, logical=True)
        except TypeError:
            raise DatatypeError(f"{buffer.datatype}", "has no form in hdf5; use `to='npz'`") from None
        old_attributes: Attributes = {}
        is_same = False
        if template is not None and has_same_meaning:
            old_attributes, form = conventions.with_sign(hierarchy.attributes_of(template.id), template.dtype)
            # Numbers of a type that NumPy does not have, such as bfloat16, are combined in a wider type.
            is_same = has_same_components(buffer.datatype, form) and hierarchy.has_numpy_type(template)
            tid = template.id.get_type().copy() if is_same else tid
        elements = numeric_form(form if is_same else tid.dtype)
        old_attributes = cells.remaining_attributes(name, old_attributes)
        attributes, dropped = conventions.result_attributes(
            old_attributes, form, elements, is_same=is_same, nullable=buffer.nullable
        )
        kept = {key: value for key, value in old_attributes.items() if key not in dropped}
        missing = conventions.missing({**kept, **attributes}, elements)
        # A truth value with a third value would be read as true.
        has_fill = old is not None or conventions.fill_of_result(attributes, elements) is not None
        if buffer.nullable and (buffer.datatype.is_bool or not has_fill):
            raise DatatypeError(buffer.datatype.label, "has no value for missing elements in hdf5; use `to='parquet'`")
        is_alike = template is not None and template.shape == buffer.dimensions
        plist = _storage_properties(template, dtype) if is_alike else h5p.create(h5p.DATASET_CREATE)
        if template is not None and has_same_meaning:
            _set_fill(plist, template, None if is_same else elements.newbyteorder("="))
        return cls(
            name, buffer.dimensions, tid, elements, plist, template, has_same_meaning, missing, attributes, dropped
        )


def _set_fill(plist: Any, template: h5py.Dataset, form: np.dtype | None) -> None:
    """Give creation properties the fill value that a dataset declares, converted to a form unless that is None."""
    old = template.id.get_create_plist()
    if template.is_virtual or template.external or old.fill_value_defined() != h5d.FILL_VALUE_USER_DEFINED:
        return
    value = np.zeros((), template.dtype)
    old.get_fill_value(value)
    if form is not None:
        fill = conventions.converted(value, form) if value.dtype.kind in "iuf" and form.names is None else None
        fill = conventions.default_fill(form) if fill is None else fill
        value = np.zeros((), form) if fill is None else fill
    plist.set_fill_value(value)


def _storage_properties(template: h5py.Dataset, dtype: np.dtype) -> Any:
    """Return the creation properties of a dataset with the layout, filters and fill times of another."""
    old = template.id.get_create_plist()
    plist = _with_order_of(old, h5p.create(h5p.DATASET_CREATE))
    if template.is_virtual or template.external:
        return plist
    if template.chunks:
        plist.set_chunk(template.chunks)
    elif old.get_layout() == h5d.COMPACT and (template.size or 0) * dtype.itemsize <= _COMPACT_NBYTES:
        plist.set_layout(h5d.COMPACT)
    plist.set_fill_time(old.get_fill_time())
    plist.set_alloc_time(old.get_alloc_time())
    for number in range(old.get_nfilters() if template.chunks else 0):
        code, flags, settings, _ = old.get_filter(number)
        if code != h5z.FILTER_SCALEOFFSET:
            if code not in _LOSSY:
                plist.set_filter(code, flags, settings[3:] if code == _BITSHUFFLE else settings)
        elif dtype.kind in "iu":  # of floating-point numbers the filter drops digits
            plist.set_scaleoffset(h5z.SO_INT, 0)  # 0: as many bits as the elements of each chunk need
    return plist


def _with_order_of(old: Any, plist: Any) -> Any:
    """Give creation properties the order of attributes and links of others, whose copy has addresses of their file."""
    plist.set_obj_track_times(False)  # so that the bits of a file do not depend on the time
    plist.set_attr_creation_order(old.get_attr_creation_order())
    plist.set_attr_phase_change(*old.get_attr_phase_change())
    if not isinstance(plist, h5p.PropDCID):
        plist.set_link_creation_order(old.get_link_creation_order())
    return plist


def _copy_objects(
    model: Model, results: Mapping[str, _Result], old: h5py.File, file: h5py.File, absent: Collection[object]
) -> dict[tuple[int, int] | None, str]:
    """Make the objects of the old file, with datasets for results; return the new names by the old addresses."""
    names: dict[tuple[int, int] | None, str] = {address(old.id): ""}
    for node in hierarchy.walk(old["/"].id):
        link, identifier, dataset = octets_of(node.name), node.object, node.dataset
        if node.soft:
            path = posixpath.join("/", posixpath.dirname(node.name), text_of(node.soft))
            if posixpath.normpath(path).lstrip("/") not in absent:
                file.id.links.create_soft(link, node.soft)
        elif node.address in names:
            file[node.name] = file[f"/{names[node.address]}"]
        elif node.external or node.address in absent:
            is_scale = dataset is not None and h5ds.is_scale(identifier) and identifier.rank
            if is_scale and model.has_history and node.name not in results:
                # A dimension of netCDF stays without its values.
                plist = _storage_properties(dataset, np.dtype("f4"))
                scale = h5d.create(file.id, link, h5t.IEEE_F32BE, identifier.get_space(), plist)
                attributes = open_attributes(identifier)
                _copy_attributes((attribute for attribute in attributes if attribute.name == b"_Netcdf4Dimid"), scale)
                h5ds.set_scale(scale, f"{DIMENSION_ONLY}.{identifier.shape[0]:10}".encode())
                names[node.address] = node.name
        else:
            names[node.address] = node.name
            if node.name in results and dataset is not None:
                _create_dataset(file, results[node.name])
            else:
                _copy_attributes(open_attributes(identifier), _copy_object(identifier, file.id, link))
    return names


def _copy_file(
    model: Model, results: Sequence[_Result], old: h5py.File, file: h5py.File, absent: Collection[object]
) -> tuple[dict[tuple[int, int] | None, str], dict[str, Any]]:
    """Make the objects of the old file, with datasets for results, and attach dimension scales again.

    Return the new names of objects by their old addresses, and the old object, or None, by the new name.
    """
    names = _copy_objects(model, {result.name: result for result in results}, old, file, absent)
    templates = {name: old[f"/{name}"] for name in names.values()}
    for result in results:
        if result.name not in file:
            _create_dataset(file, result)
            templates[result.name] = result.template
    for name, template in templates.items():
        new = file[f"/{name}"]
        if not isinstance(template, h5py.Dataset) or template.shape != new.shape:
            continue
        if template.shape is not None and hierarchy.has_references(template.id.get_type()):
            _copy_references(template, new, names)
        dimensions = template.dims
        if not h5a.exists(template.id, b"DIMENSION_LIST"):  # a result modelled on a scale gets it as its scale
            dimensions = [{"": template}] if h5ds.is_scale(template.id) and not h5ds.is_scale(new.id) else []
        for number, dimension in enumerate(dimensions):
            for scale in dimension.values():
                if scale_name := names.get(address(scale.id)):
                    h5ds.attach_scale(new.id, file[f"/{scale_name}"].id, number)
    _add_dimensions(file, [result for result in results if model.has_history and result.alike is None])
    return names, templates


def _copy_references(old: h5py.Dataset, new: h5py.Dataset, names: Mapping[Any, str]) -> None:
    """Write the references of a copied dataset, which the library copies as null references."""
    for _, selection, _ in selections(old.shape, old.chunks or (), old.dtype.itemsize, 0, DECODED_NBYTES // 2):
        values = np.array(old[selection], old.dtype.base)
        _replace_references(values, old, new, names)
        if old.dtype.subdtype:
            new[selection] = values
        else:
            new.write_direct(values, dest_sel=selection)


def _copy_attribute_references(old: Any, new: Any, names: Mapping[Any, str]) -> None:
    """Write the references in copied attributes, and delete attributes with a reference to an absent object."""
    for attribute, values, reason in _attribute_references(old, new, names):
        if h5a.exists(new.id, attribute.name):
            if reason:
                h5a.delete(new.id, attribute.name)
            else:
                h5a.open(new.id, attribute.name).write(values)


def _attribute_references(old: Any, new: Any, names: Mapping[Any, str]) -> Iterator[tuple[Any, np.ndarray, str]]:
    """Yield attributes with references but `_SCALES`, values for the new file, and a reason if it lacks an object."""
    for attribute in open_attributes(old.id):
        is_null, reason = attribute.get_space().get_simple_extent_type() == h5s.NULL, ""
        if attribute.name not in _SCALES and hierarchy.has_references(attribute.get_type()) and not is_null:
            attribute.read(values := np.empty(attribute.shape, attribute.dtype))
            try:
                _replace_references(values, old, new, names)
            except DatatypeError as error:
                reason = error.reason
            yield attribute, values, reason


def _replace_references(values: np.ndarray, old: Any, new: Any, names: Mapping[Any, str]) -> None:
    """Replace references to objects of the old file by references to objects of the new file."""
    for field in values.dtype.names or ():
        _replace_references(values[field], old, new, names)
    for index in np.ndindex(values.shape) if values.dtype == object else ():
        value: Any = values[index]
        if isinstance(value, np.ndarray):
            _replace_references(value, old, new, names)
        elif isinstance(value, h5r.Reference) and value:  # not null
            values[index] = _new_reference(value, old, new, names)


def _new_reference(reference: Any, old: Any, new: Any, names: Mapping[Any, str]) -> Any:
    """Return the reference of a new object for a reference of an old object."""
    name, file = names.get(address(h5r.dereference(reference, old.id))), new.file.id
    if name is None:
        path = text_of(h5r.get_name(reference, old.id) or b"")[1:]
        reason = f"has references to {path!r}, which the result has not; carry that, too, with `keep={path!r}`"
        raise DatatypeError(repr(new.name[1:]), reason)
    if isinstance(reference, h5r.RegionReference):
        return h5r.create(file, octets_of(f"/{name}"), h5r.DATASET_REGION, h5r.get_region(reference, old.id))
    return h5r.create(file, octets_of(f"/{name}"), h5r.OBJECT)


def _add_dimensions(file: h5py.File, results: Sequence[_Result]) -> None:
    """Give results of new shapes dimensions of netCDF: readers take any dimension of that length for a missing one."""
    for result in results:
        for number, length in enumerate(result.shape):
            names = conventions.dimension_names("", length)
            name = next(name for name in names if name not in file or getattr(file[name], "shape", None) == (length,))
            if name not in file:
                arrays = [node.dataset for node in hierarchy.walk(file["/"].id) if node.dataset is not None]
                dimid = max(int(array.attrs.get("_Netcdf4Dimid", -1)) for array in arrays)
                scale = file.create_dataset(name, (length,), ">f4", track_times=False)
                if dimid >= 0:
                    scale.attrs["_Netcdf4Dimid"] = np.int32(dimid + 1)
                h5ds.set_scale(scale.id, f"{DIMENSION_ONLY}.{length:10}".encode())
            h5ds.attach_scale(file[f"/{result.name}"].id, file[name].id, number)


def _create_dataset(file: h5py.File, result: _Result) -> None:
    """Create the dataset of a result, with the attributes of its template."""
    template, alike = result.template, result.alike
    result.plist.set_obj_track_times(False)
    # Only chunks can grow, so other layouts lose a larger maximum shape.
    space = alike.id.get_space() if alike is not None and alike.chunks else h5s.create_simple(result.shape)
    lcpl = h5p.create(h5p.LINK_CREATE)
    lcpl.set_create_intermediate_group(True)
    dataset = h5d.create(file.id, octets_of(result.name), result.type, space, result.plist, lcpl=lcpl)
    form = numeric_form(dataset.dtype).newbyteorder("=")
    new = {key: value.astype(form).reshape(-1) for key, value in result.attributes.items()}
    copied = []
    for attribute in () if template is None else open_attributes(template.id):
        key = text_of(attribute.name)
        is_kept = conventions.keeps_attribute(key, same_shape=alike is not None, same_meaning=result.has_same_meaning)
        if key in new or (key not in result.dropped and is_kept):
            copied.append(attribute)
    _copy_attributes(copied, dataset, new)


def _copy_attributes(attributes: Iterable[Any], target: Any, changed: Mapping[str, np.ndarray | str] = {}) -> None:
    """Copy attributes, with changed values in their places; changed attributes that are new follow."""
    remaining = dict(changed)
    for attribute in attributes:
        tid = attribute.get_type()
        has_references = hierarchy.has_references(tid)
        if (key := text_of(attribute.name)) in remaining:
            _write_attribute(target, key, remaining.pop(key), tid)
        elif attribute.name not in _SCALES and not (has_references and h5a.exists(target, attribute.name)):
            space, dtype = attribute.get_space(), attribute.dtype
            copy = h5a.create(target, attribute.name, tid.copy(), space)
            # References stay null until all objects exist.
            if has_references or space.get_simple_extent_type() == h5s.NULL:
                continue
            mtype = None if dtype.hasobject else tid
            octets = np.empty(space.get_simple_extent_dims(), dtype if dtype.hasobject else f"V{tid.get_size()}")
            attribute.read(octets, mtype=mtype)
            copy.write(octets, mtype=mtype)
    for key, value in remaining.items():
        _write_attribute(target, key, value)


def _write_attribute(identifier: Any, name: str, value: np.ndarray | str, old_type: Any = h5t.C_S1) -> None:
    """Write an attribute: numbers, or a string, which has a variable length if `old_type` has it."""
    if isinstance(value, str):
        octets, space = octets_of(value), h5s.create(h5s.SCALAR)
        tid = old_type.copy() if isinstance(old_type, h5t.TypeStringID) else h5t.C_S1.copy()
        form = h5py.string_dtype()
        if not tid.is_variable_str():
            tid.set_size(len(octets) + (tid.get_strpad() == h5t.STR_NULLTERM))
            if not value.isascii():
                tid.set_cset(h5t.CSET_UTF8)
            form = np.dtype(f"S{tid.get_size()}")
        value = np.array(octets, form)
    else:
        tid, space, value = h5t.py_create(value.dtype), h5s.create_simple(value.shape), np.ascontiguousarray(value)
    h5a.create(identifier, name.encode(), tid, space).write(value, mtype=None if value.dtype.hasobject else tid)


def _copy_object(identifier: Any, parent: Any, link: bytes) -> Any:
    """Copy an object without its attributes, or a group without its members, and return the copy."""
    if isinstance(identifier, h5g.GroupID):
        plist = _with_order_of(identifier.get_create_plist(), h5p.create(h5p.GROUP_CREATE))
        return h5g.create(parent, link, gcpl=plist)
    tid = identifier.get_type() if isinstance(identifier, h5d.DatasetID) else None
    if isinstance(tid, h5t.TypeStringID) and tid.is_variable_str():
        # The library would copy the fill value as an address in the old file.
        old = h5py.Dataset(identifier)
        plist = _storage_properties(old, old.dtype)
        new = h5py.Dataset(h5d.create(parent, link, tid.copy(), identifier.get_space(), plist))
        rows = selections(old.shape or (), old.chunks or (), tid.get_size(), 0, DECODED_NBYTES // 2)
        for _, selection, _ in () if old.shape is None else rows:
            new[selection] = old[selection]
        return new.id
    plist = h5p.create(h5p.OBJECT_COPY)
    plist.set_copy_object(h5o.COPY_WITHOUT_ATTR_FLAG)
    h5o.copy(identifier, b".", parent, link, plist)
    return h5o.open(parent, link)


def _open_model(model: Model, stack: ExitStack) -> tuple[h5py.File | None, list[_Result]]:
    """Open the file of a model, if it has a file; return it and the results."""
    old = None if model.source is None else stack.enter_context(closing(HdfFile(model.source))).file
    return old, [_Result.of(buffer, old, model.cells) for buffer in model.buffers]


def _absent_arrays(model: Model, nodes: Iterable[hierarchy.Node]) -> set[object]:
    """Return the names and addresses of the arrays of the old file, with these nodes, that results do not have."""
    names = {buffer.name for buffer in model.buffers if buffer.name == buffer.origin}
    names |= {*model.kept.names} if model.kept else set()
    absent = (node for node in nodes if node.is_array and node.name not in names)
    return {key for node in absent for key in (node.name, node.address)}


def _lost_attributes(old: h5py.File, nodes: Iterable[hierarchy.Node], absent: Collection[object]) -> dict[str, str]:
    """Return the attributes with references to absent arrays by `object.attribute`, and why they are left out."""
    names = {node.address: node.name for node in nodes if node.object and node.address not in absent}
    names, lost = names | {address(old.id): ""}, dict[str, str]()
    for name in names.values():
        item = old[f"/{name}"]
        for attribute, _, reason in _attribute_references(item, item, names):
            if reason:
                lost[f"{name}.{text_of(attribute.name)}".lstrip(".")] = reason
    return lost


def forms(model: Model) -> tuple[tuple[np.dtype, ...] | None, tuple[Missing | None, ...], dict[str, str]]:
    """Return the forms of results, None if one has to be encoded, their rules for missing elements, lost attributes."""
    with ExitStack() as stack:
        old, results = _open_model(model, stack)
        nodes = [] if old is None else [*hierarchy.walk(old["/"].id)]
        absent = _absent_arrays(model, nodes)
        lost = {} if old is None or not absent else _lost_attributes(old, nodes, absent)
        are_flat = all(result.plist.get_layout() == h5d.CONTIGUOUS for result in results)
        are_flat = are_flat and not any(array.nullable or array.datatype.form.hasobject for array in model.buffers)
        stored = tuple(result.elements for result in results) if are_flat else None
        return stored, tuple(result.missing for result in results), lost


def _create_file(stack: ExitStack, model: Model, line: str, fd: int, *, early: bool) -> list[h5py.Dataset]:
    """Make a file of results without their elements, which get space if `early`: a copy, or object by object."""
    old, results = _open_model(model, stack)
    for result in results if early else ():
        result.plist.set_alloc_time(h5d.ALLOC_TIME_EARLY)
        result.plist.set_fill_time(h5d.FILL_TIME_NEVER)
    target = stack.enter_context(_TargetFile(fd, "r+b", closefd=False))
    if old is None:
        fcpl = h5p.create(h5p.FILE_CREATE)
        fcpl.set_obj_track_times(False)
        file = stack.enter_context(_open_target(target, fcpl, h5f.LIBVER_EARLIEST))
        for result in results:
            _create_dataset(file, result)
    else:
        absent = _absent_arrays(model, hierarchy.walk(old["/"].id))
        names, templates = dict[Any, str](), dict[str, Any]()
        if early and not absent and _copy_surroundings(model, old, results, fd):
            file = stack.enter_context(_open_target(target))
        else:
            fcpl = _with_order_of(old["/"].id.get_create_plist(), old.id.get_create_plist())
            file = stack.enter_context(_open_target(target, fcpl))
            names, templates = _copy_file(model, results, old, file, absent)
        _copy_root_attributes(model, line, old, file)
        for name, template in templates.items():
            if template is not None:
                _copy_attribute_references(template, file[f"/{name}"], names)
    _write_cells(model.cells, file)
    return [file[result.name] for result in results]


def _copy_root_attributes(model: Model, line: str, old: h5py.File, file: h5py.File) -> None:
    """Copy the attributes of the root with a new line of history."""
    new, root = file["/"].id, old["/"].id
    for attribute in [*open_attributes(new)]:  # of a copied file, whose history would not stay in its place
        if not hierarchy.has_references(attribute.get_type()):
            h5a.delete(new, attribute.name)
    types = [attribute.get_type() for attribute in open_attributes(root) if attribute.name == b"history"]
    history = conventions.text(hierarchy.attributes_of(root), "history")
    lines = {"history": f"{line}\n{history}" if history else line}
    is_text = any(isinstance(tid, h5t.TypeStringID) for tid in types)
    _copy_attributes(open_attributes(root), new, lines if is_text or model.has_history else {})


def _write_cells(cells: Cells, file: h5py.File) -> None:
    """Write values of coordinates and attributes that differ from those of the model."""
    for name, values in cells.values.items():
        file[name][...] = values
    for name, changes in cells.attributes.items():
        for key, text in changes.items():
            file[name].attrs.pop(key, None)
            if text:
                _write_attribute(file[name].id, key, text)


def _copy_surroundings(model: Model, old: h5py.File, results: Sequence[_Result], fd: int) -> bool:
    """Copy a file without the elements that results replace, if little else is in it; return whether it is copied."""
    assert model.source is not None  # noqa: S101 - the old file
    ranges, nbytes = [], model.source.nbytes
    for result in results:
        template = result.alike
        if template is None or result.dropped or address(template.id)[0] != address(old.id)[0]:
            return False
        if (start := template.id.get_offset()) is None:
            return False
        ranges.append((start, start + template.id.get_storage_size()))
    with closing(model.source.open()) as file:
        is_small = nbytes <= _MAX_COPY_RATIO * sum(stop - start for start, stop in ranges)
        # The file would record when its attributes were changed.
        has_times = h5o.get_info(old["/"].id).ctime
        if file.fd is None or has_times or not is_small:
            return False
        calls.allocate(fd, nbytes)
        for (_, start), (stop, _) in pairwise([(0, 0), *sorted(ranges), (nbytes, nbytes)]):
            if start < stop:
                copying.copy_sparse(file.fd, fd, start, stop, start)
    return True


class _TargetFile(io.FileIO):
    """A file that the library writes. Its exit raises an error of the system, which h5py turns into another error."""

    error: OSError | None = None

    def write(self, data: Any, /) -> int:
        return self._record_error(super().write, data)

    def truncate(self, size: int | None = None, /) -> int:
        return self._record_error(super().truncate, size)

    def _record_error(self, call: Callable[[Any], int], argument: Any) -> int:
        try:
            return call(argument)
        except OSError as error:
            self.error = error
            raise

    def __exit__(self, *raised: object) -> None:
        self.close()
        if self.error is not None and isinstance(raised[1], Exception):
            raise self.error from None


def _open_target(target: Any, fcpl: Any = None, low: int = h5f.LIBVER_V18) -> h5py.File:
    """Open a Python file to change it, or with `fcpl` to write it anew: the library opens no file without a name."""
    fapl = h5p.create(h5p.FILE_ACCESS)
    fapl.set_fileobj_driver(h5fd.fileobj_driver, target)
    fapl.set_libver_bounds(low, h5f.LIBVER_LATEST)  # copied objects may have types of any version
    if fcpl is None:
        return h5py.File(h5f.open(b"result", h5f.ACC_RDWR, fapl=fapl))
    return h5py.File(h5f.create(b"result", h5f.ACC_TRUNC, fcpl=fcpl, fapl=fapl))


def write(model: Model, line: str, jobs: int, results: Sequence[Array] | None, fd: int) -> list[int]:
    """Write a file of results, without their elements if `results` is None, and return the offsets of the results."""
    with ExitStack() as stack:
        datasets = _create_file(stack, model, line, fd, early=results is None)
        for dataset, result in zip(datasets, results or (), strict=results is not None):
            _write_elements(dataset, result, jobs)
        return [dataset.id.get_offset() or 0 for dataset in datasets]


_Blocks: TypeAlias = Iterator[tuple[tuple[slice, ...], np.ndarray]]  # a selection of an array, and its elements


def _write_elements(dataset: h5py.Dataset, result: Array, jobs: int = 0) -> None:
    """Write all elements of a dataset, with its fill value in place of missing elements."""
    attributes, form = conventions.with_sign(hierarchy.attributes_of(dataset.id), dataset.dtype)
    form = numeric_form(form)
    native = form.newbyteorder("=")
    fill = conventions.fill_of_result(attributes, native) if native.names is None else None
    rows = list(selections(dataset.shape, dataset.chunks or (), form.itemsize, 0, DECODED_NBYTES // 2))
    elements = encoded(result, form, [math.prod(shape) for *_, shape in rows], fill)
    blocks: _Blocks = (
        (selection, block.view(dataset.dtype).reshape(shape))  # as truth values, or with a sign
        for (_, selection, shape), block in zip(rows, elements, strict=True)
    )
    if hierarchy.has_numpy_type(dataset):
        level = _deflate_level(dataset, [selection for _, selection, _ in rows])
        if level is not None:
            _write_deflated(dataset, level, blocks, jobs or usable_cores())
            return
    item_type = h5py.check_vlen_dtype(dataset.dtype)
    for selection, block in blocks:
        if isinstance(item_type, np.dtype):  # the library takes lists only in arrays of its own dtype
            lists = np.fromiter((np.asarray(item, item_type) for item in block.flat), dataset.dtype, block.size)
            dataset.write_direct(lists.reshape(block.shape), dest_sel=selection)
        else:
            dataset[selection] = block


def _deflate_level(dataset: h5py.Dataset, rows: Sequence[Sequence[slice]]) -> int | None:
    """Return the level of deflate; None for other filters, small chunks, or rows that are not of whole chunks."""
    plist, chunk = dataset.id.get_create_plist(), dataset.chunks or ()
    filters = [plist.get_filter(number) for number in range(plist.get_nfilters())]
    if [code for code, *_ in filters] not in ([h5z.FILTER_DEFLATE], [h5z.FILTER_SHUFFLE, h5z.FILTER_DEFLATE]):
        return None
    are_whole = all(axis.start % step == 0 for row in rows for axis, step in zip(row, chunk, strict=False))
    level: int = filters[-1][2][0]
    return level if are_whole and math.prod(chunk) * dataset.dtype.itemsize >= _MIN_THREAD_NBYTES else None


def _write_deflated(dataset: h5py.Dataset, level: int, blocks: _Blocks, nthreads: int) -> None:
    """Write blocks of whole chunks, which several threads deflate: the library has one thread."""
    shape, is_shuffled = dataset.chunks, dataset.id.get_create_plist().get_nfilters() > 1

    def deflate(part: np.ndarray) -> bytes:
        chunk = np.zeros(shape, part.dtype)  # at an edge of the array it ends with zeros
        chunk[tuple(map(slice, part.shape))] = part
        octets = chunk.reshape(-1).view(np.uint8)
        if is_shuffled:  # the first bytes of all elements, then the second bytes
            octets = np.ascontiguousarray(octets.reshape(-1, part.dtype.itemsize).T)
        return zlib.compress(octets.data, level)

    max_queued = max(1, min(2 * nthreads, _DEFLATED_NBYTES // (math.prod(shape) * dataset.dtype.itemsize)))
    queue: deque[tuple[tuple[int, ...], Future[bytes]]] = deque()
    with ThreadPoolExecutor(nthreads) as pool:
        for selection, block in blocks:
            offset = [axis.start for axis in selection] + [0] * (block.ndim - len(selection))
            counts = [-(-length // step) for length, step in zip(block.shape, shape, strict=True)]
            for number in np.ndindex(*counts):
                start = [index * step for index, step in zip(number, shape, strict=True)]
                part = block[tuple(slice(index, index + step) for index, step in zip(start, shape, strict=True))]
                if len(queue) == max_queued:
                    dataset.id.write_direct_chunk(queue[0][0], queue.popleft()[1].result())
                queue.append((tuple(map(sum, zip(offset, start, strict=True))), pool.submit(deflate, part)))
        for position, chunk in queue:
            dataset.id.write_direct_chunk(position, chunk.result())


def rewrite(source: Source, changed: Sequence[Array], fd: int) -> None:
    """Write a copy of a file with new elements in some arrays."""
    copy_whole(source, fd)
    with _TargetFile(os.dup(fd), "r+b") as target, _open_target(target) as file:
        for array in changed:
            _write_elements(file[array.name], array)
