"""Texts that mean datatypes."""
