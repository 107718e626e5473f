"""Type maps: the bytes of an element, and their transfer (MPI-4.1, 5.1)."""
