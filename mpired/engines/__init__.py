"""Who runs the segments."""
