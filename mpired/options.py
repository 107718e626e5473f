"""Every option once: a row with its values, help, default and flags; and the options of each call.

The commands, the signatures of Python's functions, the variables `MPIRED_<FLAG>`, completion and the pages read the
rows. `checked` reads the options of a caller.
"""

import os
from collections.abc import Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from mpired.errors import UsageError
from mpired.values import (
    Amount,
    Anything,
    Counts,
    Creation,
    EngineName,
    Flag,
    FormatName,
    Integer,
    Kind,
    Names,
    Number,
    Numbers,
    OpName,
    Path,
    RankNumbers,
    Ranks,
    RefusedError,
    Regex,
    Seconds,
    Size,
    Text,
    TwoPaths,
    TypeText,
    Word,
)

if TYPE_CHECKING:
    import numpy as np

PathLike: TypeAlias = str | os.PathLike[str]
Rank: TypeAlias = "str | os.PathLike[str] | np.ndarray | SupportsRead"
_T = TypeVar("_T")
# Not Iterable: one array is iterable, too, and is no list of ranks.
Several: TypeAlias = Sequence[_T] | Iterator[_T] | KeysView[_T] | ValuesView[_T]
Index: TypeAlias = str | int | slice | tuple[int | slice, ...]
Indices: TypeAlias = "str | os.PathLike[str] | np.ndarray | Sequence[int] | None"
DatatypeLike: TypeAlias = "str | MpiDatatype | np.dtype[Any] | type[np.generic]"
EngineLike: TypeAlias = "str | SupportsSubmit | SupportsEverywhere"


ONLY_ELEMENTS = "a window keeps only its elements"
"""Why windows have none of the options that need more."""

Options: TypeAlias = Mapping[str, Any]
"""Options of a call by their keywords, checked."""
Group: TypeAlias = tuple[str, ...]
"""Keys of `OPTIONS`."""


class MpiDatatype(Protocol):
    """A datatype of mpi4py."""

    def Get_envelope(self) -> tuple[int, ...]: ...  # noqa: N802 - the name there


class SupportsSubmit(Protocol):
    """An executor of `concurrent.futures`, or a client of Dask."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any: ...


class SupportsEverywhere(Protocol):
    """What `mpired.mpi` gives."""

    def everywhere(self, function: Any, /) -> Any: ...


class SupportsRead(Protocol):
    """A file that is open for reading bytes."""

    def read(self, size: int = ..., /) -> bytes: ...


class Option(NamedTuple):
    """An option: a row of the table. Without `flags` its flag is its keyword, with hyphens."""

    kind: Kind  # its values
    help: str  # the first sentence stands alone: the short help shows no more
    default: Any = None  # of a flag False, unless a flag for the contrary exists
    flags: str | None = ""  # on the command line; messages use the first long one; None if it has none there
    type: str = ""  # the static type of its value in Python, where the kind does not tell it
    environment: bool = True  # whether variables named after its long flags set it: none that may name code to load
    hidden: bool = False  # left out of help, because it exists only to be refused with a reason
    required: bool = False
    multiple: bool = False
    once: str = ""  # what to do instead of giving it twice; without it the last one counts
    common: bool = False  # whether the short help, `-h`, shows it
    section: str = ""  # the heading in the help

    @property
    def long_flags(self) -> list[str]:
        """The flags that begin with two hyphens, without those for the contrary."""
        return [flag.partition("/")[0] for flag in (self.flags or "").split() if flag.startswith("--")]

    @property
    def variables(self) -> list[str]:
        """The environment variables that may set it."""
        names = (flag[2:].replace("-", "_").upper() for flag in self.long_flags)
        return [f"MPIRED_{name}" for name in names] if self.environment else []

    @property
    def static(self) -> str:
        """The static type of its value in Python."""
        found = self.type or self.kind.static
        return found if self.default is not None or self.required else f"{found} | None"


BYTE_ORDERS = ("little", "big", "native")
DATAREPS = ("native", "external32")
OVERFLOWS = ("warn", "wrap", "error")
NANS = ("propagate", "ignore", "mpi")
NULLS = ("error", "ignore", "propagate")
WIDE = ("double", "longdouble", "int64_t", "uint64_t")
LOCATE_NANS = ("propagate", "ignore")
EXTREMES = ("maxloc", "minloc")
COMMITS = ("auto", "rename", "journal")
DURABILITIES = ("full", "process", "none")
EXSCAN_FIRST = ("none", "identity")
HEADERS = ("none", "copy")
SORTS = ("given", "natural", "name")
INDEX_WORDS = ("rank", "number", "global")
ENGINES = ("local", "mpi", "dask")
SPREADS = ("auto", "elements", "ranks")


_COUNT = Integer(least=0, below=2**63)
_BYTES = Size(least=0, below=2**63)
_NUMBER = Integer()

# The headings of the help in their order, each with its rows. The key is the keyword; where calls differ in the row of
# a keyword, what follows "@" names the calls.
# fmt: off
_SECTIONS: dict[str, dict[str, Option]] = {
    "Op and values": {
        "op": Option(OpName("REDUCE"), "The op, such as sum, mean, max or maxloc; `mpired ops` lists them. Also a "
            "function, FILE.py:FUNCTION, PACKAGE.MODULE:FUNCTION or ./LIB.so:SYMBOL, and installed ops.",
            environment=False, required=True, common=True),
        "op@accumulate": Option(OpName("ACCUMULATE"), "The op, such as sum, max or replace; `mpired ops` lists them.",
            environment=False, required=True, common=True),
        "op@fetch": Option(OpName("FETCH"), "The op, such as sum, max, replace or no_op; `mpired ops` lists them.",
            environment=False, required=True, common=True),
        "overflow": Option(Word(OVERFLOWS), "When a sum or product does not fit its datatype: warn (default), wrap "
            "silently, or end with an error."),
        "nan": Option(Word(NANS), "NaN makes a result NaN (propagate, default), is left out (ignore), or counts as in "
            "MPI libraries (mpi). With mpi, results can depend on the order of the ranks.", "propagate", common=True),
        "nulls": Option(Word(NULLS), "Nulls and missing values end the command (error, default), are left out "
            "(ignore), or make a result missing (propagate).", "error", common=True),
        "missing": Option(Number("VALUE"), "Leave out elements equal to VALUE, such as -999."),
        "accumulate_in": Option(Word(WIDE), "Compute in this wider datatype, and convert the result once, at the end."),
        "result_type": Option(TypeText(), "Datatype of the result of a sum or a statistic."),
        "exact": Option(Flag(), "Compute sums exactly and round once. The order of the ranks then makes no "
            "difference."),
        "ddof": Option(Integer(least=0, below=2**31), "Divide var and std by (ranks - N); default 0.", 0),
        "weights": Option(Numbers(), "Weights of the ranks in a mean, such as 0.5,0.25,0.25. They follow the order of "
            "the ranks after --sort.", (), common=True),
        "weights_from": Option(Path(), "Read the weights from a text file, separated by spaces or lines."),
        "index": Option(Word(INDEX_WORDS), "Let maxloc and minloc take plain values, and give each an index. It is the "
            "rank, the last number in the file's name, or the global position, rank x count + position.", common=True),
        "index@none": Option(Word(INDEX_WORDS), "", environment=False, hidden=True),
        "op@locate": Option(OpName("REDUCE", names=EXTREMES), "maxloc (or max) for the maximum, minloc (or min) for "
            "the minimum.", environment=False, required=True, common=True),
        "top": Option(Integer("K", least=1, below=2**31), "Show the K most extreme elements, in order; default 1.",
            common=True),
        "nan@locate": Option(Word(LOCATE_NANS), "NaN counts as the extreme (propagate, default), or is left out "
            "(ignore).", "propagate", common=True),
    },
    "Tolerance": {
        "ulp": Option(Integer(least=0, below=2**63), "Floating-point numbers are equal if they differ by at most N "
            "units in the last place.", common=True),
        "rtol": Option(Amount(), "Numbers are equal if abs(a - b) <= atol + rtol * abs(b), with b from B. If only one "
            "of --rtol and --atol is given, the other is 0.", common=True),
        "atol": Option(Amount(), "Absolute tolerance; see --rtol.", common=True),
        "nan_equal": Option(Flag(), "NaN equals NaN.", common=True),
        "examples": Option(Integer(least=0, below=2**31), "Number of differences to show.", 10, common=True),
    },
    "Result": {
        "output": Option(Path("PATH"), "File or URL to write; `-` (default) is standard output.", "-",
            flags="-o --output", common=True),
        "output@unpack": Option(Path("PATH"), "New file; `-` (default) is standard output.", "-", flags="-o --output",
            common=True),
        "into": Option(Path("PATH"), "Existing file to write into; its other bytes stay.", common=True),
        "output@ranks": Option(Path("PATTERN"), "Files to write, such as 'out_{rank}.npy'; also {rank:05d} and {stem}.",
            flags="-o --output", common=True),
        "to": Option(FormatName(), "Format of the result; default by the suffix of the output, else as the inputs.",
            common=True),
        "provenance": Option(Flag(), "Record the call, the inputs and their digests, in parquet and arrow results or "
            "else in OUT.json."),
        "overwrite": Option(Flag(), "Replace an existing file.", flags="-f --force -O --overwrite", common=True),
        "level": Option(Integer(least=0), "Compression level of results that end in .gz, .bz2, .xz, .zst or .lz4."),
        "split": Option(TwoPaths("VALUES,INDICES"), "Write the values and indices of pairs to two plain files, such as "
            "max.npy,where.npy.", common=True),
        "in_place@root": Option(Flag(), "Write the result over the root's file (MPI_IN_PLACE)."),
        "in_place": Option(Flag(), "Replace every rank's file by its result (MPI_IN_PLACE)."),
        "count_valid": Option(Path(), "Also write, per element, how many ranks contributed a value. It is a pattern if "
            "--output is one."),
        "counts": Option(Counts(), "Number of elements for each rank, such as 3,0,5.", required=True, common=True),
        "exscan_first": Option(Word(EXSCAN_FIRST), "Result of rank 0: none (default) writes no file, identity the op's "
            "neutral element.", "none", common=True),
        "fetch": Option(Path("OLD"), "File for the old elements; default standard output.", "-", common=True),
        "to@fetch": Option(FormatName(), "Format of OLD; default by its suffix, else that of the target.", common=True),
        "force@fetch": Option(Flag(), "Replace OLD if it exists.", flags="-f --force", common=True),
        "slice": Option(Text("SLICE"), "Elements to print, in NumPy's notation, such as '10:20,::-1'; default the "
            "first and the last.", common=True),
        "histogram": Option(Flag(), "Also print a histogram; needs the extra `plot`.", common=True),
        "bins": Option(Integer(least=1, below=2**16), "Maximum number of bins of a histogram; default 20.",
            common=True),
        "png": Option(Path("PATH"), "Draw the file as a PNG picture; needs the extra `plot`. It has a histogram of "
            "each array, and maps of those with two dimensions.", common=True),
    },
    "Target and origins": {
        "windows": Option(Ranks("FILE"), "The file of a rank's window: one for each rank, in rank order, instead of "
            "TARGET.", (), flags="--window", environment=False, multiple=True),
        "target_rank": Option(Integer("R"), "The rank whose window is used, if there are several."),
        "target_disp": Option(_NUMBER, "Position of the first element in the window, in units of --disp-unit; default "
            "0.", common=True),
        "disp_unit": Option(Integer("BYTES"), "Bytes per unit of --target-disp; default the size of an element."),
        "at@element": Option(Anything("INDEX"), "Index of the element in a target that has a shape, such as `3,0`.",
            type="Index", common=True),
        "target_count": Option(_NUMBER, "Number of elements of the target; default as many as the origin has."),
        "target_type": Option(TypeText(), "Datatype of these elements, such as `vector(3,1,2,double)`; it gives their "
            "positions."),
        "at": Option(Anything("INDEX"), "Slice of a target that has a shape, in NumPy's notation, such as `3,0:5`.",
            type="Index", common=True),
        "map": Option(Anything("FILE"), "File with an integer for each element of the origin: its position in the "
            "target.", type="Indices"),
        "origin_disp": Option(_NUMBER, "Elements to skip at the start of the origin.", 0),
        "origin_count": Option(_NUMBER, "Elements of the origin to use; default all.", common=True),
        "origin_type": Option(TypeText(), "Datatype of these elements; see --target-type."),
        "create": Option(Creation(), "Create a missing target with this count (100) or shape (3,4), filled with the "
            "op's identity. Without a value: like the first origin.", common=True),
        "once": Option(Flag(), "Skip origins that were combined into the target before: the same file with the same "
            "content.", common=True),
        "once_key": Option(Text("KEY"), "Do nothing if KEY was used for this target before; else record it.",
            common=True),
    },
    "Inputs": {
        "files_from": Option(Path(), "Read more file names from FILE, one per line; `-` is standard input.",
            environment=False, once="name several lists as @LIST"),
        "null": Option(Flag(), "Names in --files-from end with NUL, like those of `find -print0`.", flags="-0 --null",
            environment=False),
        "sort": Option(Word(SORTS), "Order of the ranks: as given (default), natural (numbers by value), or by name.",
            "given", common=True),
        "rank_regex": Option(Regex(), r"Order the ranks by the number that the group of REGEX matches in each path, "
            r"such as 'out\.(\d+)'."),
        "expect_ranks": Option(RankNumbers(), "Fail unless the file names have exactly these numbers. The number of a "
            "name is the group of --rank-regex, else the last number in it.", common=True),
        "rank_numbers": Option(RankNumbers(), "Numbers for the %d of a RANK, such as out.%04d --ranks 0-511.",
            flags="--ranks", environment=False, once="write all numbers in one, e.g. 0-10,20"),
        "skip_bad": Option(Flag(), "Skip unusable or differing files, list them, and exit with 9. The other ranks are "
            "renumbered.", flags="-k --skip-bad", common=True),
        "min_inputs": Option(Integer("K", least=1, below=2**63), "Fail if fewer than K ranks are usable; default 1."),
        "format": Option(FormatName(readable=True), "Format of the inputs; default by content and suffix.",
            flags="--from"),
        "format@unpack": Option(FormatName(readable=True), "Format of PACKED; default by content and suffix.",
            flags="--from"),
    },
    "Columns and arrays": {
        "unpack": Option(Flag(), "Apply scale_factor and add_offset before combining. Results are not packed."),
        "columns": Option(Names(), "Columns, variables or arrays to use: names, or patterns such as 'run*/t?'; default "
            "all.", (), flags="--columns --variables", common=True),
        "pair": Option(Names("VALUE,INDEX"), "Use two columns or arrays as the values and indices of pairs."),
        "check_coordinates": Option(Flag(), "Require coordinates, and other arrays that results carry, to be identical "
            "in all ranks; default yes.", flags="--check-coordinates/--no-check-coordinates"),
        "columns@unpack": Option(Names(), "The column or array, in a file with several.", (),
            flags="--columns --variables", common=True),
        "keep": Option(Names("NAME,..."), "Columns or arrays to copy unchanged. They must be equal in all ranks.", (),
            common=True),
        "columns@element": Option(Names(), "The column or array, in a target with several.", (),
            flags="--columns --variables", common=True),
    },
    "Raw files": {
        "stride": Option(Size(least=1, below=2**63), "Distance in bytes between the ranks of one raw file. They begin "
            "at --offset, with --count elements each or all."),
        "ranks_in_file": Option(Integer(least=1, below=2**31), "A raw file holds N ranks, one after another; with "
            "--stride the first N."),
        "types": Option(Path(), "A TOML file that defines names of datatypes for TYPE."),
        "type": Option(TypeText(), "Datatype of an element, such as double, float64 or '<f8'; raw files need it.",
            common=True),
        "offset": Option(_BYTES, "Bytes to skip at the start of raw inputs.", 0, common=True),
        "count": Option(_COUNT, "Elements to read of each raw input; default all.", common=True),
        "byte_order": Option(Word(BYTE_ORDERS), "Byte order of raw files; default native."),
        "datarep": Option(Word(DATAREPS), "Data representation of raw inputs and results; default native."),
        "type@pack": Option(TypeText(), "Datatype of an element, such as 'resized(0,24,double)'.", required=True,
            common=True),
        "offset@pack": Option(_BYTES, "Position of the first element (displacement 0), in bytes.", 0, common=True),
        "count@pack": Option(_COUNT, "Number of elements; default all.", common=True),
        "datarep@pack": Option(Word(DATAREPS), "Data representation of packed raw elements; default native."),
        "header": Option(Word(HEADERS), "Header of raw results: none (default), or a copy of the bytes before the "
            "elements of rank 0.", "none"),
    },
    "Running": {
        "max_memory": Option(Size(least=0), "Memory limit of all processes together, in bytes."),
        "jobs": Option(Integer(least=0), "Worker processes; 0 (default) means all usable cores.", 0, flags="-j --jobs",
            common=True),
        "quiet": Option(Flag(), "No summary on standard error. Warnings of overflow and of --once stay.",
            flags="-q --quiet", common=True),
        "dry_run": Option(Flag(), "Check everything, write nothing, print the plan. With --json, the plan is JSON.",
            environment=False, common=True),
        "as_json": Option(Flag(), "Print the summary, or the error, as JSON.", flags="--json", common=True),
        "verbose": Option(Flag(), "Also print how the work was split, and timings.", flags="-v --verbose"),
        "only_list": Option(Flag(), "List leftovers; change nothing.", flags="--list", environment=False, common=True),
        "discard": Option(Flag(), "Remove the log of a change that was never committed.", environment=False,
            common=True),
        "adopt": Option(Flag(), "Finish a change whose files are copies, such as those of a restored backup.",
            environment=False, common=True),
        "force@recover": Option(Flag(), "With --discard: give up a committed change too, after which a file may be "
            "half changed.", flags="-f --force", environment=False, common=True),
        "as_json@print": Option(Flag(), "Print JSON.", flags="--json", common=True),
        "matrix": Option(Flag(), "Print which op takes which datatype.", common=True),
        "progress": Option(Anything(), "A function that takes a range and yields its items, one for each megabyte, "
            "such as tqdm.", flags=None, type="Callable[[range], Iterable[object]]"),
    },
    "Advanced": {
        "commute": Option(Flag(), "Whether a user-defined op commutes.", flags="--commute/--no-commute"),
        "op_timeout": Option(Seconds(zero=False), "Time limit of one call of a user-defined op."),
        "follow_links": Option(Flag(), "Read arrays that an HDF5 file links to in other files, and virtual datasets."),
        "index_type": Option(TypeText(), "Integer type of the indices of --index; default int, or int64_t if an index "
            "needs it."),
        "lock_timeout": Option(Seconds(zero=True), "How long to wait for a file that another command has locked; "
            "default 60, 0 tries once."),
        "root": Option(Integer("R"), "Take shape, byte order and metadata of the result from rank R.", 0),
        "group_b": Option(Ranks(), "Ranks of a second group, up to the next option. Each group gets the result of the "
            "other.", environment=False, multiple=True),
        "group_b@none": Option(Ranks(), "", environment=False, hidden=True, multiple=True),
        "link": Option(Flag(), "Store equal results once, under several names, where the system can."),
        "counts_b": Option(Counts(), "Number of elements for each rank of --group-b."),
        "max_open_files": Option(Integer(least=1, below=2**31), "Limit of open files per process.",
            flags="-n --max-open-files"),
        "engine": Option(EngineName(ENGINES), "Where to compute: local (default) is this machine, mpi the processes "
            "that srun or mpiexec started, dask the workers of --scheduler. With mpi and dask, --jobs limits the "
            "segments under way, and --max-memory applies to each process.", "local"),
        "scheduler": Option(Text("ADDRESS"), "Scheduler of --engine dask, such as tcp://host:8786, or the file that "
            "`dask scheduler --scheduler-file` writes; default DASK_SCHEDULER_ADDRESS."),
        "engine_timeout": Option(Seconds(zero=False), "How long to wait for the scheduler, for a first worker, and for "
            "a worker that does not answer; default 120 with dask, no limit with mpi."),
        "spread": Option(Word(SPREADS), "How --engine mpi divides the work. elements: each worker reads its part of "
            "all ranks. ranks: each machine reads some of the ranks and passes partial results on. auto (default): "
            "ranks if the workers would open more than 100,000 files. The bytes of the result are the same.", "auto"),
        "commit": Option(Word(COMMITS), "How the target changes: rename replaces it by a new file, journal changes it "
            "in place; auto (default) chooses.", "auto"),
        "durability": Option(Word(DURABILITIES), "full (default): changes survive a loss of power. process and none: "
            "they survive kill -9, and nothing is synced.", "full"),
    },
}
# fmt: on

RUNNING = "Running"
"""The heading of options that every call may have."""
SECTIONS = tuple(_SECTIONS)
"""The headings of options, in the order of the help."""


def _whole(key: str, row: Option, section: str) -> Option:
    """Return a row with what follows from its key and its kind."""
    flags = f"--{keyword(key).replace('_', '-')}" if row.flags == "" else row.flags
    is_plain_flag = isinstance(row.kind, Flag) and "/" not in (flags or "")
    return row._replace(flags=flags, default=False if is_plain_flag else row.default, section=section)


def keyword(key: str) -> str:
    """Return the keyword of a key of the table."""
    return key.partition("@")[0]


OPTIONS = {key: _whole(key, row, section) for section, table in _SECTIONS.items() for key, row in table.items()}
"""All options by their keys."""

# Groups of options

WINDOW_VALUES: Group = ("overflow", "nan")
WEIGHTS: Group = ("weights", "weights_from")
VALUES: Group = (*WINDOW_VALUES, "nulls", "missing", "accumulate_in", "result_type", "exact", "ddof", *WEIGHTS)
USER_OP: Group = ("commute", "op_timeout")
LISTING: Group = ("files_from", "null", "sort", "rank_regex", "expect_ranks")
CUTTING: Group = ("stride", "ranks_in_file")
SKIPPING: Group = ("skip_bad", "min_inputs")
RANKING: Group = (*LISTING, *CUTTING, *SKIPPING)
RAW: Group = ("type", "types", "format", "columns", "pair", "offset", "count", "byte_order", "datarep")
INPUTS: Group = ("unpack", "follow_links", *RAW)
INDICES: Group = ("index", "index_type")
RECORDS: Group = ("type@pack", "types", "offset@pack", "count@pack", "byte_order", "datarep@pack")
PACKED: Group = ("format@unpack", "columns@unpack")
RESULTS: Group = ("to", "overwrite", "lock_timeout")
FORMS: Group = ("split", "count_valid", "header", "check_coordinates", "provenance", "level")
BUDGETS: Group = ("max_memory", "max_open_files")
EFFORT: Group = ("jobs", *BUDGETS)
ENGINE: Group = ("engine", "scheduler", "engine_timeout")
TRANSACTION: Group = ("lock_timeout", "commit", "durability")
TARGET: Group = ("target_rank", "target_disp", "disp_unit")
ELEMENT: Group = (*TARGET, "at@element", "type", "columns@element", "byte_order")
ORIGIN: Group = ("origin_disp", "origin_count", "origin_type")
PLACES: Group = (*TARGET, "target_count", "target_type", "at", "map", *ORIGIN)
FETCHED: Group = ("fetch", "to@fetch", "force@fetch")
TOLERANCE: Group = ("ulp", "rtol", "atol", "nan_equal")
SUMMARY: Group = ("quiet", "as_json")
REPORT: Group = (*SUMMARY, "dry_run", "verbose")

# The options of the calls

LOCAL: Group = (*USER_OP, *VALUES, *INPUTS, "lock_timeout", *EFFORT)
COMBINE: Group = (*USER_OP, *VALUES, *RANKING, *INPUTS, *INDICES, *RESULTS, *FORMS, *EFFORT, *ENGINE, "spread")
REDUCE: Group = (*COMBINE, "keep", "root", "in_place@root", "group_b")
SCATTER_BLOCK: Group = (*COMBINE, "in_place", "group_b")
SCATTER: Group = ("counts", *SCATTER_BLOCK, "counts_b")
ALLREDUCE: Group = (*SCATTER_BLOCK, "keep", "link")
SCAN: Group = (*COMBINE, "keep", "in_place", "group_b@none")
EXSCAN: Group = (*SCAN, "exscan_first")
CALL: Group = (*REDUCE, "link", "counts", "counts_b", "exscan_first")
"""Those of all collectives."""
FETCH: Group = (*WINDOW_VALUES, *PLACES, *INPUTS, *TRANSACTION, "create", *BUDGETS)
ACCUMULATE: Group = (*FETCH, *RANKING, "once", "once_key")
SWAP: Group = (*ELEMENT, *TRANSACTION, *BUDGETS)
FETCH_ELEMENT: Group = (*WINDOW_VALUES, *SWAP, "create")
WINDOW: Group = (*WINDOW_VALUES, *TRANSACTION)
"""Those of all calls on a window."""
PACK: Group = (*RECORDS, *RESULTS, *BUDGETS)
UNPACK: Group = (*RECORDS, *PACKED, "overwrite", "lock_timeout", *BUDGETS)
INFO: Group = (*LISTING, *INPUTS, "lock_timeout")
SHOW: Group = (*INPUTS, "bins", "png", "overwrite", "lock_timeout")
DIFF: Group = (*TOLERANCE, "examples", *INPUTS, *EFFORT, "lock_timeout")
LOCATE: Group = ("top", "nan@locate", *RANKING, *INPUTS, *EFFORT, *ENGINE, "lock_timeout")
RECOVER: Group = ("only_list", "discard", "adopt", "force@recover", "lock_timeout")


def rows(group: Group) -> dict[str, Option]:
    """Return the options of a group by their keywords, in order."""
    return {keyword(key): OPTIONS[key] for key in group}


def integer(name: str, value: object) -> int:
    """Return a value, of which an option may have several, as an integer, or raise `UsageError`."""
    try:
        return Integer().check(value)
    except RefusedError as error:
        raise UsageError(name, str(error)) from None


def checked(group: Group, options: Options) -> dict[str, Any]:
    """Return options with the defaults of those that were not given, or given as None, each checked by its row."""
    table = rows(group)
    found = {name: row.default for name, row in table.items()}
    for name, value in options.items():
        if value is not None:
            try:
                found[name] = table[name].kind.check(value)
            except RefusedError as error:
                raise UsageError(f"`{name}`", str(error)) from None
    return found


def flags() -> Mapping[str, str]:
    """Return the long flag of every keyword."""
    return {name: row.long_flags[0] for name, row in rows(tuple(OPTIONS)).items() if row.long_flags}


def part(group: Group, options: Options) -> dict[str, Any]:
    """Return those of some options that a group has."""
    return {name: options[name] for name in map(keyword, group) if name in options}
