"""Run a command while this process holds the lock of a file: locked.py FILE COMMAND..."""

import fcntl
import struct
import subprocess
import sys

with open(sys.argv[1], "r+b") as file:
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
    sys.exit(subprocess.run(sys.argv[2:], check=False).returncode)
