"""Files whose elements are of derived types, packed and unpacked (MPI-4.1, 5.2)."""
