"""What the members of a group agree on: each term is compared, refused and noted."""

from __future__ import annotations

import logging
import re
from types import SimpleNamespace

import pytest

from assignors import RoundRobinKeyRangeAssignor, Share, wire
from commits import CommitStore, Epoch, Pending
from coopconsume.errors import GroupRefused
from coopconsume.group import agreement
from coopconsume.group.agreement import TERMS, Start, agree, check, log_changes, terms_of
from coopconsume.group.claiming import _agree
from coopconsume.group.core import GroupCore
from coopconsume.group.dealing import Joined, Rebalance
from coopconsume.group.epoch_assignment import EpochAssignment
from coopconsume.group.member import GroupMember
from coopconsume.group.owned import EpochGrant
from coopconsume.options import Options

OPTIONS = {"kafka.bootstrap.servers": "a:1", "kafka.group.id": "g", "commitTable": "somewhere"}
BASE = {"store": "s", "cluster": "c"}
UTC = "spark.sql.session.timeZone=UTC"
PARIS = "spark.sql.session.timeZone=Europe/Paris"
#: Of each term two values, and what people read of the second.
VALUES = {
    "store": ("s", "other", "the commit table other"),
    "cluster": ("c", "other", "the Kafka cluster other"),
    "hash": ("1", "2", "the hash version 2"),
    "state": ("a table", "", "the state (id of its table) none"),
    "sharing": ("cooperative", "", "the sharing keyRanges"),
    "filter": ("where=a", "denyKeys=k", "the filter denyKeys=k"),
    "ordering_key": ("topic", "", "the orderingKey none"),
    "settings": (UTC, PARIS, f"the session settings of where and orderingKey {PARIS}"),
}
WITH_SETTING = [term.field for term in TERMS if term.setting]


def member(**terms):
    """A member that says some terms."""
    return GroupCore("g", BASE | terms, 1, True, life_ms=1)


def lead(leader, members, row=None):
    """What the member `a` deals to members, given by id with their terms."""
    joined = [
        Joined(name, ("t",), member(**terms).subscription(None, with_owned=False))
        for name, terms in members.items()
    ]
    return leader.lead(
        Rebalance(
            me="a",
            generation=1,
            joined=joined,
            partitions={"t": 9},
            topic_ids={"t": "id"},
            shareable=(),
            noted=None,
            row=row,
        ),
        RoundRobinKeyRangeAssignor(),
    )


# -- members that live at the same time


def test_each_term_of_the_list_is_tried_here():
    """A new one needs values."""
    assert [term.field for term in TERMS] == [*VALUES]


@pytest.mark.parametrize("field", VALUES)
def test_members_that_do_not_agree_are_refused(field):
    """Most members decide, and the leader if there are as many; the error names both values."""
    most, other, found = VALUES[field]
    term = next(term for term in TERMS if term.field == field)
    deal = lead(
        member(**{field: most}), {"a": {field: most}, "b": {field: most}, "c": {field: other}}
    )
    assert set(deal.shares) == {"a", "b"}
    assert deal.refused == {
        "c": f"it works with {found}, the other members of group 'g' with {most}: give all "
        f"members the same {term.remedy}"
    }
    assert set(lead(member(**{field: other}), {"a": {field: other}, "b": {field: most}}).refused)
    with pytest.raises(GroupRefused, match=f"works with the {re.escape(term.name)} "):
        lead(
            member(**{field: most}), {"a": {field: most}, "b": {field: other}, "c": {field: other}}
        )


@pytest.mark.parametrize("field", VALUES)
def test_a_newcomer_is_refused_and_not_the_group(field):
    """However many come."""
    most, other, _ = VALUES[field]
    store_row = SimpleNamespace(
        epoch=Epoch(1, "n"), members={"b": ()}, fenced={}, continues={}, handed={}, topic_ids={}
    )
    members = {"b": {field: most}} | {m: {field: other} for m in "cd"}
    leader = member(**{field: most})
    deal = lead(leader, members | {"a": {field: most}}, store_row)
    assert set(deal.refused) == {"c", "d"}


def test_a_term_does_not_count_for_members_that_are_refused_before():
    """Two of another filter do not decide on the ordering key of the others."""
    of_others = {"filter": "x", "ordering_key": "value"}
    members = {"a": {"ordering_key": "value"}, "c": of_others, "e": of_others}
    with pytest.raises(GroupRefused, match=r"orderingKey value, the other members .* with topic"):
        lead(member(), members | {m: {"ordering_key": "topic"} for m in "bd"})


@pytest.mark.parametrize("field", ["state", "settings"])
@pytest.mark.parametrize("who", ["newcomer", "leader", "most"])
def test_a_member_of_the_version_before_works_beside_others(field, who):
    """It does not say all terms: it is compared in those that it says, and the others are."""
    most, other, _ = VALUES[field]
    new, old = {field: most}, {}
    members = {
        "newcomer": {"a": new, "b": old},
        "leader": {"a": old, "b": new},
        "most": {"a": new, "b": old, "d": old, "e": old},
    }[who]
    leader = member(**members["a"])
    assert not lead(leader, members).refused
    assert set(lead(leader, members | {"b": new, "c": {field: other}}).refused) == {"c"}


def test_a_member_of_the_version_before_hashes_as_version_1():
    """A member of a later hash version is refused beside it."""
    assert set(lead(member(), {"a": {}, "b": {}, "c": {"hash": "2"}}).refused) == {"c"}
    assert set(lead(member(hash="1"), {"a": {"hash": "1"}, "b": {}}).refused) == set()


def test_subscriptions_carry_terms_also_those_of_later_versions():
    """What a member says no more than by silence takes no bytes, as in the version before."""
    fields = wire._unpack("subscription", "S", member().subscription(None, with_owned=False))
    assert {*fields}.isdisjoint({*VALUES} - {*BASE})
    data = wire._pack("S", fields | {"filter": "x", "new": "y", "newer": {"z": 1}})
    assert wire.Subscription.from_bytes(data).terms == BASE | {"filter": "x", "new": "y"}


def test_a_member_says_its_options():
    """In the words of the options."""
    place = SimpleNamespace(id="s"), SimpleNamespace(cluster_id="c")
    assert terms_of(Options.parse(OPTIONS), *place) == BASE
    more = {"sharing": "cooperative", "orderingKey": "topic", "denyKeys": "k"}
    assert terms_of(Options.parse(OPTIONS | more), *place) == BASE | {
        "sharing": "cooperative", "ordering_key": "topic", "filter": "denyKeys=k",
    }  # fmt: skip


# -- at a start


@pytest.fixture
def store(tmp_path):
    """A commit store."""
    return CommitStore.open(tmp_path, cluster="c")


def fail_a_record(store):
    """Makes a record pending; returns a function that commits it."""
    epoch = store.open_epoch("g", {"m": [("t", 0)]}, previous=None)
    failed = Pending(5, 7, 1, 0, "no")
    store.commit("g", epoch, "m", {}, pending={("t", 0): [failed]})
    return lambda: store.commit("g", epoch, "m", {("t", 0): [(0, 5)]})


@pytest.mark.parametrize("field", WITH_SETTING)
def test_a_group_has_the_terms_that_it_agreed_on(field, store):
    """A term may change at a start while nothing depends on it; a hash version may not."""
    term = next(term for term in TERMS if term.field == field)
    first, second, _ = VALUES[field]
    agree(store, "g", {field: first})
    version = store.version()
    agree(store, "g", {field: first})
    check(store, "g", {field: first})
    check(store, "another", {})
    assert store.version() == version
    if term.at_start is Start.REFUSED:
        fail_a_record(store)
        with pytest.raises(GroupRefused, match="hash version 2, the group with 1; give the ver"):
            agree(store, "g", {field: second})
        with pytest.raises(GroupRefused, match="hash version 2, the group with 1; give the ver"):
            check(store, "g", {field: second})
        return
    agree(store, "g", {field: second})
    check(store, "g", {field: second})
    if term.at_start is Start.SETTLED:
        with pytest.raises(GroupRefused, match="orderingKey topic, the group with none; s"):
            check(store, "g", {field: first})


def test_a_later_version_hashes_for_groups_of_its_own(store, monkeypatch):
    """The first version says and notes nothing: its members and its groups refuse the later one."""

    def said(version):
        monkeypatch.setattr(agreement, "HASH_VERSION", version)
        terms = terms_of(Options.parse(OPTIONS), store, SimpleNamespace(cluster_id="c"))
        return {"hash": terms["hash"]} if "hash" in terms else {}

    assert set(lead(member(), {"a": {}, "b": said(1), "c": said(2)}).refused) == {"c"}
    agree(store, "new", said(2))
    check(store, "new", said(2))
    agree(store, "g", said(1))
    fail_a_record(store)
    for group, version in ("g", 2), ("new", 1):
        if group == "new":
            epoch = store.open_epoch("new", {"m": [("t", 0)]}, previous=None)
            store.commit("new", epoch, "m", {("t", 0): [(0, 0)]})
        words = f"hash version {version}, the group with {3 - version}; give the version"
        for call in agree, check:
            with pytest.raises(GroupRefused, match=words):
                call(store, group, said(version))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"ordering_key": "topic"}),
        ({"ordering_key": "topic"}, {"ordering_key": "value"}),
        ({"ordering_key": "topic"}, {}),
        (
            {"ordering_key": "topic", "settings": UTC},
            {"ordering_key": "topic", "settings": PARIS},
        ),
    ],
)
def test_pending_records_keep_the_ordering_key_and_its_settings(before, after, store):
    """Their hashes are in the log: by another key they would come to no slot."""
    agree(store, "g", before)
    others = [Epoch(1, "n")]
    with pytest.raises(GroupRefused, match="stop all of its members and claims"):
        agree(store, "g", after, at_work=others)
    with pytest.raises(GroupRefused, match="stop all of its members and claims"):
        check(store, "g", after)
    is_done = fail_a_record(store)
    with pytest.raises(GroupRefused, match=r"such as t-0@5: .* or set the group's offsets"):
        agree(store, "g", after)
    agree(store, "g", before, at_work=others)
    is_done()
    agree(store, "g", after)
    check(store, "g", after)


def test_a_static_member_that_comes_back_has_the_terms_of_its_group(store):
    """Kafka hands it its old assignment, without a word to the leader."""
    agree(store, "g", {"ordering_key": "topic"})
    epoch = store.open_epoch("g", {"m": [("t", 0)]}, previous=None)
    grant = EpochGrant(epoch, "m", (Share("t", 0),), {"t": "id"}, (), 1, False, ())
    cluster = SimpleNamespace(cluster_id="c", commit_primary=None)
    with pytest.raises((GroupRefused, AttributeError)) as error:
        EpochAssignment(Options.parse(OPTIONS), cluster, store, grant, lambda: None)
    assert "orderingKey none, the group with topic; stop all" in str(error.value)


def test_settings_of_a_filter_may_change_and_are_logged(store, caplog):
    """They are part of the filter. A claim beside others does not note its own."""
    fail_a_record(store)
    agree(store, "g", {"settings": UTC})
    with caplog.at_level(logging.WARNING):
        agree(store, "g", {"settings": PARIS}, at_work=[Epoch(1, "n")])
    assert (
        f"of the group was {UTC}, this member's is {PARIS}; what was filtered before" in caplog.text
    )
    check(store, "g", {"settings": PARIS})
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        agree(store, "g", {"settings": UTC})
        assert not caplog.records
        agree(store, "g", {"settings": PARIS})
        agree(store, "g", {"settings": PARIS})
    assert len(caplog.records) == 1


def test_a_group_of_the_version_before_goes_on_and_notes_its_terms(store):
    """Its ordering key is noted, and the settings are not: also with pending records."""
    store.set_setting("orderingKey:g", "topic")
    fail_a_record(store)
    mine = {"ordering_key": "topic", "settings": UTC}
    check(store, "g", mine)
    agree(store, "g", mine)
    assert store.settings() == {"orderingKey:g": "topic", "expressionSettings:g": UTC}
    with pytest.raises(GroupRefused, match="stop all"):
        check(store, "g", mine | {"settings": PARIS})
    # A member of the version before does not say its settings.
    check(store, "g", {"ordering_key": "topic"})
    agree(store, "g", {"ordering_key": "topic"})
    assert store.settings()["expressionSettings:g"] == UTC


@pytest.mark.parametrize("before", ["", "denyKeys=k", "where=now"])
def test_terms_of_the_epoch_before_that_have_changed_are_logged_once(before, caplog):
    """The next start may have others than the epoch in force; the log names both."""
    row = SimpleNamespace(epoch=Epoch(3, "n"), record_filter=before, sharing="cooperative")
    joining = SimpleNamespace(
        _core=member(filter="denyKeys=k"), _group="g", _logged=set(),
        _note_id=lambda: None, _store=SimpleNamespace(assignment=lambda _: row),
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            GroupMember.subscription(joining, with_owned=False)
    assert joining._core.noted == Epoch(3, "n")
    after = "what was filtered before stays done"
    changed = [
        "group g: the sharing of epoch 3 was cooperative, this member's is keyRanges",
        f"group g: the filter of epoch 3 was {before or 'none'}, this member's is denyKeys=k; "
        + after,
    ]
    assert caplog.messages == changed[: 1 if before == "denyKeys=k" else 2]


@pytest.mark.parametrize("mine", ["where=topic = 'a'", "denyKeys=k", ""])
def test_a_claim_is_warned_of_other_filters_in_its_group(mine, store, caplog):
    """Claims are not refused; the log names each filter that is not the claim's own, once."""
    store.open_epoch("g", {"m": [("t", 0)]}, previous=None, record_filter="where=topic = 'a'")
    for partition, found in enumerate(["denyKeys=k", "where=topic = 'a'", ""], start=1):
        store.claim("g", f"claim {partition}", [("t", partition)], record_filter=found)
    options = OPTIONS | dict([mine.split("=", 1)] if mine else [])
    with caplog.at_level(logging.WARNING):
        _agree(Options.parse(options), store, SimpleNamespace(cluster_id="c"), Epoch(9, "mine"))
    others = {"", "denyKeys=k", "where=topic = 'a'"} - {mine}
    assert sorted(caplog.messages) == sorted(
        f"group g: the filter of other shares was {other or 'none'}, this member's is "
        f"{mine or 'none'}; what was filtered before stays done"
        for other in others
    )


@pytest.mark.parametrize("settings", [UTC, PARIS])
def test_a_claim_has_the_ordering_key_and_its_settings_of_others_at_work(settings, store):
    """Another one would deal their records to other members."""
    agree(store, "g", {"ordering_key": "topic", "settings": UTC})
    store.open_epoch("g", {"m": [("t", 0)]}, previous=None)
    options = Options.parse(OPTIONS | {"orderingKey": "topic"})
    object.__setattr__(options, "expression_settings", settings)
    cluster = SimpleNamespace(cluster_id="c")
    if settings == UTC:
        _agree(options, store, cluster, Epoch(9, "mine"))
    else:
        with pytest.raises(GroupRefused, match="stop all of its members and claims"):
            _agree(options, store, cluster, Epoch(9, "mine"))


def test_values_that_are_not_known_are_not_logged(caplog):
    """Nothing is noted in a row of the version before but its filter and its sharing."""
    row = SimpleNamespace(record_filter="", sharing="")
    with caplog.at_level(logging.WARNING):
        log_changes("g", "epoch 1", row, BASE | {"settings": UTC}, set())
    assert not caplog.records
