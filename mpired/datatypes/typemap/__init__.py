"""Type maps: which bytes an element is made of, and what is done with these (MPI-4.1, 5.1)."""
