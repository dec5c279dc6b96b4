"""A member between Kafka and its owner, with a real commit table and no broker."""

from __future__ import annotations

import threading
import types

import pytest

from assignors import KeyRange, Share, StickyKeyRangeAssignor, wire
from assignors.wire import Subscription
from commits import CommitStore, Epoch
from coopconsume.errors import InvalidOption
from coopconsume.group.core import GroupCore
from coopconsume.group.dealing import Joined, Rebalance
from coopconsume.group.member import GroupMember
from coopconsume.group.membership import Membership
from coopconsume.group.owned import EpochGrant
from coopconsume.group.plugin import plugins
from coopconsume.kafka.call_limit import CallLimit
from coopconsume.kafka.cluster import Topic
from coopconsume.options import Options


class Idle:
    """An owner that has nothing."""

    has_shares = False

    def begin(self, _assignment):
        """Nothing to begin."""

    def continue_work(self):
        """Nothing goes on."""
        return False

    def follow(self, _epoch, _member, _waits):
        """Nothing to take along."""

    def hand_over(self):
        """Nothing to hand over."""

    def lost(self, _why):
        """Nothing to lose."""


def options_of(path, **more):
    """Options of a member of group g."""
    return Options.parse(
        {
            "kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g",
            "commitTable": str(path), "subscribe": "t",
        } | more
    )  # fmt: skip


def a_member(path, owner):
    """A member of group g that is not connected."""
    options = options_of(path)
    store = CommitStore.open(path, cluster="c")
    cluster = types.SimpleNamespace(cluster_id="c", limit=CallLimit())
    return GroupMember(options, store, cluster, 1, owner, life_ms=1000), store


def lead(member, store, generation):
    """Deal topic t's only partition to the member alone; returns what it is handed."""
    core = member._core
    subscription = core.subscription(store.current_epoch("g"), with_owned=False)
    rebalance = Rebalance(
        me="me", generation=generation, joined=[Joined("me", ("t",), subscription)],
        partitions={"t": 1}, topic_ids={}, shareable=(), noted=core.noted,
    )  # fmt: skip
    deal = core.lead(rebalance, StickyKeyRangeAssignor())
    epoch = store.open_epoch(
        "g", deal.shares, previous=deal.previous, generation=generation, nonce=deal.nonce,
        life_ms=deal.life_ms,
    )  # fmt: skip
    return deal.answers(epoch)["me"]


def test_nobody_waits_for_a_member_that_never_began(tmp_path):
    """The next rebalance comes before it looks at what it was handed: it gives that back."""
    member, store = a_member(tmp_path, Idle())
    member._handed = "me", lead(member, store, 1)
    member.revoke().result(60)
    lead(member, store, 2)
    assert store.assignment("g").doubts == ()
    # Without a word from it, its successor has to wait.
    lead(member, store, 3)
    assert len(store.assignment("g").doubts) == 1
    member.leave()


@pytest.mark.parametrize("how", ["handed", "unbegun", "followed"])
def test_the_wait_for_an_earlier_owner_goes_on_if_a_member_never_began(tmp_path, how):
    """It gives back what is in doubt as it got it, not for as long as its own work might take."""
    member, store = a_member(tmp_path, Idle())
    core, (low, high) = member._core, (Share("t", 0, half) for half in KeyRange().split(2))
    first = store.open_epoch(
        "g", {"me": [low], "gone": [high]}, previous=None, generation=1, life_ms=300
    )
    if how == "followed":
        core.taken(EpochGrant(first, "me", (low,), {}))
        core.is_continuing = True
    else:
        store.release("g", first, "me")
    second = store.open_epoch(
        "g", {"me": [Share("t", 0)]}, previous=first, generation=2, life_ms=1000,
        continues={"me": 1} if how == "followed" else {},
    )  # fmt: skip
    place = types.SimpleNamespace(member_id="me")
    member._consumer = types.SimpleNamespace(group_metadata=lambda: place)
    if how == "followed":
        member._follow()
        member._worker.submit(int).result(60)
    elif how == "handed":
        answer = wire.MemberAssignment("me", (Share("t", 0),), second.number, second.nonce, {}, ())
        member._unbegun.release_handed("me", answer.to_bytes(wire.VERSION))
    else:
        member._unbegun.release_all("me")
    store.open_epoch(
        "g", {"me": [low], "other": [high]}, previous=second, generation=3,
        continues={"me": second.number} if how == "followed" else {},
    )  # fmt: skip
    doubts = store.assignment("g").doubts
    assert [d.life_ms for d in doubts if d.share.key_range.first == high.key_range.first] == [300]


def test_a_member_that_is_out_joins_again_once(tmp_path):
    """What the log refused while it was thrown out is no reason to join a second time."""

    class Refused(Idle):
        def lost(self, why):
            member.rejoin(f"the log refused what was to be committed as {why}")

    member, _ = a_member(tmp_path, Refused())
    member.lose().result(60)
    assert member._again is None
    member.rejoin("refused later, under what it was given since")
    assert member._again is not None
    member.leave()


def test_a_stalled_leader_does_not_fence_the_group_that_went_on(tmp_path):
    """It decides by the epoch that it noted before it was asked, though it has joined again."""
    member, store = a_member(tmp_path, Idle())
    released, begun = threading.Event(), threading.Event()

    def visible_topics(_names):
        begun.set()
        assert released.wait(60)
        return [Topic("t", "", 1)], []

    member._cluster.visible_topics = visible_topics
    place = types.SimpleNamespace(member_id="me", generation_id=1)
    member._consumer = types.SimpleNamespace(group_metadata=lambda: place)
    member._leader.within = 0.01
    joined = [Joined("me", ("t",), member.subscription(with_owned=False))]
    with pytest.raises(TimeoutError):
        member.lead(StickyKeyRangeAssignor(), joined)
    assert begun.wait(60)
    live = store.open_epoch("g", {"other": [("t", 0)]}, previous=None, generation=2)
    member.subscription(with_owned=False)
    place.generation_id = 3
    released.set()
    member.revoke().result(60)
    assert store.current_epoch("g") == live
    member._consumer = None
    member.leave()


def test_partitions_without_an_owner_are_reported_once(tmp_path, caplog):
    """If the leader assigns them to nobody again, a warning says so."""
    member, store = a_member(tmp_path, Idle())
    epoch = store.open_epoch("g", {"me": [("t", 0)]}, previous=None, generation=1)
    member._cluster.visible_topics = lambda _names: ([Topic("t", "id", 3)], [])
    watch = member._unassigned
    assert not watch.is_due
    member._core.taken(EpochGrant(epoch, "me", (Share("t", 0, KeyRange()),), {}))
    assert watch.is_due
    assert watch.look(["t"]) == "nobody is assigned t-1, t-2"
    assert not watch.is_due
    member.subscription(with_owned=False)
    assert watch.look(["t"]) is None
    assert "nobody is assigned t-1, t-2, though reported" in caplog.text
    store.open_epoch("g", {"me": [("t", p) for p in range(3)]}, previous=epoch, generation=2)
    caplog.clear()
    assert watch.look(["t"]) is None
    assert not caplog.text


def test_a_join_looks_at_the_log_once_for_all_assignors(tmp_path, monkeypatch):
    """No heartbeat goes out meanwhile, and a look may take long. The next join looks again."""
    member, store = a_member(tmp_path, Idle())
    other = CommitStore.open(tmp_path, cluster="c")
    refresh, looks = store._engine.refresh, []
    monkeypatch.setattr(store._engine, "refresh", lambda **how: looks.append(1) or refresh(**how))
    assignors = plugins("range", member)
    previous = None
    for joins in range(1, 3):
        previous = other.open_epoch("g", {"m": [("t", 0)]}, previous=previous)
        for one in assignors:
            assert one.metadata({"t"}).user_data
            assert member._core.noted == previous
        assert len(looks) == joins


def dealt(leader, joined, topics=("t",)):
    """What a leader of a group without an epoch decides for members by their data."""
    members = [Joined(f"m{at}", topics, data) for at, data in enumerate(joined)]
    rebalance = Rebalance(
        me="m0", generation=1, joined=members, partitions={"t": 4}, topic_ids={}, shareable=(),
        noted=leader.noted,
    )  # fmt: skip
    return leader.lead(rebalance, StickyKeyRangeAssignor())


def a_core():
    """The core of a member of group g."""
    return GroupCore("g", {"store": "store", "cluster": "cluster"}, 1, True, 1_000)


def test_only_a_member_that_cannot_be_read_is_refused():
    """A newer member, foreign data and damaged data cost their own senders the group."""
    leader = a_core()
    subscription = leader.subscription(None, with_owned=True)
    newer = subscription[:2] + bytes([wire.VERSION + 1]) + subscription[3:]
    deal = dealt(leader, [subscription, newer, b"", subscription[:-1], subscription])
    assert {m: len(shares) for m, shares in deal.shares.items()} == {"m0": 2, "m4": 2}
    assert sorted(deal.refused) == ["m1", "m2", "m3"]
    assert "same version of the library" in deal.refused["m1"]
    answers = deal.answers(Epoch(1, "n"))
    assert isinstance(wire.read_answer(answers["m1"]), wire.Refusal)
    assert isinstance(wire.read_answer(answers["m4"]), wire.MemberAssignment)


def test_a_newer_leader_answers_older_members_in_their_version(monkeypatch):
    """The leader hands each member a version that the member reads."""
    old = a_core().subscription(None, with_owned=True)
    current = wire.VERSION
    monkeypatch.setattr(wire, "VERSION", current + 1)
    leader = a_core()
    deal = dealt(leader, [leader.subscription(None, with_owned=True), old])
    answers = deal.answers(Epoch(1, "n"))
    assert [wire.version_of(answers[m]) for m in ("m0", "m1")] == [current + 1, current]
    monkeypatch.setattr(wire, "VERSION", current)
    assert isinstance(wire.read_answer(answers["m1"]), wire.MemberAssignment)
    assert wire.version_of(wire.Refusal("why").to_bytes()) == 1


@pytest.mark.parametrize("why", ["lost", "ask_again"])
def test_a_member_that_wants_another_assignment_joins_with_other_data(why):
    """Kafka hands a follower that joins with unchanged data its old assignment again."""
    core = a_core()
    first = core.subscription(Epoch(1, "n"), with_owned=True)
    assert core.subscription(Epoch(1, "n"), with_owned=True) == first
    getattr(core, why)()
    assert core.subscription(Epoch(1, "n"), with_owned=True) != first


def test_what_an_epoch_gave_a_member_that_was_leaving_is_given_back(tmp_path):
    """It was opened after the member had decided to leave; what it worked on is another matter."""
    member, store = a_member(tmp_path, Idle())
    lead(member, store, 1)
    member._unbegun.release_all("me")
    lead(member, store, 2)
    assert store.assignment("g").doubts == ()
    member._core.begun_under = store.current_epoch("g")
    member._core.lost()
    member._unbegun.release_all("me")
    lead(member, store, 3)
    assert len(store.assignment("g").doubts) == 1, "tasks of it may still run"


def test_the_order_of_a_partition_needs_all_of_it(tmp_path, monkeypatch):
    """What others work on keeps no order with a part that is assigned by hand: it is refused."""
    cluster = types.SimpleNamespace(cluster_id="c", close=lambda: None, limit=CallLimit())
    monkeypatch.setattr("coopconsume.kafka.connection.Cluster", lambda _: cluster)
    membership = Membership(options_of(tmp_path), 1, Idle())
    owned = types.SimpleNamespace(is_whole=False)
    membership._current.begin(types.SimpleNamespace(owned={("t", 0): owned}))
    with pytest.raises(InvalidOption, match=r"a part of t-0.*assign whole partitions"):
        membership.need_whole_partitions(needed=True)
    membership.need_whole_partitions(needed=False)
    owned.is_whole = True
    membership.need_whole_partitions(needed=True)


def test_a_member_says_the_state_that_it_keeps(tmp_path, monkeypatch):
    """From the next join on; a state whose table is not there yet is not said."""
    cluster = types.SimpleNamespace(cluster_id="c", close=lambda: None, limit=CallLimit())
    monkeypatch.setattr("coopconsume.kafka.connection.Cluster", lambda _: cluster)
    membership = Membership(options_of(tmp_path), 1, Idle())
    member = membership._group = GroupMember(
        membership.options, membership.store, cluster, 1, membership.owner, 1
    )
    for table, said in (("", {"state": ""}), ("id", {"state": "id"}), (None, {})):
        state = types.SimpleNamespace(id=table, path="p", belong_to=lambda _: None, origins=list)
        membership.keep_state(None if table == "" else state)
        joining = Subscription.from_bytes(member._core.subscription(None, with_owned=False))
        assert {n: one for n, one in joining.terms.items() if n == "state"} == said


def test_work_that_outlives_the_announced_life_waits_for_a_rebalance(tmp_path, monkeypatch):
    """A slot without a lease goes on for longer after a crash; it is asked for once."""
    cluster = types.SimpleNamespace(cluster_id="c", close=lambda: None, limit=CallLimit())
    monkeypatch.setattr("coopconsume.kafka.connection.Cluster", lambda _: cluster)
    membership = Membership(options_of(tmp_path), 1, Idle())
    announced, asked = [], []
    membership._group = types.SimpleNamespace(
        work_may_last=announced.append, rebalance=asked.append
    )
    membership.work_under_leases(2.0)
    short = types.SimpleNamespace(life_ms=announced[-1])
    assert announced[-1] == 1000 * (2 + membership.options.handler_timeout)
    assert membership.may_work_for(short, 2.0)
    assert not membership.may_work_for(short, None)
    assert not membership.may_work_for(short, None)
    assert len(asked) == 1
    assert announced[-1] == 1000 * (membership.options.batch_life + 2)
    assert membership.may_work_for(types.SimpleNamespace(life_ms=announced[-1]), None)


def test_closing_revokes_what_was_assigned_once(tmp_path, monkeypatch):
    """Nothing that the listener does not know of, nothing twice; and it is not called any more."""
    cluster = types.SimpleNamespace(cluster_id="c", close=lambda: None, limit=CallLimit())
    monkeypatch.setattr("coopconsume.kafka.connection.Cluster", lambda _: cluster)
    calls = []
    primary = types.SimpleNamespace(limit_writes=lambda _seconds: None)
    held = types.SimpleNamespace(key_ranges={("t", 0): []}, primary=primary)
    for notified, expected in (
        ([], []),
        (["on_assigned"], ["on_assigned", "on_revoked"]),
        (["on_assigned", "on_lost"], ["on_assigned", "on_lost"]),
        (["on_assigned", "on_revoked"], ["on_assigned", "on_revoked"]),
    ):
        membership = Membership(options_of(tmp_path), 1, Idle())
        membership._listener.attach(
            types.SimpleNamespace(
                on_assigned=lambda _: calls.append("on_assigned"),
                on_revoked=lambda _, one=membership: (calls.append("on_revoked"), one.revoke()),
                on_lost=lambda _: calls.append("on_lost"),
            )
        )
        calls.clear()
        for what in notified:
            membership._listener.notify(what, held.key_ranges)
        membership._current.begin(held)
        membership.revoke()
        membership._listener.notify("on_revoked", held.key_ranges)
        assert calls == expected


def test_a_listener_that_leaves_the_group_does_not_wait_for_itself(tmp_path, monkeypatch):
    """Leaving waits for the group's thread, which called the listener."""
    cluster = types.SimpleNamespace(cluster_id="c", close=lambda: None, limit=CallLimit())
    monkeypatch.setattr("coopconsume.kafka.connection.Cluster", lambda _: cluster)
    membership = Membership(options_of(tmp_path), 1, Idle())
    has_left = threading.Event()

    class Leaver:
        def on_revoked(self, _ranges):
            membership.leave()
            has_left.set()

    membership._listener.attach(Leaver())
    group = threading.Thread(
        target=membership._listener.notify, args=("on_revoked", {}), daemon=True
    )
    membership._group = types.SimpleNamespace(leave=group.join)
    group.start()
    assert has_left.wait(60)
    assert membership.wait_for_assignment() is None


def test_a_member_whose_brokers_do_not_answer_leaves_within_its_limit(tmp_path, caplog):
    """Its connection may wait for long; the log says when the group will notice."""
    member, _ = a_member(tmp_path, Idle())
    connected = threading.Event()
    member._connect = lambda: connected.wait(600)
    member.start(["t"], None)
    member._cluster.limit.set(0.5)
    leaving = threading.Thread(target=member.leave, daemon=True)
    leaving.start()
    leaving.join(20)
    assert not leaving.is_alive()
    (said,) = [line.message for line in caplog.records if line.levelname == "WARNING"]
    assert said == (
        "group g: Kafka did not confirm that this member has left; the group removes it when its "
        "session ends, after 15 s"
    )
    connected.set()
    member._thread.join(60)


@pytest.mark.parametrize("answers", [True, False])
def test_a_member_knows_whether_its_group_has_answered(tmp_path, answers, caplog):
    """kafka-python does not say so."""
    member, _ = a_member(tmp_path, Idle())

    class Coordinator:
        """Of a dynamic member."""

        _generation = types.SimpleNamespace(has_member_id=lambda: True)

        def is_dynamic_member(self):
            return True

        def _handle_leave_group_response(self, answer):
            assert answer == "answer"

    def close(*, autocommit, timeout_ms):
        assert not autocommit
        assert 0 < timeout_ms <= 5_000
        if answers:
            consumer._coordinator._handle_leave_group_response("answer")

    consumer = types.SimpleNamespace(_coordinator=Coordinator(), close=close)
    member._consumer = consumer
    member._disconnect()
    member.leave()
    assert ("did not confirm" in caplog.text) == (not answers)
