"""Records of an integer and a double with junk between, and the datatype of the double."""

import numpy as np

CELL = "resized(0,24,struct([1],[8],[double]))"


def records(count=5):
    """Return records of 24 bytes: an int at 0, a double at 8, and junk between."""
    form = np.dtype({"names": ["i", "d"], "formats": ["<i4", "<f8"], "offsets": [0, 8], "itemsize": 24})
    block = np.frombuffer(bytearray(range(24)) * count, form)  # a copy would lose what lies between
    block["i"], block["d"] = np.arange(count) * 3, np.arange(count) / 4
    return block
