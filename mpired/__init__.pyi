# Written by `make docs` from the table of options; do not edit.
# ruff: noqa: A002, I001 - names of options; in the order of the modules

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, overload

import numpy as np

from mpired import datatypes as datatypes
from mpired import errors as errors
from mpired.api.mpi import mpi as mpi
from mpired.datatypes import DATATYPES as DATATYPES
from mpired.errors import Abort as Abort
from mpired.errors import MpiredError as MpiredError
from mpired.files.recovery import Recovered as Recovered
from mpired.ops import OPS as OPS
from mpired.ops.table import BAND as BAND
from mpired.ops.table import BOR as BOR
from mpired.ops.table import BXOR as BXOR
from mpired.ops.table import LAND as LAND
from mpired.ops.table import LOR as LOR
from mpired.ops.table import LXOR as LXOR
from mpired.ops.table import MAX as MAX
from mpired.ops.table import MAXLOC as MAXLOC
from mpired.ops.table import MIN as MIN
from mpired.ops.table import MINLOC as MINLOC
from mpired.ops.table import NO_OP as NO_OP
from mpired.ops.table import PROD as PROD
from mpired.ops.table import REPLACE as REPLACE
from mpired.ops.table import SUM as SUM
from mpired.ops.user import op as op
from mpired.queries.figures import Shown as Shown
from mpired.report import PackSummary as PackSummary
from mpired.report import Summary as Summary
from mpired.formats import RankFile
from mpired.ops import OpLike, Ops
from mpired.options import DatatypeLike, EngineLike, Index, Indices, MpiDatatype, PathLike, Rank, Several
from mpired.queries.diff import Difference
from mpired.queries.locate import Location

_Ranks: TypeAlias = Several[Rank]
# Ranks whose results are arrays. Whether a file's is one, or a dict, is in the file: the type of that is `Any`.
_InMemory: TypeAlias = Several[np.ndarray]
_Yes: TypeAlias = Literal[True]
_No: TypeAlias = Literal[False]

__version__: str

class _ReduceOptions(TypedDict, total=False):
    commute: bool | None
    op_timeout: float | None
    overflow: str | None
    nan: str
    nulls: str
    missing: float | None
    accumulate_in: str | None
    result_type: DatatypeLike | None
    exact: bool
    ddof: int
    weights: Sequence[float] | None
    weights_from: PathLike | None
    files_from: PathLike | None
    null: bool
    sort: str
    rank_regex: str | None
    expect_ranks: str | Sequence[int] | None
    stride: int | None
    ranks_in_file: int | None
    skip_bad: bool
    min_inputs: int | None
    unpack: bool
    follow_links: bool
    type: DatatypeLike | None
    types: PathLike | None
    format: str | None
    columns: str | Sequence[str] | None
    pair: str | Sequence[str] | None
    offset: int
    count: int | None
    byte_order: str | None
    datarep: str | None
    index: str | None
    index_type: DatatypeLike | None
    to: str | None
    overwrite: bool
    lock_timeout: float | None
    count_valid: PathLike | None
    header: str
    check_coordinates: bool | None
    ignore_coordinates: str | Sequence[str]
    coordinate_rtol: float | None
    provenance: bool
    level: int | None
    jobs: int
    max_memory: int | None
    max_open_files: int | None
    engine: EngineLike
    scheduler: str | None
    engine_timeout: float | None
    spread: str
    keep: str | Sequence[str]
    root: int
    group_b: Several[Rank] | None
    progress: Callable[[range], Iterable[object]] | None

@overload
def reduce(
    ranks: _InMemory, op: OpLike, *, output: None = None, in_place: _No = False, **options: Unpack[_ReduceOptions]
) -> np.ndarray: ...
@overload
def reduce(
    ranks: _Ranks, op: Ops, *, output: None = None, in_place: _No = False, **options: Unpack[_ReduceOptions]
) -> Any: ...
@overload
def reduce(
    ranks: _Ranks,
    op: Ops,
    *,
    output: PathLike,
    in_place: _No = False,
    split: None = None,
    **options: Unpack[_ReduceOptions],
) -> Summary: ...
@overload
def reduce(
    ranks: _Ranks,
    op: Ops,
    *,
    output: None = None,
    in_place: _Yes,
    split: None = None,
    **options: Unpack[_ReduceOptions],
) -> Summary: ...
@overload
def reduce(
    ranks: _Ranks,
    op: Ops,
    *,
    output: None = None,
    in_place: _No = False,
    split: tuple[PathLike, PathLike],
    **options: Unpack[_ReduceOptions],
) -> Summary: ...

class _AllreduceOptions(TypedDict, total=False):
    commute: bool | None
    op_timeout: float | None
    overflow: str | None
    nan: str
    nulls: str
    missing: float | None
    accumulate_in: str | None
    result_type: DatatypeLike | None
    exact: bool
    ddof: int
    weights: Sequence[float] | None
    weights_from: PathLike | None
    files_from: PathLike | None
    null: bool
    sort: str
    rank_regex: str | None
    expect_ranks: str | Sequence[int] | None
    stride: int | None
    ranks_in_file: int | None
    skip_bad: bool
    min_inputs: int | None
    unpack: bool
    follow_links: bool
    type: DatatypeLike | None
    types: PathLike | None
    format: str | None
    columns: str | Sequence[str] | None
    pair: str | Sequence[str] | None
    offset: int
    count: int | None
    byte_order: str | None
    datarep: str | None
    index: str | None
    index_type: DatatypeLike | None
    to: str | None
    overwrite: bool
    lock_timeout: float | None
    count_valid: PathLike | None
    header: str
    check_coordinates: bool | None
    ignore_coordinates: str | Sequence[str]
    coordinate_rtol: float | None
    provenance: bool
    level: int | None
    jobs: int
    max_memory: int | None
    max_open_files: int | None
    engine: EngineLike
    scheduler: str | None
    engine_timeout: float | None
    spread: str
    keep: str | Sequence[str]
    link: bool
    progress: Callable[[range], Iterable[object]] | None

@overload
def allreduce(
    ranks: _InMemory,
    op: OpLike,
    *,
    output: None = None,
    in_place: _No = False,
    group_b: None = None,
    **options: Unpack[_AllreduceOptions],
) -> list[np.ndarray]: ...
@overload
def allreduce(
    ranks: _Ranks,
    op: OpLike,
    *,
    output: None = None,
    in_place: _No = False,
    group_b: None = None,
    **options: Unpack[_AllreduceOptions],
) -> list[Any]: ...
@overload
def allreduce(
    ranks: _InMemory,
    op: OpLike,
    *,
    output: None = None,
    in_place: _No = False,
    group_b: _Ranks,
    **options: Unpack[_AllreduceOptions],
) -> tuple[list[np.ndarray], list[np.ndarray]]: ...
@overload
def allreduce(
    ranks: _Ranks,
    op: OpLike,
    *,
    output: None = None,
    in_place: _No = False,
    group_b: _Ranks,
    **options: Unpack[_AllreduceOptions],
) -> tuple[list[Any], list[Any]]: ...
@overload
def allreduce(
    ranks: _Ranks,
    op: OpLike,
    *,
    output: PathLike,
    in_place: _No = False,
    split: None = None,
    group_b: _Ranks | None = None,
    **options: Unpack[_AllreduceOptions],
) -> Summary: ...
@overload
def allreduce(
    ranks: _Ranks,
    op: OpLike,
    *,
    output: None = None,
    in_place: _Yes,
    split: None = None,
    group_b: None = None,
    **options: Unpack[_AllreduceOptions],
) -> Summary: ...
@overload
def allreduce(
    ranks: _Ranks,
    op: OpLike,
    *,
    output: None = None,
    in_place: _No = False,
    group_b: _Ranks | None = None,
    split: tuple[PathLike, PathLike],
    **options: Unpack[_AllreduceOptions],
) -> Summary: ...

class _ScanOptions(TypedDict, total=False):
    commute: bool | None
    op_timeout: float | None
    overflow: str | None
    nan: str
    nulls: str
    missing: float | None
    accumulate_in: str | None
    result_type: DatatypeLike | None
    exact: bool
    ddof: int
    weights: Sequence[float] | None
    weights_from: PathLike | None
    files_from: PathLike | None
    null: bool
    sort: str
    rank_regex: str | None
    expect_ranks: str | Sequence[int] | None
    stride: int | None
    ranks_in_file: int | None
    skip_bad: bool
    min_inputs: int | None
    unpack: bool
    follow_links: bool
    type: DatatypeLike | None
    types: PathLike | None
    format: str | None
    columns: str | Sequence[str] | None
    pair: str | Sequence[str] | None
    offset: int
    count: int | None
    byte_order: str | None
    datarep: str | None
    index: str | None
    index_type: DatatypeLike | None
    to: str | None
    overwrite: bool
    lock_timeout: float | None
    count_valid: PathLike | None
    header: str
    check_coordinates: bool | None
    ignore_coordinates: str | Sequence[str]
    coordinate_rtol: float | None
    provenance: bool
    level: int | None
    jobs: int
    max_memory: int | None
    max_open_files: int | None
    engine: EngineLike
    scheduler: str | None
    engine_timeout: float | None
    spread: str
    keep: str | Sequence[str]
    progress: Callable[[range], Iterable[object]] | None

@overload
def scan(
    ranks: _InMemory, op: OpLike, *, output: None = None, in_place: _No = False, **options: Unpack[_ScanOptions]
) -> list[np.ndarray]: ...
@overload
def scan(
    ranks: _Ranks, op: OpLike, *, output: None = None, in_place: _No = False, **options: Unpack[_ScanOptions]
) -> list[Any]: ...
@overload
def scan(
    ranks: _Ranks,
    op: OpLike,
    *,
    output: PathLike,
    in_place: _No = False,
    split: None = None,
    **options: Unpack[_ScanOptions],
) -> Summary: ...
@overload
def scan(
    ranks: _Ranks,
    op: OpLike,
    *,
    output: None = None,
    in_place: _Yes,
    split: None = None,
    **options: Unpack[_ScanOptions],
) -> Summary: ...
@overload
def scan(
    ranks: _Ranks,
    op: OpLike,
    *,
    output: None = None,
    in_place: _No = False,
    split: tuple[PathLike, PathLike],
    **options: Unpack[_ScanOptions],
) -> Summary: ...

class _ExscanOptions(TypedDict, total=False):
    commute: bool | None
    op_timeout: float | None
    overflow: str | None
    nan: str
    nulls: str
    missing: float | None
    accumulate_in: str | None
    result_type: DatatypeLike | None
    exact: bool
    ddof: int
    weights: Sequence[float] | None
    weights_from: PathLike | None
    files_from: PathLike | None
    null: bool
    sort: str
    rank_regex: str | None
    expect_ranks: str | Sequence[int] | None
    stride: int | None
    ranks_in_file: int | None
    skip_bad: bool
    min_inputs: int | None
    unpack: bool
    follow_links: bool
    type: DatatypeLike | None
    types: PathLike | None
    format: str | None
    columns: str | Sequence[str] | None
    pair: str | Sequence[str] | None
    offset: int
    count: int | None
    byte_order: str | None
    datarep: str | None
    index: str | None
    index_type: DatatypeLike | None
    to: str | None
    overwrite: bool
    lock_timeout: float | None
    count_valid: PathLike | None
    header: str
    check_coordinates: bool | None
    ignore_coordinates: str | Sequence[str]
    coordinate_rtol: float | None
    provenance: bool
    level: int | None
    jobs: int
    max_memory: int | None
    max_open_files: int | None
    engine: EngineLike
    scheduler: str | None
    engine_timeout: float | None
    spread: str
    keep: str | Sequence[str]
    exscan_first: str
    progress: Callable[[range], Iterable[object]] | None

@overload
def exscan(
    ranks: _InMemory, op: OpLike, *, output: None = None, in_place: _No = False, **options: Unpack[_ExscanOptions]
) -> list[np.ndarray | None]: ...
@overload
def exscan(
    ranks: _Ranks, op: OpLike, *, output: None = None, in_place: _No = False, **options: Unpack[_ExscanOptions]
) -> list[Any]: ...
@overload
def exscan(
    ranks: _Ranks,
    op: OpLike,
    *,
    output: PathLike,
    in_place: _No = False,
    split: None = None,
    **options: Unpack[_ExscanOptions],
) -> Summary: ...
@overload
def exscan(
    ranks: _Ranks,
    op: OpLike,
    *,
    output: None = None,
    in_place: _Yes,
    split: None = None,
    **options: Unpack[_ExscanOptions],
) -> Summary: ...
@overload
def exscan(
    ranks: _Ranks,
    op: OpLike,
    *,
    output: None = None,
    in_place: _No = False,
    split: tuple[PathLike, PathLike],
    **options: Unpack[_ExscanOptions],
) -> Summary: ...

class _ReduceScatterOptions(TypedDict, total=False):
    commute: bool | None
    op_timeout: float | None
    overflow: str | None
    nan: str
    nulls: str
    missing: float | None
    accumulate_in: str | None
    result_type: DatatypeLike | None
    exact: bool
    ddof: int
    weights: Sequence[float] | None
    weights_from: PathLike | None
    files_from: PathLike | None
    null: bool
    sort: str
    rank_regex: str | None
    expect_ranks: str | Sequence[int] | None
    stride: int | None
    ranks_in_file: int | None
    skip_bad: bool
    min_inputs: int | None
    unpack: bool
    follow_links: bool
    type: DatatypeLike | None
    types: PathLike | None
    format: str | None
    columns: str | Sequence[str] | None
    pair: str | Sequence[str] | None
    offset: int
    count: int | None
    byte_order: str | None
    datarep: str | None
    index: str | None
    index_type: DatatypeLike | None
    to: str | None
    overwrite: bool
    lock_timeout: float | None
    count_valid: PathLike | None
    header: str
    check_coordinates: bool | None
    ignore_coordinates: str | Sequence[str]
    coordinate_rtol: float | None
    provenance: bool
    level: int | None
    jobs: int
    max_memory: int | None
    max_open_files: int | None
    engine: EngineLike
    scheduler: str | None
    engine_timeout: float | None
    spread: str
    counts_b: Sequence[int] | None
    progress: Callable[[range], Iterable[object]] | None

@overload
def reduce_scatter(
    ranks: _InMemory,
    op: OpLike,
    counts: Sequence[int],
    *,
    output: None = None,
    in_place: _No = False,
    group_b: None = None,
    **options: Unpack[_ReduceScatterOptions],
) -> list[np.ndarray]: ...
@overload
def reduce_scatter(
    ranks: _Ranks,
    op: OpLike,
    counts: Sequence[int],
    *,
    output: None = None,
    in_place: _No = False,
    group_b: None = None,
    **options: Unpack[_ReduceScatterOptions],
) -> list[Any]: ...
@overload
def reduce_scatter(
    ranks: _InMemory,
    op: OpLike,
    counts: Sequence[int],
    *,
    output: None = None,
    in_place: _No = False,
    group_b: _Ranks,
    **options: Unpack[_ReduceScatterOptions],
) -> tuple[list[np.ndarray], list[np.ndarray]]: ...
@overload
def reduce_scatter(
    ranks: _Ranks,
    op: OpLike,
    counts: Sequence[int],
    *,
    output: None = None,
    in_place: _No = False,
    group_b: _Ranks,
    **options: Unpack[_ReduceScatterOptions],
) -> tuple[list[Any], list[Any]]: ...
@overload
def reduce_scatter(
    ranks: _Ranks,
    op: OpLike,
    counts: Sequence[int],
    *,
    output: PathLike,
    in_place: _No = False,
    split: None = None,
    group_b: _Ranks | None = None,
    **options: Unpack[_ReduceScatterOptions],
) -> Summary: ...
@overload
def reduce_scatter(
    ranks: _Ranks,
    op: OpLike,
    counts: Sequence[int],
    *,
    output: None = None,
    in_place: _Yes,
    split: None = None,
    group_b: None = None,
    **options: Unpack[_ReduceScatterOptions],
) -> Summary: ...
@overload
def reduce_scatter(
    ranks: _Ranks,
    op: OpLike,
    counts: Sequence[int],
    *,
    output: None = None,
    in_place: _No = False,
    group_b: _Ranks | None = None,
    split: tuple[PathLike, PathLike],
    **options: Unpack[_ReduceScatterOptions],
) -> Summary: ...

class _ReduceScatterBlockOptions(TypedDict, total=False):
    commute: bool | None
    op_timeout: float | None
    overflow: str | None
    nan: str
    nulls: str
    missing: float | None
    accumulate_in: str | None
    result_type: DatatypeLike | None
    exact: bool
    ddof: int
    weights: Sequence[float] | None
    weights_from: PathLike | None
    files_from: PathLike | None
    null: bool
    sort: str
    rank_regex: str | None
    expect_ranks: str | Sequence[int] | None
    stride: int | None
    ranks_in_file: int | None
    skip_bad: bool
    min_inputs: int | None
    unpack: bool
    follow_links: bool
    type: DatatypeLike | None
    types: PathLike | None
    format: str | None
    columns: str | Sequence[str] | None
    pair: str | Sequence[str] | None
    offset: int
    count: int | None
    byte_order: str | None
    datarep: str | None
    index: str | None
    index_type: DatatypeLike | None
    to: str | None
    overwrite: bool
    lock_timeout: float | None
    count_valid: PathLike | None
    header: str
    check_coordinates: bool | None
    ignore_coordinates: str | Sequence[str]
    coordinate_rtol: float | None
    provenance: bool
    level: int | None
    jobs: int
    max_memory: int | None
    max_open_files: int | None
    engine: EngineLike
    scheduler: str | None
    engine_timeout: float | None
    spread: str
    progress: Callable[[range], Iterable[object]] | None

@overload
def reduce_scatter_block(
    ranks: _InMemory,
    op: OpLike,
    *,
    output: None = None,
    in_place: _No = False,
    group_b: None = None,
    **options: Unpack[_ReduceScatterBlockOptions],
) -> list[np.ndarray]: ...
@overload
def reduce_scatter_block(
    ranks: _Ranks,
    op: OpLike,
    *,
    output: None = None,
    in_place: _No = False,
    group_b: None = None,
    **options: Unpack[_ReduceScatterBlockOptions],
) -> list[Any]: ...
@overload
def reduce_scatter_block(
    ranks: _InMemory,
    op: OpLike,
    *,
    output: None = None,
    in_place: _No = False,
    group_b: _Ranks,
    **options: Unpack[_ReduceScatterBlockOptions],
) -> tuple[list[np.ndarray], list[np.ndarray]]: ...
@overload
def reduce_scatter_block(
    ranks: _Ranks,
    op: OpLike,
    *,
    output: None = None,
    in_place: _No = False,
    group_b: _Ranks,
    **options: Unpack[_ReduceScatterBlockOptions],
) -> tuple[list[Any], list[Any]]: ...
@overload
def reduce_scatter_block(
    ranks: _Ranks,
    op: OpLike,
    *,
    output: PathLike,
    in_place: _No = False,
    split: None = None,
    group_b: _Ranks | None = None,
    **options: Unpack[_ReduceScatterBlockOptions],
) -> Summary: ...
@overload
def reduce_scatter_block(
    ranks: _Ranks,
    op: OpLike,
    *,
    output: None = None,
    in_place: _Yes,
    split: None = None,
    group_b: None = None,
    **options: Unpack[_ReduceScatterBlockOptions],
) -> Summary: ...
@overload
def reduce_scatter_block(
    ranks: _Ranks,
    op: OpLike,
    *,
    output: None = None,
    in_place: _No = False,
    group_b: _Ranks | None = None,
    split: tuple[PathLike, PathLike],
    **options: Unpack[_ReduceScatterBlockOptions],
) -> Summary: ...

class _ReduceLocalOptions(TypedDict, total=False):
    commute: bool | None
    op_timeout: float | None
    overflow: str | None
    nan: str
    nulls: str
    missing: float | None
    accumulate_in: str | None
    result_type: DatatypeLike | None
    exact: bool
    ddof: int
    weights: Sequence[float] | None
    weights_from: PathLike | None
    unpack: bool
    follow_links: bool
    type: DatatypeLike | None
    types: PathLike | None
    format: str | None
    columns: str | Sequence[str] | None
    pair: str | Sequence[str] | None
    offset: int
    count: int | None
    byte_order: str | None
    datarep: str | None
    check_coordinates: bool | None
    ignore_coordinates: str | Sequence[str]
    coordinate_rtol: float | None
    lock_timeout: float | None
    jobs: int
    max_memory: int | None
    max_open_files: int | None
    progress: Callable[[range], Iterable[object]] | None

def reduce_local(invec: Rank, inoutvec: PathLike, op: OpLike, **options: Unpack[_ReduceLocalOptions]) -> Summary: ...

class _PackOptions(TypedDict, total=False):
    type: DatatypeLike
    types: PathLike | None
    offset: int
    count: int | None
    byte_order: str | None
    datarep: str | None
    to: str | None
    overwrite: bool
    lock_timeout: float | None
    max_memory: int | None
    max_open_files: int | None
    progress: Callable[[range], Iterable[object]] | None

@overload
def pack(file: PathLike, *, output: None = None, **options: Unpack[_PackOptions]) -> np.ndarray: ...
@overload
def pack(file: PathLike, *, output: PathLike, **options: Unpack[_PackOptions]) -> PackSummary: ...

class _UnpackOptions(TypedDict, total=False):
    type: DatatypeLike
    types: PathLike | None
    offset: int
    count: int | None
    byte_order: str | None
    datarep: str | None
    format: str | None
    columns: str | Sequence[str] | None
    overwrite: bool
    lock_timeout: float | None
    max_memory: int | None
    max_open_files: int | None
    progress: Callable[[range], Iterable[object]] | None

def unpack(
    packed: PathLike, *, output: PathLike | None = None, into: PathLike | None = None, **options: Unpack[_UnpackOptions]
) -> PackSummary: ...

class _InfoOptions(TypedDict, total=False):
    unpack: bool
    follow_links: bool
    type: DatatypeLike | None
    types: PathLike | None
    format: str | None
    columns: str | Sequence[str] | None
    pair: str | Sequence[str] | None
    offset: int
    count: int | None
    byte_order: str | None
    datarep: str | None

def info(path: Rank, **options: Unpack[_InfoOptions]) -> RankFile: ...

class _ShowOptions(TypedDict, total=False):
    slice: str | None
    unpack: bool
    follow_links: bool
    type: DatatypeLike | None
    types: PathLike | None
    format: str | None
    columns: str | Sequence[str] | None
    pair: str | Sequence[str] | None
    offset: int
    count: int | None
    byte_order: str | None
    datarep: str | None
    diff: PathLike | None
    check_coordinates: bool | None
    ignore_coordinates: str | Sequence[str]
    coordinate_rtol: float | None
    bins: int | None
    png: PathLike | None
    overwrite: bool
    lock_timeout: float | None

def show(path: PathLike, **options: Unpack[_ShowOptions]) -> Shown: ...

class _DiffOptions(TypedDict, total=False):
    ulp: int | None
    rtol: float | None
    atol: float | None
    nan_equal: bool
    examples: int
    png: PathLike | None
    overwrite: bool
    unpack: bool
    follow_links: bool
    type: DatatypeLike | None
    types: PathLike | None
    format: str | None
    columns: str | Sequence[str] | None
    pair: str | Sequence[str] | None
    offset: int
    count: int | None
    byte_order: str | None
    datarep: str | None
    jobs: int
    max_memory: int | None
    max_open_files: int | None
    lock_timeout: float | None
    progress: Callable[[range], Iterable[object]] | None

def diff(a: Rank | Several[Rank], b: Rank | Several[Rank], **options: Unpack[_DiffOptions]) -> Difference: ...

class _LocateOptions(TypedDict, total=False):
    nan: str
    nulls: str
    missing: float | None
    accumulate_in: str | None
    files_from: PathLike | None
    null: bool
    sort: str
    rank_regex: str | None
    expect_ranks: str | Sequence[int] | None
    stride: int | None
    ranks_in_file: int | None
    skip_bad: bool
    min_inputs: int | None
    unpack: bool
    follow_links: bool
    type: DatatypeLike | None
    types: PathLike | None
    format: str | None
    columns: str | Sequence[str] | None
    pair: str | Sequence[str] | None
    offset: int
    count: int | None
    byte_order: str | None
    datarep: str | None
    jobs: int
    max_memory: int | None
    max_open_files: int | None
    engine: EngineLike
    scheduler: str | None
    engine_timeout: float | None
    lock_timeout: float | None
    progress: Callable[[range], Iterable[object]] | None

@overload
def locate(ranks: Sequence[Rank], op: OpLike, *, top: None = None, **options: Unpack[_LocateOptions]) -> Location: ...
@overload
def locate(ranks: Sequence[Rank], op: OpLike, *, top: int, **options: Unpack[_LocateOptions]) -> list[Location]: ...
@overload
def locate(
    ranks: Sequence[Rank], op: list[str] | list[OpLike], *, top: int | None = None, **options: Unpack[_LocateOptions]
) -> dict[str, Any]: ...

class _RecoverOptions(TypedDict, total=False):
    only_list: bool
    discard: bool
    adopt: bool
    force: bool
    lock_timeout: float | None

def recover(files: PathLike | Sequence[PathLike], **options: Unpack[_RecoverOptions]) -> list[Recovered]: ...

class _WindowInitOptions(TypedDict, total=False):
    overflow: str | None
    nan: str
    nulls: str
    missing: float | None
    accumulate_in: DatatypeLike | None
    lock_timeout: float | None
    commit: str
    durability: str

class _WindowAccumulateOptions(TypedDict, total=False):
    overflow: str | None
    nan: str
    nulls: str
    missing: float | None
    accumulate_in: DatatypeLike | None
    target_rank: int | None
    target_disp: int | None
    disp_unit: int | None
    target_count: int | None
    target_type: DatatypeLike | None
    at: Index | None
    map: Indices | None
    origin_disp: int
    origin_count: int | None
    origin_type: DatatypeLike | None
    unpack: bool
    follow_links: bool
    type: DatatypeLike | None
    types: PathLike | None
    format: str | None
    columns: str | Sequence[str] | None
    pair: str | Sequence[str] | None
    offset: int
    count: int | None
    byte_order: str | None
    datarep: str | None
    lock_timeout: float | None
    commit: str
    durability: str
    create: bool | str | int | Sequence[int] | None
    max_memory: int | None
    max_open_files: int | None
    files_from: PathLike | None
    null: bool
    sort: str
    rank_regex: str | None
    expect_ranks: str | Sequence[int] | None
    stride: int | None
    ranks_in_file: int | None
    skip_bad: bool
    min_inputs: int | None
    once: bool
    once_key: str | None
    progress: Callable[[range], Iterable[object]] | None

class _WindowGetAccumulateOptions(TypedDict, total=False):
    overflow: str | None
    nan: str
    nulls: str
    missing: float | None
    accumulate_in: DatatypeLike | None
    target_rank: int | None
    target_disp: int | None
    disp_unit: int | None
    target_count: int | None
    target_type: DatatypeLike | None
    at: Index | None
    map: Indices | None
    origin_disp: int
    origin_count: int | None
    origin_type: DatatypeLike | None
    unpack: bool
    follow_links: bool
    type: DatatypeLike | None
    types: PathLike | None
    format: str | None
    columns: str | Sequence[str] | None
    pair: str | Sequence[str] | None
    offset: int
    count: int | None
    byte_order: str | None
    datarep: str | None
    lock_timeout: float | None
    commit: str
    durability: str
    create: bool | str | int | Sequence[int] | None
    max_memory: int | None
    max_open_files: int | None
    progress: Callable[[range], Iterable[object]] | None

class _WindowFetchAndOpOptions(TypedDict, total=False):
    overflow: str | None
    nan: str
    nulls: str
    missing: float | None
    target_rank: int | None
    target_disp: int | None
    disp_unit: int | None
    at: Index | None
    type: DatatypeLike | None
    columns: str | Sequence[str] | None
    byte_order: str | None
    lock_timeout: float | None
    commit: str
    durability: str
    max_memory: int | None
    max_open_files: int | None
    create: bool | str | int | Sequence[int] | None

class _WindowCompareAndSwapOptions(TypedDict, total=False):
    nulls: str
    missing: float | None
    target_rank: int | None
    target_disp: int | None
    disp_unit: int | None
    at: Index | None
    type: DatatypeLike | None
    columns: str | Sequence[str] | None
    byte_order: str | None
    lock_timeout: float | None
    commit: str
    durability: str
    max_memory: int | None
    max_open_files: int | None

class Window:
    paths: tuple[str, ...]
    def __init__(
        self,
        *paths: PathLike,
        type: str | MpiDatatype | None = None,
        byte_order: str | None = None,
        **options: Unpack[_WindowInitOptions],
    ) -> None: ...
    def accumulate(
        self, origin: Rank | Sequence[Rank], op: OpLike, **options: Unpack[_WindowAccumulateOptions]
    ) -> int: ...
    def get_accumulate(
        self, origin: Rank | None, op: OpLike, **options: Unpack[_WindowGetAccumulateOptions]
    ) -> np.ndarray: ...
    def fetch_and_op(self, value: object, op: OpLike, **options: Unpack[_WindowFetchAndOpOptions]) -> Any: ...
    def compare_and_swap(
        self, compare: object, value: object, **options: Unpack[_WindowCompareAndSwapOptions]
    ) -> Any: ...
