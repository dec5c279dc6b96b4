"""Failures of records, workers, slots and batches, and what follows from them for later batches."""
