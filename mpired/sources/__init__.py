"""Sources of bytes: files of this machine, streams, compressed files, directories and objects of stores."""
