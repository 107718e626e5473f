"""Results in HDF5: files like that of the first rank, with new arrays. All of this is done in a worker."""

from __future__ import annotations

import math
import os
import posixpath
from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import h5py
import numpy as np
from h5py import h5a, h5d, h5ds, h5f, h5fd, h5g, h5o, h5p, h5s, h5t, h5z

from mpired.buffers import conventions, hierarchy
from mpired.buffers.arrays import copy_whole
from mpired.buffers.chunks import compressing
from mpired.buffers.conventions import Attributes
from mpired.buffers.flat import FlatBuffer, encoded
from mpired.buffers.hdf5 import New, Plan
from mpired.buffers.hierarchy import DIMENSION_ONLY, HdfFile, address, each_attribute, text_of
from mpired.buffers.missing import Missing
from mpired.buffers.streamed import DECODED_NBYTES
from mpired.datatypes import as_numbers
from mpired.files import calls
from mpired.sources.source import Source

_COMPACT_NBYTES = 60_000  # what fits into the header of an object
_HISTORY = b"history"
_SCALES = (b"DIMENSION_LIST", b"REFERENCE_LIST")
_PLACES = (*conventions.PLACES, "_Netcdf4Coordinates", "DIMENSION_LABELS")


def forms(plan: Plan) -> tuple[tuple[np.dtype, ...] | None, tuple[Missing | None, ...]]:
    """Return the forms of the elements of all results, None unless each lies in one piece, and which are missing."""
    with ExitStack() as stack:
        old = _old(plan, stack)
        both = [(_like(old, new), new) for new in plan.new]
        are_flat = all(_is_flat(*each) for each in both)
        stored = tuple(_elements(*each) for each in both) if are_flat else None
        missing = []
        for like, new in both:
            own, left_out = _own(like, new)
            kept = {name: value for name, value in _said(like, new)[0].items() if name not in left_out}
            missing.append(conventions.missing({**kept, **own}, _elements(like, new)))
        return stored, tuple(missing)


def _is_flat(like: h5py.Dataset | None, new: New) -> bool:
    """Return whether the elements of a result are contiguous."""
    if new.nullable or like is None:
        return not new.nullable
    plist = _creation(like, new, h5t.py_create(new.dtype, logical=True))
    return bool(plist.get_layout() == h5d.CONTIGUOUS)


def _own(like: h5py.Dataset | None, new: New) -> tuple[dict[str, np.ndarray], Collection[str]]:
    """Return the attributes that a result has in the form of its elements, and those of its model that it has not."""
    attributes, form = _said(like, new)
    unpacked, is_same = conventions.packing("", attributes, form) is not None, _is_unchanged(like, new)
    if not (unpacked or new.nullable or not is_same):
        return {}, ()
    own = conventions.of_result(attributes, _elements(like, new), unpacked=unpacked, nullable=new.nullable)
    return own, conventions.left_out(unpacked=unpacked, is_same=is_same and not unpacked)


def _said(like: h5py.Dataset | None, new: New) -> tuple[Attributes, np.dtype]:
    """Return what the model of a result says of its values, and their form: no attribute, if its own are others."""
    return _read(like) if like is not None and new.is_own else ({}, new.dtype)


def _read(dataset: h5py.Dataset) -> tuple[Attributes, np.dtype]:
    """Return the attributes of a dataset, and the form that its elements are read in."""
    return conventions.viewed(hierarchy.attributes_of(dataset.id), dataset.dtype)


def _form(dataset: h5py.Dataset) -> np.dtype:
    """Return the form that the elements of a dataset are read in."""
    is_viewed = h5a.exists(dataset.id, conventions.UNSIGNED.encode())
    return as_numbers(_read(dataset)[1] if is_viewed else dataset.dtype)


def _elements(like: h5py.Dataset | None, new: New) -> np.dtype:
    """Return the form of the elements of a result, which may be another view of those that it has in the file."""
    is_like = like is not None and _is_unchanged(like, new) and hierarchy.is_plain(like)
    return _form(like) if is_like else as_numbers(_type(like, new).dtype)


def _old(plan: Plan, stack: ExitStack) -> h5py.File | None:
    """Open the file that results are modelled on, if there is one."""
    return None if plan.source is None else stack.enter_context(closing(HdfFile(plan.source))).file


def _like(old: h5py.File | None, new: New) -> h5py.Dataset | None:
    """Return the dataset that a result is modelled on; None if there is none of its shape."""
    if old is None:
        return None
    try:
        found = old[new.like]
    except (KeyError, OSError):
        return None
    return found if isinstance(found, h5py.Dataset) and found.shape == new.shape else None


def _is_unchanged(like: h5py.Dataset | None, new: New) -> bool:
    """Tell whether the elements of a result are of the form that they have in the file."""
    if like is None or not new.is_own:
        return False
    forms = [dtype.newbyteorder("=") for dtype in (_form(like), as_numbers(new.dtype))]
    if forms[0].names is not None and forms[1].names is not None:
        return [forms[0][each] for each in forms[0].names] == [forms[1][each] for each in forms[1].names]
    return forms[0] == forms[1]


def _type(like: h5py.Dataset | None, new: New) -> Any:
    """Return the type of a result: that of the file, if its elements are as they were there."""
    if like is not None and _is_unchanged(like, new) and hierarchy.is_plain(like):
        return like.id.get_type().copy()
    # Numbers of a type that NumPy has not, such as bfloat16 or 12 bits of an integer, are combined in a wider one.
    order: Any = new.order if new.order in "<>" else "="
    return h5t.py_create(new.dtype.newbyteorder(order), logical=True)


def _creation(like: h5py.Dataset, new: New, tid: Any) -> Any:
    """Return how a dataset is created: as that of the file, with the value of unwritten elements in its new type."""
    plist = _laid_out_as(like, new.dtype)
    old = like.id.get_create_plist()
    if new.is_own and not _is_elsewhere(old) and old.fill_value_defined() == h5d.FILL_VALUE_USER_DEFINED:
        value = np.zeros((), like.dtype)
        old.get_fill_value(value)
        if not _is_unchanged(like, new):
            form = as_numbers(tid.dtype).newbyteorder("=")
            fill = conventions.converted(value, form) if value.dtype.kind in "iuf" and form.names is None else None
            default = conventions.default_fill(form)
            value = fill if fill is not None else default if default is not None else np.zeros((), form)
        plist.set_fill_value(value)
    return plist


def _is_elsewhere(plist: Any) -> bool:
    """Return whether the elements are in other files or arrays."""
    return bool(plist.get_layout() == h5d.VIRTUAL or plist.get_external_count())


def _laid_out_as(like: h5py.Dataset, dtype: np.dtype) -> Any:
    """Return how a dataset is created that lies as another does: layout, times of filling, filters."""
    old = like.id.get_create_plist()
    plist = _ordered_as(old, h5p.create(h5p.DATASET_CREATE))
    if _is_elsewhere(old):
        return plist
    if like.chunks:
        plist.set_chunk(like.chunks)
    elif old.get_layout() == h5d.COMPACT and like.size * dtype.itemsize <= _COMPACT_NBYTES:
        plist.set_layout(h5d.COMPACT)
    plist.set_fill_time(old.get_fill_time())
    plist.set_alloc_time(old.get_alloc_time())
    for number in range(old.get_nfilters() if like.chunks else 0):
        code, flags, values, _ = old.get_filter(number)
        if code != h5z.FILTER_SCALEOFFSET:
            plist.set_filter(code, flags, values)
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


class _File(NamedTuple):
    """A file of results that is being written."""

    plan: Plan
    old: h5py.File | None
    file: h5py.File
    datasets: dict[str, h5py.Dataset]

    def write(self, *, early: bool) -> None:
        """Write all but the elements of results; if these are written elsewhere, `early` makes room for them."""
        new = {each.name: each for each in self.plan.new}
        if self.old is not None:
            datasets = [
                each for each in hierarchy.walk(self.old) if each.outside or isinstance(each.object, h5d.DatasetID)
            ]
            own = {name: each for name, each in new.items() if each.is_own}
            wanted = {*own, *self.plan.kept} - (new.keys() - own.keys())
            others = [each for each in datasets if each.name not in wanted and not _is_dimension(each.object)]
            left_out = {key for each in others for key in (each.name, each.address)}
            _Copy(self, own, {}, left_out, early=early).all()
        for name, each in new.items():
            if name not in self.datasets:
                self.create(self.file.id, name.encode("utf-8", "surrogateescape"), each, None, early=early)

    def create(self, group: Any, name: bytes, new: New, like: h5py.Dataset | None, *, early: bool) -> h5py.Dataset:
        """Create the dataset of a result, with the attributes of the one that it is modelled on."""
        like = like if like is not None and like.shape == new.shape else None
        tid = _type(like, new)
        plist = h5p.create(h5p.DATASET_CREATE) if like is None else _creation(like, new, tid)
        plist.set_obj_track_times(False)
        if early:
            plist.set_alloc_time(h5d.ALLOC_TIME_EARLY)
            plist.set_fill_time(h5d.FILL_TIME_NEVER)
        # Elements that lay elsewhere lie in one piece, which has no room to grow.
        space = like.id.get_space() if like is not None and like.chunks else h5s.create_simple(new.shape)
        lcpl = h5p.create(h5p.LINK_CREATE)
        lcpl.set_create_intermediate_group(True)
        made = h5py.Dataset(h5d.create(group, name, tid, space, plist, lcpl=lcpl))
        if like is not None:
            self._describe(like, made, new)
        elif new.nullable:
            for key, value in conventions.of_result({}, as_numbers(new.dtype), unpacked=False, nullable=True).items():
                _put(made.id, key, value)
        self.datasets[new.name] = made
        return made

    def _describe(self, like: h5py.Dataset, made: h5py.Dataset, new: New) -> None:
        """Copy the attributes of a dataset to the result: those of the type of its elements in their new form."""
        own, left_out = _own(like, new)
        own = {name: value.astype(as_numbers(made.dtype).newbyteorder("=")) for name, value in own.items()}
        for attribute in each_attribute(like.id):
            name = text_of(attribute.name)
            if name in own:
                _put(made.id, name, own.pop(name))
            elif name not in left_out and (new.is_own or name in _PLACES):
                copy_attribute(attribute, made.id)
        for name, value in own.items():
            _put(made.id, name, value)


def _put(identifier: Any, name: str, value: np.ndarray) -> None:
    """Make an attribute of numbers."""
    value = np.ascontiguousarray(value.reshape(-1))
    made = h5a.create(identifier, name.encode(), h5t.py_create(value.dtype), h5s.create_simple(value.shape))
    made.write(value)


def copy_attribute(attribute: Any, to: Any) -> None:
    """Copy an attribute as it is, unless it leads to objects of its file."""
    if attribute.name in _SCALES:
        return  # scales are attached again when all are there
    tid, space = attribute.get_type(), attribute.get_space()
    dtype = attribute.dtype
    if _leads(tid):
        return
    made = h5a.create(to, attribute.name, tid.copy(), space)
    if space.get_simple_extent_type() == h5s.NULL:
        return
    if dtype.hasobject:
        value = np.empty(space.get_simple_extent_dims(), dtype)
        attribute.read(value)
        made.write(value)
    else:
        octets = np.empty(space.get_simple_extent_dims(), f"V{tid.get_size()}")
        attribute.read(octets, mtype=tid)
        made.write(octets, mtype=tid)


def _leads(tid: Any) -> bool:
    """Tell whether values of a type are references, or hold some."""
    if isinstance(tid, h5t.TypeReferenceID):
        return True
    if isinstance(tid, h5t.TypeCompoundID):
        return any(_leads(tid.get_member_type(number)) for number in range(tid.get_nmembers()))
    return isinstance(tid, h5t.TypeVlenID | h5t.TypeArrayID) and _leads(tid.get_super())


class _Copy(NamedTuple):
    """The copy of what a file has besides the results."""

    result: _File
    new: dict[str, New]
    made: dict[tuple[int, int], str]  # the names of what is copied, by their addresses
    left_out: Collection[object]  # names and addresses of the other datasets
    early: bool = False

    def all(self) -> None:
        assert self.result.old is not None  # noqa: S101 - asked before
        old, file = self.result.old, self.result.file
        self.made[address(old.id)] = ""
        self._group(old["/"].id, file["/"].id, "")
        others = [(each, like) for each in self.result.plan.new if not each.is_own and (like := _like(old, each))]
        for each, like in others:
            name = each.name.encode("utf-8", "surrogateescape")
            self.result.create(file.id, name, each, like, early=self.early)
        self._attach([(like, each.name) for each, like in others])
        self._global(old["/"].id, file["/"].id)

    def _group(self, old: Any, to: Any, prefix: str) -> None:
        for link in hierarchy.links(old):
            info, name = old.links.get_info(link), prefix + text_of(link)
            if info.type == h5py.h5l.TYPE_HARD:
                self._object(h5o.open(old, link), to, link, name)
            elif info.type == h5py.h5l.TYPE_SOFT:
                path = old.links.get_val(link)
                target = posixpath.normpath(posixpath.join(f"/{prefix}", text_of(path))).lstrip("/")
                if target not in self.left_out:
                    to.links.create_soft(link, path)
            elif name in self.new:
                like = self.result.old[name] if self.result.old is not None else None
                self.result.create(to, link, self.new[name], like, early=self.early)

    def _object(self, found: Any, to: Any, link: bytes, name: str) -> None:
        at = address(found)
        if at in self.made:
            self.result.file[name] = self.result.file[f"/{self.made[at]}"]
        elif isinstance(found, h5g.GroupID):
            self.made[at] = name
            made = h5g.create(to, link, gcpl=_ordered_as(found.get_create_plist(), h5p.create(h5p.GROUP_CREATE)))
            for attribute in each_attribute(found):
                copy_attribute(attribute, made)
            self._group(found, made, f"{name}/")
        elif isinstance(found, h5d.DatasetID) and name in self.new:
            self.made[at] = name
            self.result.create(to, link, self.new[name], h5py.Dataset(found), early=self.early)
        elif at not in self.left_out:
            self.made[at] = name
            made = _copied(found, to, link)
            for attribute in each_attribute(found):
                copy_attribute(attribute, made)
        elif self.result.plan.has_history and h5ds.is_scale(found) and found.rank:
            self.made[at] = name
            _dimension_only(found, to, link)

    def _attach(self, others: Sequence[tuple[h5py.Dataset, str]]) -> None:
        """Give the dimensions of all datasets their scales, of `others` as the dataset has that each is like."""
        old, file = self.result.old, self.result.file
        assert old is not None  # noqa: S101 - asked before
        same = [(old[f"/{name}"], name) for name in self.made.values() if name]
        for like, name in (*same, *others):
            made = file[f"/{name}"]
            if not isinstance(like, h5py.Dataset) or made.shape != like.shape:
                continue
            dimensions = like.dims
            if not h5a.exists(like.id, b"DIMENSION_LIST"):  # it may be like a scale and is none
                dimensions = [{"": like}] if h5ds.is_scale(like.id) and not h5ds.is_scale(made.id) else []
            for number, dimension in enumerate(dimensions):
                for scale in dimension.values():
                    place = self.made.get(address(scale.id))
                    if place is not None:
                        h5ds.attach_scale(made.id, file[f"/{place}"].id, number)

    def _global(self, old: Any, to: Any) -> None:
        """Copy the attributes of the file, with a line more in its history."""
        plan, has_history = self.result.plan, False
        for attribute in each_attribute(old):
            tid = attribute.get_type()
            if attribute.name == _HISTORY and isinstance(tid, h5t.TypeStringID):
                before = conventions.text(hierarchy.attributes_of(old), "history")
                _text(to, _HISTORY, f"{plan.line}\n{before}" if before else plan.line, tid)
                has_history = True
            else:
                copy_attribute(attribute, to)
        if plan.has_history and not has_history:
            _text(to, _HISTORY, plan.line, None)


def _dimension_only(found: Any, to: Any, link: bytes) -> None:
    """Make a dimension of netCDF without values, in the place of one that has some."""
    old = h5py.Dataset(found)
    made = h5d.create(to, link, h5t.IEEE_F32BE, found.get_space(), _laid_out_as(old, np.dtype("f4")))
    for attribute in each_attribute(found):
        if attribute.name == b"_Netcdf4Dimid":
            copy_attribute(attribute, made)
    h5ds.set_scale(made, f"{DIMENSION_ONLY}.{old.shape[0]:10}".encode())


def _copied(found: Any, to: Any, link: bytes) -> Any:
    """Copy an object but for its attributes, and return the copy."""
    tid = found.get_type() if isinstance(found, h5d.DatasetID) else None
    if isinstance(tid, h5t.TypeStringID) and tid.is_variable_str():
        # The library copies the fill value of such as a place in the old file.
        old = h5py.Dataset(found)
        made = h5py.Dataset(h5d.create(to, link, tid.copy(), found.get_space(), _laid_out_as(old, old.dtype)))
        for _, selection in hierarchy.selections(old.shape or (), old.chunks, tid.get_size(), 0, DECODED_NBYTES):
            made[selection] = old[selection]
        return made.id
    plist = h5p.create(h5p.OBJECT_COPY)
    plist.set_copy_object(h5o.COPY_WITHOUT_ATTR_FLAG)
    h5o.copy(found, b".", to, link, plist)
    return h5o.open(to, link)


def _is_dimension(found: Any) -> bool:
    """Tell whether a dataset is a dimension of netCDF without values."""
    return found is not None and DIMENSION_ONLY in str(hierarchy.attributes_of(found).get("NAME"))


def _text(identifier: Any, name: bytes, text: str, like: Any) -> None:
    """Make an attribute of a text, of a length that is fixed unless it was not."""
    octets = text.encode("utf-8", "surrogateescape")
    if like is not None and like.is_variable_str():
        made = h5a.create(identifier, name, like.copy(), h5s.create(h5s.SCALAR))
        made.write(np.array(octets, dtype=h5py.string_dtype()))
        return
    tid = h5t.C_S1.copy() if like is None else like.copy()
    tid.set_size(len(octets) + (tid.get_strpad() == h5t.STR_NULLTERM))
    if not text.isascii():
        tid.set_cset(h5t.CSET_UTF8)
    h5a.create(identifier, name, tid, h5s.create(h5s.SCALAR)).write(np.array(octets, f"S{tid.get_size()}"), mtype=tid)


def _by_file(file: Any) -> Any:
    """Return the properties to access an open file of Python: the library opens none that has no name."""
    fapl = h5p.create(h5p.FILE_ACCESS)
    fapl.set_fileobj_driver(h5fd.fileobj_driver, file)
    return fapl


def _created(plan: Plan, path: str, stack: ExitStack) -> _File:
    """Make the file of results, with the properties of the one that it is modelled on."""
    old = _old(plan, stack)
    fcpl = h5p.create(h5p.FILE_CREATE)
    fcpl.set_obj_track_times(False)
    if old is not None:
        fcpl = _ordered_as(old["/"].id.get_create_plist(), old.id.get_create_plist())
    target = stack.enter_context(os.fdopen(calls.SharedPath(path).open(), "r+b", buffering=0))
    fapl = _by_file(target)
    # What is copied may have types of any version; all else has the least.
    fapl.set_libver_bounds(h5f.LIBVER_EARLIEST if old is None else h5f.LIBVER_V18, h5f.LIBVER_LATEST)
    file = h5py.File(h5f.create(b"result", h5f.ACC_TRUNC, fcpl=fcpl, fapl=fapl))
    stack.callback(file.close)
    return _File(plan, old, file, {})


def lay(plan: Plan, path: str) -> list[int]:
    """Write all but the elements of results, and return where these begin."""
    with ExitStack() as stack:
        made = _created(plan, path, stack)
        made.write(early=True)
        return [made.datasets[each.name].id.get_offset() or 0 for each in plan.new]


def encode(plan: Plan, results: Sequence[FlatBuffer], path: str, nthreads: int) -> None:
    """Write a file with its results, whose chunks are compressed by some threads."""
    with ExitStack() as stack:
        made = _created(plan, path, stack)
        made.write(early=False)
        for new, result in zip(plan.new, results, strict=True):
            fill(made.datasets[new.name], result, nthreads)


def fill(dataset: h5py.Dataset, result: FlatBuffer, nthreads: int = 1) -> None:
    """Write all elements of a dataset; those that are missing as its value for that."""
    attributes, form = _read(dataset)[0], _form(dataset)
    native = form.newbyteorder("=")
    mark = conventions.fill(attributes, native) if native.names is None else None
    chosen = [each for _, each in hierarchy.selections(dataset.shape, dataset.chunks, form.itemsize, 0, DECODED_NBYTES)]
    shapes = [
        tuple(each.stop - each.start for each in selection if isinstance(each, slice)) + dataset.shape[len(selection) :]
        for selection in chosen
    ]
    elements = encoded(result, form, list(map(math.prod, shapes)), mark)
    with compressing(dataset, nthreads) as chunks:
        for selection, shape, block in zip(chosen, shapes, elements, strict=True):
            values = block if form == dataset.dtype else block.view(dataset.dtype)  # of truth values, or unsigned ones
            chunks.put(selection, values.reshape(shape))


def rewrite(source: Source, changed: Sequence[FlatBuffer], fd: int) -> None:
    """Copy a file, and change some of its arrays."""
    copy_whole(source, fd)
    with (
        os.fdopen(os.dup(fd), "r+b", buffering=0) as target,
        h5py.File(h5f.open(b"target", h5f.ACC_RDWR, fapl=_by_file(target))) as new,
    ):
        for each in changed:
            fill(new[each.name], each)
