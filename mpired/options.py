"""Every option once: its keyword, static type, flags, values, default and help.

An option is a field of a TypedDict: its name is the keyword in Python, and its annotation the type and a row. A
TypedDict is a group of options, and the ones at the end are those of the calls. The commands, the signatures of
Python's functions, the variables `MPIRED_<FLAG>` and the reference read the rows; `checked` reads what a caller gave.
"""

import functools
import os
from collections.abc import Mapping, Sequence
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
    Anything,
    Counts,
    Creation,
    Flag,
    FormatName,
    Integer,
    Kind,
    Names,
    OpName,
    Path,
    Ranks,
    RefusedError,
    Seconds,
    Size,
    Text,
    TypeText,
    Word,
)

if TYPE_CHECKING:
    import numpy as np

PathLike: TypeAlias = str | os.PathLike[str]
Rank: TypeAlias = "str | os.PathLike[str] | np.ndarray | SupportsRead"
Index: TypeAlias = str | int | slice | tuple[int | slice, ...]
Indices: TypeAlias = "str | os.PathLike[str] | np.ndarray | Sequence[int] | None"
DatatypeLike: TypeAlias = "str | MpiDatatype | np.dtype[Any] | type[np.generic]"
AnyDatatype: TypeAlias = "str | MpiDatatype | np.dtype[Any] | type[np.generic] | None"


OP = "Op and type"
RESULT = "Result"
INPUTS = "Inputs"
COLUMNS = "Columns"
TARGET = "Target and origins"
USER_OPS = "User-defined ops"
RUNNING = "Running"
SECTIONS = (OP, RESULT, TARGET, INPUTS, COLUMNS, USER_OPS, RUNNING)
"""What options are needed for, in the order of the help."""


class MpiDatatype(Protocol):
    """A datatype of mpi4py."""

    def Get_envelope(self) -> tuple[int, ...]: ...  # noqa: N802 - the name there


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
COMMITS = ("auto", "rename", "journal")
DURABILITIES = ("full", "process", "none")
EXSCAN_FIRST = ("none", "identity")
HEADERS = ("none", "copy")


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
    PathLike | None, Option("--types", Path(), "A TOML file of named datatypes, that TYPE may use.", section=OP)
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
            OpName(reduces=True),
            "A predefined op, FILE.py:FUNCTION, PACKAGE.MODULE:FUNCTION, ./LIB.so:SYMBOL, or an installed op; `mpired "
            "ops` lists them.",
            environment=False,
            required=True,
            section=OP,
        ),
    ]


class WindowOp(TypedDict, total=False):
    """The op of the one-sided commands."""

    # No environment variable, as for the other commands: what is done is written in the command.
    op: Annotated[
        str,
        Option(
            "--op",
            OpName(reduces=False),
            "A predefined op.",
            environment=False,
            required=True,
            section=OP,
        ),
    ]


class UserOp(TypedDict, total=False):
    """What concerns user-defined ops."""

    commute: Annotated[
        bool | None,
        Option("--commute/--no-commute", Flag(), "Say whether a user-defined op commutes.", section=USER_OPS),
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
            "What a sum or product is that its datatype cannot hold: a warning, the default, expected, or an error.",
            section=OP,
        ),
    ]


# Inputs


class Definitions(TypedDict, total=False):
    """Where named datatypes are defined."""

    types: _Types


class Inputs(TypedDict, total=False):
    """What the inputs hold."""

    type: _Type
    types: _Types
    format: Annotated[
        str | None,
        Option(
            "--from", FormatName(readable=True), "The format of the inputs, instead of looking at them.", section=INPUTS
        ),
    ]
    columns: Annotated[
        str | Sequence[str],
        Option(
            "--columns", Names(), "The parquet or arrow columns that are buffers; default all.", (), section=COLUMNS
        ),
    ]
    pair: Annotated[
        str | Sequence[str] | None,
        Option("--pair", Names("VALUE,INDEX"), "Two columns that are one buffer of pairs.", section=COLUMNS),
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
        int, Option("--offset", _BYTES, "Where the first element's displacement 0 is.", 0, section=INPUTS)
    ]
    count: Annotated[int | None, Option("--count", _COUNT, "Elements; default all there are.", section=INPUTS)]
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
        Option("--from", FormatName(readable=True), "The format of PACKED, instead of looking at it.", section=INPUTS),
    ]
    columns: Annotated[
        str | Sequence[str], Option("--columns", Names(), "The column of a parquet or arrow file.", (), section=COLUMNS)
    ]


# Results


class Output(TypedDict, total=False):
    """Where one result goes."""

    output: Annotated[
        str,
        Option(
            "-o --output", Path("PATH"), "The file to write; `-`, the default, is standard output.", "-", section=RESULT
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
        str | None, Option("--to", FormatName(), "Its format; default by suffix, then as the inputs.", section=RESULT)
    ]


class Keep(TypedDict, total=False):
    """What results have besides what is combined."""

    keep: Annotated[
        str | Sequence[str],
        Option(
            "--keep",
            Names("COLUMN,..."),
            "Columns that parquet and arrow results have too, of any type; they have to be equal in all ranks.",
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
            "What raw results begin with: nothing, or a copy of what stands before the elements of rank 0's raw file.",
            "none",
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
            "The most to wait for others that have a file locked that is changed or half changed; default 60, 0 tries "
            "once.",
        ),
    ]


class Results(To, Overwrite, Locking, total=False):
    """How results become files."""


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


class GroupB(TypedDict, total=False):
    """The second group of ranks."""

    group_b: Annotated[
        Sequence[Rank] | None,
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
        Sequence[Rank] | None,
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


class Effort(TypedDict, total=False):
    """How much of the machine is used."""

    jobs: Annotated[int, Option("-j --jobs", Integer(least=0), "Workers; 0, the default, is all usable cores.", 0)]
    max_memory: Annotated[
        int | None, Option("--max-memory", Size(least=0), "The most memory for all processes together, in bytes.")
    ]


# Windows


class Windows(TypedDict, total=False):
    """The windows of several ranks."""

    windows: Annotated[
        Sequence[PathLike],
        Option(
            "--window",
            Ranks("FILE"),
            "The window of a rank, in rank order; may be given several times. There is no TARGET then.",
            (),
            environment=False,
            multiple=True,
            section=TARGET,
        ),
    ]


class Target(TypedDict, total=False):
    """Where in which window."""

    target_rank: Annotated[
        int | None, Option("--target-rank", Integer("R"), "Which of several windows is meant.", section=TARGET)
    ]
    target_disp: Annotated[
        int | None,
        Option("--target-disp", _NUMBER, "Where in the window, in units of --disp-unit; default 0.", section=TARGET),
    ]
    disp_unit: Annotated[
        int | None,
        Option("--disp-unit", Integer("BYTES"), "What displacements count; default an element.", section=TARGET),
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
        Option("--columns", Names(), "The column of a parquet or arrow target with several.", (), section=COLUMNS),
    ]
    byte_order: _ByteOrder


class Where(Target, total=False):
    """Which elements of a window are meant, and of an origin."""

    target_count: Annotated[
        int | None,
        Option("--target-count", _NUMBER, "Elements of the target; default as many as the origin has.", section=TARGET),
    ]
    target_type: Annotated[
        AnyDatatype,
        Option(
            "--target-type", TypeText(), "Their datatype, as `vector(3,1,2,double)`: where they lie.", section=TARGET
        ),
    ]
    at: Annotated[
        Index | None, Option("--at", Anything("INDEX"), "A box of an npy target, as `3,0:5`.", section=TARGET)
    ]
    map: Annotated[
        Indices,
        Option("--map", Anything("FILE"), "A file of integers: where each element of the origin goes.", section=TARGET),
    ]
    origin_disp: Annotated[
        int, Option("--origin-disp", _NUMBER, "Elements of the origin to leave out before.", 0, section=TARGET)
    ]
    origin_count: Annotated[
        int | None, Option("--origin-count", _NUMBER, "Elements of the origin to use; default all.", section=TARGET)
    ]
    origin_type: Annotated[
        AnyDatatype,
        Option("--origin-type", TypeText(), "Their datatype, as for the target.", section=TARGET),
    ]


class Transaction(Locking, total=False):
    """How a target changes."""

    commit: Annotated[
        str,
        Option(
            "--commit",
            Word(COMMITS),
            "How the target changes: a new file in its place, or in place behind a journal; auto chooses.",
            "auto",
            section=TARGET,
        ),
    ]
    durability: Annotated[
        str,
        Option(
            "--durability",
            Word(DURABILITIES),
            "full, the default, survives a loss of power; process and none sync nothing, and survive kill -9.",
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
            "Make a missing target, as 100 or 3,4, filled with the identity of the op; alone, like the first origin.",
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
            "Leave an origin out whose content the target remembers to have got.",
            default=False,
            section=TARGET,
        ),
    ]
    once_key: Annotated[
        str | None,
        Option(
            "--once-key",
            Text("KEY"),
            "Do nothing if the target remembers KEY, else all of it, and remember KEY.",
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
        str | None, Option("--to", FormatName(), "Its format; default by suffix, then as the target.", section=RESULT)
    ]
    force: Annotated[bool, Option("-f --force", Flag(), "Replace OLD if it is there.", default=False, section=RESULT)]


# What the commands print


class Quiet(TypedDict, total=False):
    """Whether there is a summary."""

    quiet: Annotated[
        bool, Option("-q --quiet", Flag(), "No summary on standard error; warnings of overflow stay.", default=False)
    ]


class Report(Quiet, total=False):
    """What the summary is."""

    verbose: Annotated[bool, Option("-v --verbose", Flag(), "Also say how the work was done.", default=False)]
    as_json: Annotated[bool, Option("--json", Flag(), "The summary as JSON.", default=False)]


class Recovering(TypedDict, total=False):
    """What `recover` does."""

    only_list: Annotated[bool, Option("--list", Flag(), "Only say what is there.", default=False, environment=False)]
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
            "With --discard: remove any journal, even if a file is half changed without.",
            default=False,
            environment=False,
        ),
    ]


class RecoverOptions(Recovering, Locking, total=False):
    """The options of `recover`."""


class AsJson(TypedDict, total=False):
    """The form of what is printed."""

    as_json: Annotated[bool, Option("--json", Flag(), "As JSON.", default=False)]


# The calls


class LocalOptions(UserOp, Overflow, Inputs, Locking, Effort, total=False):
    """The options of `reduce_local`."""


class ReduceOptions(UserOp, Overflow, Inputs, Results, Keep, Header, RootInPlace, GroupB, Effort, total=False):
    """The options of `reduce`."""


class ScatterBlockOptions(UserOp, Overflow, Inputs, Results, Header, InPlace, GroupB, Effort, total=False):
    """The options of `reduce_scatter_block`."""


class AllreduceOptions(ScatterBlockOptions, Keep, Link, total=False):
    """The options of `allreduce`."""


class ScatterKeywords(ScatterBlockOptions, BlocksB, total=False):
    """The options of `reduce_scatter` but the counts, which are an argument by themselves in Python."""


class ScatterOptions(Blocks, ScatterKeywords, total=False):
    """The options of `reduce_scatter`."""


class ScanOptions(UserOp, Overflow, Inputs, Results, Keep, Header, InPlace, NoGroupB, Effort, total=False):
    """The options of `scan`."""


class ExscanOptions(ScanOptions, ExscanFirst, total=False):
    """The options of `exscan`."""


class CallOptions(ReduceOptions, Link, Blocks, BlocksB, ExscanFirst, total=False):
    """The options of all collectives."""


class FetchOptions(Overflow, Where, Inputs, Transaction, Create, total=False):
    """The options of `get_accumulate`."""


class AccumulateOptions(FetchOptions, Once, total=False):
    """The options of `accumulate`."""


class SwapOptions(Element, Transaction, total=False):
    """The options of `compare_and_swap`."""


class ElementOptions(Overflow, SwapOptions, Create, total=False):
    """The options of `fetch_and_op`."""


class WindowOptions(Overflow, Transaction, total=False):
    """The options of all calls on a window."""


class PackOptions(Records, Results, total=False):
    """The options of `pack`."""


class UnpackOptions(Records, Packed, Overwrite, Locking, total=False):
    """The options of `unpack`."""


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


def checked(known: type[_Options], options: Mapping[str, object], allowed: type | None = None) -> _Options:
    """Return options with the defaults of those that were not given, or given as None, each checked by its row.

    Parameters
    ----------
    known
        Their TypedDict.
    options
        What was given.
    allowed
        The options that may be given, if those are fewer.

    Raises
    ------
    TypeError
        For a keyword that is no option, as by a function with written-out parameters.
    UsageError
        If a value makes no sense.
    """
    table, names = rows(known), rows(allowed or known)
    for name in options.keys() - names.keys():
        raise TypeError(f"unexpected keyword argument {name!r}; the options are {', '.join(names)}")
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
