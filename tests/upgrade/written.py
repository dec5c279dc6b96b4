"""Writes and continues tables by the code of any version, and notes what it reads from them.

    PYTHONPATH=SOURCES python tests/upgrade/written.py FOLDER           # writes the table
    PYTHONPATH=SOURCES python tests/upgrade/written.py FOLDER --go-on   # continues it

The commit table is ``FOLDER/commits``, the state of one group ``FOLDER/state``. What is read before
and after is in ``FOLDER/read.json``: so one version is compared with another. It uses what all
versions have; what one has not, it leaves out. The groups, in the cluster ``c``:

- ``plain``: gaps, a failed and a parked record, a member that is fenced, a repeated commit; a state
  with changes before and after a snapshot, and with changes of a commit that does not count;
- ``claimed``: an epoch, and a claim on half of a partition beside it;
- ``chunks``: chunks of a cooperative epoch, one of them acknowledged in part;
- ``reset``: an operator's offset, and ranges above the log's start, cut at its end.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

from assignors import key_hash
from commits import CommitStore, CommitStoreError, Pending

P0, P1 = ("orders", 0), ("orders", 1)
LOW, HIGH = (0, 2**62 - 1), (2**62, 2**63 - 1)
IDS = {"orders": "topic-id"}
GROUPS = ("plain", "claimed", "chunks", "reset")
FAR = 10**10  # the first version has its ranges within 2**36
PARKED_MS = 2**63 - 1
DUE_MS = 1_795_000_000_000


def main(folder: Path, *, goes_on: bool) -> None:
    """Write or continue the table, and note what it had and what it has."""
    folder.mkdir(parents=True, exist_ok=True)
    store = CommitStore.open(folder / "commits", cluster="c")
    state = open_state(folder)
    before = read(store, state)
    if goes_on:
        go_on(store, state)
    else:
        write(store, state)
    found = json.dumps({"before": before, "after": read(store, state)})
    (folder / "read.json").write_text(f"{found}\n")


def open_state(folder: Path) -> Any:
    """Return the changelog of the state of ``plain``; None: this version has no states."""
    try:
        changes = import_module("coopconsume.state.changelog")
        schema = import_module("coopconsume.state.schema").StateSchema(pa.int64())
    except ModuleNotFoundError:
        return None
    changelog = changes.Changelog(str(folder / "state"), schema)
    changelog.belong_to("c/plain")
    return changelog


def read(store: CommitStore, state: Any) -> dict[str, Any]:
    """Return what a version reads of each group and of the state, in words of JSON."""
    found = {group: _read(store, group) for group in GROUPS}
    if state is not None:
        counts = set(store.counted_commits("plain")).__contains__
        found["state"] = {key: state.value(_origin(), key.encode(), counts) for key in ("k1", "k2")}
    return found


def _read(store: CommitStore, group: str) -> dict[str, Any]:
    row = store.assignment(group)
    chunks = store.acquisitions(group) if hasattr(store, "acquisitions") else {}
    return {
        "partitions": {
            f"{topic}-{partition}": [commits.stable_offset, [list(each) for each in commits.ranges]]
            for (topic, partition), commits in sorted(store.state(group).items())
        },
        "pending": {
            f"{topic}-{partition}@{offset}": [p.key_hash, p.attempts, p.due_ms, p.error]
            for (topic, partition), records in sorted(store.pending(group).items())
            for offset, p in sorted(records.items())
        },
        "epoch": row and [row.epoch.number, row.epoch.nonce, sorted(row.members)],
        "claims": [[c.epoch.number, sorted(c.members)] for c in store.claims(group)],
        "counted": sorted(store.counted_commits(group)),
        "chunks": {
            f"{topic}-{partition}": [[c.member, [list(each) for each in c.offsets]] for c in held]
            for (topic, partition), held in sorted(chunks.items())
        },
    }


def _origin() -> Any:
    return import_module("coopconsume.state.changelog").Origin("topic-id", 0)


def change_state(store: CommitStore, state: Any, *changes: tuple[str, int, int, str]) -> None:
    """Change the state of keys, each by key, offset, value and commit; then write a snapshot."""
    origin = _origin()
    columns = [
        {"key": key.encode(), "value": value, "expires_at": None, "_topic": "orders",
         "_topic_id": origin.topic_id, "_partition": 0, "_offset": offset,
         "_key_hash": key_hash(key.encode()), "_commit": commit}
        for key, offset, value, commit in changes
    ]  # fmt: skip
    state.create()
    state.append(pa.Table.from_pylist(columns, state.schema.changelog))
    counts = set(store.counted_commits("plain")).__contains__
    state.write_snapshot(origin, state.version, counts)


def write(store: CommitStore, state: Any) -> None:
    """Write all groups, with a snapshot, and a commit after it."""
    _plain(store)
    if state is not None:
        change_state(store, state, ("k1", 43, 1, "a-1"), ("k1", 45, 9, "late-1"))
        change_state(store, state, ("k1", 50, 2, "a-1"), ("k2", 47, 5, "b-1"))
    _claimed(store)
    if hasattr(store, "acquire"):
        _chunks(store)
    _reset(store)
    store.compact()
    row = store.assignment("plain")
    assert row is not None
    store.commit("plain", row.epoch, "a", {P1: [(FAR + 4, FAR + 4)]}, commit_id="a-3")


def go_on(store: CommitStore, state: Any) -> None:
    """Have each group go on under a new epoch, and commit something of each partition."""
    for group in GROUPS:
        row = store.assignment(group)
        if row is None:
            continue
        number = row.epoch.number + 1
        member = f"m{number}"
        if group == "chunks":
            _acquire_more(store, row.epoch, member, number)
            continue
        shares: dict[str, list[Any]] = {member: [(*P0, *HIGH) if group == "claimed" else P0, P1]}
        epoch = store.open_epoch(group, shares, previous=row.epoch, topic_ids=IDS)
        done = {P0: [(200 + number, 200 + number)]}
        store.commit(group, epoch, member, done, commit_id=f"{member}-1")
        if state is not None and group == "plain":
            change_state(store, state, ("k2", 200 + number, 200 + number, f"{member}-1"))
    store.compact()


def _acquire_more(store: CommitStore, previous: Any, member: str, number: int) -> None:
    from commits import AcquireRequest, Wanted

    shares = {member: [P0], "b": [P0]}
    epoch = store.open_epoch(
        "chunks", shares, previous=previous, topic_ids=IDS, sharing="cooperative"
    )
    request = AcquireRequest(f"{member}-take", {P0: Wanted(2, 99)})
    got = store.acquire("chunks", epoch, member, request)
    first = got[P0].first
    assert first is not None
    store.commit("chunks", epoch, member, {P0: [(first, first)]}, commit_id=f"{member}-{number}")


def _plain(store: CommitStore) -> None:
    old = store.open_epoch("plain", {"a": [P0, P1]}, previous=None, topic_ids=IDS)
    store.start("plain", old, "a", {P0: 40, P1: FAR})
    gaps = {P0: [(43, 45), (50, 50)], P1: [(FAR + 2, FAR + 2)]}
    store.commit("plain", old, "a", gaps, commit_id="a-1")
    store.commit("plain", old, "a", gaps, commit_id="a-1")
    failed = [Pending(40, 7, 2, DUE_MS, "late"), Pending(41, 8, 5, PARKED_MS, "bad")]
    store.commit("plain", old, "a", {}, pending={P0: failed}, commit_id="a-2")
    shares: dict[str, list[Any]] = {"a": [(*P0, *LOW), P1], "b": [(*P0, *HIGH)]}
    new = store.open_epoch("plain", shares, previous=old, topic_ids=IDS)
    store.commit("plain", new, "b", {P0: [(47, 47)]}, holes={P0: [(48, 49)]}, commit_id="b-1")
    try:
        store.commit("plain", old, "a", {P1: [(FAR, FAR)]}, commit_id="late-1")
    except CommitStoreError:
        return
    raise AssertionError("a commit under an old epoch counts")


def _claimed(store: CommitStore) -> None:
    epoch = store.open_epoch("claimed", {"a": [P0, P1]}, previous=None, topic_ids=IDS)
    store.commit("claimed", epoch, "a", {P0: [(1, 2)]}, commit_id="a-1")
    claim = store.claim("claimed", "z", [(*P0, *LOW)], takeover=True, topic_ids=IDS)
    store.commit("claimed", claim, "z", {P0: [(0, 0), (5, 6)]}, commit_id="z-1")
    shares = {"a": [(*P0, *HIGH), P1]}
    store.open_epoch("claimed", shares, previous=epoch, topic_ids=IDS)


def _chunks(store: CommitStore) -> None:
    from commits import AcquireRequest, Wanted

    shares = {"a": [P0], "b": [P0]}
    epoch = store.open_epoch("chunks", shares, previous=None, topic_ids=IDS, sharing="cooperative")
    store.start("chunks", epoch, "a", {P0: 0})
    for member, count in (("a", 10), ("b", 5)):
        request = AcquireRequest(f"{member}-take", {P0: Wanted(count, 99)})
        store.acquire("chunks", epoch, member, request)
    store.commit("chunks", epoch, "a", {P0: [(0, 3), (6, 6)]}, commit_id="a-1")


def _reset(store: CommitStore) -> None:
    store.reset("reset", {P0: 100})
    epoch = store.open_epoch("reset", {"a": [P0]}, previous=None, topic_ids=IDS)
    store.commit("reset", epoch, "a", {P0: [(104, 108), (110, 130)]}, commit_id="a-1")
    store.truncate("reset", epoch, "a", {P0: 120})
    store.log_start("reset", epoch, "a", {P0: 102})
    store.set_setting("maxNumRanges", 5, topic="orders")


if __name__ == "__main__":
    main(Path(sys.argv[1]), goes_on="--go-on" in sys.argv)
