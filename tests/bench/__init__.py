"""Benchmarks: coopconsume and what one would do without it, in turn, in one run."""
