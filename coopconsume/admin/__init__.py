"""Operator functions for a group: status, offsets, dead letters, SQL views and pictures."""
