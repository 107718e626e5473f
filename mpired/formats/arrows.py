"""Arrow IPC streams: what an Arrow IPC file has between its magic and its footer."""

from mpired.formats.arrow import inspect, note
from mpired.formats.arrow import prepare_stream as prepare

__all__ = ["inspect", "note", "prepare"]
