"""Every option once: its keyword, static type, flags, values, default and help.

An option is a field of a TypedDict: its name is the keyword in Python, and its annotation the type and a row. A
TypedDict is a group of options, and the ones at the end are those of the calls. The commands, the signatures of
Python's functions, the variables `MPIRED_<FLAG>` and the reference read the rows; `checked` reads what a caller gave.
"""

import functools
import os
from collections.abc import Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    cast,
    is_typeddict,
)

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
AnyDatatype: TypeAlias = "str | MpiDatatype | np.dtype[Any] | type[np.generic] | None"
EngineLike: TypeAlias = "str | SupportsSubmit | SupportsEverywhere"


OP = "Op and values"
COMPARISON = "Tolerance"
RESULT = "Result"
TARGET = "Target and origins"
INPUTS = "Inputs"
COLUMNS = "Columns and arrays"
RAW = "Raw files"
RUNNING = "Running"
ADVANCED = "Advanced"
SECTIONS = (OP, COMPARISON, RESULT, TARGET, INPUTS, COLUMNS, RAW, RUNNING, ADVANCED)
"""The headings of options, in the order of the help."""
ONLY_ELEMENTS = "a window keeps only its elements"
"""Why windows have none of the options that need more."""


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
    """An option: a row.

    Parameters
    ----------
    flags
        Its spellings on the command line; the first long one is used in messages.
    kind
        Its values.
    help
        Its meaning. The first sentence stands alone: the short help shows no more.
    default
        What it is if it is not given.
    environment
        Whether variables named after its long flags may give it: not what may name code to load.
    hidden
        Whether help leaves it out, because it is only there to be refused with a reason.
    required
        Whether the command needs it.
    multiple
        Whether it may be given several times.
    once
        What to do instead of giving it again; without it the last one counts.
    section
        Its heading in the help: one of `SECTIONS`.
    common
        Whether the short help, `-h`, shows it.
    """

    flags: str
    kind: Kind
    help: str
    default: Any = None
    environment: bool = True
    hidden: bool = False
    required: bool = False
    multiple: bool = False
    once: str = ""
    section: str = RUNNING
    common: bool = False

    @property
    def long_flags(self) -> list[str]:
        """The flags that begin with two hyphens, without the words that mean the contrary."""
        return [flag.partition("/")[0] for flag in self.flags.split() if flag.startswith("--")]

    @property
    def variables(self) -> list[str]:
        """The environment variables that may give it."""
        names = (flag[2:].replace("-", "_").upper() for flag in self.long_flags)
        return [f"MPIRED_{name}" for name in names] if self.environment else []


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

_Type: TypeAlias = Annotated[
    AnyDatatype,
    Option(
        "--type",
        TypeText(),
        "Datatype of an element, such as double, float64 or '<f8'; raw files need it.",
        section=RAW,
        common=True,
    ),
]
_Types: TypeAlias = Annotated[
    PathLike | None, Option("--types", Path(), "A TOML file that defines names of datatypes for TYPE.", section=RAW)
]
_ByteOrder: TypeAlias = Annotated[
    str | None, Option("--byte-order", Word(BYTE_ORDERS), "Byte order of raw files; default native.", section=RAW)
]

# Ops


class Op(TypedDict, total=False):
    """The op of the commands that combine ranks."""

    # No environment variable: it may name code to load.
    op: Annotated[
        str,
        Option(
            "--op",
            OpName("REDUCE"),
            "The op, such as sum, mean, max or maxloc; `mpired ops` lists them. Also a function, "
            "FILE.py:FUNCTION, PACKAGE.MODULE:FUNCTION or ./LIB.so:SYMBOL, and installed ops.",
            environment=False,
            required=True,
            section=OP,
            common=True,
        ),
    ]


# No environment variable, as for the other commands: what is done is written in the command.
class WindowOp(TypedDict, total=False):
    """The op of `accumulate`."""

    op: Annotated[
        str,
        Option(
            "--op",
            OpName("ACCUMULATE"),
            "The op, such as sum, max or replace; `mpired ops` lists them.",
            environment=False,
            required=True,
            section=OP,
            common=True,
        ),
    ]


class FetchingOp(TypedDict, total=False):
    """The op of the one-sided commands that give old elements."""

    op: Annotated[
        str,
        Option(
            "--op",
            OpName("FETCH"),
            "The op, such as sum, max, replace or no_op; `mpired ops` lists them.",
            environment=False,
            required=True,
            section=OP,
            common=True,
        ),
    ]


class UserOp(TypedDict, total=False):
    """What concerns user-defined ops."""

    commute: Annotated[
        bool | None,
        Option("--commute/--no-commute", Flag(), "Whether a user-defined op commutes.", section=ADVANCED),
    ]
    op_timeout: Annotated[
        float | None,
        Option("--op-timeout", Seconds(zero=False), "Time limit of one call of a user-defined op.", section=ADVANCED),
    ]


class Overflow(TypedDict, total=False):
    """What concerns sums and products."""

    overflow: Annotated[
        str | None,
        Option(
            "--overflow",
            Word(OVERFLOWS),
            "When a sum or product does not fit its datatype: warn (default), wrap silently, or end with an error.",
            section=OP,
        ),
    ]


class WindowValues(Overflow, total=False):
    """How the values of elements are treated, in windows too."""

    nan: Annotated[
        str,
        Option(
            "--nan",
            Word(NANS),
            "NaN makes a result NaN (propagate, default), is left out (ignore), or counts as in MPI "
            "libraries (mpi). With mpi, results can depend on the order of the ranks.",
            "propagate",
            section=OP,
            common=True,
        ),
    ]


class ValueOptions(WindowValues, total=False):
    """How the values of elements are treated."""

    nulls: Annotated[
        str,
        Option(
            "--nulls",
            Word(NULLS),
            "Nulls and missing values end the command (error, default), are left out (ignore), or make a "
            "result missing (propagate).",
            "error",
            section=OP,
            common=True,
        ),
    ]
    missing: Annotated[
        float | None,
        Option("--missing", Number("VALUE"), "Leave out elements equal to VALUE, such as -999.", section=OP),
    ]
    accumulate_in: Annotated[
        str | None,
        Option(
            "--accumulate-in",
            Word(WIDE),
            "Compute in this wider datatype, and convert the result once, at the end.",
            section=OP,
        ),
    ]
    result_type: Annotated[
        AnyDatatype,
        Option("--result-type", TypeText(), "Datatype of the result of a sum or a statistic.", section=OP),
    ]
    exact: Annotated[
        bool,
        Option(
            "--exact",
            Flag(),
            "Compute sums exactly and round once. The order of the ranks then makes no difference.",
            default=False,
            section=OP,
        ),
    ]
    ddof: Annotated[
        int,
        Option("--ddof", Integer(least=0, below=2**31), "Divide var and std by (ranks - N); default 0.", 0, section=OP),
    ]
    weights: Annotated[
        Sequence[float],
        Option(
            "--weights",
            Numbers(),
            "Weights of the ranks in a mean, such as 0.5,0.25,0.25. They follow the order of the ranks after --sort.",
            (),
            section=OP,
            common=True,
        ),
    ]
    weights_from: Annotated[
        PathLike | None,
        Option(
            "--weights-from", Path(), "Read the weights from a text file, separated by spaces or lines.", section=OP
        ),
    ]


# Ranks


class Listing(TypedDict, total=False):
    """Which files are the ranks, and in which order."""

    files_from: Annotated[
        PathLike | None,
        Option(
            "--files-from",
            Path(),
            "Read more file names from FILE, one per line; `-` is standard input.",
            environment=False,
            once="name several lists as @LIST",
            section=INPUTS,
        ),
    ]
    null: Annotated[
        bool,
        Option(
            "-0 --null",
            Flag(),
            "Names in --files-from end with NUL, like those of `find -print0`.",
            default=False,
            environment=False,
            section=INPUTS,
        ),
    ]
    sort: Annotated[
        str,
        Option(
            "--sort",
            Word(SORTS),
            "Order of the ranks: as given (default), natural (numbers by value), or by name.",
            "given",
            section=INPUTS,
            common=True,
        ),
    ]
    rank_regex: Annotated[
        str | None,
        Option(
            "--rank-regex",
            Regex(),
            r"Order the ranks by the number that the group of REGEX matches in each path, such as 'out\.(\d+)'.",
            section=INPUTS,
        ),
    ]
    expect_ranks: Annotated[
        str | Sequence[int] | None,
        Option(
            "--expect-ranks",
            RankNumbers(),
            "Fail unless the file names have exactly these numbers. The number of a name is the group of "
            "--rank-regex, else the last number in it.",
            section=INPUTS,
            common=True,
        ),
    ]


class Numbered(TypedDict, total=False):
    """The numbers in the names of ranks, on the command line."""

    rank_numbers: Annotated[
        tuple[int, ...] | None,
        Option(
            "--ranks",
            RankNumbers(),
            "Numbers for the %d of a RANK, such as out.%04d --ranks 0-511.",
            environment=False,
            once="write all numbers in one, e.g. 0-10,20",
            section=INPUTS,
        ),
    ]


class Cutting(TypedDict, total=False):
    """Several ranks in a raw file."""

    stride: Annotated[
        int | None,
        Option(
            "--stride",
            Size(least=1, below=2**63),
            "Distance in bytes between the ranks of one raw file. They begin at --offset, with --count "
            "elements each or all.",
            section=RAW,
        ),
    ]
    ranks_in_file: Annotated[
        int | None,
        Option(
            "--ranks-in-file",
            Integer(least=1, below=2**31),
            "A raw file holds N ranks, one after another; with --stride the first N.",
            section=RAW,
        ),
    ]


class Skipping(TypedDict, total=False):
    """What becomes of ranks that cannot be used."""

    skip_bad: Annotated[
        bool,
        Option(
            "-k --skip-bad",
            Flag(),
            "Skip unusable or differing files, list them, and exit with 9. The other ranks are renumbered.",
            default=False,
            section=INPUTS,
            common=True,
        ),
    ]
    min_inputs: Annotated[
        int | None,
        Option(
            "--min-inputs",
            Integer("K", least=1, below=2**63),
            "Fail if fewer than K ranks are usable; default 1.",
            section=INPUTS,
        ),
    ]


class Ranking(Listing, Cutting, Skipping, total=False):
    """What is said of the ranks."""


# Inputs


class Definitions(TypedDict, total=False):
    """Where named datatypes are defined."""

    types: _Types


class Arrays(TypedDict, total=False):
    """How files of arrays are read."""

    unpack: Annotated[
        bool,
        Option(
            "--unpack",
            Flag(),
            "Apply scale_factor and add_offset before combining. Results are not packed.",
            default=False,
            section=COLUMNS,
        ),
    ]
    follow_links: Annotated[
        bool,
        Option(
            "--follow-links",
            Flag(),
            "Read arrays that an HDF5 file links to in other files, and virtual datasets.",
            default=False,
            section=ADVANCED,
        ),
    ]


class Inputs(Arrays, total=False):
    """What the inputs hold."""

    type: _Type
    types: _Types
    format: Annotated[
        str | None,
        Option(
            "--from", FormatName(readable=True), "Format of the inputs; default by content and suffix.", section=INPUTS
        ),
    ]
    columns: Annotated[
        str | Sequence[str],
        Option(
            "--columns --variables",
            Names(),
            "Columns, variables or arrays to use: names, or patterns such as 'run*/t?'; default all.",
            (),
            section=COLUMNS,
            common=True,
        ),
    ]
    pair: Annotated[
        str | Sequence[str] | None,
        Option(
            "--pair",
            Names("VALUE,INDEX"),
            "Use two columns or arrays as the values and indices of pairs.",
            section=COLUMNS,
        ),
    ]
    offset: Annotated[
        int, Option("--offset", _BYTES, "Bytes to skip at the start of raw inputs.", 0, section=RAW, common=True)
    ]
    count: Annotated[
        int | None,
        Option("--count", _COUNT, "Elements to read of each raw input; default all.", section=RAW, common=True),
    ]
    byte_order: _ByteOrder
    datarep: Annotated[
        str | None,
        Option(
            "--datarep", Word(DATAREPS), "Data representation of raw inputs and results; default native.", section=RAW
        ),
    ]


class Carrying(TypedDict, total=False):
    """What results have of the first rank."""

    check_coordinates: Annotated[
        bool | None,
        Option(
            "--check-coordinates/--no-check-coordinates",
            Flag(),
            "Require coordinates, and other arrays that results carry, to be identical in all ranks; default yes.",
            section=COLUMNS,
        ),
    ]


class Indexing(TypedDict, total=False):
    """How plain values become pairs."""

    index: Annotated[
        str | None,
        Option(
            "--index",
            Word(INDEX_WORDS),
            "Let maxloc and minloc take plain values, and give each an index. It is the rank, the last "
            "number in the file's name, or the global position, rank x count + position.",
            section=OP,
            common=True,
        ),
    ]
    index_type: Annotated[
        AnyDatatype,
        Option(
            "--index-type",
            TypeText(),
            "Integer type of the indices of --index; default int, or int64_t if an index needs it.",
            section=ADVANCED,
        ),
    ]


class NoIndexing(TypedDict, total=False):
    """The same where pairs are made before: giving it is refused with how."""

    index: Annotated[str | None, Option("--index", Word(INDEX_WORDS), "", environment=False, hidden=True, section=OP)]


class Records(TypedDict, total=False):
    """What a raw file of records holds."""

    type: Annotated[
        DatatypeLike,
        Option(
            "--type",
            TypeText(),
            "Datatype of an element, such as 'resized(0,24,double)'.",
            required=True,
            section=RAW,
            common=True,
        ),
    ]
    types: _Types
    offset: Annotated[
        int,
        Option(
            "--offset", _BYTES, "Position of the first element (displacement 0), in bytes.", 0, section=RAW, common=True
        ),
    ]
    count: Annotated[
        int | None, Option("--count", _COUNT, "Number of elements; default all.", section=RAW, common=True)
    ]
    byte_order: _ByteOrder
    datarep: Annotated[
        str | None,
        Option("--datarep", Word(DATAREPS), "Data representation of packed raw elements; default native.", section=RAW),
    ]


class Packed(TypedDict, total=False):
    """What a file of packed elements holds."""

    format: Annotated[
        str | None,
        Option("--from", FormatName(readable=True), "Format of PACKED; default by content and suffix.", section=INPUTS),
    ]
    columns: Annotated[
        str | Sequence[str],
        Option(
            "--columns --variables",
            Names(),
            "The column or array, in a file with several.",
            (),
            section=COLUMNS,
            common=True,
        ),
    ]


# Results


class Output(TypedDict, total=False):
    """Where one result goes."""

    output: Annotated[
        str,
        Option(
            "-o --output",
            Path("PATH"),
            "File or URL to write; `-` (default) is standard output.",
            "-",
            section=RESULT,
            common=True,
        ),
    ]


class UnpackOutput(TypedDict, total=False):
    """Where records go."""

    output: Annotated[
        str,
        Option(
            "-o --output", Path("PATH"), "New file; `-` (default) is standard output.", "-", section=RESULT, common=True
        ),
    ]
    into: Annotated[
        str | None,
        Option(
            "--into", Path("PATH"), "Existing file to write into; its other bytes stay.", section=RESULT, common=True
        ),
    ]


class Outputs(TypedDict, total=False):
    """Where several results go."""

    output: Annotated[
        str | None,
        Option(
            "-o --output",
            Path("PATTERN"),
            "Files to write, such as 'out_{rank}.npy'; also {rank:05d} and {stem}.",
            section=RESULT,
            common=True,
        ),
    ]


class To(TypedDict, total=False):
    """The form of a result."""

    to: Annotated[
        str | None,
        Option(
            "--to",
            FormatName(),
            "Format of the result; default by the suffix of the output, else as the inputs.",
            section=RESULT,
            common=True,
        ),
    ]


class Keep(TypedDict, total=False):
    """What results have besides what is combined."""

    keep: Annotated[
        str | Sequence[str],
        Option(
            "--keep",
            Names("NAME,..."),
            "Columns or arrays to copy into the result unchanged. They must be equal in all ranks.",
            (),
            section=COLUMNS,
            common=True,
        ),
    ]


class Header(TypedDict, total=False):
    """What stands before the elements of a raw result."""

    header: Annotated[
        str,
        Option(
            "--header",
            Word(HEADERS),
            "Header of raw results: none (default), or a copy of the bytes before the elements of rank 0.",
            "none",
            section=RAW,
        ),
    ]


class Provenance(TypedDict, total=False):
    """Whether results say where they come from."""

    provenance: Annotated[
        bool,
        Option(
            "--provenance",
            Flag(),
            "Record the call, the inputs and their digests, in parquet and arrow results or else in OUT.json.",
            default=False,
            section=RESULT,
        ),
    ]


class Overwrite(TypedDict, total=False):
    """Whether a result may replace a file."""

    overwrite: Annotated[
        bool,
        Option(
            "-f --force -O --overwrite", Flag(), "Replace an existing file.", default=False, section=RESULT, common=True
        ),
    ]


class Locking(TypedDict, total=False):
    """How to wait for others."""

    lock_timeout: Annotated[
        float | None,
        Option(
            "--lock-timeout",
            Seconds(zero=True),
            "How long to wait for a file that another command has locked; default 60, 0 tries once.",
            section=ADVANCED,
        ),
    ]


class Level(TypedDict, total=False):
    """How results are compressed."""

    level: Annotated[
        int | None,
        Option(
            "--level",
            Integer(least=0),
            "Compression level of results that end in .gz, .bz2, .xz, .zst or .lz4.",
            section=RESULT,
        ),
    ]


class Results(To, Overwrite, Locking, total=False):
    """How results become files."""


class Split(TypedDict, total=False):
    """What becomes of the two fields of pairs."""

    split: Annotated[
        tuple[PathLike, PathLike] | None,
        Option(
            "--split",
            TwoPaths("VALUES,INDICES"),
            "Write the values and indices of pairs to two plain files, such as max.npy,where.npy.",
            section=RESULT,
            common=True,
        ),
    ]


class Root(TypedDict, total=False):
    """Which rank is the root."""

    root: Annotated[
        int,
        Option(
            "--root",
            Integer("R"),
            "Take shape, byte order and metadata of the result from rank R.",
            0,
            section=ADVANCED,
        ),
    ]


class RootInPlace(Root, total=False):
    """Whether the root is replaced."""

    in_place: Annotated[
        bool,
        Option(
            "--in-place", Flag(), "Write the result over the root's file (MPI_IN_PLACE).", default=False, section=RESULT
        ),
    ]


class InPlace(TypedDict, total=False):
    """Whether ranks are replaced."""

    in_place: Annotated[
        bool,
        Option(
            "--in-place",
            Flag(),
            "Replace every rank's file by its result (MPI_IN_PLACE).",
            default=False,
            section=RESULT,
        ),
    ]


class CountValid(TypedDict, total=False):
    """Where counts of valid elements go."""

    count_valid: Annotated[
        PathLike | None,
        Option(
            "--count-valid",
            Path(),
            "Also write, per element, how many ranks contributed a value. It is a pattern if --output is one.",
            section=RESULT,
        ),
    ]


class GroupB(TypedDict, total=False):
    """The second group of ranks."""

    group_b: Annotated[
        Several[Rank] | None,
        Option(
            "--group-b",
            Ranks(),
            "Ranks of a second group, up to the next option. Each group gets the result of the other.",
            environment=False,
            multiple=True,
            section=ADVANCED,
        ),
    ]


class NoGroupB(TypedDict, total=False):
    """The second group where MPI defines none: giving it is refused with that reason."""

    group_b: Annotated[
        Several[Rank] | None,
        Option("--group-b", Ranks(), "", environment=False, hidden=True, multiple=True, section=ADVANCED),
    ]


class Link(TypedDict, total=False):
    """What results may be that are the same."""

    link: Annotated[
        bool,
        Option(
            "--link",
            Flag(),
            "Store equal results once, under several names, where the system can.",
            default=False,
            section=ADVANCED,
        ),
    ]


class Blocks(TypedDict, total=False):
    """The blocks of a reduce-scatter."""

    counts: Annotated[
        Sequence[int],
        Option(
            "--counts",
            Counts(),
            "Number of elements for each rank, such as 3,0,5.",
            required=True,
            section=RESULT,
            common=True,
        ),
    ]


class BlocksB(TypedDict, total=False):
    """The same for the second group."""

    counts_b: Annotated[
        Sequence[int] | None,
        Option("--counts-b", Counts(), "Number of elements for each rank of --group-b.", section=ADVANCED),
    ]


class ExscanFirst(TypedDict, total=False):
    """The first rank of an exclusive scan."""

    exscan_first: Annotated[
        str,
        Option(
            "--exscan-first",
            Word(EXSCAN_FIRST),
            "Result of rank 0: none (default) writes no file, identity writes the op's neutral element.",
            "none",
            section=RESULT,
            common=True,
        ),
    ]


class OpenFiles(TypedDict, total=False):
    """How many files may be open."""

    max_open_files: Annotated[
        int | None,
        Option(
            "-n --max-open-files", Integer(least=1, below=2**31), "Limit of open files per process.", section=ADVANCED
        ),
    ]


class Memory(TypedDict, total=False):
    """What all processes may hold."""

    max_memory: Annotated[
        int | None, Option("--max-memory", Size(least=0), "Memory limit of all processes together, in bytes.")
    ]


class Budgets(Memory, OpenFiles, total=False):
    """What a call that is one process may take."""


class Workers(TypedDict, total=False):
    """How many processes there are."""

    jobs: Annotated[
        int,
        Option("-j --jobs", Integer(least=0), "Worker processes; 0 (default) means all usable cores.", 0, common=True),
    ]


class Effort(Workers, Budgets, total=False):
    """How much of the machine is used."""


class Engines(TypedDict, total=False):
    """Who does the work."""

    engine: Annotated[
        EngineLike,
        Option(
            "--engine",
            EngineName(ENGINES),
            "Where to compute: local (default) is this machine, mpi the processes that srun or mpiexec "
            "started, dask the workers of --scheduler. With mpi and dask, --jobs limits the segments under "
            "way, and --max-memory applies to each process.",
            "local",
            section=ADVANCED,
        ),
    ]
    scheduler: Annotated[
        str | None,
        Option(
            "--scheduler",
            Text("ADDRESS"),
            "Scheduler of --engine dask, such as tcp://host:8786, or the file that `dask scheduler "
            "--scheduler-file` writes; default DASK_SCHEDULER_ADDRESS.",
            section=ADVANCED,
        ),
    ]
    engine_timeout: Annotated[
        float | None,
        Option(
            "--engine-timeout",
            Seconds(zero=False),
            "How long to wait for the scheduler, for a first worker, and for a worker that does not answer; "
            "default 120 with dask, no limit with mpi.",
            section=ADVANCED,
        ),
    ]


class Spread(TypedDict, total=False):
    """How the work is divided."""

    spread: Annotated[
        str,
        Option(
            "--spread",
            Word(SPREADS),
            "How --engine mpi divides the work. elements: each worker reads its part of all ranks. ranks: "
            "each machine reads some of the ranks and passes partial results on. auto (default): ranks if "
            "the workers would open more than 100,000 files. The bytes of the result are the same.",
            "auto",
            section=ADVANCED,
        ),
    ]


# Windows


class Windows(TypedDict, total=False):
    """The windows of several ranks."""

    windows: Annotated[
        Sequence[PathLike],
        Option(
            "--window",
            Ranks("FILE"),
            "The file of a rank's window: one for each rank, in rank order, instead of TARGET.",
            (),
            environment=False,
            multiple=True,
            section=TARGET,
        ),
    ]


class Target(TypedDict, total=False):
    """Where in which window."""

    target_rank: Annotated[
        int | None,
        Option("--target-rank", Integer("R"), "The rank whose window is used, if there are several.", section=TARGET),
    ]
    target_disp: Annotated[
        int | None,
        Option(
            "--target-disp",
            _NUMBER,
            "Position of the first element in the window, in units of --disp-unit; default 0.",
            section=TARGET,
            common=True,
        ),
    ]
    disp_unit: Annotated[
        int | None,
        Option(
            "--disp-unit",
            Integer("BYTES"),
            "Bytes per unit of --target-disp; default the size of an element.",
            section=TARGET,
        ),
    ]


class Element(Target, total=False):
    """Which element of a window is meant."""

    at: Annotated[
        Index | None,
        Option(
            "--at",
            Anything("INDEX"),
            "Index of the element in a target that has a shape, such as `3,0`.",
            section=TARGET,
            common=True,
        ),
    ]
    type: _Type
    columns: Annotated[
        str | Sequence[str],
        Option(
            "--columns --variables",
            Names(),
            "The column or array, in a target with several.",
            (),
            section=COLUMNS,
            common=True,
        ),
    ]
    byte_order: _ByteOrder


class Where(Target, total=False):
    """Which elements of a window are meant, and of an origin."""

    target_count: Annotated[
        int | None,
        Option(
            "--target-count",
            _NUMBER,
            "Number of elements of the target; default as many as the origin has.",
            section=TARGET,
        ),
    ]
    target_type: Annotated[
        AnyDatatype,
        Option(
            "--target-type",
            TypeText(),
            "Datatype of these elements, such as `vector(3,1,2,double)`; it gives their positions.",
            section=TARGET,
        ),
    ]
    at: Annotated[
        Index | None,
        Option(
            "--at",
            Anything("INDEX"),
            "Slice of a target that has a shape, in NumPy's notation, such as `3,0:5`.",
            section=TARGET,
            common=True,
        ),
    ]
    map: Annotated[
        Indices,
        Option(
            "--map",
            Anything("FILE"),
            "File with an integer for each element of the origin: its position in the target.",
            section=TARGET,
        ),
    ]
    origin_disp: Annotated[
        int,
        Option("--origin-disp", _NUMBER, "Elements to skip at the start of the origin.", 0, section=TARGET),
    ]
    origin_count: Annotated[
        int | None,
        Option("--origin-count", _NUMBER, "Elements of the origin to use; default all.", section=TARGET, common=True),
    ]
    origin_type: Annotated[
        AnyDatatype,
        Option("--origin-type", TypeText(), "Datatype of these elements; see --target-type.", section=TARGET),
    ]


class Transaction(Locking, total=False):
    """How a target changes."""

    commit: Annotated[
        str,
        Option(
            "--commit",
            Word(COMMITS),
            "How the target changes: rename replaces it by a new file, journal changes it in place; auto "
            "(default) chooses.",
            "auto",
            section=ADVANCED,
        ),
    ]
    durability: Annotated[
        str,
        Option(
            "--durability",
            Word(DURABILITIES),
            "full (default): changes survive a loss of power. process and none: they survive kill -9, and "
            "nothing is synced.",
            "full",
            section=ADVANCED,
        ),
    ]


class Create(TypedDict, total=False):
    """What becomes of a target that is missing."""

    create: Annotated[
        bool | str | int | Sequence[int] | None,
        Option(
            "--create",
            Creation(),
            "Create a missing target with this count (100) or shape (3,4), filled with the op's identity. "
            "Without a value: like the first origin.",
            section=TARGET,
            common=True,
        ),
    ]


class Once(TypedDict, total=False):
    """What a repetition does."""

    once: Annotated[
        bool,
        Option(
            "--once",
            Flag(),
            "Skip origins that were combined into the target before: the same file with the same content.",
            default=False,
            section=TARGET,
            common=True,
        ),
    ]
    once_key: Annotated[
        str | None,
        Option(
            "--once-key",
            Text("KEY"),
            "Do nothing if KEY was used for this target before; else record it.",
            section=TARGET,
            common=True,
        ),
    ]


class Fetched(TypedDict, total=False):
    """Where the old elements go."""

    fetch: Annotated[
        str,
        Option(
            "--fetch",
            Path("OLD"),
            "File for the old elements; default standard output.",
            "-",
            section=RESULT,
            common=True,
        ),
    ]
    to: Annotated[
        str | None,
        Option(
            "--to",
            FormatName(),
            "Format of OLD; default by its suffix, else that of the target.",
            section=RESULT,
            common=True,
        ),
    ]
    force: Annotated[
        bool, Option("-f --force", Flag(), "Replace OLD if it exists.", default=False, section=RESULT, common=True)
    ]


# Queries


class Tolerance(TypedDict, total=False):
    """What counts as equal."""

    ulp: Annotated[
        int | None,
        Option(
            "--ulp",
            Integer(least=0, below=2**63),
            "Floating-point numbers are equal if they differ by at most N units in the last place.",
            section=COMPARISON,
            common=True,
        ),
    ]
    rtol: Annotated[
        float | None,
        Option(
            "--rtol",
            Amount(),
            "Numbers are equal if abs(a - b) <= atol + rtol * abs(b), with b from B. If only one of --rtol "
            "and --atol is given, the other is 0.",
            section=COMPARISON,
            common=True,
        ),
    ]
    atol: Annotated[
        float | None, Option("--atol", Amount(), "Absolute tolerance; see --rtol.", section=COMPARISON, common=True)
    ]
    nan_equal: Annotated[
        bool, Option("--nan-equal", Flag(), "NaN equals NaN.", default=False, section=COMPARISON, common=True)
    ]


class Examples(TypedDict, total=False):
    """How many differences are shown."""

    examples: Annotated[
        int,
        Option(
            "--examples",
            Integer(least=0, below=2**31),
            "Number of differences to show.",
            10,
            section=COMPARISON,
            common=True,
        ),
    ]


class Extreme(TypedDict, total=False):
    """Which extreme is looked for."""

    op: Annotated[
        str,
        Option(
            "--op",
            OpName("REDUCE", names=EXTREMES),
            "maxloc (or max) for the maximum, minloc (or min) for the minimum.",
            environment=False,
            required=True,
            section=OP,
            common=True,
        ),
    ]


class Top(TypedDict, total=False):
    """How many extremes are looked for."""

    top: Annotated[
        int | None,
        Option(
            "--top",
            Integer("K", least=1, below=2**31),
            "Show the K most extreme elements, in order; default 1.",
            section=OP,
            common=True,
        ),
    ]


class LocateNan(TypedDict, total=False):
    """What becomes of NaN."""

    nan: Annotated[
        str,
        Option(
            "--nan",
            Word(LOCATE_NANS),
            "NaN counts as the extreme (propagate, default), or is left out (ignore).",
            "propagate",
            section=OP,
            common=True,
        ),
    ]


# What the commands print


class Quiet(TypedDict, total=False):
    """Whether there is a summary."""

    quiet: Annotated[
        bool,
        Option(
            "-q --quiet",
            Flag(),
            "No summary on standard error. Warnings of overflow and of --once stay.",
            default=False,
            common=True,
        ),
    ]


class Selected(TypedDict, total=False):
    """Which elements are shown one by one."""

    slice: Annotated[
        str | None,
        Option(
            "--slice",
            Text("SLICE"),
            "Elements to print, in NumPy's notation, such as '10:20,::-1'; default the first and the last.",
            section=RESULT,
            common=True,
        ),
    ]


class Bars(TypedDict, total=False):
    """Whether a histogram is printed."""

    histogram: Annotated[
        bool,
        Option(
            "--histogram",
            Flag(),
            "Also print a histogram; needs the extra `plot`.",
            default=False,
            section=RESULT,
            common=True,
        ),
    ]


class Picture(TypedDict, total=False):
    """Histograms, and a picture of a file."""

    bins: Annotated[
        int | None,
        Option(
            "--bins",
            Integer(least=1, below=2**16),
            "Maximum number of bins of a histogram; default 20.",
            section=RESULT,
            common=True,
        ),
    ]
    png: Annotated[
        str | None,
        Option(
            "--png",
            Path("PATH"),
            "Draw the file as a PNG picture; needs the extra `plot`. It has a histogram of each array, and "
            "maps of those with two dimensions.",
            section=RESULT,
            common=True,
        ),
    ]


class DryRun(TypedDict, total=False):
    """Whether anything is done."""

    # No environment variable: a command that does nothing is never meant by what an earlier one has set.
    dry_run: Annotated[
        bool,
        Option(
            "--dry-run",
            Flag(),
            "Check everything and print the plan; write nothing. With --json, the plan is JSON.",
            default=False,
            environment=False,
            common=True,
        ),
    ]


class Summarised(Quiet, total=False):
    """What the summary is."""

    as_json: Annotated[
        bool, Option("--json", Flag(), "Print the summary, or the error, as JSON.", default=False, common=True)
    ]


class Report(Summarised, DryRun, total=False):
    """What the summary is, and more."""

    verbose: Annotated[
        bool, Option("-v --verbose", Flag(), "Also print how the work was split, and timings.", default=False)
    ]


class Recovering(TypedDict, total=False):
    """What `recover` does."""

    only_list: Annotated[
        bool, Option("--list", Flag(), "List leftovers; change nothing.", default=False, environment=False, common=True)
    ]
    discard: Annotated[
        bool,
        Option(
            "--discard",
            Flag(),
            "Remove a journal that no committed update needs.",
            default=False,
            environment=False,
            common=True,
        ),
    ]
    force: Annotated[
        bool,
        Option(
            "-f --force",
            Flag(),
            "With --discard: remove every journal, even one without which a file stays half changed.",
            default=False,
            environment=False,
            common=True,
        ),
    ]


class RecoverOptions(Recovering, Locking, total=False):
    """The options of `recover`."""


class AsJson(TypedDict, total=False):
    """The form of what is printed."""

    as_json: Annotated[bool, Option("--json", Flag(), "Print JSON.", default=False, common=True)]


class Matrix(TypedDict, total=False):
    """The form of the list of ops."""

    matrix: Annotated[
        bool, Option("--matrix", Flag(), "Print which op takes which datatype.", default=False, common=True)
    ]


# The calls


class LocalOptions(UserOp, ValueOptions, Inputs, Locking, Effort, total=False):
    """The options of `reduce_local`."""


class CombineOptions(
    UserOp,
    ValueOptions,
    Ranking,
    Inputs,
    Indexing,
    Results,
    Split,
    CountValid,
    Header,
    Carrying,
    Provenance,
    Level,
    Effort,
    Engines,
    Spread,
    total=False,
):
    """What all calls that combine ranks and write results have."""


class ReduceOptions(CombineOptions, Keep, RootInPlace, GroupB, total=False):
    """The options of `reduce`."""


class ShowKeywords(Inputs, Picture, Overwrite, Locking, total=False):
    """The options of `show` in Python."""


class ShowOptions(Selected, Bars, ShowKeywords, AsJson, total=False):
    """The options of `show`."""


class ScatterBlockOptions(CombineOptions, InPlace, GroupB, total=False):
    """The options of `reduce_scatter_block`."""


class AllreduceOptions(ScatterBlockOptions, Keep, Link, total=False):
    """The options of `allreduce`."""


class ScatterKeywords(ScatterBlockOptions, BlocksB, total=False):
    """The options of `reduce_scatter` but the counts, which are an argument by themselves in Python."""


class ScatterOptions(Blocks, ScatterKeywords, total=False):
    """The options of `reduce_scatter`."""


class ScanOptions(CombineOptions, Keep, InPlace, NoGroupB, total=False):
    """The options of `scan`."""


class ExscanOptions(ScanOptions, ExscanFirst, total=False):
    """The options of `exscan`."""


class CallOptions(ReduceOptions, Link, Blocks, BlocksB, ExscanFirst, total=False):
    """The options of all collectives."""


class FetchOptions(WindowValues, Where, Inputs, Transaction, Create, Budgets, total=False):
    """The options of `get_accumulate`."""


class AccumulateOptions(FetchOptions, Ranking, Once, total=False):
    """The options of `accumulate`."""


class SwapOptions(Element, Transaction, Budgets, total=False):
    """The options of `compare_and_swap`."""


class ElementOptions(WindowValues, SwapOptions, Create, total=False):
    """The options of `fetch_and_op`."""


class WindowOptions(WindowValues, Transaction, total=False):
    """The options of all calls on a window."""


class PackOptions(Records, Results, Budgets, total=False):
    """The options of `pack`."""


class UnpackOptions(Records, Packed, Overwrite, Locking, Budgets, total=False):
    """The options of `unpack`."""


class DiffOptions(Tolerance, Examples, Inputs, Effort, Locking, total=False):
    """The options of `diff`."""


class LocateKeywords(LocateNan, Ranking, Inputs, Effort, Engines, Locking, total=False):
    """The options of `locate` but the number of extremes, which decides in Python what is returned."""


class InfoOptions(Listing, Inputs, Locking, total=False):
    """The options of `info`."""


class LocateOptions(Top, LocateKeywords, total=False):
    """The options of `locate`."""


_Options = TypeVar("_Options", bound=Mapping[str, Any])


def rows(known: type) -> dict[str, Option]:
    """Return the options of a TypedDict by their keywords, in order."""
    return {name: each.__metadata__[0] for name, each in known.__annotations__.items()}


def integer(name: str, value: object) -> int:
    """Return a value, of which an option may have several, as an integer, or raise `UsageError`."""
    try:
        return Integer().check(value)
    except RefusedError as error:
        raise UsageError(name, str(error)) from None


def checked(known: type[_Options], options: Mapping[str, object]) -> _Options:
    """Return options with the defaults of those that were not given, or given as None, each checked by its row.

    Parameters
    ----------
    known
        Their TypedDict.
    options
        What was given.

    Raises
    ------
    UsageError
        If a value makes no sense.
    """
    table = rows(known)
    found = {name: row.default for name, row in table.items()}
    for name, value in options.items():
        if value is not None:
            try:
                found[name] = table[name].kind.check(value)
            except RefusedError as error:
                raise UsageError(f"`{name}`", str(error)) from None
    return cast("_Options", found)


@functools.cache
def flags() -> Mapping[str, str]:
    """Return the long flag of every keyword."""
    groups = [each for each in globals().values() if is_typeddict(each)]
    return {name: row.long_flags[0] for group in groups for name, row in rows(group).items()}


def part(known: type[_Options], options: Mapping[str, Any]) -> _Options:
    """Return those of some options that are of a TypedDict."""
    return cast("_Options", {name: options[name] for name in known.__annotations__ if name in options})
