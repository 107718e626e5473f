"""Who runs the segments."""

from mpired.engines.table import ENGINES, LOCAL, Engine, Limits, Link, chosen, launched, usual

__all__ = ["ENGINES", "LOCAL", "Engine", "Limits", "Link", "chosen", "launched", "usual"]
