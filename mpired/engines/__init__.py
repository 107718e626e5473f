"""Engines: they run the segments in workers."""

from mpired.engines.table import ENGINES, LOCAL, Engine, Limits, connected, launched

__all__ = ["ENGINES", "LOCAL", "Engine", "Limits", "connected", "launched"]
