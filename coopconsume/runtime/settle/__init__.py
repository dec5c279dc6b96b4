"""Settles what slots report: crashes, failures, and what a slot keeps for its next batch."""
