"""The legal and illegal pairs of op and datatype, written out from the standard (MPI-4.1, 3.2.2, 6.9.2, 6.9.4).

Nothing here is computed from mpired's tables: this is the second writing that they are compared with.
"""

C_INTEGER = (
    "SIGNED_CHAR", "UNSIGNED_CHAR", "SHORT", "UNSIGNED_SHORT", "INT", "UNSIGNED", "LONG", "UNSIGNED_LONG",
    "LONG_LONG_INT", "UNSIGNED_LONG_LONG", "INT8_T", "UINT8_T", "INT16_T", "UINT16_T", "INT32_T", "UINT32_T",
    "INT64_T", "UINT64_T",
)  # fmt: skip
FORTRAN_INTEGER = ("INTEGER", "INTEGER1", "INTEGER2", "INTEGER4", "INTEGER8")
FLOATING_POINT = ("FLOAT", "DOUBLE", "LONG_DOUBLE", "REAL", "DOUBLE_PRECISION", "REAL2", "REAL4", "REAL8")
LOGICAL = ("LOGICAL", "C_BOOL", "CXX_BOOL", "LOGICAL1", "LOGICAL2", "LOGICAL4", "LOGICAL8")
COMPLEX = (
    "C_COMPLEX", "C_DOUBLE_COMPLEX", "C_LONG_DOUBLE_COMPLEX", "CXX_FLOAT_COMPLEX", "CXX_DOUBLE_COMPLEX",
    "CXX_LONG_DOUBLE_COMPLEX", "COMPLEX", "DOUBLE_COMPLEX", "COMPLEX4", "COMPLEX8", "COMPLEX16",
)  # fmt: skip
BYTE = ("BYTE",)
MULTI_LANGUAGE = ("AINT", "OFFSET", "COUNT")
PAIR = (
    "FLOAT_INT", "DOUBLE_INT", "LONG_INT", "2INT", "SHORT_INT", "LONG_DOUBLE_INT", "2REAL", "2DOUBLE_PRECISION",
    "2INTEGER",
)  # fmt: skip
# In no class of the standard, so that no predefined reduction takes them (MPI-4.1, 6.9.3).
NO_CLASS = ("CHAR", "WCHAR", "CHARACTER", "PACKED")

AVAILABLE = (
    *C_INTEGER, *FORTRAN_INTEGER, *FLOATING_POINT, *LOGICAL, *COMPLEX, *BYTE, *MULTI_LANGUAGE, *PAIR, *NO_CLASS
)  # fmt: skip
# Optional types of Fortran that are known by name but have no form here.
UNAVAILABLE = ("INTEGER16", "REAL16", "LOGICAL16", "COMPLEX32")
SYNONYMS = {"LONG_LONG": "LONG_LONG_INT", "C_FLOAT_COMPLEX": "C_COMPLEX"}

REDUCE_OPS = ("MAX", "MIN", "SUM", "PROD", "LAND", "BAND", "LOR", "BOR", "LXOR", "BXOR", "MAXLOC", "MINLOC")
# For one-sided communication only (MPI-4.1, 12.3.4).
RMA_OPS = ("REPLACE", "NO_OP")

GROUPS = {
    "C integer": C_INTEGER, "Fortran integer": FORTRAN_INTEGER, "floating point": FLOATING_POINT, "complex": COMPLEX,
    "logical": LOGICAL, "byte": BYTE, "multi language": MULTI_LANGUAGE, "value-index pair": PAIR,
    "time": (), "duration": (),  # of columns, which no datatype of MPI has
}  # fmt: skip
_NUMBERS = ("C integer", "Fortran integer", "floating point")
# The groups that an op takes, in words that an error message has to say.
TAKES: dict[str, tuple[str, ...]] = {
    "MAX": (*_NUMBERS, "multi language", "time", "duration"),
    "MIN": (*_NUMBERS, "multi language", "time", "duration"),
    "SUM": (*_NUMBERS, "complex", "multi language", "duration"),
    "PROD": (*_NUMBERS, "complex", "multi language"),
    "LAND": ("C integer", "logical"),
    "BAND": ("C integer", "Fortran integer", "byte", "multi language"),
    "LOR": ("C integer", "logical"),
    "BOR": ("C integer", "Fortran integer", "byte", "multi language"),
    "LXOR": ("C integer", "logical"),
    "BXOR": ("C integer", "Fortran integer", "byte", "multi language"),
    "MAXLOC": ("value-index pair",),
    "MINLOC": ("value-index pair",),
}
LEGAL = {op: frozenset(name for group in groups for name in GROUPS[group]) for op, groups in TAKES.items()}

LEGAL_PAIRS = [(op, name) for op in REDUCE_OPS for name in AVAILABLE if name in LEGAL[op]]
ILLEGAL_PAIRS = [(op, name) for op in REDUCE_OPS for name in AVAILABLE if name not in LEGAL[op]]
# The pairs that have a kernel in C, where that gains clearly; integers, bits, and the sums of wide numbers are as fast
# in NumPy.
COMPILED: dict[str, frozenset[str]] = {
    "MAX": frozenset(FLOATING_POINT),
    "MIN": frozenset(FLOATING_POINT),
    "SUM": frozenset({"REAL2", "COMPLEX4"}),
    "PROD": frozenset({"REAL2", *COMPLEX}),
    "MAXLOC": frozenset(PAIR),
    "MINLOC": frozenset(PAIR),
}
COMPILED_PAIRS = [(op, name) for op, name in LEGAL_PAIRS if name in COMPILED.get(op, ())]
