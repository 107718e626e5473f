"""Who runs the segments."""

from mpired.engines.table import ENGINES, LOCAL, Engine, Limits, Link, connected, launched

__all__ = ["ENGINES", "LOCAL", "Engine", "Limits", "Link", "connected", "launched"]
