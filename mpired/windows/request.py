"""A request: the origins, the elements of windows that they are combined into; and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mpired import ops
from mpired.datatypes import Datatype
from mpired.errors import MpiredWarning, OverflowWarning, SkippedWarning
from mpired.formats import InputOptions, Model
from mpired.formats.decoding import Decoder
from mpired.ranks import Skipped
from mpired.windows.once import Key
from mpired.windows.origin import Origin
from mpired.windows.placement import NO_ORIGIN, Given, Placement


class Filling(NamedTuple):
    """Initial content of a new target."""

    elements: Sequence[np.ndarray]  # for each array of the model an array of one element
    model: Model
    like: str = ""  # the format, if the target is like the whole file that is the source of the model


@dataclass(frozen=True)
class WindowRequest:
    """A call on windows that has passed all checks that need no lock."""

    windows: Sequence[str]  # the files, one a rank of the window
    op: ops.Op
    inputs: InputOptions  # options that describe the files
    placement: Placement
    commit: str = "auto"  # "rename", "journal" or "auto"
    durable: bool = True  # whether the disk has to confirm a change
    origins: Sequence[Sequence[Origin]] = ()  # the arrays of each, of which a file with columns has several
    whole: bool = False  # whether the origins are whole files
    given: Given = NO_ORIGIN  # if no origin is read
    keys: Mapping[Key, Sequence[int]] = field(default_factory=dict)  # to remember, each with the numbers of its origins
    fetch: bool = False  # whether the old elements are returned
    create: Filling | None = None  # for targets that are missing
    expected: np.ndarray | None = None  # the element that there has to be, or nothing changes (MPI_Compare_and_swap)
    decoder: Decoder = field(default_factory=Decoder)
    # returns it with its elements, when the datatype of the windows is known; `None` if it has them
    complete: Callable[[WindowRequest, Datatype], WindowRequest] | None = None
    doubts: Sequence[MpiredWarning] = ()
    within: Datatype | None = None  # the datatype of the windows, if origins may have others that it holds

    @property
    def all_origins(self) -> list[Origin]:
        """The arrays of all origins."""
        return [origin for arrays in self.origins for origin in arrays]

    @property
    def formats(self) -> set[str]:
        """The formats of the origins."""
        return {origin.format for origin in self.all_origins if origin.format}


class Done(NamedTuple):
    """The result of a request."""

    op: ops.Op
    protocols: tuple[str, ...]  # for each window how it was changed; "" if it was not
    datatypes: tuple[Datatype, ...]  # of the elements of each array
    entries: tuple[int, ...]  # elements that each origin gave, of each array
    skipped: tuple[str, ...] = ()  # the names of the origins that had been applied before
    fetched: np.ndarray | None = None  # the old elements
    model: Model | None = None  # of these
    nbytes: tuple[int, ...] = ()  # for each window about how many bytes were read and written for its elements
    cautions: tuple[MpiredWarning, ...] = ()  # collected by a command
    origins: tuple[str, ...] = ()  # the names of all origins that can be used

    @property
    def bad(self) -> list[Skipped]:
        """The origins that are left out because they cannot be used."""
        return [each for warning in self.cautions if isinstance(warning, SkippedWarning) for each in warning.skipped]

    @property
    def overflow(self) -> list[OverflowWarning]:
        """The warnings of overflow."""
        return [each for each in self.cautions if isinstance(each, OverflowWarning)]
