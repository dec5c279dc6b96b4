"""Spans of offsets that Spark reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Offsets ``first`` to ``last``, both included, of one partition."""

    topic: str
    partition: int
    first: int
    last: int
