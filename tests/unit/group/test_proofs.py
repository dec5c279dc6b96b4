"""What proves that an epoch is in force: a look at the log, or an accepted heartbeat in it."""

from __future__ import annotations

import asyncio
import math
import types
from contextlib import nullcontext

import pytest
from kafka.errors import IllegalGenerationError, RebalanceInProgressError

from assignors import KeyRange, Share
from commits import CommitStore, Epoch
from coopconsume.group.chunks import ChunkReader
from coopconsume.group.core import GroupCore
from coopconsume.group.epoch_assignment import EpochAssignment
from coopconsume.group.epoch_proof import EpochProof
from coopconsume.group.member import GroupMember
from coopconsume.group.membership import Membership
from coopconsume.group.owned import EpochGrant
from coopconsume.group.settings import session_ms
from coopconsume.group.shares_in_doubt import SharesInDoubt
from coopconsume.kafka.call_limit import CallLimit
from coopconsume.kafka.kafka_python_compat import watch_heartbeats
from coopconsume.options import Options
from coopconsume.worker.process_timer import clock
from tests.unit.group.test_group_member import Idle, a_member, options_of

LOW, HIGH = (Share("t", 0, half) for half in KeyRange().split(2))


def heartbeat(answer):
    """What is noted of a heartbeat in generation 7 that gets an answer."""
    noted = []

    async def send():
        coordinator._generation = types.SimpleNamespace(generation_id=8)  # It joins meanwhile.
        if answer is not None:
            raise answer

    coordinator = types.SimpleNamespace(
        _generation=types.SimpleNamespace(generation_id=7), _send_heartbeat_request=send
    )
    ticks = iter([100.0, 200.0])
    watch_heartbeats(
        types.SimpleNamespace(_coordinator=coordinator), lambda: next(ticks),
        lambda *one: noted.append(one),
    )  # fmt: skip
    with pytest.raises(type(answer)) if answer else nullcontext():
        asyncio.run(coordinator._send_heartbeat_request())
    return noted


def test_a_heartbeat_counts_from_when_it_was_sent_in_the_generation_of_that_moment():
    """It may arrive just before the next epoch is opened, and its answer comes later."""
    assert heartbeat(None) == [(7, 100.0)]


def test_a_heartbeat_is_accepted_while_the_group_rebalances():
    """The generation is in force until all have joined."""
    assert heartbeat(RebalanceInProgressError()) == [(7, 100.0)]


@pytest.mark.parametrize("answer", [IllegalGenerationError(), OSError("no route")])
def test_a_heartbeat_that_was_refused_or_has_no_answer_proves_nothing(answer):
    """kafka-python gets the error all the same."""
    assert heartbeat(answer) == []


def test_a_heartbeat_proves_the_epoch_of_its_generation_alone(tmp_path):
    """Neither that of the generation before, nor one that this member does not work under."""
    member, _ = a_member(tmp_path, Idle())
    epochs = [Epoch(number, f"n{number}") for number in (1, 2)]
    for generation, epoch in enumerate(epochs, 7):
        grant = EpochGrant(epoch, "me", (LOW,), {}, generation=generation)
        member._core.taken(grant)
        assert member.heartbeats.heard(epoch) == -math.inf
        member.heartbeats.accepted(generation, 100.0 + generation)
        assert member.heartbeats.heard(epoch) == 100.0 + generation
    assert member.heartbeats.heard(epochs[0]) == -math.inf
    member.heartbeats.accepted(9, 200.0)  # It has joined; the epoch of 9 is not known yet.
    assert member.heartbeats.heard(epochs[1]) == -math.inf


def test_a_member_that_goes_on_under_an_epoch_is_in_its_generation(tmp_path):
    """Also if another rebalance ends it before its assignment comes."""
    store = CommitStore.open(tmp_path, cluster="c")
    first = store.open_epoch("g", {"me": [LOW]}, previous=None, generation=3)
    core = GroupCore("g", {}, 1, allow_key_share=True, life_ms=1000)
    core.taken(EpochGrant(first, "me", (LOW,), {}, generation=3))
    core.is_continuing = True
    second = store.open_epoch(
        "g", {"me": [LOW, HIGH]}, previous=first, generation=4, continues={"me": first.number}
    )
    assert core.follow("me", store.assignment("g")) == (HIGH,)
    assert core.generation_of == (second, 4)


@pytest.fixture
def owned(tmp_path):
    """Makes an assignment of an epoch, with what was heard of it."""

    def made(*, generation=1, life_ms=10_000, heard=lambda _: -math.inf, **options):
        store = CommitStore.open(tmp_path / "log", cluster="c")
        epoch = store.open_epoch(
            "g", {"me": [LOW]}, previous=store.current_epoch("g"), generation=generation
        )
        grant = EpochGrant(epoch, "me", (LOW,), {}, (), life_ms, generation=generation)
        assignment = EpochAssignment.__new__(EpochAssignment)
        assignment.options = options_of(tmp_path / "log", **options)
        assignment.store, assignment._grant, assignment.in_doubt = store, grant, SharesInDoubt()
        assignment.proof = EpochProof(store, "g", lambda: grant, heard)
        assignment.proof._seen = clock() - 1000.0
        assignment.chunks = ChunkReader(store, "g")
        return assignment

    return made


def test_the_log_or_kafka_proves_that_an_epoch_is_in_force(owned):
    """Whichever was later; neither is needed as long as there is the other one."""
    assignment = owned()
    long_ago = assignment.proof.in_force_at
    assert long_ago <= clock() - 1000.0
    assignment.proof._heard = lambda epoch: (
        long_ago + 50.0 if epoch == assignment.epoch else math.inf
    )
    assert assignment.proof.in_force_at == long_ago + 50.0
    now = clock()
    assignment.proof.check()
    assert assignment.proof.in_force_at >= now


def test_an_answer_that_comes_late_takes_nothing_back(owned):
    """It proves the instant at which it was asked for, and others have proven a later one."""
    proof = owned().proof
    now = proof.check()
    proof.saw(now - 5.0)
    assert proof.check(60.0) == now
    assert proof.is_confirmed


def test_what_runs_as_all_is_released_has_its_time(owned):
    """The log names it to the next owners, who wait for that long; no epoch ends it."""
    assignment, began = owned(handlerTimeout=60, leaseGrace=8), clock()
    assert assignment.runs_on_for == 62.0
    assignment.release([LOW])
    assert assignment.proof.in_force_at >= began
    # Behind its time nothing runs, as the last word of this process is for so long.
    assignment.proof._runs_on_until = clock() + 3.0
    assert assignment.proof.in_force_at <= clock() + 3.0 - assignment.life_ms / 1000


@pytest.mark.parametrize("how", ["refused", "part", "chunks"])
def test_what_runs_has_no_time_unless_the_log_has_named_all_of_it(owned, how):
    """An epoch is in force that this one knows nothing of, or the release is of a part alone."""
    options = {"sharing": "cooperative"} if how == "chunks" else {}
    assignment = owned(**options)
    if how == "refused":
        assignment.store.open_epoch("g", {"you": [LOW]}, previous=assignment.epoch)
    assignment.release([LOW], [LOW] if how == "part" else None)
    assert assignment.proof.in_force_at <= clock() - 999.0


def test_slots_of_a_claim_do_not_end_without_their_driver(owned):
    """The log alone knows the claim, and may be away."""
    assert owned().fails_stop
    claim = owned(generation=-1)
    assert not claim.fails_stop
    assert claim.runs_on_for == 10.0


@pytest.mark.parametrize(
    ("options", "life"),
    [({}, 9_000), ({"leaseGrace": 20}, 22_000), ({"handlerTimeout": 3}, 5_000)],
)
def test_a_member_says_that_its_slots_end_without_it(tmp_path, monkeypatch, options, life):
    """Its next owners wait for lease + leaseGrace; a handler has handlerTimeout at most."""
    cluster = types.SimpleNamespace(
        cluster_id="c", close=lambda: None, limit=CallLimit(), subscribed=lambda *_: ["t"]
    )
    monkeypatch.setattr("coopconsume.kafka.connection.Cluster", lambda _: cluster)
    said = []

    def start(member, *_):
        said.append(member._core.life_ms)
        raise InterruptedError

    monkeypatch.setattr(GroupMember, "start", start)
    membership = Membership(options_of(tmp_path, **options), 1, Idle())
    membership.work_under_leases(2.0)
    with pytest.raises(InterruptedError):
        membership.subscribe(["t"], None)
    assert said == [life]


def test_the_session_is_longer_where_a_look_at_the_log_takes_a_job(tmp_path):
    """In a third of it a leader opens an epoch."""
    assert session_ms(options_of(tmp_path)) == 15_000
    assert session_ms(options_of("lake.ops.commits")) == 45_000
    options = options_of(tmp_path, **{"kafka.session.timeout.ms": 7_000})
    assert isinstance(options, Options)
    assert session_ms(options) == 7_000
