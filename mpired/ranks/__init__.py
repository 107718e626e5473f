"""The ranks of a call: the expansion of arguments to files, their order, and the checks that they fit together."""
