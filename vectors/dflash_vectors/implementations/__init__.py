"""Implementations that this package brings along, reached in Python mode."""
