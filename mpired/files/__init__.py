"""The only rooms that write to the file system."""
