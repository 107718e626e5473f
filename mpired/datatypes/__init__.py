"""What an element is: the predefined MPI datatypes."""

from mpired.datatypes.datatype import Datatype, Group
from mpired.datatypes.grammar import DATATYPES, agrees, from_dtype, parse

__all__ = ["DATATYPES", "Datatype", "Group", "agrees", "from_dtype", "parse"]
