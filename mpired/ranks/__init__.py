"""The words of a call as ranks, in order, and what all of them must have in common."""
