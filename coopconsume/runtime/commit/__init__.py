"""Commits what is done: one append to the commit log, its outputs, its state, offsets in Kafka."""
