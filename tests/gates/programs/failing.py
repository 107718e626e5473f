"""Run the command on a disk that cannot sync folders (`disk`), or with a bug (`bug`): failing.py HOW ARGUMENTS..."""

import errno
import os
import stat
import sys

from mpired.cli import main

how, words = sys.argv[1], sys.argv[2:]
sync = os.fsync


def broken(*_arguments):
    raise RuntimeError("a bug")


def of_files_only(descriptor):
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    sync(descriptor)


if how == "bug":
    os.preadv = os.fsync = broken
else:
    os.fsync = of_files_only
sys.exit(main(words))
