"""`python -m mpired`, the same as the command."""

import sys

# `-m` puts the working directory first, where data and anything else may lie: a numpy.py there is not NumPy.
if not sys.flags.safe_path:
    sys.path.pop(0)

from mpired.cli import main

main()
