"""The counts of ranks that do not say it: a stream of raw elements has as many as the others, or ends with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mpired.formats import Array, InputOptions, RankFile, format_named
from mpired.formats.array import has_unknown_length, with_stored
from mpired.ranks import compare

_Groups = tuple[tuple[RankFile, ...], ...]


def labelled(groups: Sequence[Sequence[RankFile]]) -> Iterator[tuple[str, RankFile]]:
    """Yield all ranks, each with its number in words and, of two groups, the name of its group."""
    names = ["rank {} of group A", "rank {} of group B"] if len(groups) > 1 else ["rank {}"]
    for name, files in zip(names, groups, strict=True):
        for rank, file in enumerate(files):
            yield name.format(rank), file


def counted(groups: _Groups, inputs: InputOptions, *, may_stay_open: bool) -> _Groups:
    """Give ranks whose end is not known the count of the others."""
    # If there is none, they stay as they are if they may: the call then goes on to their end. Else they are read to
    # their end first.
    unknown = [has_unknown_length(file.buffers) for files in groups for file in files]
    if not any(unknown) or (all(unknown) and may_stay_open):
        return groups
    ranks = list(labelled(groups))
    if all(unknown):
        given = iter([format_named(file.format).inspect(file.source.kept(), inputs) for _, file in ranks])
        return counted(tuple(tuple(next(given) for _ in files) for files in groups), inputs, may_stay_open=False)
    known = ranks[unknown.index(False)]
    for what, file in ranks:
        compare(what, file, known, inputs.op)
    pairs = zip(ranks, unknown, strict=True)
    given = iter([_like(what, file, known) if is_unknown else file for (what, file), is_unknown in pairs])
    return tuple(tuple(next(given) for _ in files) for files in groups)


def _like(what: str, file: RankFile, known: tuple[str, RankFile]) -> RankFile:
    """Return a rank with the count of the one that is known."""
    like = what, f"{known[0]} ({known[1].source.name!r})"

    def given(buffer: Array) -> Array:
        return buffer._replace(count=known[1].buffers[0].count, like=like)

    return file._replace(buffers=tuple(with_stored(buffer, given) for buffer in file.buffers))
