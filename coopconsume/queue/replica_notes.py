"""Which log each replica of a queue has, as the replicas note it for each other. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from coopconsume.queue.replica import ReplicaState


def replica_notes(
    states: Sequence[ReplicaState],
    found: Mapping[int, str],
    former: Mapping[int, str],
    readable: Iterable[int],
) -> dict[int, dict[int, tuple[str, str]]]:
    """Return what replicas do not note yet: by replica and number, the identity before and now.

    Args:
        states: The replicas.
        found: The identities of the logs that are there.
        former: Identities that are noted outside of the logs.
        readable: The replicas whose logs were read up to their ends.
    """
    rows: dict[int, dict[int, tuple[str, str]]] = {}
    for replica in readable:
        for number, identity in found.items():
            known = states[replica].replicas.get(number)
            before = _known(states, number, former) if known is None else known[0]
            if known is None and before == identity:
                before = ""
            if known is None or before != identity:
                rows.setdefault(replica, {})[number] = before, identity
    return rows


def _known(states: Iterable[ReplicaState], number: int, former: Mapping[int, str]) -> str:
    noted = [state.replicas[number][0] for state in states if number in state.replicas]
    return noted[0] if noted else former.get(number, "")


def times_replaced(
    states: Iterable[ReplicaState], found: Mapping[int, str], former: Mapping[int, str], number: int
) -> tuple[int, bool]:
    """Return how often the log of a replica was replaced, and whether no replica notes it yet."""
    states = list(states)
    times = max((s.replicas[number][1] for s in states if number in s.replicas), default=0)
    before, now = _known(states, number, former), found.get(number, "")
    is_news = bool(before and now and before != now)
    return times + is_news, is_news
