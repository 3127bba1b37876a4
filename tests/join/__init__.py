"""Joining, killed at every step and given every kind of bad input."""
