"""Exceptions and warnings.

The head of a class has the exit status of the command, its MPI error class, and the builtin that fits, where these
differ from those of its base. An `OSError` has the exit status 4.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any

LONGEST_REASON = 2000
"""The most characters of the subject of an error, and of its reason: names and values in them may be long."""


class MpiredError(Exception):
    """The base of all errors that are not bugs: a subject, and the reason with the way out."""

    exit_status, mpi_class = 3, "MPI_ERR_OTHER"

    def __init_subclass__(cls, status: int | None = None, mpi: str | None = None) -> None:
        cls.exit_status = status or cls.exit_status
        cls.mpi_class = mpi or cls.mpi_class

    def __init__(self, subject: str, reason: str) -> None:
        subject, reason = (shortened(without_secrets(text), LONGEST_REASON) for text in (subject, reason))
        super().__init__(subject, reason)
        self.subject = subject  # a path, an option, a rank, an op
        self.reason = reason  # value, rule and way out, without a line break

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}"


class UsageError(MpiredError, ValueError, status=2, mpi="MPI_ERR_ARG"):
    """Raised when the request itself makes no sense, whatever the files hold."""


class RootError(UsageError, mpi="MPI_ERR_ROOT"):
    """Raised when the root is not a rank."""


class OutputExistsError(UsageError, FileExistsError, mpi="MPI_ERR_FILE_EXISTS"):
    """Raised when the output already exists and nothing allows replacing it."""


class OpError(MpiredError, ValueError, mpi="MPI_ERR_OP"):
    """Raised when an op is not defined for a datatype, or not for this use."""


class UnknownOpError(OpError, status=2):
    """Raised when no op has that name."""


class DatatypeError(MpiredError, TypeError, mpi="MPI_ERR_TYPE"):
    """Raised when a datatype is missing here, has no NumPy form, or disagrees between ranks."""


class UnknownDatatypeError(DatatypeError, status=2):
    """Raised when no datatype has that name."""


class DefinitionError(UnknownDatatypeError):
    """Raised when a file of named datatypes, or an entry of it, is wrong."""


class CountError(MpiredError, ValueError, mpi="MPI_ERR_COUNT"):
    """Raised when counts or shapes differ between ranks or do not fit a file, or too few ranks can be used."""

    def __init__(self, subject: str, reason: str, errors: Sequence[MpiredError | OSError] = ()) -> None:
        super().__init__(subject, reason)
        self.errors = tuple(errors)  # of the ranks that cannot be used


class DisplacementError(MpiredError, ValueError, mpi="MPI_ERR_DISP"):
    """Raised when a displacement is negative, or not a multiple of its unit."""


class RangeError(MpiredError, IndexError, mpi="MPI_ERR_RMA_RANGE"):
    """Raised when elements of the target would be outside of the window."""


class OverlapError(MpiredError, ValueError, mpi="MPI_ERR_TYPE"):
    """Raised when elements of the target overlap, which no accumulate allows (MPI-4.1, 12.3.4)."""


class LockError(MpiredError, TimeoutError, status=5, mpi="MPI_ERR_RMA_SYNC"):
    """Raised when the lock on a target cannot be had; nothing was changed, and a repetition may succeed."""


class ConversionError(MpiredError, ValueError, mpi="MPI_ERR_CONVERSION"):
    """Raised when a value does not fit the form of the file, such as external32."""


class ResultOverflowError(MpiredError, OverflowError):
    """Raised when a sum or product overflows its datatype with `overflow="error"`; nothing was written."""


class MpiredWarning(UserWarning):
    """The base of the categories of all warnings."""

    label = "warning: "  # what the command line puts before the text

    def __init_subclass__(cls, label: str = label) -> None:
        cls.label = label

    def __init__(self, text: str, details: dict[str, object] | None = None) -> None:
        super().__init__(text)
        self.details = details or {}  # figures in the text


class OrderWarning(MpiredWarning):
    """The category of the warning that ranks may be in a wrong order, such as rank10 before rank2."""


class SkippedWarning(MpiredWarning, label=""):
    """The category of the warning that ranks were left out because they cannot be used."""

    def __init__(self, text: str, skipped: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.skipped = tuple(skipped)  # of each the number among the ranks that were named, the name and the reason


class SameFileWarning(MpiredWarning):
    """The category of the warning that an origin, or a map, is the target or another of them."""


class SameContentWarning(MpiredWarning):
    """The category of the warning that `once` counts an origin whose content came before, from another place."""


class HardLinkWarning(MpiredWarning, label=""):
    """The category of the warning that a file that is replaced has other names, which keep its old content."""


class ProcessorWarning(MpiredWarning):
    """The category of the warning that processors of workers differ, so that a user-defined op may round otherwise.

    The predefined ops give the same bits on all.
    """


class InputWarning(MpiredWarning):
    """The category of the warning that the values of ranks have different units, or that results lack arrays."""


class UnusedWarning(MpiredWarning, label=""):
    """The category of the warning that an origin is not used, because the op only reads the target."""


class OverflowWarning(MpiredWarning, RuntimeWarning):
    """The category of the warning that a sum or product has overflowed its datatype: how often, and where first."""


class MaskedWarning(MpiredWarning):
    """The category of the warning that readers of a result will take elements as missing that are there."""


class BufferFileError(MpiredError, ValueError, mpi="MPI_ERR_FILE"):
    """Raised when a file is damaged, is not of its format, or changed while it was read."""


class NotReadError(BufferFileError):
    """Raised when a file is of a kind that mpired does not read."""

    def __init__(self, subject: str, reason: str, kind: str = "") -> None:
        super().__init__(subject, reason)
        self.kind = kind  # what the file is


class ChangedError(BufferFileError):
    """Raised when a file changed while it was read; nothing was written, and a repetition reads the new content."""


class RankNumberError(MpiredError, ValueError, mpi="MPI_ERR_RANK"):
    """Raised when the names of ranks have no number, one twice, or not those that are expected."""


class RanksError(MpiredError, ValueError):
    """Raised when several ranks cannot be used: one error that lists each of them."""

    def __init__(
        self,
        nranks: int,  # all of them
        errors: Sequence[MpiredError | OSError],  # of the bad ones, in rank order
        what: str = "ranks",  # or another noun
        *,
        nbad: int | None = None,  # the number of the bad ones, if some have several errors
    ) -> None:
        reason = "; ".join(_grouped(errors, nranks, what))
        subject = f"{len(errors) if nbad is None else nbad} of {nranks} {what}"
        super().__init__(subject, reason)
        self.args, self.reason = (subject, reason), reason  # whole: with every rank that is wrong
        self.errors = tuple(errors)
        self.exit_status = min(exit_status(error) for error in errors)
        first = next((e for e in errors if isinstance(e, MpiredError)), None)
        self.mpi_class = first.mpi_class if first else "MPI_ERR_IO"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (len(self.errors), self.errors), {**self.__dict__, "args": self.args}


def raise_all(errors: Sequence[MpiredError | OSError], number: int, what: str = "ranks") -> None:
    """Raise the error of one of `number` ranks, files or outputs, or an error that lists several, if there are any."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise RanksError(number, errors, what)


def merged(errors: Sequence[MpiredError]) -> MpiredError:
    """Return the errors of one file as one."""
    first, *others = errors
    return type(first)(first.subject, "; ".join(each.reason for each in errors)) if others else first


def with_others(error: MpiredError | OSError, others: Sequence[MpiredError | OSError]) -> MpiredError | OSError:
    """Return an error of a call together with `others`, which would come after it."""
    if not others:
        return error
    subject, reason = parts(error)
    joined = RanksError(1, [*getattr(error, "errors", [error]), *others])
    joined.subject, joined.reason = joined.args = subject, "; ".join([reason, *map(describe, others)])
    joined.exit_status = exit_status(error)
    return joined


class UnconfirmedError(MpiredError, OSError, status=6, mpi="MPI_ERR_IO"):
    """Raised when the result is in place but the disk has not confirmed it: do not repeat."""


class WorkerError(MpiredError, RuntimeError, status=8, mpi="MPI_ERR_INTERN"):
    """Raised when a worker of the pool died or memory ran out; nothing was written."""

    def __init__(self, subject: str, reason: str, exitcode: int | None = None) -> None:
        super().__init__(subject, reason)
        self.exitcode = exitcode  # the exit status of the worker, or minus the number of the signal that ended it


class UserOpError(MpiredError, RuntimeError, status=7, mpi="MPI_ERR_OP"):
    """Raised when a user-defined op cannot be loaded, fails, or breaks its contract; nothing was written."""


class Abort(Exception):  # noqa: N818 - MPI's name for it
    """Raised inside a user-defined op to end the command with a message (MPI_Abort; MPI-4.1, 6.9.5)."""


def exit_status(error: MpiredError | OSError) -> int:
    """Return the exit status that stands for `error`; a plain `OSError` is 4."""
    return error.exit_status if isinstance(error, MpiredError) else 4


def installation(*words: str) -> str:
    """Return the command that installs packages for the interpreter that runs: `pip` may be another one's."""
    import sysconfig  # noqa: PLC0415 - as above

    python, packages = shlex.quote(sys.executable), shlex.join(words)
    made, pip = "", f"{python} -m pip"
    if sys.prefix != sys.base_prefix:
        if importlib.util.find_spec("pip") is None:  # that of the interpreter beneath works on it from outside
            pip = f"{shlex.quote(os.path.realpath(sys.executable))} -m pip --python {python}"
    elif os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")):  # PEP 668
        made, pip = f"{python} -m venv .venv && ", ".venv/bin/python -m pip"
        if importlib.util.find_spec("ensurepip") is None:  # Debian without python3-venv
            made, pip = f"{python} -m venv --without-pip .venv && ", f"{python} -m pip --python .venv/bin/python"
    return f"`{made}{pip} install {packages}`"


def describe(error: MpiredError | OSError) -> str:
    """Return `SUBJECT: REASON` for `error`, the file's name first if it has one."""
    subject, reason = parts(error)
    return f"{subject}: {reason}" if subject else reason


def parts(error: MpiredError | OSError) -> tuple[str, str]:
    """Return the subject of `error`, "" if it has none, and the reason."""
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


_OWN_NUMBER = r"^rank \d+ "
_NULLS = re.compile(r"\bhas \d+ (null|missing element)s?\b")  # each file has its own number of them
_SINGULAR = re.compile(r"^(is|has|does|was|(carrie|end|give|hold|lack|make|name)s) ")  # verbs that reasons begin with
_PLURAL = {"is": "", "has": "", "does": "do ", "was": "were ", "carries": "carry "}
_SHOWN_NAMES = 3  # of one reason


def _grouped(errors: Sequence[MpiredError | OSError], nranks: int, what: str) -> Iterator[str]:
    """Yield each reason once, with its files before the ways out of the first: of many files the first, and a count."""
    alike: dict[str, list[MpiredError | OSError]] = {}
    for error in errors:
        subject, reason = parts(error)
        what_is_wrong = _NULLS.sub(r"has \1s", reason.partition("; ")[0])
        alike.setdefault(re.sub(_OWN_NUMBER, "", what_is_wrong) if subject else what_is_wrong, []).append(error)
    for what_is_wrong, group in alike.items():
        if len(group) == 1:
            yield describe(group[0])
            continue
        names = [name for name, _ in map(parts, group) if name]
        if len(names) > _SHOWN_NAMES:
            names[_SHOWN_NAMES:] = ["..." if len(group) == nranks else f"... ({len(group)} {what})"]
        hint_text = "".join(parts(group[0])[1].partition("; ")[1:])
        # Without a verb a reason is a noun that the files follow.
        wrong = _SINGULAR.sub(lambda verb: _PLURAL.get(verb[1], f"{verb[1][:-1]} "), what_is_wrong)
        yield f"{wrong}{': ' if names else ''}{', '.join(names)}{hint_text}"


_NO_MEMORY = "memory: there is not enough; lower `jobs`, or set `max_memory`, or raise the limit (ulimit -v)"
# Messages of glibc's loader when it gets no memory; the room for static TLS does not depend on how much there is.
_LOADER_LACKS_MEMORY = re.compile(r"(failed to map segment from shared object|cannot allocate memory)$", re.IGNORECASE)


def not_loaded(error: BaseException) -> tuple[str, int]:
    """Return the message and the exit status for memory that ran out, or a library that cannot be loaded."""
    # Any other error is a bug, and is raised again.
    each: BaseException | None = error
    while each is not None:  # that a library cannot be loaded is often the cause of another error
        words = " ".join(str(each).split())
        if isinstance(each, MemoryError) or (is_of_loader(each) and _LOADER_LACKS_MEMORY.search(words)):
            return _NO_MEMORY, WorkerError.exit_status
        if is_of_loader(each):
            return shortened(words, LONGEST_REASON), exit_status(OSError())
        each = each.__cause__ or each.__context__
    raise error


def is_of_loader(error: BaseException) -> bool:
    """Return whether an error is that of a shared library which cannot be loaded."""
    return isinstance(error, ImportError) and (error.path or "").endswith(".so")


def number(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def shortened(text: str, most: int = 300) -> str:
    """Return `text`, without its middle if it has more than `most` characters."""
    half = (most - 5) // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


_QUERY = re.compile(
    r"""(?<![a-z0-9+.-])(?!(?:s3|gs|az)://)  # in these `?` is of a name, or of a glob
    ([a-z][a-z0-9+.-]*://[^\s?"]*\?)[^\s"]*[^\s"'`:;,.)]""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
_USER = re.compile(r"""([a-z][a-z0-9+.-]*://)[^\s/?#"]*@""", re.ASCII | re.IGNORECASE)


def without_secrets(text: str) -> str:
    """Return `text` without the users, passwords and queries of URLs in it, as signatures, which may be secret."""
    text = _USER.sub(r"\1...@", text) if "@" in text else text
    return _QUERY.sub(r"\1...", text) if "?" in text else text


def escaped(text: str) -> str:
    """Return `text` on one line, with control characters and undecodable bytes as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
