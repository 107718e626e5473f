"""Options: a row for each option with its values, help, default and flags; and the options of each call.

Commands, signatures of Python functions, environment variables `MPIRED_<FLAG>`, completion and pages are made from the
rows. `checked` checks the options of a caller.
"""

import functools
import os
from collections.abc import Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from mpired.errors import UsageError
from mpired.values import (
    AMOUNT,
    COUNTS,
    CREATION,
    ENGINE_NAME,
    FILE,
    FLAG,
    FORMAT,
    INDEX,
    INPUT_FORMAT,
    NAMES,
    NUMBER,
    NUMBERS,
    PATH,
    RANK_NUMBERS,
    RANKS,
    REGEX,
    SOME_NAMES,
    TEXT,
    TWO_PATHS,
    TYPE,
    Kind,
    integers,
    sizes,
    times,
    words,
)

if TYPE_CHECKING:
    import numpy as np
    from _typeshed import SupportsRead

PathLike: TypeAlias = str | os.PathLike[str]
Rank: TypeAlias = "str | os.PathLike[str] | np.ndarray | SupportsRead[bytes]"
_T = TypeVar("_T")
# Not Iterable, because an array is iterable, but is not a list of ranks.
Several: TypeAlias = Sequence[_T] | Iterator[_T] | KeysView[_T] | ValuesView[_T]
Index: TypeAlias = str | int | slice | tuple[int | slice, ...]
Indices: TypeAlias = "str | os.PathLike[str] | np.ndarray | Sequence[int] | None"
DatatypeLike: TypeAlias = "str | MpiDatatype | np.dtype[Any] | type[np.generic]"
EngineLike: TypeAlias = "str | SupportsSubmit | SupportsEverywhere"

Options: TypeAlias = Mapping[str, Any]
"""Options of a call by their keywords, checked."""
Group: TypeAlias = tuple[str, ...]
"""Keys of `OPTIONS`."""


class MpiDatatype(Protocol):
    """A datatype of mpi4py."""

    def Get_envelope(self) -> tuple[int, ...]: ...  # noqa: N802 - the name in mpi4py


class SupportsSubmit(Protocol):
    """An executor of `concurrent.futures`, or a client of Dask."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any: ...


class SupportsEverywhere(Protocol):
    """The engine that `mpired.mpi` yields."""

    def everywhere(self, function: Any, /) -> Any: ...


class Option(NamedTuple):
    """An option: a row of the table."""

    kind: Kind  # of its values
    help: str  # the short help shows the first sentence
    default: Any = None  # False for a flag, unless it has a flag for the contrary
    flags: str | None = ""  # on the command line; "" for the keyword with hyphens, None if only Python has the option
    environment: bool = True  # whether environment variables set it; False for options that name code to load
    required: bool = False
    multiple: bool = False
    once: str = ""  # hint of the error for a repeated option; "" if the last value counts
    common: bool = False  # whether the short help, `-h`, shows it
    section: str = ""  # heading in the help

    @property
    def long_flags(self) -> list[str]:
        """The flags that begin with two hyphens, without flags for the contrary; messages use the first."""
        return [flag.partition("/")[0] for flag in (self.flags or "").split() if flag.startswith("--")]

    @property
    def variables(self) -> list[str]:
        """The environment variables that set the option."""
        flags = self.long_flags if self.environment else ()
        return [f"MPIRED_{flag[2:].replace('-', '_').upper()}" for flag in flags]

    @property
    def static(self) -> str:
        """The static type of a value in Python."""
        return self.kind.static if self.default is not None or self.required else f"{self.kind.static} | None"


EXTREMES = ("maxloc", "minloc")
_OP = Kind("OP", offers="op", use="REDUCE")
_COUNT = integers(low=0, below=2**63)
_BYTES = sizes(low=0, below=2**63)
_NUMBER = integers()
_DATAREP = words("native", "external32")

# The headings of the help in order, with their rows. The key is the keyword. If calls have different rows for a
# keyword, the calls are named after "@".
# fmt: off
_SECTIONS: dict[str, dict[str, Option]] = {
    "Op and values": {
        "op": Option(_OP, "The op, such as sum, mean, max or maxloc; `mpired ops` lists them. Also a "
            "function, FILE.py:FUNCTION, PACKAGE.MODULE:FUNCTION or ./LIB.so:SYMBOL, and installed ops. Of reduce also "
            "a list: mean,std,max.",
            environment=False, required=True, common=True),
        "op@accumulate": Option(_OP._replace(use="ACCUMULATE"), "The op, such as sum, max or replace; `mpired ops` "
            "lists them.", environment=False, required=True, common=True),
        "op@fetch": Option(_OP._replace(use="FETCH"), "The op, such as sum, max, replace or no_op; `mpired ops` lists "
            "them.", environment=False, required=True, common=True),
        "overflow": Option(words("warn", "wrap", "error"), "When a sum or product does not fit its datatype: warn "
            "(default), wrap silently, or end with an error."),
        "nan": Option(words("propagate", "ignore", "mpi"), "NaN makes a result NaN (propagate, default), is left out "
            "(ignore), or counts as in MPI libraries (mpi). With mpi, results can depend on the order of the ranks.",
            "propagate", common=True),
        "nulls": Option(words("error", "ignore", "propagate"), "Nulls and missing values end the command (error, "
            "default), are left out (ignore), or make a result missing (propagate).", "error", common=True),
        "missing": Option(NUMBER, "Leave out elements equal to VALUE, such as -999."),
        "accumulate_in": Option(words("double", "longdouble", "int64_t", "uint64_t"), "Compute in this wider datatype, "
            "and convert the result once, at the end. Ranks may have different datatypes that it holds without loss."),
        "accumulate_in@locate": Option(words("double", "longdouble", "int64_t", "uint64_t"), "Compare in this wider "
            "datatype. Ranks may have different datatypes that it holds without loss."),
        "accumulate_in@window": Option(TYPE, "The datatype of the target, such as double, if origins have others, such "
            "as float, that it holds without loss. They are converted."),
        "result_type": Option(TYPE, "Datatype of the result of a sum or a statistic."),
        "exact": Option(FLAG, "Compute sums exactly and round once. The order of the ranks then makes no difference."),
        "ddof": Option(integers(low=0, below=2**31), "Divide var and std by (ranks - N); default 0.", 0),
        "weights": Option(NUMBERS, "Weights of the ranks in a mean, such as 0.5,0.25,0.25. They follow the order of "
            "the ranks after --sort.", common=True),
        "weights_from": Option(FILE, "Read the weights from a text file, separated by spaces or lines."),
        "index": Option(words("rank", "number", "global"), "Let maxloc and minloc take plain values, and give each an "
            "index. It is the rank, the number in the file's name, or the global position, rank x count + position.",
            common=True),
        "op@locate": Option(_OP._replace(names=EXTREMES), "maxloc (or max) for the maximum, minloc (or min) for "
            "the minimum, or both with a comma.", environment=False, required=True, common=True),
        "top": Option(integers("K", low=1, below=2**31), "Show the K most extreme elements, in order; default 1.",
            common=True),
        "nan@locate": Option(words("propagate", "ignore"), "NaN counts as the extreme (propagate, default), or is left "
            "out (ignore).", "propagate", common=True),
        "nulls@locate": Option(words("error", "ignore"), "Nulls and missing values end the command (error, default), "
            "or are left out (ignore).", "error", common=True),
    },
    "Tolerance": {
        "ulp": Option(integers(low=0, below=2**63), "Floating-point numbers are equal if they differ by at most N "
            "units in the last place.", common=True),
        "rtol": Option(AMOUNT, "Numbers are equal if abs(a - b) <= atol + rtol * abs(b), with b from B. If only one of "
            "--rtol and --atol is given, the other is 0.", common=True),
        "atol": Option(AMOUNT, "Absolute tolerance; see --rtol.", common=True),
        "nan_equal": Option(FLAG, "NaN equals NaN.", common=True),
        "examples": Option(integers(low=0, below=2**31), "Number of differences to show.", 10, common=True),
    },
    "Result": {
        "output": Option(PATH, "File or URL to write; `-` (default) is standard output.", "-",
            flags="-o --output", common=True),
        "output@unpack": Option(PATH, "New file; `-` (default) is standard output.", "-", flags="-o --output",
            common=True),
        "into": Option(PATH, "Existing file to write into; its other bytes stay.", common=True),
        "output@ranks": Option(PATH._replace(metavar="PATTERN"), "Files to write, such as 'out_{rank}.npy'; also "
            "{rank:05d} and {stem}.", flags="-o --output", common=True),
        "to": Option(FORMAT, "Format of the result; default by the output's suffix, else as the inputs.", common=True),
        "provenance": Option(FLAG, "Record the call, the inputs and their digests, in parquet and arrow results or "
            "else in OUT.json."),
        "overwrite": Option(FLAG, "Replace an existing file.", flags="-f --force -O --overwrite", common=True),
        "level": Option(integers(low=0), "Compression level of results that end in .gz, .bz2, .xz, .zst or .lz4."),
        "split": Option(TWO_PATHS, "Write the values and indices of pairs to two plain files, such as "
            "max.npy,where.npy.", common=True),
        "in_place@root": Option(FLAG, "Write the result over the root's file (MPI_IN_PLACE)."),
        "in_place": Option(FLAG, "Replace every rank's file by its result (MPI_IN_PLACE)."),
        "count_valid": Option(FILE, "Also write, per element, how many ranks contributed a value. It is a pattern "
            "if --output is one."),
        "counts": Option(COUNTS, "Number of elements for each rank, such as 3,0,5.", required=True, common=True),
        "exscan_first": Option(words("none", "identity"), "Result of rank 0: none (default) writes no file, identity "
            "the op's neutral element.", "none", common=True),
        "fetch": Option(PATH._replace(metavar="OLD"), "File for the old elements; default standard output.", "-",
            common=True),
        "to@fetch": Option(FORMAT, "Format of OLD; default by its suffix, else that of the target.", common=True),
        "force@fetch": Option(FLAG, "Replace OLD if it exists.", flags="-f --force", common=True),
        "slice": Option(TEXT._replace(metavar="SLICE"), "Elements to print, in NumPy's notation, such as '10:20,::-1'; "
            "default the first and the last. With --png the plane to draw.", common=True),
        "diff": Option(PATH._replace(metavar="OTHER"), "Map the elements minus those of OTHER, with --png. The scale "
            "of colours is the same on both sides of 0.", common=True),
        "histogram": Option(FLAG, "Also print a histogram.", common=True),
        "bins": Option(integers(low=1, below=2**16), "Maximum number of histogram bins; default 20.", common=True),
        "png": Option(PATH, "Draw the file as a PNG picture; needs the extra `plot`. It has a histogram of "
            "each array, and maps of those with two dimensions.", common=True),
        "png@diff": Option(PATH, "Draw where the files differ as a PNG picture; needs the extra `plot`. It "
            "has maps of arrays with two dimensions, and the places in others.", common=True),
    },
    "Target and origins": {
        "windows": Option(RANKS._replace(metavar="FILE"), "The file of a rank's window: one for each rank, in rank "
            "order, instead of TARGET.", (), flags="--window", environment=False, multiple=True),
        "target_rank": Option(integers("R"), "The rank whose window is used, if there are several."),
        "target_disp": Option(_NUMBER, "Position of the first element in the window, in units of --disp-unit; default "
            "0.", common=True),
        "disp_unit": Option(integers("BYTES"), "Bytes per unit of --target-disp; default the size of an element."),
        "at@element": Option(INDEX, "Index of the element in a target that has a shape, such as "
            "`3,0`.", common=True),
        "target_count": Option(_NUMBER, "Number of elements of the target; default as many as the origin has."),
        "target_type": Option(TYPE, "Datatype and positions of these elements, such as `vector(3,1,2,double)`."),
        "at": Option(INDEX, "Slice of a target that has a shape, in NumPy's notation, such as "
            "`3,0:5`.", common=True),
        "map": Option(Kind("FILE", "Indices", offers="file"), "File with an integer for each element of the origin: "
            "its position in the target."),
        "origin_disp": Option(_NUMBER, "Elements to skip at the start of the origin.", 0),
        "origin_count": Option(_NUMBER, "Elements of the origin to use; default all.", common=True),
        "origin_type": Option(TYPE, "Datatype of these elements; see --target-type."),
        "create": Option(CREATION, "Create a missing target with this count (100) or shape (3,4), filled with the op's "
            "identity. Without a value: like the first origin.", common=True),
        "once": Option(FLAG, "Skip origins that were combined into the target before: the same file with the same "
            "content.", common=True),
        "once_key": Option(TEXT._replace(metavar="KEY"), "Do nothing if KEY was used for this target; else record it.",
            common=True),
    },
    "Inputs": {
        "files_from": Option(FILE, "Read more file names from FILE, one per line; `-` is standard input.",
            environment=False, once="name several lists as @LIST"),
        "null": Option(FLAG, "Names in --files-from end with NUL, like those of `find -print0`.", flags="-0 --null",
            environment=False),
        "sort": Option(words("given", "natural", "name"), "Order of the ranks: as given (default), natural (numbers by "
            "value), or by name.", "given", common=True),
        "rank_regex": Option(REGEX, r"Order the ranks by the number that the group of REGEX matches in each path, such "
            r"as 'out\.(\d+)'."),
        "expect_ranks": Option(RANK_NUMBERS, "Fail unless the file names have exactly these numbers. The number of a "
            "name is the group of --rank-regex, else the one that differs between the names, or the last in it.",
            common=True),
        "rank_numbers": Option(RANK_NUMBERS, "Numbers for the %d of a RANK, such as out.%04d --ranks 0-511.",
            flags="--ranks", environment=False, once="write all numbers in one, e.g. 0-10,20"),
        "skip_bad": Option(FLAG, "Skip unusable or differing files, list them, and exit with 9. The other ranks are "
            "renumbered.", flags="-k --skip-bad", common=True),
        "min_inputs": Option(integers("K", low=1, below=2**63), "Fail if fewer than K ranks are usable; default 1."),
        "format": Option(INPUT_FORMAT, "Format of the inputs; default by content and suffix.", flags="--from"),
        "format@unpack": Option(INPUT_FORMAT, "Format of PACKED; default by content and suffix.", flags="--from"),
    },
    "Columns and arrays": {
        "unpack": Option(FLAG, "Apply scale_factor and add_offset before combining. Results are not packed."),
        "columns": Option(SOME_NAMES, "Columns, variables or arrays to use: names, or patterns such as 'run*/t?'; "
            "default all.", flags="--columns --variables", common=True),
        "pair": Option(NAMES._replace(metavar="VALUE,INDEX"), "Use two columns or arrays as the values and indices of "
            "pairs."),
        "check_coordinates": Option(FLAG, "Require coordinates, and other arrays that results carry, to be identical "
            "in all ranks; default yes.", flags="--check-coordinates/--no-check-coordinates"),
        "ignore_coordinates": Option(NAMES, "Coordinates that may differ: names, or patterns such as 'time*'. Results "
            "have those of the first rank, or of the file that they replace, and say in cell_methods that they are of "
            "several times.", ()),
        "coordinate_rtol": Option(AMOUNT, "Coordinates are equal if abs(a - b) <= X * abs(b), with b from the first "
            "rank."),
        "columns@one": Option(SOME_NAMES, "The column or array, in a file with several.",
            flags="--columns --variables", common=True),
        "keep": Option(NAMES, "Columns or arrays to copy unchanged. They must be equal in all ranks.", (), common=True),
    },
    "Raw files": {
        "stride": Option(sizes(low=1, below=2**63), "Distance in bytes between the ranks of one raw file. They begin "
            "at --offset, with --count elements each or all."),
        "ranks_in_file": Option(integers(low=1, below=2**31), "A raw file holds N ranks, one after another; with "
            "--stride the first N."),
        "types": Option(FILE, "A TOML file that defines names of datatypes for TYPE."),
        "type": Option(TYPE, "Element datatype, such as double, float64 or '<f8'; raw files need it.", common=True),
        "offset": Option(_BYTES, "Bytes to skip at the start of raw inputs.", 0, common=True),
        "count": Option(_COUNT, "Elements to read of each raw input; default all.", common=True),
        "byte_order": Option(words("little", "big", "native"), "Byte order of raw files; default native."),
        "datarep": Option(_DATAREP, "Data representation of raw inputs and results; default native."),
        "type@pack": Option(TYPE, "Element datatype, such as 'resized(0,24,double)'.", required=True, common=True),
        "offset@pack": Option(_BYTES, "Position of the first element (displacement 0), in bytes.", 0, common=True),
        "count@pack": Option(_COUNT, "Number of elements; default all.", common=True),
        "datarep@pack": Option(_DATAREP, "Data representation of packed raw elements; default native."),
        "header": Option(words("none", "copy"), "Header of raw results: none (default), or a copy of the bytes before "
            "the elements of rank 0.", "none"),
    },
    "Running": {
        "max_memory": Option(sizes(low=0), "Memory limit of all processes together, in bytes; default that of "
            "the control group."),
        "jobs": Option(integers(low=0), "Worker processes; 0 (default) means all usable cores.", 0, flags="-j --jobs",
            common=True),
        "quiet": Option(FLAG, "No summary on standard error. Warnings of overflow and of --once stay.",
            flags="-q --quiet", common=True),
        "quiet@diff": Option(FLAG, "Print nothing: the exit status is the answer.", flags="-q --quiet",
            environment=False, common=True),
        "dry_run": Option(FLAG, "Check everything, write nothing, print the plan. With --json, the plan is JSON.",
            environment=False, common=True),
        "as_json": Option(FLAG, "Print the summary, or the error, as JSON.", flags="--json", common=True),
        "verbose": Option(FLAG, "Also print how the work was split, and timings.", flags="-v --verbose"),
        "only_list": Option(FLAG, "List leftovers; change nothing.", flags="--list", environment=False, common=True),
        "discard": Option(FLAG, "Remove the log of a change that was never committed.", environment=False, common=True),
        "adopt": Option(FLAG, "Finish a change whose files are copies, such as those of a restored backup.",
            environment=False, common=True),
        "force@recover": Option(FLAG, "With --discard: give up a committed change too, after which a file may be half "
            "changed.", flags="-f --force", environment=False, common=True),
        "as_json@print": Option(FLAG, "Print JSON.", flags="--json", common=True),
        "matrix": Option(FLAG, "Print which op takes which datatype.", common=True),
        "progress": Option(Kind("TEXT", "Callable[[range], Iterable[object]]"), "A function that takes a range and "
            "yields its items, one for each megabyte, such as tqdm.", flags=None),
    },
    "Advanced": {
        "commute": Option(FLAG, "Whether a user-defined op commutes.", flags="--commute/--no-commute"),
        "op_timeout": Option(times(zero=False), "Time limit of one call of a user-defined op."),
        "follow_links": Option(FLAG, "Read arrays that an HDF5 file links to in other files, and virtual datasets."),
        "index_type": Option(TYPE, "Integer type of indices of --index; default int, or int64_t if an index needs it."),
        "lock_timeout": Option(times(zero=True), "How long to wait for a file that another command has locked; default "
            "60, 0 tries once."),
        "root": Option(integers("R"), "Take shape, byte order and metadata of the result from rank R.", 0),
        "group_b": Option(RANKS, "Ranks of a second group, up to the next option. Each group gets the result of the "
            "other.", environment=False, multiple=True),
        "link": Option(FLAG, "Store equal results once, under several names, where the system can."),
        "counts_b": Option(COUNTS, "Number of elements for each rank of --group-b."),
        "max_open_files": Option(integers(below=2**31), "Limit of open files per process.",
            flags="-n --max-open-files"),
        "engine": Option(ENGINE_NAME, "Where to compute: local (default) is this machine, mpi the processes that srun "
            "or mpiexec started, dask the workers of --scheduler. With mpi and dask, --jobs limits the segments under "
            "way, and --max-memory applies to each process.", "local"),
        "scheduler": Option(TEXT._replace(metavar="ADDRESS"), "Scheduler of --engine dask, such as tcp://host:8786, or "
            "the file that `dask scheduler --scheduler-file` writes; default DASK_SCHEDULER_ADDRESS."),
        "engine_timeout": Option(times(zero=False), "How long to wait for the scheduler, for a first worker, and for a "
            "worker that does not answer; default 120 with dask, no limit with mpi."),
        "spread": Option(words("auto", "elements", "ranks"), "How --engine mpi divides the work. elements: each worker "
            "reads its part of all ranks. ranks: each machine reads some of the ranks and passes partial results on. "
            "auto (default): ranks if the workers would open more than 100,000 files. The bytes of the result are the "
            "same.", "auto"),
        "commit": Option(words("auto", "rename", "journal"), "How the target changes: rename replaces it by a new "
            "file, journal changes it in place; auto (default) chooses.", "auto"),
        "durability": Option(words("full", "process", "none"), "full (default): changes survive a loss of power. "
            "process and none: they survive kill -9, and nothing is synced.", "full"),
    },
}
# fmt: on

RUNNING = "Running"
"""The heading of options of any call."""
SECTIONS = tuple(_SECTIONS)
"""The headings of options, in the order of the help."""


def _complete_row(key: str, row: Option, section: str) -> Option:
    """Return a row with its default flag, the default of a flag, and its section."""
    flags = f"--{keyword(key).replace('_', '-')}" if row.flags == "" else row.flags
    is_plain_flag = row.kind is FLAG and "/" not in (flags or "")
    return row._replace(flags=flags, default=False if is_plain_flag else row.default, section=section)


def keyword(key: str) -> str:
    """Return the keyword of a key of the table."""
    return key.partition("@")[0]


OPTIONS = {key: _complete_row(key, row, section) for section, table in _SECTIONS.items() for key, row in table.items()}
"""All options by key."""
FLAGS = {keyword(key): row.long_flags[0] for key, row in OPTIONS.items() if row.long_flags}
"""The long flag of every keyword."""

# Groups of options

WINDOW_VALUES: Group = ("overflow", "nan", "nulls", "missing")
WEIGHTS: Group = ("weights", "weights_from")
VALUES: Group = (*WINDOW_VALUES, "accumulate_in", "result_type", "exact", "ddof", *WEIGHTS)
USER_OP: Group = ("commute", "op_timeout")
LISTING: Group = ("files_from", "null", "sort", "rank_regex", "expect_ranks")
RANKING: Group = (*LISTING, "stride", "ranks_in_file", "skip_bad", "min_inputs")
RAW: Group = ("type", "types", "format", "columns", "pair", "offset", "count", "byte_order", "datarep")
INPUTS: Group = ("unpack", "follow_links", *RAW)
INDICES: Group = ("index", "index_type")
RECORDS: Group = ("type@pack", "types", "offset@pack", "count@pack", "byte_order", "datarep@pack")
PACKED: Group = ("format@unpack", "columns@one")
RESULTS: Group = ("to", "overwrite", "lock_timeout")
COORDINATES: Group = ("check_coordinates", "ignore_coordinates", "coordinate_rtol")
FORMS: Group = ("split", "count_valid", "header", *COORDINATES, "provenance", "level")
BUDGETS: Group = ("max_memory", "max_open_files")
EFFORT: Group = ("jobs", *BUDGETS)
ENGINE: Group = ("engine", "scheduler", "engine_timeout")
TRANSACTION: Group = ("lock_timeout", "commit", "durability")
TARGET: Group = ("target_rank", "target_disp", "disp_unit")
PLACES: Group = (*TARGET, "target_count", "target_type", "at", "map", "origin_disp", "origin_count", "origin_type")
FETCHED: Group = ("fetch", "to@fetch", "force@fetch")
SUMMARY: Group = ("quiet", "as_json")
REPORT: Group = (*SUMMARY, "dry_run", "verbose")

# The options of the calls

LOCAL: Group = (*USER_OP, *VALUES, *INPUTS, *COORDINATES, "lock_timeout", *EFFORT)
COMBINE: Group = (*USER_OP, *VALUES, *RANKING, *INPUTS, *INDICES, *RESULTS, *FORMS, *EFFORT, *ENGINE, "spread")
REDUCE: Group = (*COMBINE, "keep", "root", "in_place@root", "group_b")
SCATTER_BLOCK: Group = (*COMBINE, "in_place", "group_b")
SCATTER: Group = ("counts", *SCATTER_BLOCK, "counts_b")
ALLREDUCE: Group = (*SCATTER_BLOCK, "keep", "link")
SCAN: Group = (*COMBINE, "keep", "in_place")
EXSCAN: Group = (*SCAN, "exscan_first")
CALL: Group = (*REDUCE, "link", "counts", "counts_b", "exscan_first")
"""The options of all collectives together."""
FETCH: Group = (*WINDOW_VALUES, "accumulate_in@window", *PLACES, *INPUTS, *TRANSACTION, "create", *BUDGETS)
ACCUMULATE: Group = (*FETCH, *RANKING, "once", "once_key")
ELEMENT: Group = (*TARGET, "at@element", "type", "columns@one", "byte_order", *TRANSACTION, *BUDGETS)
SWAP: Group = ("nulls", "missing", *ELEMENT)
FETCH_ELEMENT: Group = (*WINDOW_VALUES, *ELEMENT, "create")
WINDOW: Group = (*WINDOW_VALUES, "accumulate_in@window", *TRANSACTION)
"""The options of all calls on a window."""
PACK: Group = (*RECORDS, *RESULTS, *BUDGETS)
UNPACK: Group = (*RECORDS, *PACKED, "overwrite", "lock_timeout", *BUDGETS)
INFO: Group = (*LISTING, *INPUTS, "lock_timeout")
SHOW: Group = ("slice", *INPUTS, "diff", *COORDINATES, "bins", "png", "overwrite", "lock_timeout")
DIFF: Group = (
    "ulp", "rtol", "atol", "nan_equal", "examples", "png@diff", "overwrite", *INPUTS, *EFFORT, "lock_timeout",
)  # fmt: skip
LEFT_OUT: Group = ("nan@locate", "nulls@locate", "missing")
LOCATE: Group = ("top", *LEFT_OUT, "accumulate_in@locate", *RANKING, *INPUTS, *EFFORT, *ENGINE, "lock_timeout")
RECOVER: Group = ("only_list", "discard", "adopt", "force@recover", "lock_timeout")

# Pairs of options that exclude each other, and pairs whose first option needs the second: the first is refused.
_EXCLUDED = (
    *(("sort", "rank_regex"), ("weights_from", "weights"), ("count_valid", "split"), ("in_place", "group_b")),
    *((name, "in_place") for name in ("link", "header", "split", "level", "provenance", "skip_bad")),
    *(("skip_bad", "weights"), ("skip_bad", "weights_from"), ("ulp", "rtol"), ("ulp", "atol")),
    ("origin_type", "accumulate_in"),
    ("only_list", "discard"),
)
_NEEDED = (
    *(("counts_b", "group_b"), ("index_type", "index"), ("null", "files_from"), ("force", "discard")),
    *(("diff", "png"), ("overwrite", "png"), *((name, "diff") for name in COORDINATES)),
)


@functools.cache
def rows(group: Group) -> Mapping[str, Option]:
    """Return the options of a group by keyword, in order."""
    return {keyword(key): OPTIONS[key] for key in group}


def checked(group: Group, options: Options) -> dict[str, Any]:
    """Return the checked options of a group; options that are missing or None get their defaults."""
    table, values, chosen = rows(group), {}, set()
    for name, row in table.items():
        values[name] = row.default
        if (value := options.get(name)) is not None and value is not row.default:
            try:
                values[name] = row.kind.check(value)
            except (OverflowError, TypeError, ValueError) as error:
                raise UsageError(f"`{name}`", str(error)) from None
            # A value of an option without a default may be an array, which cannot be compared.
            if row.default is None or values[name] != row.default:
                chosen.add(name)
    for name, other in _EXCLUDED:
        if name in chosen and other in chosen:
            raise UsageError(f"`{name}`", f"does not go with `{other}`; leave one of them out")
    for name, other in _NEEDED:
        if name in chosen and other in table and other not in chosen:  # some calls have only the first option
            raise UsageError(f"`{name}`", f"is of use with `{other}` only; give that too, or leave it out")
    return values


def part(group: Group, options: Options) -> dict[str, Any]:
    """Return the options of a group among `options`."""
    return {name: options[name] for name in rows(group) if name in options}
