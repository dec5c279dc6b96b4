"""How the members of an epoch share partitions."""

from __future__ import annotations

COOPERATIVE = "cooperative"
"""The sharing of an epoch whose members acquire chunks of whole partitions."""
