"""Datatypes as text: the parser, and files of definitions."""
