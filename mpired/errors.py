"""Exceptions and warnings.

A class statement has the exit status of the command, the MPI error class and the built-in exception, where they differ
from the base class. An `OSError` has the exit status 4.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shlex
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from typing import Any

LONGEST_REASON = 2000
"""The maximum length of the subject of an error, and of its reason, in characters."""


class MpiredError(Exception):
    """Base of all errors that are not bugs: a subject, and a reason with a hint."""

    exit_status, mpi_class = 3, "MPI_ERR_OTHER"

    def __init_subclass__(cls, status: int | None = None, mpi: str | None = None) -> None:
        cls.exit_status = status or cls.exit_status
        cls.mpi_class = mpi or cls.mpi_class

    def __init__(self, subject: str, reason: str) -> None:
        subject, reason = (shortened(without_secrets(text), LONGEST_REASON) for text in (subject, reason))
        super().__init__(subject, reason)
        self.subject = subject  # a path, an option, a rank, an op
        self.reason = reason  # value, rule and hint, without a line break

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}"


class UsageError(MpiredError, ValueError, status=2, mpi="MPI_ERR_ARG"):
    """Raised when the arguments of a call are wrong, regardless of the content of files."""


class RootError(UsageError, mpi="MPI_ERR_ROOT"):
    """Raised when the root is not a rank."""


class OutputExistsError(UsageError, FileExistsError, mpi="MPI_ERR_FILE_EXISTS"):
    """Raised when the output already exists and may not be replaced."""


class OpError(MpiredError, ValueError, mpi="MPI_ERR_OP"):
    """Raised when an op is not defined for a datatype, or not for this use."""


class UnknownOpError(OpError, status=2):
    """Raised when the name of an op is unknown."""


class DatatypeError(MpiredError, TypeError, mpi="MPI_ERR_TYPE"):
    """Raised when a datatype is missing, has no NumPy form, or differs between ranks."""


class UnknownDatatypeError(DatatypeError, status=2):
    """Raised when the name of a datatype is unknown."""


class DefinitionError(UnknownDatatypeError):
    """Raised when a file of datatype definitions is wrong."""


class CountError(MpiredError, ValueError, mpi="MPI_ERR_COUNT"):
    """Raised when counts or shapes differ between ranks or do not fit a file, or too few ranks are usable."""

    def __init__(self, subject: str, reason: str, errors: Sequence[MpiredError | OSError] = ()) -> None:
        super().__init__(subject, reason)
        self.errors = tuple(errors)  # of unusable ranks


class DisplacementError(MpiredError, ValueError, mpi="MPI_ERR_DISP"):
    """Raised when a displacement is negative, or not a multiple of its unit."""


class RangeError(MpiredError, IndexError, mpi="MPI_ERR_RMA_RANGE"):
    """Raised when elements of the target are outside of the window."""


class OverlapError(MpiredError, ValueError, mpi="MPI_ERR_TYPE"):
    """Raised when elements of the target overlap, which no accumulate allows (MPI-4.1, 12.3.4)."""


class LockError(MpiredError, TimeoutError, status=5, mpi="MPI_ERR_RMA_SYNC"):
    """Raised when the lock on a target is not free; nothing was changed, and a repetition may succeed."""


class ConversionError(MpiredError, ValueError, mpi="MPI_ERR_CONVERSION"):
    """Raised when a value does not fit the data representation of a file, such as external32."""


class ResultOverflowError(MpiredError, OverflowError):
    """Raised when a sum or product overflows its datatype with `overflow="error"`; nothing was written."""


class MpiredWarning(UserWarning):
    """The base of the categories of all warnings."""

    label = "warning: "  # the start of the line on the command line

    def __init_subclass__(cls, label: str = label) -> None:
        cls.label = label

    def __init__(self, text: str, details: dict[str, object] | None = None) -> None:
        super().__init__(text)
        self.details = details or {}  # numbers and names in the text


class OrderWarning(MpiredWarning):
    """Warning: ranks may be in a wrong order, such as rank10 before rank2."""


class SkippedWarning(MpiredWarning, label=""):
    """Warning: unusable ranks were skipped."""

    def __init__(self, text: str, skipped: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.skipped = tuple(skipped)  # number among all ranks, name and reason of each skipped rank


class SameFileWarning(MpiredWarning):
    """Warning: an origin or a map is also a target or another origin."""


class SameContentWarning(MpiredWarning):
    """Warning: `once` counts an origin whose content was applied before from another place."""


class HardLinkWarning(MpiredWarning, label=""):
    """Warning: a replaced file has other hard links, which keep the old content."""


class ProcessorWarning(MpiredWarning):
    """Warning: processors of workers differ, so a user-defined op may round differently.

    The predefined ops give the same bits on all processors.
    """


class InputWarning(MpiredWarning):
    """Warning: ranks have different units, or results lack arrays."""


class UnusedWarning(MpiredWarning, label=""):
    """Warning: an origin is not used, because the op only reads the target."""


class OverflowWarning(MpiredWarning, RuntimeWarning):
    """Warning: a sum or product has overflowed its datatype; it has the count and the first position."""


class MaskedWarning(MpiredWarning):
    """Warning: valid elements of a result are equal to a fill value, so readers will take them as missing."""


class BufferFileError(MpiredError, ValueError, mpi="MPI_ERR_FILE"):
    """Raised when a file is damaged, does not have its format, or changed while it was read."""


class NotReadError(BufferFileError):
    """Raised when mpired does not read the format of a file."""

    def __init__(self, subject: str, reason: str, kind: str = "") -> None:
        super().__init__(subject, reason)
        self.kind = kind  # of the file


class ChangedError(BufferFileError):
    """Raised when a file changed while it was read; nothing was written, and a repetition reads the new content."""


class RankNumberError(MpiredError, ValueError, mpi="MPI_ERR_RANK"):
    """Raised when names of ranks have no number, the same number, or unexpected numbers."""


class RanksError(MpiredError, ValueError):
    """Raised when several ranks are unusable: one error that lists all."""

    def __init__(
        self,
        nranks: int,  # number of all ranks
        errors: Sequence[MpiredError | OSError],  # of unusable ranks, in rank order
        noun: str = "ranks",  # noun of the message
        *,
        nbad: int | None = None,  # number of unusable ranks, if a rank has several errors
    ) -> None:
        reason = "; ".join(_grouped(errors, nranks, noun))
        subject = f"{len(errors) if nbad is None else nbad} of {nranks} {noun}"
        super().__init__(subject, reason)
        self.args, self.reason = (subject, reason), reason  # not shortened
        self.errors = tuple(errors)
        self.exit_status = min(exit_status(error) for error in errors)
        first = next((error for error in errors if isinstance(error, MpiredError)), None)
        self.mpi_class = first.mpi_class if first else "MPI_ERR_IO"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (len(self.errors), self.errors), {**self.__dict__, "args": self.args}


def raise_all(errors: Sequence[MpiredError | OSError], number: int, noun: str = "ranks") -> None:
    """Raise the only error of `number` ranks, files or outputs, or an error that lists several errors."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise RanksError(number, errors, noun)


def merged(errors: Sequence[MpiredError]) -> MpiredError:
    """Return one error for all errors of a file."""
    first, *others = errors
    return type(first)(first.subject, "; ".join(error.reason for error in errors)) if others else first


def with_others(error: MpiredError | OSError, later: Sequence[MpiredError | OSError]) -> MpiredError | OSError:
    """Return the first error of a call with all later errors."""
    if not later:
        return error
    subject, reason = parts(error)
    joined = RanksError(1, [*getattr(error, "errors", [error]), *later])
    joined.subject, joined.reason = joined.args = subject, "; ".join([reason, *map(describe, later)])
    joined.exit_status = exit_status(error)
    return joined


class UnconfirmedError(MpiredError, OSError, status=6, mpi="MPI_ERR_IO"):
    """Raised when the result is in place, but the disk has not confirmed it: do not repeat the call."""


class WorkerError(MpiredError, RuntimeError, status=8, mpi="MPI_ERR_INTERN"):
    """Raised when a worker of the pool died or memory ran out; nothing was written."""

    def __init__(self, subject: str, reason: str, exitcode: int | None = None) -> None:
        super().__init__(subject, reason)
        self.exitcode = exitcode  # exit status of the worker, or the negative number of the signal that ended it


class UserOpError(MpiredError, RuntimeError, status=7, mpi="MPI_ERR_OP"):
    """Raised when a user-defined op cannot be loaded, fails, or breaks its contract; nothing was written."""


class Abort(Exception):  # noqa: N818 - MPI's name for it
    """Raised inside a user-defined op to end the command with a message (MPI_Abort; MPI-4.1, 6.9.5)."""


def exit_status(error: MpiredError | OSError) -> int:
    """Return the exit status of an error; 4 for an `OSError` of Python."""
    return error.exit_status if isinstance(error, MpiredError) else 4


def installation(*arguments: str) -> str:
    """Return the pip command that installs packages for the running interpreter."""
    python, packages = shlex.quote(sys.executable), shlex.join(arguments)
    make_venv, pip = "", f"{python} -m pip"
    if sys.prefix != sys.base_prefix:
        if importlib.util.find_spec("pip") is None:  # the pip of the base interpreter can install into this environment
            pip = f"{shlex.quote(os.path.realpath(sys.executable))} -m pip --python {python}"
    elif os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")):  # PEP 668
        make_venv, pip = f"{python} -m venv .venv && ", ".venv/bin/python -m pip"
        if importlib.util.find_spec("ensurepip") is None:  # Debian without python3-venv
            make_venv, pip = f"{python} -m venv --without-pip .venv && ", f"{python} -m pip --python .venv/bin/python"
    return f"`{make_venv}{pip} install {packages}`"


def describe(error: MpiredError | OSError) -> str:
    """Return an error as `SUBJECT: REASON`, or as its reason if it has no subject."""
    subject, reason = parts(error)
    return f"{subject}: {reason}" if subject else reason


def parts(error: MpiredError | OSError) -> tuple[str, str]:
    """Return the subject of an error, or "", and its reason."""
    if isinstance(error, MpiredError):
        return error.subject, error.reason
    if error.strerror is None or error.filename is None:
        return "", str(error) if error.strerror is None else error.strerror
    name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else str(error.filename)
    reason, folder = error.strerror, os.path.dirname(name)
    if error.errno == errno.ENOENT and folder and "://" not in name and not os.path.isdir(folder):
        reason = f"No such directory: {folder}"
    reason = "; ".join([reason, *getattr(error, "__notes__", ())])
    name, reason = (shortened(without_secrets(text), LONGEST_REASON) for text in (name, reason))
    return name or repr(name), reason


_RANK_NUMBER = r"^rank \d+ "
_NULLS = re.compile(r"\bhas \d+ (null|missing element)s?\b")  # the count differs between files
_SINGULAR = re.compile(r"^(is|has|does|was|(carrie|end|give|hold|lack|make|name)s) ")  # first verbs of reasons
_PLURAL = {"is": "", "has": "", "does": "do ", "was": "were ", "carries": "carry "}
_MAX_NAMES = 3  # with the same reason


def _grouped(errors: Sequence[MpiredError | OSError], nranks: int, noun: str) -> Iterator[str]:
    """Yield each reason once, with the first files and the hint of the first error."""
    groups: dict[str, list[MpiredError | OSError]] = {}
    for error in errors:
        subject, reason = parts(error)
        problem = _NULLS.sub(r"has \1s", reason.partition("; ")[0])
        groups.setdefault(re.sub(_RANK_NUMBER, "", problem) if subject else problem, []).append(error)
    for problem, group in groups.items():
        if len(group) == 1:
            yield describe(group[0])
            continue
        names = [name for name, _ in map(parts, group) if name]
        if len(names) > _MAX_NAMES:
            names[_MAX_NAMES:] = ["..." if len(group) == nranks else f"... ({len(group)} {noun})"]
        hint = "".join(parts(group[0])[1].partition("; ")[1:])
        plural = _SINGULAR.sub(lambda verb: _PLURAL.get(verb[1], f"{verb[1][:-1]} "), problem)
        yield f"{plural}{': ' if names else ''}{', '.join(names)}{hint}"


_NO_MEMORY = "memory: there is not enough; lower `jobs`, or set `max_memory`, or raise the limit (ulimit -v)"
# Messages of glibc's loader for a lack of memory, but not for a lack of static TLS, which has a fixed size.
_LOADER_LACKS_MEMORY = re.compile(r"(failed to map segment from shared object|cannot allocate memory)$", re.IGNORECASE)


def not_loaded(error: BaseException) -> tuple[str, int]:
    """Return message and exit status for a lack of memory, or a library that cannot be loaded; raise other errors."""
    cause: BaseException | None = error
    while cause is not None:
        message = " ".join(str(cause).split())
        if isinstance(cause, MemoryError) or (is_of_loader(cause) and _LOADER_LACKS_MEMORY.search(message)):
            return _NO_MEMORY, WorkerError.exit_status
        if is_of_loader(cause):
            return shortened(message, LONGEST_REASON), exit_status(OSError())
        cause = cause.__cause__ or cause.__context__
    raise error


def is_of_loader(error: BaseException) -> bool:
    """Return whether an error is of a shared library that cannot be loaded."""
    return isinstance(error, ImportError) and (error.path or "").endswith(".so")


def number(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def shortened(text: str, limit: int = 300) -> str:
    """Return `text`, without its middle if it has more than `limit` characters."""
    half = (limit - 5) // 2
    return text if len(text) <= limit else f"{text[:half]} ... {text[-half:]}"


_QUERY = re.compile(
    r"""(?<![a-z0-9+.-])(?!(?:s3|gs|az)://)  # in these `?` belongs to a name or a glob
    ([a-z][a-z0-9+.-]*://[^\s?"]*\?)[^\s"]*[^\s"'`:;,.)]""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
_USER = re.compile(r"""([a-z][a-z0-9+.-]*://)[^\s/?#"]*@""", re.ASCII | re.IGNORECASE)


def without_secrets(text: str) -> str:
    """Return `text` without users, passwords and queries of URLs, which may be secret."""
    text = _USER.sub(r"\1...@", text) if "@" in text else text
    return _QUERY.sub(r"\1...", text) if "?" in text else text


def escaped(text: str) -> str:
    """Return `text` in one line, with escapes for control characters and undecodable bytes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
