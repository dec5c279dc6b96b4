"""Ordering keys: the option, its SQL, what a slot makes of it, and the agreement of a group."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from assignors import key_hash
from assignors.ranges import offset_hash
from commits import CommitStore, OffsetRanges, Pending
from commits.model import PARKED_MS
from coopconsume.admin.dead_letters.actions import REPLAY_OF, _replayed
from coopconsume.admin.offsets.document import read_document, write_document
from coopconsume.admin.offsets.moves import Kept
from coopconsume.admin.offsets.status import PartitionStatus
from coopconsume.admin.overview.data import plain
from coopconsume.cli.offset_documents import status_document
from coopconsume.errors import InvalidOption, StateNeedsKey
from coopconsume.group.owned import Failed
from coopconsume.kafka.blocker_records import BlockerRecord
from coopconsume.options import Options
from coopconsume.record import (
    ORDERING_KEY,
    Reject,
    Retry,
    checked_headers,
    ordering_key_of,
    shown_key,
)
from coopconsume.runtime.commit.parcels import Parcel
from coopconsume.runtime.plan import Waiting
from coopconsume.runtime.poll.retry_buffer import RetryBuffer
from coopconsume.runtime.read.expressions import ORDERING_COLUMN, key_column, needs_headers
from coopconsume.runtime.read.hashing import deal_hash_sql, key_hash_sql
from coopconsume.runtime.settle.failure_log import FailureLog
from coopconsume.state.changelog import Changelog
from coopconsume.state.slot_state import SlotState
from coopconsume.worker.report import DeadLetter
from tests.unit.state.test_state import LONG, record, spec
from tests.unit.worker.slot_harness import WAYS, run

BASE = {"kafka.bootstrap.servers": "a:1", "kafka.group.id": "g", "commitTable": "somewhere"}
MOST = 2**63 - 1


def options(**more):
    """Options of a consumer."""
    return Options.parse(BASE | more)


# -- the option and its SQL


def test_the_option_is_an_expression_that_depends_on_the_record_alone():
    """Else a record that is read again could have another key."""
    assert options().ordering_key is None
    assert options(orderingkey=" topic ").ordering_key == "topic"
    with pytest.raises(
        InvalidOption, match=r"orderingKey = 'uuid\(\)': it contains uuid: .* again"
    ):
        options(orderingKey="uuid()")
    with pytest.raises(InvalidOption, match="orderingKey = ' '"):
        options(orderingKey=" ")


def test_without_the_option_records_are_dealt_by_their_keys_as_ever():
    """The SQL is the same text; with it the column of ordering keys takes the place of the key."""
    hashed = "CASE WHEN key IS NOT NULL THEN xxhash64(key) ELSE xxhash64(`offset`) END"
    assert key_column(options()) == "key"
    assert deal_hash_sql(key_column(options())) == f"({hashed} & {MOST}L)"
    assert key_hash_sql("key") == f"CASE WHEN key IS NOT NULL THEN xxhash64(key) & {MOST}L END"
    column = key_column(options(orderingKey="topic"))
    assert column == ORDERING_COLUMN
    assert deal_hash_sql(column) == f"({hashed.replace('key', column)} & {MOST}L)"


@pytest.mark.parametrize(
    ("expression", "needed"),
    [("Headers[0].value", True), ("`headers`[0].value", True), ("'headers'", False), (None, False)],
)
def test_headers_are_read_where_the_expression_needs_them(expression, needed):
    """A text that has the word is no column."""
    assert needs_headers(expression) == needed


# -- in a slot


def rows(count, keys):
    """Rows of one partition, each with a key of its own, and headers with the ordering keys."""
    return (
        [(0, o, b"k%d" % o) for o in range(count)],
        [[("own", b"1"), (ORDERING_KEY, key)] for key in keys],
    )


@pytest.mark.parametrize("way", WAYS)
def test_failures_are_shown_by_ordering_key_and_letters_keep_key_and_hash(way):
    """A letter has the key of its record, and the hash that the record was dealt by."""

    def handler(found):
        assert found.key == b"k%d" % found.offset
        if found.offset == 0:
            raise Retry(reason="later", headers=found.headers)
        if found.offset == 1:
            raise Reject("no")

    some, headers = rows(3, [b"a", b"b", None])
    report = run(handler, some, headers=headers, has_ordering_keys=True, way=way)
    (failure,) = report.partitions[0].failed
    assert (failure.key, failure.headers) == (b"a", (("own", b"1"),))
    (letter,) = report.dead
    assert (letter.key, ordering_key_of(letter.headers)) == (b"k1", b"b")
    assert (letter.dealt_by, letter.added) == (b"b", ())
    assert letter.key_hash == hash(b"k1") & MOST  # as in the row
    (handled,) = Parcel(letters=[replace(letter, key_hash=7)]).records()["t", 10]
    assert (handled.key_hash, handled.key) == (7, b"b")


def test_without_the_option_a_header_of_that_name_is_one_of_many():
    """A job may read a topic of dead letters."""

    def handler(_):
        raise ValueError("no")

    some, headers = rows(1, [b"a"])
    report = run(handler, some, headers=headers)
    assert report.partitions[0].failed[0].key == b"k0"


def test_retry_does_not_change_the_ordering_key():
    """A handler may add all headers of its record."""
    assert checked_headers({ORDERING_KEY: b"x", "a": b"1"}) == (("a", b"1"),)


def test_state_belongs_to_the_ordering_key(tmp_path):
    """Records with different keys share it; one without an ordering key has none."""
    changelog = Changelog(str(tmp_path / "state"), LONG)
    slot = SlotState(replace(spec(changelog), has_ordering_keys=True), 0)
    seen = []

    def handler(found, state):
        seen.append((found.key, state.get()))
        state.set((state.get() or 0) + 1)

    def keyed(key, ordering_key, offset):
        return record(key, offset)._replace(headers=((ORDERING_KEY, ordering_key),))

    call = slot.wrapped(handler)
    change = call(keyed(b"k0", b"a", 0))
    assert change.key == b"a"
    change.pass_on(*change.left())
    call(keyed(b"k1", b"a", 1))
    assert seen == [(b"k0", None), (b"k1", 1)]
    with pytest.raises(StateNeedsKey):
        call(keyed(b"k2", None, 2))
    slot.close()


def test_a_replayed_record_has_no_old_ordering_key():
    """Its next read computes it."""
    headers = (("a", None), (ORDERING_KEY, b"x"))
    assert _replayed(headers, b"t-0@1") == (("a", None), (REPLAY_OF, b"t-0@1"))


# -- for people


def later(_):
    """Fails, and is tried again."""
    raise Retry(reason="later")


def rejects(_):
    """Fails, and is a dead letter."""
    raise Reject("no")


def blocker_of(failed, key, *, has_ordering_keys=True):
    """The blocker of a partition whose record 3 is not done, with the record's key."""
    status = PartitionStatus(
        "t", 0, "", 3, OffsetRanges(), {3: failed} if failed else {}, 0, 9,
        has_ordering_keys=has_ordering_keys,
    )  # fmt: skip
    return replace(status, record=BlockerRecord(is_there=True, key=key)).blocker


@pytest.mark.parametrize(
    ("key", "has_ordering_keys", "shown"),
    [
        (b"k", False, "k"),
        (b"other", True, f"other (record key; ordering key: hash {key_hash(b'k')})"),
        (None, True, f"ordering key: hash {key_hash(b'k')}"),
        (None, False, f"hash {key_hash(b'k')}"),
    ],
)
def test_a_blocker_whose_ordering_key_is_not_known_says_which_key_is_shown(
    key, has_ordering_keys, shown
):
    """Only Spark computes an ordering key; an imported record may have none in the log."""
    failed = Pending(3, key_hash(b"k"), 1, 0, "no")
    blocker = blocker_of(failed, key, has_ordering_keys=has_ordering_keys)
    assert blocker.shown_key == shown


def test_a_blocker_that_has_not_failed_says_that_its_ordering_key_is_not_known():
    """The log does not have it."""
    assert blocker_of(None, b"k").shown_key == "k (record key; ordering key not known)"
    assert blocker_of(None, b"k", has_ordering_keys=False).shown_key == "k"


@pytest.mark.parametrize(
    ("ordering_key", "shown"),
    [
        (b"customer-7", "customer-7 (ordering key; record key: k1)"),
        (b"\xff", "\\xff (ordering key; record key: k1)"),
        (None, "k1 (record key; no ordering key)"),
    ],
)
@pytest.mark.parametrize("is_former", [False, True])
def test_a_failed_blocker_is_shown_by_its_ordering_key_without_spark(
    ordering_key, shown, is_former, tmp_path
):
    """The commit log has it, so that every display has it; former rows have it as a header."""
    store = CommitStore.open(tmp_path, cluster="c")
    epoch = store.open_epoch("g", {"m": [("t", 0)]}, previous=None)
    failed = Pending(3, offset_hash(3) if ordering_key is None else 7, 1, 0, "no")
    if is_former:
        failed = replace(failed, headers=((ORDERING_KEY, ordering_key),))
    else:
        failed = replace(failed, key=shown_key(ordering_key))
    store.commit("g", epoch, "m", {}, pending={("t", 0): [failed]})
    blocker = blocker_of(store.pending("g")["t", 0][3], b"k1")
    assert blocker.shown_key == shown
    document = json.dumps(plain(blocker))
    assert json.loads(document)["ordering_key"] == (shown.split(" ")[0] if ordering_key else None)


@pytest.mark.parametrize("has_ordering_keys", [False, True])
def test_a_display_reads_only_keys_that_the_log_does_not_have(has_ordering_keys):
    """Kafka has the others; a record that is dealt by its offset has none."""

    def status(failed):
        return PartitionStatus(
            "t", 0, "", 3, OffsetRanges(), {3: failed} if failed else {}, 0, 9,
            has_ordering_keys=has_ordering_keys,
        )  # fmt: skip

    failed = Pending(3, 7, 1, 0, "no", key="customer-7")
    assert status(failed).blocker_offset is None
    blocker = status(failed).blocker
    shown = (None, "customer-7") if has_ordering_keys else ("customer-7", None)
    assert (blocker.key, blocker.ordering_key) == shown
    assert status(replace(failed, key=None)).blocker_offset == 3
    assert status(replace(failed, key=None, key_hash=offset_hash(3))).blocker_offset is None
    assert status(None).blocker_offset == 3


def test_pending_records_in_json_have_their_headers_as_text():
    """`coopconsume offsets describe --json` failed for bytes."""
    failed = Pending(3, 7, 1, 0, "no", headers=(("a", b"x\xff"), (ORDERING_KEY, b"o")))
    status = PartitionStatus("t", 0, "", 3, OffsetRanges(), {3: failed}, 0, 9)
    (shown,) = json.loads(json.dumps(status_document(status)))["pending"]
    assert shown["headers"] == [["a", "x\\xff"], [ORDERING_KEY, "o"]]


def test_an_export_has_ordering_keys_as_text_and_an_import_keeps_them():
    """An operator reads the file; what is imported is shown as before."""
    failed = Pending(3, 7, 1, 0, "no", headers=(("a", b"1"),), key="customer-7")
    kept = Kept("t", 0, "id", 3, OffsetRanges(), (failed,))
    text = write_document("g", "c", [kept])
    (pending,) = json.loads(text)["partitions"][0]["pending"]
    assert (pending["key"], pending["headers"]) == ("customer-7", [["a", "MQ=="]])
    assert read_document(text, "f") == ("g", [kept])
    assert read_document(text.replace('"key"', '"ordering_key"'), "f") == ("g", [kept])
    (short,) = read_document(text.replace("customer-7", "k" * 99), "f")[1][0].pending
    assert short.key == "k" * 65


def test_a_job_that_begins_shows_the_ordering_keys_of_records_that_failed_before():
    """Progress, status lines and the live page of a job use `Waiting.key`."""
    added = (("a", b"1"), (ORDERING_KEY, b"customer-7"))
    for pending in (
        Pending(3, 7, 1, PARKED_MS, "no", headers=added),
        Pending(3, 7, 1, PARKED_MS, "no", headers=added[:1], key="customer-7"),
    ):
        failed = Failed.of(pending, 0.0, 0)
        assert (failed.key, failed.headers) == ("customer-7", added[:1])
        assert Waiting(**vars(failed)).key == "customer-7"
        (held,) = RetryBuffer([failed]).parked
        assert held == failed


def test_a_dead_letter_is_logged_by_its_ordering_key(caplog):
    """As the warnings about the record before."""
    some, headers = rows(1, [b"customer-7"])
    report = run(rejects, some, headers=headers, has_ordering_keys=True)
    with caplog.at_level("WARNING"):
        FailureLog().take(report, [("t", 0)])
    assert "key=customer-7: no (dead-lettered after attempt 1)" in caplog.text


def test_letters_that_a_queue_writes_have_no_hash():
    """A queue deals no records."""
    assert DeadLetter("t", 0, 0, b"k", b"", 0, (), 1, "no", "").key_hash == 0
