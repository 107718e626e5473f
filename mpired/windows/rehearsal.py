"""What a request would do to its windows: all checks, without a lock, and nothing is made or changed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from mpired.buffers import BufferModel, FlatBuffer, FlatLayout, Model, RankBuffer, changed_there
from mpired.errors import UsageError
from mpired.sources.local import LocalSource, recovered_status
from mpired.sources.source import Source
from mpired.storage import calls
from mpired.storage.lock import check_reaches
from mpired.storage.output import check_new, is_terminal
from mpired.storage.update import Update
from mpired.windows import once
from mpired.windows.call import Call
from mpired.windows.fetched import laid_out
from mpired.windows.request import Done, Request
from mpired.windows.target import Filling, Policy, check_rewritten, looked_at, rewriting
from mpired.windows.transaction import Work, completed, tell_doubts


class Rehearsal(NamedTuple):
    """What a request would do."""

    request: Request  # the request
    done: Done  # what would be done
    windows: tuple[Seen, ...]  # the windows, as they are or would be made
    # the format of the old elements where they would go, their bytes, and whether these are certain; None for none
    fetched: tuple[str, int, bool] | None = None


class Seen:
    """A window that is looked at only, in the place of one that is locked.

    Parameters
    ----------
    name
        Its path.
    format
        The name of its format.
    windows
        Where the elements are.
    nbytes
        Bytes of the file.
    made
        Whether it would be made.
    like
        The file that it would be written like, if it has columns.
    """

    source = -1

    def __init__(
        self,
        name: str,
        form: str,
        windows: Sequence[FlatBuffer],
        nbytes: int,
        *,
        made: bool = False,
        like: Source | None = None,
    ) -> None:
        self.name = name
        self.format = form
        self.windows = windows
        self.nbytes = nbytes
        self.made = made
        self._like = like

    def rewriting(self) -> int:
        """Return about how many bytes are in memory at once when it is written."""
        return 0 if self._like is None else rewriting(self.format, self._like)

    def remembered(self) -> list[bytes]:
        """Return the keys of what was combined into it before."""
        return once.of_file(self.name)

    def begin(self, _changed_nbytes: int, _policy: Policy, /) -> Update:
        """Refuse to change it."""
        raise NotImplementedError


def rehearse(call: Call, fetch: str | None = None, to: str | None = None) -> Rehearsal:
    """Check a call as `Call.run` does, and return what it would do; old elements would go to `fetch`, in a format.

    Raises
    ------
    MpiredError, OSError
        As of `Call.run`, but not for want of a lock.
    """
    request, policy = call
    if len(set(calls.real_paths(request.windows))) < len(request.windows):
        raise UsageError("`windows`", "names one file twice; each window is a file of its own")
    with ExitStack() as stack:
        windows = tuple(_look(name, request, policy) for name in request.windows)
        whole = completed(request, windows)
        tell_doubts(whole, policy)
        work = Work(whole, policy, windows, stack)
        fetched = None if fetch is None else _fetched(fetch, to, work.fetched_model)
        return Rehearsal(whole, work.done(), windows, fetched)


def _fetched(path: str, to: str | None, model: Model) -> tuple[str, int, bool]:
    """Return what `Rehearsal` has of the old elements."""
    form, layout = laid_out(path, to, model, terminal=is_terminal(path))
    like = model.buffers[0]
    if isinstance(layout, FlatLayout):
        return form.name, layout.offset + like.count * layout.stored.itemsize, True
    return form.name, like.count * like.datatype.itemsize, False


def _look(name: str, request: Request, policy: Policy) -> Seen:
    """Look at a window, or at what it would be made of."""
    if request.create is not None and not os.path.exists(name):
        check_new([name], overwrite=False)
        check_reaches(name)
        return _made(name, request.create)
    status = recovered_status(name, name)
    calls.let_go(calls.open_existing(os.path.realpath(name), name, writable=request.op.origin))
    check_reaches(name)
    file = looked_at(LocalSource.of_status(name, name, status), request.declared)
    flat, like = changed_there(file), None
    if not flat:
        check_rewritten(name, file.format, policy)
        flat, like = _decoded(file.source, file.buffers), file.source
    return Seen(name, file.format, flat, status.st_size, like=like)


def _made(name: str, filling: Filling) -> Seen:
    """Return a window that would be made."""
    row, source = filling.row(name), LocalSource(name, name, (0, 0, 0, 0))
    if not row.is_flat:
        columns = _decoded(source, filling.model.buffers)
        nbytes = sum(each.count * each.stored.itemsize for each in columns)
        return Seen(name, row.name, columns, nbytes, made=True, like=filling.model.source)
    window, layout = filling.flat(row, source)
    nbytes = layout.offset + window.count * layout.stored.itemsize
    window = window._replace(source=LocalSource(name, name, (0, 0, nbytes, 0)))
    return Seen(name, row.name, (window,), nbytes, made=True)


def _decoded(source: Source, columns: Sequence[BufferModel | RankBuffer]) -> list[FlatBuffer]:
    """Return columns as native elements, which are nowhere."""
    return [
        FlatBuffer(
            source,
            each.datatype,
            each.count,
            each.datatype.form,
            0,
            (each.count,) if each.shape is None else each.shape,
            each.fortran_order,
            name=each.name,
        )
        for each in columns
    ]
