"""Collectives: one fold, and the calls that select its partial results."""
