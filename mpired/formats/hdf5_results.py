"""Results in HDF5: files like that of the first rank, with new arrays. All of this is done in a worker."""

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

from mpired.datatypes import agrees, as_numbers
from mpired.errors import DatatypeError
from mpired.files import calls, copying
from mpired.formats import conventions, hierarchy
from mpired.formats.array import Array
from mpired.formats.arrays import copy_whole, selections
from mpired.formats.conventions import POSITIONS, Attributes, octets_of, text_of
from mpired.formats.hierarchy import DIMENSION_ONLY, HdfFile, address, open_attributes
from mpired.formats.layout import encoded
from mpired.formats.missing import Missing
from mpired.formats.rank import Cells, Model
from mpired.formats.streamed import DECODED_NBYTES
from mpired.machine import usable_cores
from mpired.sources.source import Source

_LEAST_CHUNK_NBYTES = 64 << 10  # of a chunk for a thread, which would begin and end with a smaller one in no time
_AHEAD_NBYTES = 32 << 20  # of deflated chunks in memory
_COMPACT_NBYTES = 60_000  # what fits into the header of an object
_LARGER = 1.1  # the most that a copy may be larger than the elements that are changed in it
_LOSSY = frozenset({32013, 32017, 32018, 32024, 32028, 32033})  # zfp, sz and the like: results are exact
_BITSHUFFLE = 32008  # it puts three values of its own before those that it is given
_SCALES = (b"DIMENSION_LIST", b"REFERENCE_LIST")


class _Result(NamedTuple):
    """An array of a result, and the dataset of its shape that it is modelled on, if there is one."""

    name: str
    shape: tuple[int, ...]
    type: Any  # of the elements in the file
    elements: np.dtype  # the form of the elements, which may be another view of those that they have in the file
    plist: Any  # the creation properties
    like: h5py.Dataset | None
    is_own: bool  # whether its values have the meaning of those of its model; not, for example, indices
    missing: Missing | None
    own: Mapping[str, np.ndarray]  # the attributes that it has in the form of its elements
    left_out: Collection[str]  # the attributes that it has not as its model has them; () if nothing changes

    @classmethod
    def of(cls, buffer: Array, old: h5py.File | None, cells: Cells) -> _Result:
        """Return that of a buffer."""
        name, shape, like = buffer.name or "value", buffer.dimensions, None
        is_own = buffer.origin == buffer.own_name
        with suppress(KeyError, OSError):
            like = None if old is None else old[buffer.origin or name]
        like = like if isinstance(like, h5py.Dataset) and like.shape == shape else None
        form = dtype = np.dtype(bool) if buffer.datatype.is_bool else buffer.form or buffer.datatype.form
        order: Any = buffer.byte_order if buffer.byte_order in "<>" else "="
        dtype = h5py.string_dtype() if dtype.hasobject and not dtype.metadata else dtype.newbyteorder(order)
        try:
            tid = h5t.py_create(dtype, logical=True)
        except TypeError:
            raise DatatypeError(f"{buffer.datatype}", "has no form in hdf5; use `to='npz'`") from None
        attributes: Attributes = {}
        is_same = False
        if like is not None and is_own:
            attributes, form = conventions.with_sign(hierarchy.attributes_of(like.id), like.dtype)
            # Numbers of a type that NumPy has not, such as bfloat16 or 12 bits of an integer, are combined in a wider.
            is_same = agrees(buffer.datatype, form) and hierarchy.has_numpy_type(like)
            tid = like.id.get_type().copy() if is_same else tid
        elements = as_numbers(form if is_same else tid.dtype)
        attributes = cells.staying(name, attributes)
        own, left_out = conventions.result_attributes(
            attributes, form, elements, is_same=is_same, nullable=buffer.nullable
        )
        kept = {key: value for key, value in attributes.items() if key not in left_out}
        missing = conventions.missing({**kept, **own}, elements)
        # Truth values with a third value would be read as true.
        if buffer.nullable and (
            buffer.datatype.is_bool or (old is None and conventions.fill_of_result(own, elements) is None)
        ):
            raise DatatypeError(buffer.datatype.label, "has no value for missing elements in hdf5; use `to='parquet'`")
        plist = h5p.create(h5p.DATASET_CREATE) if like is None else _laid_out_as(like, dtype)
        if like is not None and is_own:
            _set_fill(plist, like, None if is_same else elements.newbyteorder("="))
        return cls(name, shape, tid, elements, plist, like, is_own, missing, own, left_out)


def _set_fill(plist: Any, like: h5py.Dataset, form: np.dtype | None) -> None:
    """Give creation properties the fill value of a dataset, if it has one of its own, perhaps in another form."""
    old = like.id.get_create_plist()
    if like.is_virtual or like.external or old.fill_value_defined() != h5d.FILL_VALUE_USER_DEFINED:
        return
    value = np.zeros((), like.dtype)
    old.get_fill_value(value)
    if form is not None:
        fill = conventions.converted(value, form) if value.dtype.kind in "iuf" and form.names is None else None
        fill = conventions.default_fill(form) if fill is None else fill
        value = np.zeros((), form) if fill is None else fill
    plist.set_fill_value(value)


def _laid_out_as(like: h5py.Dataset, dtype: np.dtype) -> Any:
    """Return the creation properties of a dataset stored like another: layout, times of filling, filters."""
    old = like.id.get_create_plist()
    plist = _ordered_as(old, h5p.create(h5p.DATASET_CREATE))
    if like.is_virtual or like.external:
        return plist
    if like.chunks:
        plist.set_chunk(like.chunks)
    elif old.get_layout() == h5d.COMPACT and (like.size or 0) * dtype.itemsize <= _COMPACT_NBYTES:
        plist.set_layout(h5d.COMPACT)
    plist.set_fill_time(old.get_fill_time())
    plist.set_alloc_time(old.get_alloc_time())
    for number in range(old.get_nfilters() if like.chunks else 0):
        code, flags, values, _ = old.get_filter(number)
        if code != h5z.FILTER_SCALEOFFSET:
            if code not in _LOSSY:
                plist.set_filter(code, flags, values[3:] if code == _BITSHUFFLE else values)
        elif dtype.kind in "iu":  # else it leaves out bits of digits
            plist.set_scaleoffset(h5z.SO_INT, 0)  # as many bits as the elements of each chunk need
    return plist


def _ordered_as(old: Any, plist: Any) -> Any:
    """Return `plist` with attributes and links in the order of another list, which has addresses of its file."""
    plist.set_obj_track_times(False)  # the bits of a file are the same whenever it is made
    plist.set_attr_creation_order(old.get_attr_creation_order())
    plist.set_attr_phase_change(*old.get_attr_phase_change())
    if not isinstance(plist, h5p.PropDCID):
        plist.set_link_creation_order(old.get_link_creation_order())
    return plist


def _copy_objects(
    model: Model, results: Mapping[str, _Result], old: h5py.File, file: h5py.File, left_out: Collection[object]
) -> dict[tuple[int, int] | None, str]:
    """Make what the old file has, but for the elements of results; return the new names by the old addresses."""
    made: dict[tuple[int, int] | None, str] = {address(old.id): ""}
    for each in hierarchy.walk(old["/"].id):
        link, found, dataset = octets_of(each.name), each.object, each.dataset
        if each.soft:
            target = posixpath.join("/", posixpath.dirname(each.name), text_of(each.soft))
            if posixpath.normpath(target).lstrip("/") not in left_out:
                file.id.links.create_soft(link, each.soft)
        elif each.address in made:
            file[each.name] = file[f"/{made[each.address]}"]
        elif each.external or each.address in left_out:
            is_scale = dataset is not None and h5ds.is_scale(found) and found.rank
            if is_scale and model.has_history and each.name not in results:
                # A dimension of netCDF without values takes the place of one that has some.
                plist = _laid_out_as(dataset, np.dtype("f4"))
                empty = h5d.create(file.id, link, h5t.IEEE_F32BE, found.get_space(), plist)
                _copy_attributes((one for one in open_attributes(found) if one.name == b"_Netcdf4Dimid"), empty)
                h5ds.set_scale(empty, f"{DIMENSION_ONLY}.{found.shape[0]:10}".encode())
                made[each.address] = each.name
        else:
            made[each.address] = each.name
            if each.name in results and dataset is not None:
                _create(file, results[each.name])
            else:
                _copy_attributes(open_attributes(found), _copied(found, file.id, link))
    return made


def _copy_file(
    model: Model, results: Sequence[_Result], old: h5py.File, file: h5py.File, left_out: Collection[object]
) -> None:
    """Make what the old file has, but for the elements of results, and attach the scales of dimensions again."""
    made = _copy_objects(model, {each.name: each for each in results}, old, file, left_out)
    models = {name: old[f"/{name}"] for name in made.values() if name}
    for each in results:
        if each.name not in file:
            _create(file, each)
            models[each.name] = each.like
    for name, like in models.items():
        new = file[f"/{name}"]
        if not isinstance(like, h5py.Dataset) or like.shape != new.shape:
            continue
        if like.shape is not None and hierarchy.has_references(like.id.get_type()):
            _redirect(like, new, made)
        dimensions = like.dims
        if not h5a.exists(like.id, b"DIMENSION_LIST"):  # it may be like a scale and is none
            dimensions = [{"": like}] if h5ds.is_scale(like.id) and not h5ds.is_scale(new.id) else []
        for number, dimension in enumerate(dimensions):
            for scale in dimension.values():
                if scale_name := made.get(address(scale.id)):
                    h5ds.attach_scale(new.id, file[f"/{scale_name}"].id, number)
    _add_dimensions(file, [each for each in results if model.has_history and each.like is None])


def _redirect(old: h5py.Dataset, new: h5py.Dataset, made: Mapping[Any, str]) -> None:
    """Write the references of a copied dataset, to the objects of the result: the library copies null references."""

    def move(values: np.ndarray) -> None:
        for name in values.dtype.names or ():
            move(values[name])
        for place in np.ndindex(values.shape) if values.dtype == object else ():
            each: Any = values[place]
            if isinstance(each, np.ndarray):
                move(each)
            elif isinstance(each, h5r.Reference) and each:  # a null one stays
                values[place] = _moved(each, old, new, made)

    for _, selection, _ in selections(old.shape, old.chunks or (), old.dtype.itemsize, 0, DECODED_NBYTES // 2):
        values = np.array(old[selection], old.dtype.base)
        move(values)
        if old.dtype.subdtype:
            new[selection] = values
        else:
            new.write_direct(values, dest_sel=selection)


def _moved(each: Any, old: h5py.Dataset, new: h5py.Dataset, made: Mapping[Any, str]) -> Any:
    """Return a reference of the new dataset to the object that one of the old dataset leads to."""
    name, file = made.get(address(h5r.dereference(each, old.id))), new.file.id
    if name is None:
        to = text_of(h5r.get_name(each, old.id) or b"")[1:]
        reason = f"has references to {to!r}, which the result has not; carry that, too, with `keep={to!r}`"
        raise DatatypeError(repr(new.name[1:]), reason)
    if isinstance(each, h5r.RegionReference):
        return h5r.create(file, octets_of(f"/{name}"), h5r.DATASET_REGION, h5r.get_region(each, old.id))
    return h5r.create(file, octets_of(f"/{name}"), h5r.OBJECT)


def _add_dimensions(file: h5py.File, results: Sequence[_Result]) -> None:
    """Give results of new shapes dimensions of netCDF; without them a reader takes any of the same lengths."""
    for result, (number, length) in ((each, axis) for each in results for axis in enumerate(each.shape)):
        names = conventions.dimension_names("", length)
        name = next(name for name in names if name not in file or getattr(file[name], "shape", None) == (length,))
        if name not in file:
            arrays = [found.dataset for found in hierarchy.walk(file["/"].id) if found.dataset is not None]
            dimid = max(int(array.attrs.get("_Netcdf4Dimid", -1)) for array in arrays)
            scale = file.create_dataset(name, (length,), ">f4", track_times=False)
            if dimid >= 0:
                scale.attrs["_Netcdf4Dimid"] = np.int32(dimid + 1)
            h5ds.set_scale(scale.id, f"{DIMENSION_ONLY}.{length:10}".encode())
        h5ds.attach_scale(file[f"/{result.name}"].id, file[name].id, number)


def _create(file: h5py.File, result: _Result) -> None:
    """Create the dataset of a result, with the attributes of its model, those of the type of elements in their form."""
    like = result.like
    result.plist.set_obj_track_times(False)
    # External elements become one piece, which has no room to grow.
    space = like.id.get_space() if like is not None and like.chunks else h5s.create_simple(result.shape)
    lcpl = h5p.create(h5p.LINK_CREATE)
    lcpl.set_create_intermediate_group(True)
    made = h5d.create(file.id, octets_of(result.name), result.type, space, result.plist, lcpl=lcpl)
    form = as_numbers(made.dtype).newbyteorder("=")
    own = {key: value.astype(form).reshape(-1) for key, value in result.own.items()}
    copied = [
        each
        for each in (() if like is None else open_attributes(like.id))
        if (key := text_of(each.name)) in own or (key not in result.left_out and (result.is_own or key in POSITIONS))
    ]
    _copy_attributes(copied, made, own)


def _copy_attributes(attributes: Iterable[Any], to: Any, changed: Mapping[str, np.ndarray | str] = {}) -> None:
    """Copy attributes; those that are changed have the places of the old ones, or are the last."""
    left = dict(changed)
    for attribute in attributes:
        tid = attribute.get_type()
        if (key := text_of(attribute.name)) in left:
            _put(to, key, left.pop(key), tid)
        elif attribute.name not in _SCALES and not hierarchy.has_references(
            tid
        ):  # else it leads to objects of the old file
            space, dtype = attribute.get_space(), attribute.dtype
            made = h5a.create(to, attribute.name, tid.copy(), space)
            if space.get_simple_extent_type() == h5s.NULL:
                continue
            mtype = None if dtype.hasobject else tid
            octets = np.empty(space.get_simple_extent_dims(), dtype if dtype.hasobject else f"V{tid.get_size()}")
            attribute.read(octets, mtype=mtype)
            made.write(octets, mtype=mtype)
    for key, value in left.items():
        _put(to, key, value)


def _put(identifier: Any, name: str, value: np.ndarray | str, like: Any = h5t.C_S1) -> None:
    """Make an attribute of numbers, or a text, whose length is fixed unless it is not in a string type like it."""
    if isinstance(value, str):
        octets, space = octets_of(value), h5s.create(h5s.SCALAR)
        tid = like.copy() if isinstance(like, h5t.TypeStringID) else h5t.C_S1.copy()
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


def _copied(found: Any, to: Any, link: bytes) -> Any:
    """Copy an object but for its attributes, a group but for its members, and return the copy."""
    if isinstance(found, h5g.GroupID):
        return h5g.create(to, link, gcpl=_ordered_as(found.get_create_plist(), h5p.create(h5p.GROUP_CREATE)))
    tid = found.get_type() if isinstance(found, h5d.DatasetID) else None
    if isinstance(tid, h5t.TypeStringID) and tid.is_variable_str():
        # The library copies the fill value of such as a place in the old file.
        old = h5py.Dataset(found)
        made = h5py.Dataset(h5d.create(to, link, tid.copy(), found.get_space(), _laid_out_as(old, old.dtype)))
        rows = selections(old.shape or (), old.chunks or (), tid.get_size(), 0, DECODED_NBYTES // 2)
        for _, selection, _ in () if old.shape is None else rows:  # None if it has a null dataspace
            made[selection] = old[selection]
        return made.id
    plist = h5p.create(h5p.OBJECT_COPY)
    plist.set_copy_object(h5o.COPY_WITHOUT_ATTR_FLAG)
    h5o.copy(found, b".", to, link, plist)
    return h5o.open(to, link)


def _old(model: Model, stack: ExitStack) -> tuple[h5py.File | None, list[_Result]]:
    """Open the file that results are modelled on, if there is one; return the results, too."""
    old = None if model.source is None else stack.enter_context(closing(HdfFile(model.source))).file
    return old, [_Result.of(buffer, old, model.cells) for buffer in model.buffers]


def forms(model: Model) -> tuple[tuple[np.dtype, ...] | None, tuple[Missing | None, ...]]:
    """Return the forms of the elements of all results, None unless each is in one piece, and which are missing."""
    with ExitStack() as stack:
        _, results = _old(model, stack)
        are_flat = all(each.plist.get_layout() == h5d.CONTIGUOUS for each in results)
        are_flat = are_flat and not any(each.nullable or each.datatype.form.hasobject for each in model.buffers)
        return tuple(each.elements for each in results) if are_flat else None, tuple(each.missing for each in results)


def _created(stack: ExitStack, model: Model, line: str, fd: int, *, early: bool) -> list[h5py.Dataset]:
    """Make the file of results with all but their elements: a copy if nothing else changes, or object by object."""
    old, results = _old(model, stack)
    for each in results if early else ():  # room for elements that are written elsewhere
        each.plist.set_alloc_time(h5d.ALLOC_TIME_EARLY)
        each.plist.set_fill_time(h5d.FILL_TIME_NEVER)
    target = stack.enter_context(_Target(fd, "r+b", closefd=False))
    wanted = {each.name for each in model.buffers if each.name == each.origin}
    wanted |= {*model.kept.names} if model.kept else set()
    objects = () if old is None else hierarchy.walk(old["/"].id)
    absent = (each for each in objects if each.is_array and each.name not in wanted)
    left_out = {key for each in absent for key in (each.name, each.address)}  # arrays that results have not
    if early and old is not None and not left_out and _copy_around(model, old, results, fd):
        file = stack.enter_context(_opened(target))
    elif old is None:
        fcpl = h5p.create(h5p.FILE_CREATE)
        fcpl.set_obj_track_times(False)
        file = stack.enter_context(_opened(target, fcpl, h5f.LIBVER_EARLIEST))
        for each in results:
            _create(file, each)
    else:
        fcpl = _ordered_as(old["/"].id.get_create_plist(), old.id.get_create_plist())
        file = stack.enter_context(_opened(target, fcpl))
        _copy_file(model, results, old, file, left_out)
    if old is not None:
        to, root = file["/"].id, old["/"].id
        for attribute in [*open_attributes(to)]:  # a copy of the file has them, but a new history not in its place
            if not hierarchy.has_references(attribute.get_type()):
                h5a.delete(to, attribute.name)
        types = [each.get_type() for each in open_attributes(root) if each.name == b"history"]
        before = conventions.text(hierarchy.attributes_of(root), "history")
        history = {"history": f"{line}\n{before}" if before else line}
        is_text = any(isinstance(each, h5t.TypeStringID) for each in types)
        _copy_attributes(open_attributes(root), to, history if is_text or model.has_history else {})
    _put_cells(model.cells, file)
    return [file[each.name] for each in results]


def _put_cells(cells: Cells, file: h5py.File) -> None:
    """Write the values of coordinates, and the attributes that results have in the place of those of the model."""
    for name, values in cells.values.items():
        file[name][...] = values
    for name, changes in cells.attributes.items():
        for key, text in changes.items():
            file[name].attrs.pop(key, None)
            if text:
                _put(file[name].id, key, text)


def _copy_around(model: Model, old: h5py.File, results: Sequence[_Result], fd: int) -> bool:
    """Copy a file except the elements that results replace, if it is hardly larger than these; return whether it is."""
    assert model.source is not None  # noqa: S101 - asked before
    places, nbytes = [], model.source.nbytes
    for each in results:
        if each.like is None or each.left_out or address(each.like.id)[0] != address(old.id)[0]:
            return False
        if (start := each.like.id.get_offset()) is None:
            return False
        places.append((start, start + each.like.id.get_storage_size()))
    with closing(model.source.open()) as file:
        is_small = nbytes <= _LARGER * sum(stop - start for start, stop in places)
        # The time of a change of its attributes would be in the file.
        has_times = h5o.get_info(old["/"].id).ctime
        if file.fd is None or has_times or not is_small:
            return False
        calls.allocate(fd, nbytes)
        for (_, start), (stop, _) in pairwise([(0, 0), *sorted(places), (nbytes, nbytes)]):
            if start < stop:
                copying.copy_sparse(file.fd, fd, start, stop, start)
    return True


class _Target(io.FileIO):
    """A file that the library writes; the error of the system that it met is raised: h5py raises another one."""

    error: OSError | None = None

    def write(self, data: Any, /) -> int:
        return self._noted(super().write, data)

    def truncate(self, size: int | None = None, /) -> int:
        return self._noted(super().truncate, size)

    def _noted(self, call: Callable[[Any], int], argument: Any) -> int:
        try:
            return call(argument)
        except OSError as error:
            self.error = error
            raise

    def __exit__(self, *raised: object) -> None:
        self.close()
        if self.error is not None and isinstance(raised[1], Exception):
            raise self.error from None


def _opened(target: Any, fcpl: Any = None, low: int = h5f.LIBVER_V18) -> h5py.File:
    """Open a file of Python to change it, or begin it anew: the library opens none that has no name."""
    fapl = h5p.create(h5p.FILE_ACCESS)
    fapl.set_fileobj_driver(h5fd.fileobj_driver, target)
    fapl.set_libver_bounds(low, h5f.LIBVER_LATEST)  # copied objects may have types of any version
    if fcpl is None:
        return h5py.File(h5f.open(b"result", h5f.ACC_RDWR, fapl=fapl))
    return h5py.File(h5f.create(b"result", h5f.ACC_TRUNC, fcpl=fcpl, fapl=fapl))


def write(model: Model, line: str, jobs: int, results: Sequence[Array] | None, fd: int) -> list[int]:
    """Write a file of results, without their elements if these are None, and return where they begin."""
    with ExitStack() as stack:
        datasets = _created(stack, model, line, fd, early=results is None)
        for dataset, result in zip(datasets, results or (), strict=results is not None):
            _fill(dataset, result, jobs)
        return [each.id.get_offset() or 0 for each in datasets]


_Blocks: TypeAlias = Iterator[tuple[tuple[slice, ...], np.ndarray]]  # a selection of an array, and its elements


def _fill(dataset: h5py.Dataset, result: Array, jobs: int = 0) -> None:
    """Write all elements of a dataset; those that are missing as its value for that."""
    attributes, form = conventions.with_sign(hierarchy.attributes_of(dataset.id), dataset.dtype)
    form = as_numbers(form)
    native = form.newbyteorder("=")
    fill = conventions.fill_of_result(attributes, native) if native.names is None else None
    every = list(selections(dataset.shape, dataset.chunks or (), form.itemsize, 0, DECODED_NBYTES // 2))
    elements = encoded(result, form, [math.prod(shape) for *_, shape in every], fill)
    blocks: _Blocks = (
        (selection, block.view(dataset.dtype).reshape(shape))  # they may be of truth values, or unsigned
        for (_, selection, shape), block in zip(every, elements, strict=True)
    )
    level = (
        _deflate_level(dataset, [selection for _, selection, _ in every]) if hierarchy.has_numpy_type(dataset) else None
    )
    if level is not None:
        _write_deflated(dataset, level, blocks, jobs or usable_cores())
        return
    inner = h5py.check_vlen_dtype(dataset.dtype)  # of lists, which it does not take in arrays that it makes itself
    for selection, block in blocks:
        if isinstance(inner, np.dtype):
            lists = np.fromiter((np.asarray(each, inner) for each in block.flat), dataset.dtype, block.size)
            dataset.write_direct(lists.reshape(block.shape), dest_sel=selection)
        else:
            dataset[selection] = block


def _deflate_level(dataset: h5py.Dataset, chosen: Sequence[Sequence[slice]]) -> int | None:
    """Return the level of deflate; None if selections are not whole chunks, or small, or filtered otherwise."""
    plist, chunk = dataset.id.get_create_plist(), dataset.chunks or ()
    filters = [plist.get_filter(number) for number in range(plist.get_nfilters())]
    if [code for code, *_ in filters] not in ([h5z.FILTER_DEFLATE], [h5z.FILTER_SHUFFLE, h5z.FILTER_DEFLATE]):
        return None
    are_whole = all(each.start % step == 0 for some in chosen for each, step in zip(some, chunk, strict=False))
    level: int = filters[-1][2][0]
    return level if are_whole and math.prod(chunk) * dataset.dtype.itemsize >= _LEAST_CHUNK_NBYTES else None


def _write_deflated(dataset: h5py.Dataset, level: int, blocks: _Blocks, nthreads: int) -> None:
    """Write blocks of whole chunks, which several threads deflate: the library has one."""
    chunk, is_shuffled = dataset.chunks, dataset.id.get_create_plist().get_nfilters() > 1

    def deflated(part: np.ndarray) -> bytes:
        whole = np.zeros(chunk, part.dtype)  # one at an edge of the array ends with zeros
        whole[tuple(map(slice, part.shape))] = part
        octets = whole.reshape(-1).view(np.uint8)
        if is_shuffled:  # the first bytes of all elements, then the second ones
            octets = np.ascontiguousarray(octets.reshape(-1, part.dtype.itemsize).T)
        return zlib.compress(octets.data, level)

    most = max(1, min(2 * nthreads, _AHEAD_NBYTES // (math.prod(chunk) * dataset.dtype.itemsize)))
    begun: deque[tuple[tuple[int, ...], Future[bytes]]] = deque()
    with ThreadPoolExecutor(nthreads) as pool:
        for selection, block in blocks:
            first = [each.start for each in selection] + [0] * (block.ndim - len(selection))
            for number in np.ndindex(*(-(-length // step) for length, step in zip(block.shape, chunk, strict=True))):
                at = [each * step for each, step in zip(number, chunk, strict=True)]
                part = block[tuple(slice(each, each + step) for each, step in zip(at, chunk, strict=True))]
                if len(begun) == most:
                    dataset.id.write_direct_chunk(begun[0][0], begun.popleft()[1].result())
                begun.append((tuple(map(sum, zip(first, at, strict=True))), pool.submit(deflated, part)))
        for place, octets in begun:
            dataset.id.write_direct_chunk(place, octets.result())


def rewrite(source: Source, changed: Sequence[Array], fd: int) -> None:
    """Copy a file, and change some of its arrays."""
    copy_whole(source, fd)
    with _Target(os.dup(fd), "r+b") as target, _opened(target) as file:
        for each in changed:
            _fill(file[each.name], each)
