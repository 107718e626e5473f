"""Engines: pools of workers that run the segments of a plan."""

from mpired.engines.table import ENGINES, LOCAL, Engine, Limits, connected, launched

__all__ = ["ENGINES", "LOCAL", "Engine", "Limits", "connected", "launched"]
