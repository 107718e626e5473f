"""Existing files as windows that others combine their data into (MPI-4.1, 12.3)."""
