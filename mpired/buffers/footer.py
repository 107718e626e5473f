"""The footer of a parquet file and the headers of its pages, read before pyarrow sees any of it.

pyarrow's metadata objects end the process where a footer contradicts itself, and its reader allocates what the header
of a page asks for. So both are read here, in Python, and pyarrow gets files with clean footers of a single column:
`Stretch`. That makes the cost of a column independent of how many there are, and reading can start at any page.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from mpired.buffers import thrift
from mpired.buffers.local import DamageError, Extent, read_all
from mpired.buffers.thrift import Field
from mpired.sources.source import OpenSource

MAGIC = b"PAR1"
_ENCRYPTED = b"PARE"
_TAIL_NBYTES = 8
_CODECS = ("NONE", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")  # CompressionCodec
_INT96 = 3  # Type
_OPTIONAL, _REPEATED = 1, 2  # FieldRepetitionType
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3  # PageType
_PLAIN, _RLE, _BY_DICTIONARY = 0, 3, {2, 8}  # Encoding; by dictionary are PLAIN_DICTIONARY and RLE_DICTIONARY
_TYPE_NBYTES = {1: 4, 2: 8, 4: 4, 5: 8}  # Type: INT32, INT64, FLOAT, DOUBLE
_PAGE_HEADER_NBYTES = 256  # mostly enough; those with long statistics need more
_PAGE_HEADER_LIMIT = 16 << 20
_DEPTH = 64
_VALUES = {_DATA: "data", _DATA_V2: "data_v2"}
_SLACK = 100  # some old writers do not count the header of the dictionary

_ELEMENT = {1: Field("type"), 3: Field("repetition"), 4: Field("name", bytes), 5: Field("children")}
_COLUMN = {
    1: Field("type"),
    3: Field("path", bytes, many=True),
    4: Field("codec"),
    5: Field("values"),
    6: Field("uncompressed"),
    7: Field("nbytes"),
    9: Field("data"),
    11: Field("dictionary"),
    12: Field("statistics", {3: Field("nulls")}),
    13: Field("pages", {1: Field("type"), 2: Field("encoding")}, many=True),
}
_CHUNK = {3: Field("column", _COLUMN), 6: Field("column_index"), 8: Field("crypto", raw=True)}
_GROUP = {1: Field("chunks", _CHUNK, many=True), 2: Field("nbytes"), 3: Field("rows")}
_FILE = {
    2: Field("schema", raw=True),
    3: Field("rows"),
    4: Field("groups", _GROUP, many=True),
    5: Field("metadata", raw=True),
    6: Field("created_by", bytes),
    8: Field("encryption", raw=True),
}
_PAGE = {
    1: Field("type"),
    2: Field("uncompressed"),
    3: Field("compressed"),
    4: Field("crc"),
    5: Field("data", {1: Field("values"), 2: Field("encoding"), 3: Field("levels")}),
    8: Field("data_v2", {1: Field("values")}),
}


_Element: TypeAlias = tuple[dict[str, Any], thrift.Encoded]
_Place: TypeAlias = tuple[_Element, ...]  # what leads from the root of the schema to an element
_Numbered: TypeAlias = tuple[int, thrift.Encoded]


class Chunk(NamedTuple):
    """The pages of a leaf in a row group."""

    start: int  # where they start in the file, the dictionary first if there is one
    nbytes: int
    values: int  # nulls included
    codec: int  # the number of their compression
    nulls: int | None  # how many values are missing, if the statistics say so
    # whether all values are encoded by a dictionary, as far as the footer tells: a writer gives up a large one
    has_dictionary: bool
    has_statistics: bool
    has_index: bool

    @property
    def compression(self) -> str:
        """The name of the compression."""
        if not 0 <= self.codec < len(_CODECS):
            raise DamageError(f"its compression {self.codec} is unknown")
        return _CODECS[self.codec]


class Leaf(NamedTuple):
    """A column of plain values: one of the file, or a field of a column of structures."""

    path: tuple[bytes, ...]  # its name after those of the columns that it is in
    schema: tuple[thrift.Encoded, ...]  # the elements of the schema that lead to it, encoded
    type: int  # its physical type
    is_optional: bool  # whether its values may be null
    repeated: bool  # whether it is within a list, so that a row may have many values or none
    rows: tuple[int, ...]  # the rows of each row group
    chunks: tuple[Chunk, ...]  # its pages in each row group
    created_by: bytes  # the program that wrote the file; some are known for their mistakes
    time: Any = None  # arrow's type of its values if these are times, which parquet may have in another unit
    # numPy's name of its elements if plain pages have them as they are; "" if a library has to decode them all
    plain: str = ""

    @property
    def name(self) -> str:
        """The path, joined by dots."""
        return b".".join(self.path).decode(errors="replace")

    @property
    def starts(self) -> Iterator[int]:
        """The row that each row group starts with, and at the end the number of rows."""
        return itertools.accumulate(self.rows, initial=0)

    @property
    def is_int96(self) -> bool:
        """Whether its values are times of 96 bits."""
        return self.type == _INT96

    def is_stored_as(self, nbytes: int) -> bool:
        """Tell whether it is a column of the file itself, with so many bytes for each value in plain pages."""
        return len(self.path) == 1 and not self.repeated and _TYPE_NBYTES.get(self.type) == nbytes


class Footer(NamedTuple):
    """What the footer of a file says."""

    columns: tuple[tuple[Leaf, ...], ...]  # the leaves of each column of the file
    rows: tuple[int, ...]  # the rows of each row group
    group_nbytes: tuple[int, ...]  # the bytes of each row group, not compressed
    head: bytes  # a footer with the same schema and metadata, but without row groups

    @property
    def leaves(self) -> list[Leaf]:
        """All leaves, in order."""
        return [leaf for column in self.columns for leaf in column]


def read(file: OpenSource, nbytes: int) -> Footer:
    """Read the footer of an open file of so many bytes."""
    start = max(0, nbytes - _TAIL_NBYTES)
    tail = read_all(file, nbytes - start, start)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] == _ENCRYPTED:
        raise DamageError("it is encrypted")
    if tail[4:] != MAGIC or length + _TAIL_NBYTES + len(MAGIC) > nbytes:
        raise DamageError("there is no footer of parquet at its end, perhaps it is cut off")
    try:
        return _footer(thrift.Input(read_all(file, length, start - length)).structure(_FILE))
    except IndexError:
        raise DamageError("the footer is cut off") from None
    except (KeyError, TypeError) as error:
        raise DamageError(f"the footer lacks {error}") from None


def _footer(said: dict[str, Any]) -> Footer:
    if "encryption" in said:
        raise DamageError("it is encrypted")
    groups = said["groups"]
    rows = tuple(group["rows"] for group in groups)
    if min(rows, default=0) < 0 or sum(rows) != said["rows"]:
        raise DamageError(f"its row groups do not have {said['rows']} rows")
    (root, _), *elements = thrift.Input(said["schema"][1]).structures(_ELEMENT)
    columns, at = [], 0
    for _ in range(root.get("children", 0)):
        places, at = _leaves_of(elements, at)
        columns.append(places)
    nleaves = sum(map(len, columns))
    if at != len(elements) or any(len(group["chunks"]) != nleaves for group in groups):
        raise DamageError("its row groups do not have the columns of the schema")
    numbers, created_by = itertools.count(), said.get("created_by", b"")
    leaves = tuple(tuple(_leaf(place, next(numbers), groups, created_by) for place in places) for places in columns)
    rest = [(5, said["metadata"])] if "metadata" in said else []
    if created_by:
        rest.append((6, thrift.text(created_by)))
    head = _file(said["schema"], 0, [], rest)
    return Footer(leaves, rows, tuple(group["nbytes"] for group in groups), head)


def _leaves_of(elements: Sequence[_Element], at: int, above: _Place = ()) -> tuple[list[_Place], int]:
    """Return for each leaf of an element what leads to it, and the place of the next element beside."""
    if len(above) > _DEPTH:
        raise DamageError("the schema is nested too deep")
    place = (*above, elements[at])
    at += 1
    if "type" in place[-1][0]:
        return [place], at
    leaves: list[_Place] = []
    for _ in range(place[-1][0].get("children", 0)):
        more, at = _leaves_of(elements, at, place)
        leaves += more
    return leaves, at


def _leaf(place: _Place, number: int, groups: Sequence[dict[str, Any]], created_by: bytes) -> Leaf:
    """Return what the footer says of a leaf, the one of that number."""
    element, encoded = place[-1]
    one_child = 5, thrift.int32(1)
    parents = [
        thrift.structure([(3, thrift.int32(each.get("repetition", 0))), (4, thrift.text(each["name"])), one_child])
        for each, _ in place[:-1]
    ]
    chunks = tuple(_chunk(group["chunks"][number], element) for group in groups)
    leaf = Leaf(
        path=tuple(each["name"] for each, _ in place),
        schema=(thrift.structure([(4, thrift.text(b"schema")), one_child]), *parents, encoded),
        type=element["type"],
        is_optional=element.get("repetition") == _OPTIONAL,
        repeated=any(each.get("repetition") == _REPEATED for each, _ in place),
        rows=tuple(group["rows"] for group in groups),
        chunks=chunks,
        created_by=created_by,
    )
    for rows, chunk in zip(leaf.rows, chunks, strict=True):
        if not leaf.repeated and chunk.values != rows:
            raise DamageError(f"column {leaf.name!r} has {chunk.values} values in {rows} rows")
    return leaf


def _chunk(said: dict[str, Any], element: dict[str, Any]) -> Chunk:
    if "crypto" in said:
        raise DamageError("it is encrypted")
    column = said["column"]
    if column["type"] != element["type"]:
        raise DamageError(f"column {element['name'].decode(errors='replace')!r} has another type than the schema says")
    start, dictionary = column["data"], column.get("dictionary", 0)
    if 0 < dictionary < start:
        start = dictionary
    # Pages may have values and no dictionary.
    kinds = [(each.get("type"), each.get("encoding")) for each in column.get("pages", ())]
    has_plain = any(kind in _VALUES and encoding not in _BY_DICTIONARY for kind, encoding in kinds)
    counts = column["nbytes"], column["values"], column["codec"], column.get("statistics", {}).get("nulls")
    has_dictionary = "dictionary" in column and not has_plain
    return Chunk(start, *counts, has_dictionary, "statistics" in column, "column_index" in said)


def _file(schema: thrift.Encoded, rows: int, groups: Sequence[thrift.Encoded], rest: Sequence[_Numbered]) -> bytes:
    """Return a footer with its length and the last bytes of a file."""
    first = [(1, thrift.int32(2)), (2, schema), (3, thrift.int64(rows)), (4, thrift.listed(groups))]
    data = thrift.structure([*first, *rest])[1]
    return data + len(data).to_bytes(4, "little") + MAGIC


class Page(NamedTuple):
    """A page of a column: where it is with its header, its values, and what it needs to be decoded."""

    extent: Extent  # where it is in the file, its header included
    values: int  # how many there are; of a dictionary none
    decoded: int  # how many bytes it has when it is decompressed
    header_nbytes: int = 0  # how many bytes the header has
    crc: int | None = None  # the checksum of what is behind the header, if that says it
    is_plain: bool = False  # whether the values are not encoded, and which of them are null is told in front of them


class Pages(NamedTuple):
    """The pages of a leaf in a row group, or the later ones of them, with the dictionary that they may need."""

    chunk: Chunk
    dictionary: Page | None
    data: Sequence[Page]

    def after(self, values: int) -> tuple[int, Pages]:
        """Leave out the pages that lie wholly within so many values; return how many are left to skip too."""
        number = 0
        while number < len(self.data) and values >= self.data[number].values:
            values -= self.data[number].values
            number += 1
        return values, self._replace(data=self.data[number:])

    def cut(self, nbytes: int) -> Iterator[Pages]:
        """Yield the pages in pieces of about so many bytes of the file, each with the dictionary."""
        first = size = 0
        for number, page in enumerate(self.data):
            if number > first and size + page.extent.nbytes > nbytes:
                yield self._replace(data=self.data[first:number])
                first, size = number, 0
            size += page.extent.nbytes
        yield self._replace(data=self.data[first:])

    @property
    def largest(self) -> int:
        """The most bytes that are decompressed at once."""
        return max([page.decoded for page in (*self.data, self.dictionary) if page], default=0)


def pages(file: OpenSource, chunk: Chunk) -> Pages:
    """Read the headers of the pages of a leaf in a row group."""
    dictionary, data, at, left = None, [], chunk.start, chunk.values
    while left > 0:
        header, nbytes = _page_header(file, at)
        try:
            kind, decoded, compressed = header["type"], header["uncompressed"], header["compressed"]
            values = header[_VALUES[kind]]["values"] if kind in _VALUES else 0
        except KeyError as error:
            raise DamageError(f"the header of the page at {at} lacks {error}") from None
        if min(decoded, compressed, values) < 0 or values > left:
            raise DamageError(f"the header of the page at {at} makes no sense")
        said = header.get("data", {})
        is_plain = kind == _DATA and said.get("encoding") == _PLAIN and said.get("levels") == _RLE
        page = Page(Extent(at, nbytes + compressed), values, decoded, nbytes, header.get("crc"), is_plain)
        if kind == _DICTIONARY:
            dictionary = page
        else:
            data.append(page)
        at += page.extent.nbytes
        left -= values
        if at > chunk.start + chunk.nbytes + _SLACK:
            raise DamageError(f"its pages at {chunk.start} have more bytes than the footer says")
    return Pages(chunk, dictionary, data)


def _page_header(file: OpenSource, at: int) -> tuple[dict[str, Any], int]:
    """Return what the header of a page says, and its bytes."""
    nbytes = _PAGE_HEADER_NBYTES
    while True:
        data = file.read(nbytes, at) if at >= 0 else b""
        header = thrift.Input(data)
        try:
            return header.structure(_PAGE), header.at
        except IndexError:
            if len(data) < nbytes or nbytes > _PAGE_HEADER_LIMIT:
                raise DamageError(f"there is no header of a page at {at}") from None
            nbytes *= 16


def stretch(leaf: Leaf, parts: Sequence[Pages]) -> list[Extent | bytes]:
    """Return of what a file with a single column is made: the pages of some row groups, and a footer of their own."""
    made: list[Extent | bytes] = [MAGIC]
    at, groups = len(MAGIC), []
    for part in parts:
        values, begin = sum(page.values for page in part.data), at
        for pages_of in (filter(None, [part.dictionary]), part.data):
            extents = [page.extent for page in pages_of]
            if extents:
                whole = Extent(extents[0].start, extents[-1].start + extents[-1].nbytes - extents[0].start)
                made.append(whole)
                at += whole.nbytes
        offsets = [(9, begin)]
        if part.dictionary:
            offsets = [(9, begin + part.dictionary.extent.nbytes), (11, begin)]
        decoded = sum(page.decoded for page in part.data)
        numbers = [(5, values), (6, decoded), (7, at - begin), *offsets]
        column = [
            (1, thrift.int32(leaf.type)),
            (2, thrift.listed([thrift.int32(0)])),
            (3, thrift.listed([thrift.text(name) for name in leaf.path])),
            (4, thrift.int32(part.chunk.codec)),
            *((field, thrift.int64(value)) for field, value in numbers),
        ]
        chunk = thrift.structure([(2, thrift.int64(0)), (3, thrift.structure(column))])
        group = [(1, thrift.listed([chunk])), (2, thrift.int64(at - begin)), (3, thrift.int64(values))]
        groups.append(thrift.structure(group))
    rest = [(6, thrift.text(leaf.created_by))] if leaf.created_by else []
    rows = sum(page.values for part in parts for page in part.data)
    made.append(_file(thrift.listed(leaf.schema), rows, groups, rest))
    return made
