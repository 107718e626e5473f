"""Rules for values that a user chooses: overflow, NaN and missing elements, precision, weights."""

from __future__ import annotations

from typing import NamedTuple

from mpired.datatypes import Datatype
from mpired.datatypes.times import dtype_name


class Rules(NamedTuple):
    """The rules of a row of the table of ops."""

    # what a result is that its datatype cannot hold: "warn" of it, "wrap" as if it were expected, or "error"
    overflow: str = "warn"
    # whether a NaN makes the result one, is left out, or is treated as the kernels of MPI's libraries do
    nan: str = "propagate"
    nulls: str = "error"  # whether a null is an error, is left out, or makes the result null
    missing: float | int | None = None  # the elements with this value are left out; None for none
    within: Datatype | None = None  # the datatype that is computed in, if it is not that of the elements
    result: Datatype | None = None  # the datatype of the results, if it is not the usual one
    exact: bool = False  # whether sums are rounded once
    ddof: int = 0  # subtracted from the number of ranks in the divisor of a variance
    weights: tuple[float, ...] = ()  # what each rank's elements are multiplied with in a mean; empty for 1 each
    quantile: float | None = None  # which quantile is wanted; None for the median
    # whether elements of a window are combined with an origin's, and nothing is kept of earlier ones
    window: bool = False

    def summary(self) -> tuple[str, ...]:
        """Return the chosen rules in words for the summary of a call, except that for NaN."""
        words = {
            f"at {self.quantile}": self.quantile is not None,
            {"wrap": "overflow expected", "error": "overflow refused"}.get(self.overflow, ""): self.overflow != "warn",
            f"{self.missing} is missing": self.missing is not None,
            f"computed in {_name(self.within)}": self.within is not None,
            f"converted to {_name(self.result)}": self.result is not None,
            {"ignore": "nulls left out", "propagate": "nulls propagate"}.get(self.nulls, ""): self.nulls != "error",
            "rounded once": self.exact,
            f"ddof {self.ddof}": self.ddof > 0,
            "weighted": bool(self.weights),
        }
        return tuple(word for word, chosen in words.items() if chosen)

    @property
    def leaves_out(self) -> bool:
        """Whether some elements may be left out."""
        return self.nan == "ignore" or self.nulls != "error" or self.missing is not None


def _name(datatype: Datatype | None) -> str | None:
    return None if datatype is None else dtype_name(datatype) or str(datatype)
