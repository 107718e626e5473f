"""The Python API: the functions and classes that `mpired` exports."""
