"""In the place of pandas, which pyarrow loads where it is installed: it takes memory that mpired does not use."""

raise ImportError("pandas is left out")
