"""Datatypes of the two sides of a request: all basic components of one predefined type (MPI-4.1, 12.3.4)."""

from __future__ import annotations

from mpired.datatypes import DATATYPES, Datatype, Group, value_index
from mpired.datatypes.typemap import TypeMap
from mpired.errors import DatatypeError

_NAMED = {row.name: row for row in DATATYPES}
_NAMED_PAIRS = {tuple(part.name for part in row.parts): row for row in DATATYPES if row.parts}


def component_of(datatype: Datatype) -> Datatype | None:
    """Return the predefined datatype that all components of a datatype are; a pair counts as one component.

    None if it has no components: with such a type a call does nothing.

    Raises
    ------
    DatatypeError
        If they are of several.
    """
    if datatype.structure is None and datatype.group is not Group.DERIVED:
        return datatype
    leaves = _leaves(datatype.typemap)
    if not leaves:
        return None
    if len(leaves) > 1:
        found = ", ".join(sorted("+".join(leaf) for leaf in leaves))
        reason = f"has components of {len(leaves)} types ({found}); all have to be of one (MPI-4.1, 12.3.4)"
        raise DatatypeError(f"{datatype}", reason)
    names = tuple(name.upper() for name in leaves.pop())
    if len(names) == 1:
        return _NAMED[names[0]]
    pair = _NAMED_PAIRS.get(names) or value_index(*(_NAMED[name] for name in names))
    assert pair is not None  # noqa: S101 - there is a datatype that has it
    return pair


def _leaves(typemap: TypeMap) -> set[tuple[str, ...]]:
    components = (of for of in typemap.inside(lambda of: of.is_component) if of.is_component)
    return {tuple(entry.name for entry in of.walk()) for of in components}
