"""One-sided calls on files: accumulate, and the calls that fetch old elements (MPI-4.1, 12.3)."""
