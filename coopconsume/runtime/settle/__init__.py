"""Settles what failed: crashed workers, lost slots, failed batches, and records that failed."""
