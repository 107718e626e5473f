"""Arrow IPC streams: what an Arrow IPC file has between its magic and its footer."""

import functools

from mpired.formats import arrow

import pyarrow as pa  # isort: skip - after arrow, which sets it up

inspect, note = arrow.inspect, arrow.note
prepare = functools.partial(arrow.prepare, new=pa.ipc.new_stream)
