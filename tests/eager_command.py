"""The command, for which little data is enough to be sent to workers, in small blocks: python eager_command.py WORDS"""

import sys

import mpired.__main__
from mpired.collectives import fold, plan

SIZES = dict.fromkeys(("_BLOCK_BYTES", "_STREAMED_BLOCK_BYTES", "_REOPENING_BLOCK_BYTES"), 4096)
SIZES |= {"SMALL_NBYTES": 0, "_RETURNED_BYTES": 1 << 17}


def make_all_large() -> None:
    """Let any file be large enough for workers."""
    for name, nbytes in SIZES.items():
        setattr(plan, name, nbytes)


if __name__ == "__main__":
    make_all_large()
    fold.__dict__["_SENT_BYTES"] = 1 << 16  # of workers, too
    fold.__dict__["PERIOD"] = 0
    sys.argv[0] = "mpired"
    mpired.__main__.run()
