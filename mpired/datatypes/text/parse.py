"""Text to datatype: names of MPI in any case with or without `MPI_`, NumPy's names and codes, types made of types."""

from __future__ import annotations

import re

import numpy as np

from mpired.datatypes.derived import CONSTRUCTORS, finished
from mpired.datatypes.dtypes import BY_NAME, BY_NUMPY_NAME, from_dtype
from mpired.datatypes.named import canonical
from mpired.datatypes.text.definitions import Definitions, Found
from mpired.datatypes.text.reader import Read, Reader, is_argument
from mpired.errors import DatatypeError
from mpired.mpi4py_objects import Decoded

_NUMPY_CODE = re.compile(r"([<>=|])?([biufc]\d{1,2}|\?)", re.ASCII)
_LONGEST_NAME = 40
_BYTE_ORDERS = {"<": "little", ">": "big", "=": "native"}


def definitions(path: str) -> Definitions:
    """Read a file of named datatypes."""
    return Definitions(path, _is_taken, _read)


def _is_taken(name: str) -> bool:
    plain = canonical(name)
    meaning = plain in BY_NAME or name in BY_NUMPY_NAME or plain.lower() in CONSTRUCTORS or is_argument(name)
    return meaning or plain == "DATATYPE_NULL" or _NUMPY_CODE.fullmatch(name) is not None


def parse(text: str, defined: Definitions | None = None) -> Found:
    """Read the text of `--type`.

    Returns
    -------
    Datatype and byte order
        The byte order, "little", "big" or "native", is None unless a NumPy code says it.

    Examples
    --------
    >>> datatype, byte_order = parse("double_int")
    >>> str(datatype), datatype.size, datatype.extent, byte_order
    ('MPI_DOUBLE_INT', 12, 16, None)
    >>> str(parse(">f8")[0]), parse(">f8")[1]
    ('MPI_DOUBLE', 'big')
    >>> str(parse("pair(double,int)")[0]), str(parse("pair(float, uint8_t)")[0])
    ('MPI_DOUBLE_INT', 'pair(float,uint8_t)')
    """
    made, order = _read(text, defined)
    datatype = finished(made)
    if isinstance(text, Decoded) and (datatype.size, datatype.extent) != (text.size, text.extent):
        there, here = (f"{each.size} bytes and extent {each.extent}" for each in (text, datatype))
        raise DatatypeError(text, f"has {there} in this MPI, and {here} in mpired; give a type that says its size")
    return datatype, order


def _read(text: str, defined: Definitions | None) -> Read:
    def plain(word: str) -> Read | None:
        return _plain(word) or (None if defined is None else defined.read(word.strip()))

    return plain(text) or Reader(text, CONSTRUCTORS, plain, _hint).whole()


def _plain(text: str) -> Found | None:
    """Return the datatype that a name or a NumPy code means, and its byte order; None if it means none."""
    datatype = BY_NAME.get(canonical(text)) or BY_NUMPY_NAME.get(text.strip())
    if datatype is not None:
        _ = datatype.form
        return datatype, None
    code = _NUMPY_CODE.fullmatch(text.strip())
    if code is None:
        return None
    try:
        return from_dtype(np.dtype(code[2])), _BYTE_ORDERS.get(code[1] or "")
    except TypeError:  # NumPy has no such code, or mpired no such type
        return None


def _hint(word: str) -> str:
    """Return what may help who wrote a word that means nothing."""
    import difflib  # noqa: PLC0415 - only for an error

    if re.match(r"bf(loat)?16|f(loat)?8", word.strip(), re.IGNORECASE):
        where = "mpired reads it only from safetensors and HDF5 files, which need no type"
        return f"{where}; convert others to float32"
    known = [*map(str.lower, BY_NAME), *BY_NUMPY_NAME]
    close = difflib.get_close_matches(canonical(word[:_LONGEST_NAME]).lower(), known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else "`mpired types` lists them all"
