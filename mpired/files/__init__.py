"""Changes of the file system: system calls, transactions, locks, the redo log, recovery; requests to object stores."""
