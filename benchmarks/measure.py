"""Runs one command and prints what it took, as JSON: seconds, seconds of processors, peak RSS in KiB, exit status.

    python -I -S measure.py DESCRIPTORS COMMAND...

The processors are those of the command and all it waited for; the peak is that of the largest process
among these. A process inherits the peak of the one that started it, so this one imports almost nothing:
its own 10 MB are the least that can be shown. DESCRIPTORS limits the open files (`ulimit -n`); 0 leaves
the limit alone.
"""

import json
import os
import resource
import sys
import time


def main() -> None:
    """Run the words of the command line."""
    limit, *words = sys.argv[1:]
    if int(limit):
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit), int(limit)))
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    started = time.perf_counter()
    process = os.posix_spawnp(words[0], words, os.environ, file_actions=quiet)
    _, status, usage = os.wait4(process, 0)
    seconds = time.perf_counter() - started
    print(json.dumps([seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss, os.waitstatus_to_exitcode(status)]))


if __name__ == "__main__":
    main()
