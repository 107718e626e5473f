"""The Python API: what `mpired` exports."""
