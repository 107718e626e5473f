"""Every option once: its keyword, static type, flags, values, default and help.

An option is a field of a TypedDict: its name is the keyword in Python, and its annotation the type and a row. A
TypedDict is a group of options, and the ones at the end are those of the calls. The commands, the signatures of
Python's functions, the variables `MPIRED_<FLAG>` and the reference read the rows; `checked` reads what a caller gave.
"""

import functools
import os
from collections.abc import Container, Iterator, KeysView, Mapping, Sequence, ValuesView
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


OP = "Op and type"
RESULT = "Result"
RANKS = "Ranks"
INPUTS = "Inputs"
COLUMNS = "Columns"
COMPARISON = "What is equal"
TARGET = "Target and origins"
USER_OPS = "User-defined ops"
RUNNING = "Running"
SECTIONS = (OP, COMPARISON, RESULT, TARGET, RANKS, INPUTS, COLUMNS, USER_OPS, RUNNING)
"""What options are needed for, in the order of the help."""
DATATYPE = "Datatype"
ONLY_ELEMENTS = "a window keeps its elements and nothing else of what was combined"
"""Why windows have none of the options that need more."""


def title(section: str, names: Container[str]) -> str:
    """Return what a section is called in the help of a command that has these options: there may be no op."""
    return DATATYPE if section == OP and "op" not in names else section


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
        One line.
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
        What it is needed for: one of `SECTIONS`.
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
        "The datatype of an element, as double, float64 or '<f8'; raw files need it.",
        section=OP,
    ),
]
_Types: TypeAlias = Annotated[
    PathLike | None, Option("--types", Path(), "A TOML file with names of datatypes, for use in TYPE.", section=OP)
]
_ByteOrder: TypeAlias = Annotated[
    str | None, Option("--byte-order", Word(BYTE_ORDERS), "The byte order of raw files; default native.", section=OP)
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
            "A predefined op, FILE.py:FUNCTION, PACKAGE.MODULE:FUNCTION, ./LIB.so:SYMBOL, or an installed op; `mpired "
            "ops` lists them.",
            environment=False,
            required=True,
            section=OP,
        ),
    ]


# No environment variable, as for the other commands: what is done is written in the command.
class WindowOp(TypedDict, total=False):
    """The op of `accumulate`."""

    op: Annotated[
        str,
        Option("--op", OpName("ACCUMULATE"), "The op that combines.", environment=False, required=True, section=OP),
    ]


class FetchingOp(TypedDict, total=False):
    """The op of the one-sided commands that give old elements."""

    op: Annotated[
        str,
        Option("--op", OpName("FETCH"), "The op that combines.", environment=False, required=True, section=OP),
    ]


class UserOp(TypedDict, total=False):
    """What concerns user-defined ops."""

    commute: Annotated[
        bool | None,
        Option("--commute/--no-commute", Flag(), "Whether a user-defined op commutes.", section=USER_OPS),
    ]
    op_timeout: Annotated[
        float | None,
        Option(
            "--op-timeout",
            Seconds(zero=False),
            "The most that one call of a user-defined op may take.",
            section=USER_OPS,
        ),
    ]


class Overflow(TypedDict, total=False):
    """What concerns sums and products."""

    overflow: Annotated[
        str | None,
        Option(
            "--overflow",
            Word(OVERFLOWS),
            "What is done if a sum or product does not fit its datatype: warn, the default; wrap, and say nothing; or "
            "refuse it as an error.",
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
            "propagate, the default: NaN makes a result NaN; ignore: NaN is left out; mpi: NaN is treated as by the "
            "kernels of MPI's libraries.",
            "propagate",
            section=OP,
        ),
    ]


class ValueOptions(WindowValues, total=False):
    """How the values of elements are treated."""

    nulls: Annotated[
        str,
        Option(
            "--nulls",
            Word(NULLS),
            "Nulls of columns, and missing values of arrays. error, the default: they are refused; ignore: they are "
            "left out; propagate: they make a result null.",
            "error",
            section=OP,
        ),
    ]
    missing: Annotated[
        float | None,
        Option("--missing", Number("VALUE"), "Leave out elements that are equal to VALUE, as -999.", section=OP),
    ]
    accumulate_in: Annotated[
        str | None,
        Option(
            "--accumulate-in",
            Word(WIDE),
            "Compute in this wider datatype, and convert the result once at the end.",
            section=OP,
        ),
    ]
    result_type: Annotated[
        AnyDatatype,
        Option("--result-type", TypeText(), "The datatype of the result of a sum or a statistic.", section=OP),
    ]
    exact: Annotated[
        bool,
        Option(
            "--exact",
            Flag(),
            "Round each sum once, so that the order of the ranks does not show.",
            default=False,
            section=OP,
        ),
    ]
    ddof: Annotated[
        int,
        Option(
            "--ddof",
            Integer(least=0, below=2**31),
            "The divisor of var and std is the number of ranks less this; 0, the default, or 1.",
            0,
            section=OP,
        ),
    ]
    weights: Annotated[
        Sequence[float],
        Option(
            "--weights",
            Numbers(),
            "The weights of the ranks in a mean, in their order after --sort, as 0.5,0.25,0.25.",
            (),
            section=OP,
        ),
    ]
    weights_from: Annotated[
        PathLike | None,
        Option("--weights-from", Path(), "A text file with the weights, separated by spaces or lines.", section=OP),
    ]


# Ranks


class Listing(TypedDict, total=False):
    """Which files are the ranks, and in which order."""

    files_from: Annotated[
        PathLike | None,
        Option(
            "--files-from",
            Path(),
            "A list of ranks, one a line, that follow those that are named; `-` is standard input.",
            environment=False,
            once="name several lists as @LIST",
            section=RANKS,
        ),
    ]
    null: Annotated[
        bool,
        Option(
            "-0 --null",
            Flag(),
            "The names in --files-from end with NUL, as `find -print0` writes them.",
            default=False,
            environment=False,
            section=RANKS,
        ),
    ]
    sort: Annotated[
        str,
        Option(
            "--sort",
            Word(SORTS),
            "The order of the ranks: as they are given, with numbers in names by value, or by name.",
            "given",
            section=RANKS,
        ),
    ]
    rank_regex: Annotated[
        str | None,
        Option(
            "--rank-regex",
            Regex(),
            r"Order the ranks by the number that the group in REGEX finds in each path, as 'out\.(\d+)'.",
            section=RANKS,
        ),
    ]
    expect_ranks: Annotated[
        str | Sequence[int] | None,
        Option(
            "--expect-ranks",
            RankNumbers(),
            "Fail unless the numbers in the names are these, each once: that of --rank-regex, else the last in the "
            "file's name.",
            section=RANKS,
        ),
    ]


class Numbered(TypedDict, total=False):
    """The numbers in the names of ranks, on the command line."""

    rank_numbers: Annotated[
        tuple[int, ...] | None,
        Option(
            "--ranks",
            RankNumbers(),
            "The numbers for the %d of a RANK, as out.%04d --ranks 0-511.",
            environment=False,
            once="write all numbers in one, as 0-10,20",
            section=RANKS,
        ),
    ]


class Cutting(TypedDict, total=False):
    """Several ranks in a raw file."""

    stride: Annotated[
        int | None,
        Option(
            "--stride",
            Size(least=1, below=2**63),
            "A raw file holds several ranks, one each so many bytes from --offset on, of --count elements or all.",
            section=RANKS,
        ),
    ]
    ranks_in_file: Annotated[
        int | None,
        Option(
            "--ranks-in-file",
            Integer(least=1, below=2**31),
            "A raw file holds N ranks, one after another; with --stride the first N.",
            section=RANKS,
        ),
    ]


class Skipping(TypedDict, total=False):
    """What becomes of ranks that cannot be used."""

    skip_bad: Annotated[
        bool,
        Option(
            "-k --skip-bad",
            Flag(),
            "Leave ranks out that cannot be used or are not like the first good one, say which, and end with status 9. "
            "The others are numbered without them.",
            default=False,
            section=RANKS,
        ),
    ]
    min_inputs: Annotated[
        int | None,
        Option(
            "--min-inputs",
            Integer("K", least=1, below=2**63),
            "Fail if fewer than K ranks can be used; default 1.",
            section=RANKS,
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
            "Compute packed variables as what scale_factor and add_offset make of them; results are not packed.",
            default=False,
            section=COLUMNS,
        ),
    ]
    follow_links: Annotated[
        bool,
        Option(
            "--follow-links",
            Flag(),
            "Read arrays that an HDF5 file only links to in other files, and virtual datasets.",
            default=False,
            section=COLUMNS,
        ),
    ]


class Inputs(Arrays, total=False):
    """What the inputs hold."""

    type: _Type
    types: _Types
    format: Annotated[
        str | None,
        Option(
            "--from",
            FormatName(readable=True),
            "The format of the inputs; default by their content and suffix.",
            section=INPUTS,
        ),
    ]
    columns: Annotated[
        str | Sequence[str],
        Option(
            "--columns --variables",
            Names(),
            "The columns or arrays to use, by names or patterns as 'run*/t?'; default all.",
            (),
            section=COLUMNS,
        ),
    ]
    pair: Annotated[
        str | Sequence[str] | None,
        Option(
            "--pair",
            Names("VALUE,INDEX"),
            "Take two columns or arrays as values and indices of pairs.",
            section=COLUMNS,
        ),
    ]
    offset: Annotated[int, Option("--offset", _BYTES, "Bytes to skip at the start of raw inputs.", 0, section=INPUTS)]
    count: Annotated[
        int | None, Option("--count", _COUNT, "Elements to read of raw inputs; default all.", section=INPUTS)
    ]
    byte_order: _ByteOrder
    datarep: Annotated[
        str | None,
        Option(
            "--datarep",
            Word(DATAREPS),
            "The data representation of raw files, those that are written too; default native.",
            section=OP,
        ),
    ]


class Carrying(TypedDict, total=False):
    """What results have of the first rank."""

    check_coordinates: Annotated[
        bool | None,
        Option(
            "--check-coordinates/--no-check-coordinates",
            Flag(),
            "Whether arrays that results carry, as coordinates, have to be the same in all ranks; default yes.",
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
            "Let maxloc and minloc take plain values, and give them an index. rank: the rank; number: the last number "
            "in its file's name; global: rank x count + position.",
            section=OP,
        ),
    ]
    index_type: Annotated[
        AnyDatatype,
        Option(
            "--index-type",
            TypeText(),
            "The integer type of the indices of --index; default int, or int64_t where one does not fit.",
            section=OP,
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
            "--type", TypeText(), "The datatype of an element, as 'resized(0,24,double)'.", required=True, section=OP
        ),
    ]
    types: _Types
    offset: Annotated[
        int,
        Option("--offset", _BYTES, "Where the first element begins, its displacement 0, in bytes.", 0, section=INPUTS),
    ]
    count: Annotated[int | None, Option("--count", _COUNT, "How many elements; default all there are.", section=INPUTS)]
    byte_order: _ByteOrder
    datarep: Annotated[
        str | None,
        Option(
            "--datarep",
            Word(DATAREPS),
            "The data representation of the packed elements, if raw; default native.",
            section=OP,
        ),
    ]


class Packed(TypedDict, total=False):
    """What a file of packed elements holds."""

    format: Annotated[
        str | None,
        Option(
            "--from",
            FormatName(readable=True),
            "The format of PACKED; default by its content and suffix.",
            section=INPUTS,
        ),
    ]
    columns: Annotated[
        str | Sequence[str],
        Option("--columns --variables", Names(), "The column or array of a file with several.", (), section=COLUMNS),
    ]


# Results


class Output(TypedDict, total=False):
    """Where one result goes."""

    output: Annotated[
        str,
        Option(
            "-o --output",
            Path("PATH"),
            "The file or the URL to write; `-`, the default, is standard output.",
            "-",
            section=RESULT,
        ),
    ]


class UnpackOutput(TypedDict, total=False):
    """Where records go."""

    output: Annotated[
        str,
        Option("-o --output", Path("PATH"), "The new file; `-`, the default, is standard output.", "-", section=RESULT),
    ]
    into: Annotated[
        str | None,
        Option("--into", Path("PATH"), "An existing file to write into; its other bytes stay.", section=RESULT),
    ]


class Outputs(TypedDict, total=False):
    """Where several results go."""

    output: Annotated[
        str | None,
        Option(
            "-o --output",
            Path("PATTERN"),
            "The files to write, as 'out_{rank}.npy'; also {rank:05d}, {stem}.",
            section=RESULT,
        ),
    ]


class To(TypedDict, total=False):
    """The form of a result."""

    to: Annotated[
        str | None,
        Option(
            "--to",
            FormatName(),
            "The format of the result; default by its suffix, else that of the inputs.",
            section=RESULT,
        ),
    ]


class Keep(TypedDict, total=False):
    """What results have besides what is combined."""

    keep: Annotated[
        str | Sequence[str],
        Option(
            "--keep",
            Names("COLUMN,..."),
            "Columns or arrays of any type to carry into results of the same kind; they have to be equal in all ranks.",
            (),
            section=COLUMNS,
        ),
    ]


class Header(TypedDict, total=False):
    """What stands before the elements of a raw result."""

    header: Annotated[
        str,
        Option(
            "--header",
            Word(HEADERS),
            "What raw results begin with. none, the default: with the elements; copy: with what stands before the "
            "elements of rank 0's raw file.",
            "none",
            section=RESULT,
        ),
    ]


class Provenance(TypedDict, total=False):
    """Whether results say where they come from."""

    provenance: Annotated[
        bool,
        Option(
            "--provenance",
            Flag(),
            "Record the call, the inputs and their digests in parquet and arrow results, beside others in OUT.json.",
            default=False,
            section=RESULT,
        ),
    ]


class Overwrite(TypedDict, total=False):
    """Whether a result may replace a file."""

    overwrite: Annotated[
        bool, Option("-f --force -O --overwrite", Flag(), "Replace an existing file.", default=False, section=RESULT)
    ]


class Locking(TypedDict, total=False):
    """How to wait for others."""

    lock_timeout: Annotated[
        float | None,
        Option(
            "--lock-timeout",
            Seconds(zero=True),
            "How long to wait while another command has a file locked; default 60, 0 tries once.",
        ),
    ]


class Level(TypedDict, total=False):
    """How results are compressed."""

    level: Annotated[
        int | None,
        Option(
            "--level",
            Integer(least=0),
            "How hard a result is compressed whose suffix is .gz, .bz2, .xz, .zst or .lz4.",
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
            "Write the values and the indices of pairs to two plain files, as max.npy,where.npy, instead of --output.",
            section=RESULT,
        ),
    ]


class Root(TypedDict, total=False):
    """Which rank is the root."""

    root: Annotated[
        int, Option("--root", Integer("R"), "The rank whose file the result is modelled on.", 0, section=RESULT)
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
            "Also write for each element how many ranks have a value that is not left out; a pattern where --output "
            "is one.",
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
            "The ranks of a second group, up to the next option: each group gets what the other one reduces.",
            environment=False,
            multiple=True,
            section=INPUTS,
        ),
    ]


class NoGroupB(TypedDict, total=False):
    """The second group where MPI defines none: giving it is refused with that reason."""

    group_b: Annotated[
        Several[Rank] | None,
        Option("--group-b", Ranks(), "", environment=False, hidden=True, multiple=True, section=INPUTS),
    ]


class Link(TypedDict, total=False):
    """What results may be that are the same."""

    link: Annotated[
        bool,
        Option(
            "--link",
            Flag(),
            "Make the results one file with several names, where the system can.",
            default=False,
            section=RESULT,
        ),
    ]


class Blocks(TypedDict, total=False):
    """The blocks of a reduce-scatter."""

    counts: Annotated[
        Sequence[int],
        Option("--counts", Counts(), "How many elements each rank gets, as 3,0,5.", required=True, section=RESULT),
    ]


class BlocksB(TypedDict, total=False):
    """The same for the second group."""

    counts_b: Annotated[
        Sequence[int] | None, Option("--counts-b", Counts(), "The same for the ranks of --group-b.", section=RESULT)
    ]


class ExscanFirst(TypedDict, total=False):
    """The first rank of an exclusive scan."""

    exscan_first: Annotated[
        str,
        Option(
            "--exscan-first",
            Word(EXSCAN_FIRST),
            "What rank 0 gets: no file, or one with the op's neutral element.",
            "none",
            section=RESULT,
        ),
    ]


class OpenFiles(TypedDict, total=False):
    """How many files may be open."""

    max_open_files: Annotated[
        int | None,
        Option("-n --max-open-files", Integer(least=1, below=2**31), "The most files that a process has open."),
    ]


class Memory(TypedDict, total=False):
    """What all processes may hold."""

    max_memory: Annotated[
        int | None, Option("--max-memory", Size(least=0), "The most memory for all processes together, in bytes.")
    ]


class Budgets(Memory, OpenFiles, total=False):
    """What a call that is one process may take."""


class Workers(TypedDict, total=False):
    """How many processes there are."""

    jobs: Annotated[int, Option("-j --jobs", Integer(least=0), "Workers; 0, the default, is all usable cores.", 0)]


class Effort(Workers, Budgets, total=False):
    """How much of the machine is used."""


class Engines(TypedDict, total=False):
    """Who does the work."""

    engine: Annotated[
        EngineLike,
        Option(
            "--engine",
            EngineName(ENGINES),
            "Who does the work. local, the default: processes of this machine; mpi: the processes that srun or mpiexec "
            "has started; dask: the workers of --scheduler. With the last two --jobs limits how many segments are "
            "under way, and --max-memory is for each process.",
            "local",
        ),
    ]
    scheduler: Annotated[
        str | None,
        Option(
            "--scheduler",
            Text("ADDRESS"),
            "The scheduler of --engine dask, as tcp://host:8786, or the file that `dask scheduler --scheduler-file` "
            "writes; default DASK_SCHEDULER_ADDRESS.",
        ),
    ]
    engine_timeout: Annotated[
        float | None,
        Option(
            "--engine-timeout",
            Seconds(zero=False),
            "How long to wait for the scheduler of --engine dask, for a worker of it, and for a worker that does not "
            "answer; default 120. With mpi: for a worker that sends nothing; without it for ever.",
        ),
    ]


class Spread(TypedDict, total=False):
    """How the work is divided."""

    spread: Annotated[
        str,
        Option(
            "--spread",
            Word(SPREADS),
            "What is spread over the workers of --engine mpi. elements: each reads its part of all ranks; ranks: each "
            "machine reads some of the ranks, and hands what is combined to the next; auto, the default: ranks "
            "where the workers would open more than 100,000 files. The bytes of the result are the same.",
            "auto",
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
            "The file that is a rank's window: one for each rank, in rank order, instead of TARGET.",
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
        Option(
            "--target-rank", Integer("R"), "The rank whose window is meant, where there are several.", section=TARGET
        ),
    ]
    target_disp: Annotated[
        int | None,
        Option(
            "--target-disp",
            _NUMBER,
            "Where the elements begin in the window, in units of --disp-unit; default 0.",
            section=TARGET,
        ),
    ]
    disp_unit: Annotated[
        int | None,
        Option(
            "--disp-unit",
            Integer("BYTES"),
            "How many bytes a unit of --target-disp has; default those of an element.",
            section=TARGET,
        ),
    ]


class Element(Target, total=False):
    """Which element of a window is meant."""

    at: Annotated[
        Index | None,
        Option("--at", Anything("INDEX"), "The index of the element of an npy target, as `3,0`.", section=TARGET),
    ]
    type: _Type
    columns: Annotated[
        str | Sequence[str],
        Option("--columns --variables", Names(), "The column or array of a target with several.", (), section=COLUMNS),
    ]
    byte_order: _ByteOrder


class Where(Target, total=False):
    """Which elements of a window are meant, and of an origin."""

    target_count: Annotated[
        int | None,
        Option(
            "--target-count",
            _NUMBER,
            "How many elements of the target are meant; default as many as the origin has.",
            section=TARGET,
        ),
    ]
    target_type: Annotated[
        AnyDatatype,
        Option(
            "--target-type",
            TypeText(),
            "The datatype of these elements, as `vector(3,1,2,double)`, which says where they lie.",
            section=TARGET,
        ),
    ]
    at: Annotated[
        Index | None,
        Option("--at", Anything("INDEX"), "A box of an npy target, as NumPy slices an array: `3,0:5`.", section=TARGET),
    ]
    map: Annotated[
        Indices,
        Option(
            "--map",
            Anything("FILE"),
            "A file with an integer for each element of the origin: where it goes in the target.",
            section=TARGET,
        ),
    ]
    origin_disp: Annotated[
        int,
        Option("--origin-disp", _NUMBER, "How many elements to skip at the start of the origin.", 0, section=TARGET),
    ]
    origin_count: Annotated[
        int | None,
        Option("--origin-count", _NUMBER, "How many elements of the origin to use; default all.", section=TARGET),
    ]
    origin_type: Annotated[
        AnyDatatype,
        Option("--origin-type", TypeText(), "The datatype of these elements, as --target-type.", section=TARGET),
    ]


class Transaction(Locking, total=False):
    """How a target changes."""

    commit: Annotated[
        str,
        Option(
            "--commit",
            Word(COMMITS),
            "rename: a new file takes the place of the target; journal: the target changes where it is, behind a "
            "journal; auto, the default, chooses.",
            "auto",
            section=TARGET,
        ),
    ]
    durability: Annotated[
        str,
        Option(
            "--durability",
            Word(DURABILITIES),
            "full, the default: survives a loss of power; process and none: survive kill -9, nothing is synced.",
            "full",
            section=TARGET,
        ),
    ]


class Create(TypedDict, total=False):
    """What becomes of a target that is missing."""

    create: Annotated[
        bool | str | int | Sequence[int] | None,
        Option(
            "--create",
            Creation(),
            "Make a missing target of so many elements, as 100, or a shape, as 3,4, filled with the op's identity; "
            "alone: like the first origin.",
            section=TARGET,
        ),
    ]


class Once(TypedDict, total=False):
    """What a repetition does."""

    once: Annotated[
        bool,
        Option(
            "--once",
            Flag(),
            "Leave out each origin that was combined into the target before: the same file with the same content.",
            default=False,
            section=TARGET,
        ),
    ]
    once_key: Annotated[
        str | None,
        Option(
            "--once-key",
            Text("KEY"),
            "Do nothing if KEY was given for this target before; else let the target remember it.",
            section=TARGET,
        ),
    ]


class Fetched(TypedDict, total=False):
    """Where the old elements go."""

    fetch: Annotated[
        str,
        Option("--fetch", Path("OLD"), "The file for the old elements; default standard output.", "-", section=RESULT),
    ]
    to: Annotated[
        str | None,
        Option(
            "--to", FormatName(), "The format of OLD; default by its suffix, else that of the target.", section=RESULT
        ),
    ]
    force: Annotated[bool, Option("-f --force", Flag(), "Replace OLD if it is there.", default=False, section=RESULT)]


# Queries


class Tolerance(TypedDict, total=False):
    """What counts as equal."""

    ulp: Annotated[
        int | None,
        Option(
            "--ulp",
            Integer(least=0, below=2**63),
            "Floating-point numbers are equal if they are at most N units in the last place apart.",
            section=COMPARISON,
        ),
    ]
    rtol: Annotated[
        float | None,
        Option(
            "--rtol",
            Amount(),
            "Numbers are equal if abs(a - b) <= atol + rtol * abs(b), where b is of B; if --rtol or --atol is given "
            "alone, the other is 0.",
            section=COMPARISON,
        ),
    ]
    atol: Annotated[float | None, Option("--atol", Amount(), "See --rtol.", section=COMPARISON)]
    nan_equal: Annotated[
        bool, Option("--nan-equal", Flag(), "Take NaN for equal to NaN.", default=False, section=COMPARISON)
    ]


class Examples(TypedDict, total=False):
    """How many differences are shown."""

    examples: Annotated[
        int,
        Option("--examples", Integer(least=0, below=2**31), "How many differences to show.", 10, section=COMPARISON),
    ]


class Extreme(TypedDict, total=False):
    """Which extreme is looked for."""

    op: Annotated[
        str,
        Option(
            "--op",
            OpName("REDUCE", names=EXTREMES),
            "maxloc for the greatest element, minloc for the smallest.",
            environment=False,
            required=True,
            section=OP,
        ),
    ]


class Top(TypedDict, total=False):
    """How many extremes are looked for."""

    top: Annotated[
        int | None,
        Option(
            "--top",
            Integer("K", least=1, below=2**31),
            "The K most extreme elements, the first one first; default 1.",
            section=OP,
        ),
    ]


class LocateNan(TypedDict, total=False):
    """What becomes of NaN."""

    nan: Annotated[
        str,
        Option(
            "--nan",
            Word(LOCATE_NANS),
            "propagate, the default: NaN is more extreme than all numbers; ignore: NaN is left out.",
            "propagate",
            section=OP,
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
            "No summary on standard error; warnings of overflow and of --once stay.",
            default=False,
        ),
    ]


class Selected(TypedDict, total=False):
    """Which elements are shown one by one."""

    slice: Annotated[
        str | None,
        Option(
            "--slice",
            Text("SLICE"),
            "The elements to print, as NumPy slices an array: '10:20,::-1'; default the first and the last.",
            section=RESULT,
        ),
    ]


class Bars(TypedDict, total=False):
    """Whether a histogram is printed."""

    histogram: Annotated[
        bool,
        Option("--histogram", Flag(), "Print a histogram too; needs the extra `plot`.", default=False, section=RESULT),
    ]


class Picture(TypedDict, total=False):
    """Histograms, and a picture of a file."""

    bins: Annotated[
        int | None,
        Option(
            "--bins",
            Integer(least=1, below=2**16),
            "The number of bins of a histogram at most; default 20.",
            section=RESULT,
        ),
    ]
    png: Annotated[
        str | None,
        Option(
            "--png",
            Path("PATH"),
            "Draw the file into a new PNG picture: histograms, maps of arrays of two dimensions; needs the extra "
            "`plot`.",
            section=RESULT,
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
            "Check everything, print what would be done, with --json as JSON, and write nothing.",
            default=False,
            environment=False,
        ),
    ]


class Summarised(Quiet, total=False):
    """What the summary is."""

    as_json: Annotated[bool, Option("--json", Flag(), "Give the summary, or the error, as JSON.", default=False)]


class Report(Summarised, DryRun, total=False):
    """What the summary is, and more."""

    verbose: Annotated[bool, Option("-v --verbose", Flag(), "Also say how the work was done.", default=False)]


class Recovering(TypedDict, total=False):
    """What `recover` does."""

    only_list: Annotated[
        bool, Option("--list", Flag(), "Say what is left there, and change nothing.", default=False, environment=False)
    ]
    discard: Annotated[
        bool,
        Option(
            "--discard",
            Flag(),
            "Remove a journal that no committed update needs.",
            default=False,
            environment=False,
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
        ),
    ]


class RecoverOptions(Recovering, Locking, total=False):
    """The options of `recover`."""


class AsJson(TypedDict, total=False):
    """The form of what is printed."""

    as_json: Annotated[bool, Option("--json", Flag(), "Print JSON.", default=False)]


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
