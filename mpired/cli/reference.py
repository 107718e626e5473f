"""The commands about mpired itself: ops, types, engines, help, completion and examples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import click
from click.shell_completion import get_completion_class

import mpired
from mpired import datatypes
from mpired.cli import COMPLETION, cli, params, signals
from mpired.cli.messages import STATUSES, print_answer, print_message, print_output, print_summary, report
from mpired.datatypes import DATATYPES, Datatype, Group, parse
from mpired.datatypes.dtypes import TIME_PREFIXES
from mpired.datatypes.predefined import canonical
from mpired.datatypes.transfer import draw
from mpired.engines import ENGINES, LOCAL, Engine, connected, probe
from mpired.errors import MpiredError, UsageError, escaped, installation, number
from mpired.files.copying import copy_into
from mpired.formats.rank import dtype_text
from mpired.ops import OPS, PURPOSES, STATISTICS, Op, Use, check_file, native, resolve, user, user_op
from mpired.options import ENGINE, FLAGS, SUMMARY
from mpired.queries.elements import in_json
from mpired.sources.open import open_source

_ALL_OPS = (*OPS, *STATISTICS)
_LISTING_TIMEOUT = 10.0  # seconds to load an op for a list of ops
_LETTERS = {
    Group.C_INTEGER: "i",
    Group.FORTRAN_INTEGER: "f",
    Group.FLOATING_POINT: "r",
    Group.LOGICAL: "l",
    Group.COMPLEX: "z",
    Group.BYTE: "b",
    Group.MULTI_LANGUAGE: "m",
    Group.PAIR: "p",
    Group.CHARACTER: "c",
    Group.TIME: "t",
    Group.DURATION: "d",
}
_KINDS = {
    "integers": Group.C_INTEGER,
    "floats": Group.FLOATING_POINT,
    "bools": Group.LOGICAL,
    "complex": Group.COMPLEX,
    "bytes": Group.BYTE,
    "pairs": Group.PAIR,
    "times": Group.TIME,
}
_MAX_ENTRIES = 8  # of a type map
_MAX_CODES = 8  # of the NumPy form of a structure
_FIGURES = ("combiner", "size", "lb", "ub", "extent", "true lb", "true extent", "alignment")
_EXAMPLES = ("sample_data", "examples")


@params.command("matrix", "as_json@print", file="[FILE.py]")
def ops(*, file: str | None, matrix: bool) -> None:
    """List the ops, the numbers they take, and the installed user-defined ops.

    \b
    Examples:
      mpired ops
      mpired ops --matrix
      mpired ops --json

    With FILE.py, list the ops that a Python file defines with @mpired.op. That loads the file. With --matrix, mark each
    group of datatypes that an op takes (MPI-4.1, 6.9.2), and list the rules of values.
    """
    name = (file or "").upper().removeprefix("MPI_")
    if file and any(op.name == name for op in _ALL_OPS) and not os.path.exists(file):
        raise UsageError(file, "is an op, and there is no such file; `mpired ops` alone lists all ops")
    user_ops = list(_ops_in_file(file) if file else _installed_ops())
    rows = [] if file else [*map(_op_row, _ALL_OPS)]
    defaults = dict.fromkeys(_op_row(OPS[0])) | {"uses": ["reduce"], "groups": [], "options": [], "compiled": []}
    lines: list[str] = []
    if matrix and not file:
        lines = [*_matrix()]
    elif not file:
        lines = [*_op_table(27, "result", _element_kinds), "maxloc and minloc take numbers too, with --index."]
        lines.append("`mpired ops --matrix` marks the datatypes of each op.")
    if user_ops and not file:
        lines.append("\nuser-defined ops that are installed:")
    print_answer(rows + [in_json(defaults | op) for op in user_ops], [*lines, *map(_user_line, user_ops)])
    if file and not user_ops and not report()["as_json"]:
        print_message(f"{file}: no function in it is decorated with @mpired.op")


def _installed_ops() -> Iterator[dict[str, Any]]:
    """Describe the installed user-defined ops; a broken package has an entry with its error."""
    predefined = {op.name for op in OPS}
    for name, points in sorted(user.entry_points().items()):
        place = ", ".join(point.value for point in points)
        if canonical(name) in predefined:
            yield _user_row(name, place, error="hidden by the predefined op of that name")
            continue
        try:
            op = cast("Op", resolve(name, _LISTING_TIMEOUT))
            properties = probe.in_worker(probe.properties, op.kernel, op)
        except MpiredError as error:
            yield _user_row(name, place, error=error.reason)
        else:
            yield _user_row(name, place, properties)


def _ops_in_file(path: str) -> Iterator[dict[str, Any]]:
    """Describe the ops that a Python file defines with `mpired.op`."""
    check_file(path, path)
    file_op = user_op(path, user.UserKernel(path, user.load, timeout=_LISTING_TIMEOUT))  # for errors
    for name, properties in probe.in_worker(partial(user.decorated_ops, timeout=_LISTING_TIMEOUT), path, file_op):
        yield _user_row(properties.name or name, f"{path}:{name}", properties)


def _user_row(
    name: str, place: str, properties: user.Properties | None = None, error: str | None = None
) -> dict[str, Any]:
    row = (properties or user.Properties())._replace(name=name)
    return {"name": name, "place": place} | row._asdict() | {"error": error}


def _user_line(op: dict[str, Any]) -> str:
    """Return the line of a user-defined op."""
    description = op["error"]
    if not description:
        commute = {True: "commutes", False: "does not commute", None: "commute not declared"}[op["commute"]]
        identity = "" if op["identity"] is None else f", identity {op['identity']}"
        takes = ", ".join(op["datatypes"]) or "any datatype"
        description = f"{commute}{identity}, {takes}{op['doc'] and '; '}{op['doc']}"
    return escaped(f"{op['name']} ({op['place']}): {description}")


def _op_table(width: int, heading: str, takes: Callable[[Op], str]) -> Iterator[str]:
    """Yield the table of the ops: name, datatypes in `width` characters, and description under `heading`."""
    for title, ops in (("op", OPS), ("statistic", STATISTICS)):
        yield f"{title:11}{'takes':{width}}{heading}"
        yield from (f"{op.name.lower():11}{takes(op):{width}}{op.doc}" for op in ops)
        yield ""


def _element_kinds(op: Op) -> str:
    """Return the kinds of elements that an op is defined on, such as "integers, floats"."""
    if all(group in op.groups for group in _LETTERS):
        return "everything"
    return ", ".join(name for name, groups in _KINDS.items() if groups & op.groups)


def _matrix() -> Iterator[str]:
    """Yield the ops with the letters of their groups of datatypes, the rules of values, and the groups."""
    groups = [group for group in Group if group in _LETTERS]
    yield from _op_table(
        13, "description", lambda op: "".join(_LETTERS[group] if group in op.groups else "." for group in groups)
    )
    paragraphs = [f"{rule}: {', '.join(names)}" for rule, names in _rules()] + [""]
    for group in groups:
        names = ", ".join(TIME_PREFIXES.get(group) or (row.name.lower() for row in DATATYPES if row.group is group))
        note = " (of columns and npy files, not of MPI)" if group in TIME_PREFIXES else ""
        paragraphs.append(f"{_LETTERS[group]}  {group.title}{note}: {names}")
    yield from (click.wrap_text(paragraph, 80, subsequent_indent="   ") for paragraph in paragraphs)


def _rules() -> Iterator[tuple[str, list[str]]]:
    """Yield each rule of values with the names of the ops that support it, then the ops with compiled kernels."""
    for rule in dict.fromkeys(op.nan for op in _ALL_OPS if op.nan):
        yield f"NaN {rule}", [op.name.lower() for op in _ALL_OPS if op.nan == rule]
    yield "--nan ignore leaves NaN out, --missing and --nulls leave elements out", ["all ops of reductions"]
    yield "--nan mpi treats NaN as MPI's libraries do", [op.name.lower() for op in _ALL_OPS if op.mpi_kernel]
    for name, purpose in PURPOSES.items():
        yield f"{FLAGS[name]} {purpose}", [op.name.lower() for op in _ALL_OPS if name in op.takes]
    if obstacle := native.obstacle():
        yield "no compiled kernels", [obstacle]
    else:
        yield "compiled kernels for some datatypes", [op.name.lower() for op in _ALL_OPS if _op_row(op)["compiled"]]


def _op_row(op: Op) -> dict[str, object]:
    """Return the description of a predefined op or statistic for JSON."""
    datatypes = [row for row in DATATYPES if row.group in op.groups and row.dtype is not None]
    return {
        "name": str(op),
        "place": None,
        "doc": op.doc,
        "commute": op.commute,
        "identity": None,
        "nan": op.nan,
        "uses": [str(use.name).lower() for use in Use if use in op.uses],
        "groups": [group.title for group in op.groups],
        "options": [FLAGS[name] for name in PURPOSES if name in op.takes],
        "datatypes": [str(row) for row in datatypes],
        "compiled": [str(row) for row in datatypes if native.twin(op.name.lower(), row) is not None],
        "error": None,
    }


@params.command("as_json@print", "types", text="[TYPE]")
@click.option(
    "--value-index",
    envvar=["MPIRED_VALUE_INDEX"],
    nargs=2,
    type=params.DATATYPE,
    metavar="VALUE INDEX",
    help="Print the pair type of two types instead, or MPI_DATATYPE_NULL if there is none.",
)
def types(*, text: str | None, types: str | None, value_index: tuple[str, str] | None) -> None:
    """List the datatypes with group, size, extent and NumPy form; or show one TYPE, with its type map.

    \b
    Examples:
      mpired types
      mpired types float64
      mpired types --json
      mpired types --value-index double uint64_t
      mpired types 'vector(3,1,2,double)'

    TYPE is a name of MPI or of NumPy, such as double or float64, a code such as <f8, or a type made of types. The
    types that NumPy calls the same are shown too.

    The size counts the bytes of the components, the extent the padding too: raw files hold extents. With --types
    and no TYPE the datatypes of that file are listed.
    """
    if text is not None and value_index is not None:
        raise click.UsageError("--value-index takes the place of TYPE")
    defined = None if types is None else datatypes.definitions(types)
    if text is not None:
        datatype, byte_order = parse(text, defined)
        description = describe_datatype(datatype, byte_order)
        print_answer(description, _type_lines(datatype, description))
    elif value_index is not None:
        # A pair that does not exist is not an error (MPI-4.1, 6.9.4).
        pair = datatypes.value_index(*(parse(name, defined)[0] for name in value_index))
        print_answer(None if pair is None else _type_row(pair), ["MPI_DATATYPE_NULL" if pair is None else str(pair)])
    elif defined is not None and params.is_written("types"):
        rows, table = [], [f"{'datatype':28}{'size':>10}{'extent':>10}  type"]
        for name in defined:
            datatype, definition = defined[name][0], defined.text(name)
            rows.append({"name": name, "type": definition, "size": datatype.size, "extent": datatype.extent})
            table.append(f"{name:28}{datatype.size:10}{datatype.extent:10}  {escaped(str(definition))}")
        print_answer(rows, table)
    else:
        rows, table = [], [f"{'datatype':28}{'group':17}{'size':>5}{'extent':>7}  NumPy"]
        for datatype in DATATYPES:
            rows.append(row := _type_row(datatype))
            form = f"{row['numpy'] or 'not available':5}{datatype.numpy_name}".rstrip()
            table.append(f"{row['name']:28}{row['group']:17}{row['size']:5}{row['extent']:7}  {form}")
            table += [f"  also {name}" for name in row["synonyms"]]
        print_answer(rows, table)


def describe_datatype(datatype: Datatype, byte_order: str | None = None) -> dict[str, Any]:
    """Return the description of a datatype in a byte order for JSON; a long type map without its middle."""
    typemap, drawing, numpy_name = datatype.typemap, draw(datatype.typemap), datatype.numpy_name
    # MPI_Type_get_envelope: NAMED, the constructor, or VALUE_INDEX for an unnamed pair.
    constructor = "VALUE_INDEX" if datatype.parts else datatype.name.partition("(")[0].upper()
    combiner = "NAMED" if datatype.is_named else constructor
    entries: Sequence[int] = range(typemap.entries)
    if len(entries) > _MAX_ENTRIES:
        entries = [*entries[: _MAX_ENTRIES - 1], entries[-1]]
    same_form = [row for row in DATATYPES if numpy_name and row.numpy_name == numpy_name and row is not datatype]
    return {
        "name": str(datatype),
        "numpy_name": numpy_name or None,
        "same_form": [*map(str, same_form)],
        "combiner": f"MPI_COMBINER_{combiner}",
        **{figure: getattr(typemap, figure) for figure in ("size", "lb", "ub", "extent", "true_lb", "true_extent")},
        "alignment": typemap.align,
        "entries": typemap.entries,
        "type_map": [[entry.name, entry.disp] for entry in map(typemap.entry, entries)],
        "numpy": None if datatype.dtype is None else dtype_text(datatype.dtype, byte_order),
        "numpy_is_packed": datatype.is_spread,
        "no_numpy": datatype.typemap.memory.obstacle if datatype.dtype is None else None,
        "external32": typemap.external,
        "picture": None if drawing is None else drawing._asdict(),
    }


def _type_lines(datatype: Datatype, description: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of one datatype: its figures, its type map and a picture."""
    entries = [f"({name},{disp})" for name, disp in description["type_map"]]
    if omitted := description["entries"] - len(entries):
        entries.insert(-1, f"... {omitted} more ...")
    form, drawing = f"none: {description['no_numpy']}", "none: there are no bytes, or too many pieces"
    if description["numpy"] is not None:
        codes = description["numpy"].split(", ")
        more = [f"... {len(codes)} in all)"] if len(codes) > _MAX_CODES else []
        form = ", ".join([*codes[:_MAX_CODES], *more]) + (", packed" if description["numpy_is_packed"] else "")
    if (fields := description["picture"]) is not None:
        scale = f", {fields['nbytes']} bytes a character" if fields["nbytes"] > 1 else ""
        drawing = f"{fields['text']}  bytes {fields['start']} to {fields['stop']}{scale}"
    lines = {label: description[label.replace(" ", "_")] for label in _FIGURES} | {
        "type map": " ".join(entries) or "empty",
        "NumPy": form,
        "external32": f"{description['external32']} bytes",
        "picture": drawing,
    }
    if description["same_form"]:
        lines["same form"] = ", ".join(description["same_form"])
    yield datatype.label
    yield from (f"  {label:12}{value}" for label, value in lines.items())


def _type_row(datatype: Datatype) -> dict[str, Any]:
    """Return the row of a datatype for the JSON list of all datatypes."""
    return {
        "name": str(datatype),
        "synonyms": [f"MPI_{name}" for name in datatype.synonyms],
        "group": datatype.group.title,
        "size": datatype.size,
        "extent": datatype.extent,
        "handle": datatype.handle,
        "numpy": None if datatype.dtype is None else dtype_text(datatype.dtype),
    }


@params.command(*ENGINE, "rank_numbers", "as_json@print", ranks="[RANK...]")
def engines(*, ranks: tuple[str, ...], **options: Any) -> None:
    """List the engines (local, mpi, dask): whether each is installed and running.

    \b
    Examples:
      mpired engines

    With --engine, describe each of its workers, and check that it sees the RANKs as this machine does. The status is
    that of an error if a worker cannot be used.
    """
    difference = ""
    with connected(cast("Any", options)) as engine:
        if engine is LOCAL:
            if ranks:
                raise UsageError("ranks", "are seen by this machine's processes as by all others; name an `engine`")
            # Of several processes that a launcher started only the first one prints.
            rows = list(map(_engine_row, ENGINES.values())) if all(row.is_first for row in ENGINES.values()) else []
        else:
            rows, difference = _worker_rows(engine, ranks)
    if rows:
        print_answer([row for row, _ in rows], (escaped(line) for _, line in rows))
    if difference:
        raise UsageError("`engine`", f"{difference}; let all workers have the same programs and see the same files")


def _engine_row(engine: Engine) -> tuple[dict[str, Any], str]:
    """Return the state of an engine, as a row for JSON and as a line."""
    try:
        version = metadata.version(engine.package) if engine.package else ""
    except metadata.PackageNotFoundError:
        version = None
    started = "".join(f", and started: {name} is {value}" for name, value in engine.started.items())
    state, workers = f"{engine.package} {version} is installed{started}", None
    if engine is LOCAL:
        workers = engine.runner.limits().workers
        state = number(workers, "worker")
    elif version is None:
        state = f"not installed: {installation(f'mpired[{engine.extra}]')}"
    row = {
        "engine": engine.name,
        "what": engine.doc,
        "package": engine.package or None,
        "version": version or None,
        "extra": engine.extra or None,
        "workers": workers,
        "usable": version is not None,
        "started": engine.started,
    }
    return row, f"{engine.name:8}{engine.doc}; {state}"


def _worker_rows(engine: Engine, ranks: tuple[str, ...]) -> tuple[list[tuple[dict[str, Any], str]], str]:
    """Return a row and a line for each worker of the engine, and the first difference from this process, or ""."""
    sources = [open_source(cast("str", rank), params.context()) for rank in params.expand(ranks)[0]] if ranks else []
    rows, difference = [], ""
    versions = probe.versions()
    for worker in engine.runner.everywhere(partial(probe.inspect, sources, None)):
        unseen = {source.name: reason for source, reason in zip(sources, worker.files, strict=True) if reason}
        line = f"{worker.host}: {', '.join(map(' '.join, worker.versions.items()))}"
        if sources:
            line += f"; sees {len(sources) - len(unseen)} of {len(sources)} ranks"
        rows.append(({"host": worker.host, **worker.versions, "ranks": len(sources), "not_seen": unseen}, line))
        differences = [f"{name} differs" for name, version in versions.items() if worker.versions.get(name) != version]
        differences += [f"{path}: {reason}" for path, reason in unseen.items()]
        if differences and not difference:
            difference = f"{differences[0]}, in the worker on {worker.host}"
    return rows, difference


@click.command
@click.argument(
    "command",
    required=False,
    metavar="[COMMAND]",
    shell_complete=lambda context, _parameter, incomplete: cli.shell_complete(context, incomplete),
)
@click.pass_context
def help(context: click.Context, *, command: str | None) -> None:  # noqa: A001 - the name of the command
    """Show the help of COMMAND, like `mpired COMMAND --help`, or the list of commands.

    `mpired help statuses` lists the exit statuses.

    \b
    Examples:
      mpired help
      mpired help reduce
      mpired help statuses
    """
    root = context.find_root()
    if command == "statuses":
        formatter = root.make_formatter()
        with formatter.section("Exit statuses"):
            formatter.write_dl(list(STATUSES.items()))
        formatter.write("\n`mpired diff`: 0 the files are equal, 1 they differ, 70 internal error.\n")
        print_output(formatter.getvalue().rstrip())
        return
    subcommand = cli.resolve_command(root, [command])[1] if command else None
    print_output((click.Context(subcommand, root, command) if subcommand else root).get_help())


@click.command
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
def completion(*, shell: str) -> None:
    """Print the script with which a shell completes commands, options, files, ops, datatypes and formats.

    \b
    bash  eval "$(mpired completion bash)"     in ~/.bashrc
    zsh   eval "$(mpired completion zsh)"      in ~/.zshrc, after compinit
    fish  mpired completion fish | source      in ~/.config/fish/config.fish

    \b
    Examples:
      mpired completion bash
    """
    if (script := get_completion_class(shell)) is not None:
        source = script(cli, {}, "mpired", COMPLETION).source().strip("\n")
        print_output(source.replace('string split ","', 'string split -m 1 ","'))  # fish; a list of ops has commas


@params.command(*SUMMARY, directory="DIR")
def examples(*, directory: str) -> None:
    """Copy the sample data and the example ops into DIR, a new directory or an empty one.

    \b
    Examples:
      mpired examples try-mpired

    The examples of each command's help run there, in the order of the help; DIR/sample_data/README.md
    describes the files.
    """
    package = Path(mpired.__file__).parent
    installed = package / "_examples"  # pyproject.toml puts them there; in a clone they are at the top
    source = installed if installed.is_dir() else package.parent
    copy_into(directory, [source / name for name in _EXAMPLES], on_commit=signals.commit)
    summary = {"copied": _EXAMPLES, "inputs": [], "output": directory}
    print_summary(summary, f"copied {' and '.join(_EXAMPLES)} -> {directory}; the examples of help run there")
