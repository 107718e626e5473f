"""Queries that may draw a picture: what they share, and the module that draws."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from mpired.context import Context
from mpired.errors import UsageError, installation
from mpired.files import calls
from mpired.files.lock import NOTHING_HELD, Held
from mpired.files.names import check_are_data
from mpired.files.output import open_output
from mpired.formats import RankFile, Source
from mpired.options import Options
from mpired.sources.open import check_no_input, check_no_other_input


@dataclass
class Query(ABC):
    """A question about files that has passed all checks."""

    files: Sequence[RankFile]
    png: str | None  # where a picture goes

    @property
    def sources(self) -> list[Source]:
        """All that is read."""
        return [source for file in self.files for source in file.sources]

    @property
    def paths(self) -> list[str]:
        """The path of the picture."""
        return [] if self.png is None else [self.png]

    @abstractmethod
    def answer(self, context: Context) -> bytes | None:
        """Read the files, which have not changed meanwhile; return the picture, if one is wanted."""

    def run(self, context: Context, *, overwrite: bool = False, held: Held = NOTHING_HELD) -> None:
        """Answer, and commit the picture; `held` has the file that it replaces."""
        picture = self.answer(context)
        if self.png is not None and picture is not None:
            with open_output(self.png, overwrite=overwrite, context=context, held=held) as output:
                with calls.errors_name(output.name):
                    calls.pwrite_all(output.fd, picture, 0)
                output.commit(context.on_commit)


def check_picture(png: str | None) -> None:
    """Raise `UsageError` if a picture of that name cannot be made."""
    if png is None:
        return
    check_are_data([png])
    if os.path.splitext(png)[1].lower() != ".png":
        raise UsageError("`png`", f"{png} is not the name of a PNG picture; write NAME.png")
    drawing()


def check_replaces_none(png: str | None, files: Sequence[RankFile], options: Options) -> None:
    """Raise `UsageError` if a picture would replace a file that is read."""
    if png is not None:
        check_no_input(
            [png], [(source, "the elements") for file in files for source in file.sources], "name another picture"
        )
        check_no_other_input([png], [(options["types"], "the named datatypes")])


def drawing() -> ModuleType:
    """Return the module that draws, or raise `UsageError` if matplotlib is not installed."""
    # It says on standard error when it makes its list of fonts, and where it keeps that.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        from mpired.queries import drawing as module  # noqa: PLC0415 - seldom needed, and slow
    except ImportError as error:
        reason = f"needs matplotlib, which cannot be imported ({error}); install it with {installation('mpired[plot]')}"
        raise UsageError("`png`", reason) from None
    return module
