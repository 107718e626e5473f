"""Where bytes come from: files of this machine, streams, and what is compressed in either."""
