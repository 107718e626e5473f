"""Questions about files that change nothing."""
