"""A process that commits to a table until it is killed, and writes down all answers.

``python -m tests.chaos.store_writer TABLE LOGBOOK MEMBER SEED``
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from commits import CommitStore, CommitStoreError, Epoch, EpochConflict, FencedMember

if TYPE_CHECKING:
    from collections.abc import Callable

MEMBERS = ("a", "b", "c", "d")
PARTITIONS = (("t", 0), ("t", 1))


def main(table: str, logbook: str, member: str, seed: int) -> None:
    """Commit, open epochs and write snapshots in turn, for ever."""
    source = random.Random(seed)
    with Path(logbook).open("a", buffering=1) as book:

        def report(what: str, **more: object) -> None:
            book.write(json.dumps({"what": what, "member": member, **more}) + "\n")

        store = CommitStore.open(table, snapshot_commits=12)
        epoch = store.current_epoch("g")
        for number in itertools.count():
            if epoch is None or source.random() < 0.05:
                try:
                    epoch = lead(store, member, report)
                except CommitStoreError as error:
                    if not error.retriable:
                        raise
                    report("failed", error=str(error))
                continue
            at = source.choice(PARTITIONS)
            first = source.randrange(10_000)
            last = first + source.randrange(5)
            commit_id = f"{seed}-{number}"
            ours = {"id": commit_id, "at": at, "first": first, "last": last}
            report("try", **ours)
            try:
                store.commit("g", epoch, member, {at: [(first, last)]},
                             commit_id=commit_id, too_old="report")  # fmt: skip
            except FencedMember:
                report("fenced", **ours)
                epoch = store.current_epoch("g")
            except CommitStoreError as error:
                report("failed", error=str(error), **ours)
            else:
                report("acknowledged", epoch=epoch.number, nonce=epoch.nonce, **ours)


def lead(store: CommitStore, member: str, report: Callable[..., None]) -> Epoch | None:
    """Open the next epoch; give back the one in force."""
    previous = store.current_epoch("g")
    try:
        epoch = store.open_epoch(
            "g", {name: list(PARTITIONS) for name in MEMBERS}, previous=previous, member=member
        )
    except EpochConflict:
        return store.current_epoch("g")
    report("opened", epoch=epoch.number, nonce=epoch.nonce)
    return epoch


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
