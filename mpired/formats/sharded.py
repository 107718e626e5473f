"""Checkpoints of several safetensors files, their shards, and an index in JSON that names the shard of each tensor."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple, NoReturn

import numpy as np

from mpired.context import Context
from mpired.errors import BufferFileError
from mpired.files import calls
from mpired.formats.arrays import KeptArrays, Pieces
from mpired.formats.layout import ArrayLayout
from mpired.formats.rank import Model
from mpired.sources.directory import INDEX_SUFFIX
from mpired.sources.open import open_source
from mpired.sources.source import Source

NOTE = "mpired"
"""The key of the record of where a result comes from."""
_MAX_INDEX = 100_000_000


class Header(NamedTuple):
    """The header of a safetensors file."""

    source: Source
    start: int  # where the data begins
    tensors: dict[str, dict[str, Any]]  # in the order of their bytes
    metadata: dict[str, str]

    def leaf(self, name: str) -> Pieces:
        """Return where the bytes of a tensor are."""
        begin, end = self.tensors[name]["data_offsets"]
        return Pieces(self.start + begin, np.dtype("u1"), end - begin)


def without_doubles(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, whose keys differ."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _bad(source: Source, reason: str) -> NoReturn:
    raise BufferFileError(source.name, f"{reason}; not a valid index of a checkpoint")


def read_index(source: Source) -> dict[str, Any]:
    """Return an index: `weight_map`, the shard of each tensor, and `metadata`."""
    with closing(source.open()) as file, calls.blaming(source.name):
        text = file.read(min(source.nbytes, _MAX_INDEX), 0)
    try:
        index = json.loads(text, object_pairs_hook=without_doubles)
    except (ValueError, RecursionError) as error:
        _bad(source, f"is not a JSON object ({' '.join(str(error).split())[:100]})")
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict) or not shards or not all(isinstance(each, str) for each in shards.values()):
        _bad(source, "has no `weight_map` from tensors to shards")
    if not isinstance(index.setdefault("metadata", {}), dict):
        _bad(source, "has metadata that are not an object")
    if away := next((each for each in shards.values() if "/" in each or each in {"", ".", ".."}), None):
        _bad(source, f"names the shard {away!r}, which is not a file of its directory")
    return dict(index)


def _open(source: Source, shard: str, context: Context) -> Source:
    """Open a shard, which is beside its index."""
    return open_source(source.name[: source.name.rfind("/") + 1] + shard, context)


def headers(source: Source, context: Context, read: Callable[[Source], Header]) -> list[Header]:
    """Return the headers of a checkpoint: that of a file, or those of all shards, which agree with their index."""
    if not source.name.endswith(INDEX_SUFFIX):
        return [read(source)]
    shards: Mapping[str, str] = read_index(source)["weight_map"]
    found, seen = [], dict[str, str]()
    for shard in sorted({*shards.values()}):
        found.append(read(_open(source, shard, context)))
        for name in found[-1].tensors:
            if name in seen:
                _bad(source, f"has the tensor {name!r} in two shards, {seen[name]} and {shard}")
            seen[name] = shard
    if wrong := next((name for name in {**shards, **seen} if shards.get(name) != seen.get(name)), None):
        where = [each.get(wrong, "no shard") for each in (shards, seen)]
        _bad(source, f"has the tensor {wrong!r} in {where[0]}, but it is in {where[1]}")
    return found


def divided(model: Model, name: str, prepare: Callable[[Model], ArrayLayout]) -> list[tuple[str, ArrayLayout]]:
    """Lay out results in shards like those of the model, with their names, and in an index of that name."""
    assert model.source is not None  # noqa: S101 - asked before
    index, count = read_index(model.source), len(model.buffers)
    kept = model.kept if isinstance(model.kept, KeptArrays) else KeptArrays(model.source, (), None)
    names = {*(each.name for each in model.buffers), *kept.names}
    shards = {name: shard for name, shard in index["weight_map"].items() if name in names}
    found, nbytes = [], sum(each.leaf.nbytes for each in kept.carried)
    for shard in sorted({*shards.values()}):
        own = [number for number, each in enumerate(model.buffers) if shards[each.name] == shard]
        carried = tuple(each for each in kept.carried if shards[each.name] == shard)
        part = model._replace(
            buffers=tuple(model.buffers[number] for number in own),
            source=_open(model.source, shard, model.context),
            kept=kept._replace(carried=carried) if carried else None,
        )
        layout = prepare(part)
        forms = zip(part.buffers, layout.stored, strict=True)
        nbytes += sum(each.count * form.itemsize for each, form in forms if form)
        found.append((shard, layout.among(own, count)))
    metadata = {**index["metadata"], "total_size": nbytes}
    lay = functools.partial(_lay, {**index, "metadata": metadata, "weight_map": shards}, model.note)
    return [*found, (name, ArrayLayout(lay, ()).among((), count))]


def _lay(index: dict[str, Any], note: Any, fd: int) -> tuple[()]:
    """Write an index."""
    metadata = {key: value for key, value in index["metadata"].items() if key != NOTE}
    metadata |= {NOTE: note.text} if note else {}
    calls.pwrite_all(fd, f"{json.dumps(index | {'metadata': metadata}, indent=2)}\n".encode(), 0)
    return ()
