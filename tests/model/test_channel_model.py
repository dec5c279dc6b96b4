"""The channel without sockets: frames, proofs, reports on the wire, and leases in virtual time."""

from __future__ import annotations

import heapq
import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopconsume.worker.channel.lease import Grants, Lease, Life
from coopconsume.worker.channel.messages import decode_report, encode_report
from coopconsume.worker.channel.spec import ChannelSpec
from coopconsume.worker.channel.wire import (
    HANDSHAKE_BYTES,
    VERSION,
    DriverHandshake,
    Frame,
    Identity,
    ProtocolError,
    SlotHandshake,
    Splitter,
    decode_withhold,
    encode_withhold,
    frame,
)
from coopconsume.worker.histogram import BOUNDS, Histogram
from coopconsume.worker.report import DeadLetter, Failure, PartitionReport, SlotReport, SlotStats
from tests.examples import examples

SECRET = b"s" * 32
OF = Identity("r", 7, 2, 99)


def split(data, limit=1 << 20):
    """The frames of some bytes."""
    splitter = Splitter(limit)
    splitter.feed(data)
    return list(splitter.frames())


def shaken(slot_secret=SECRET, driver_secret=SECRET, slot_run="r", driver_run="r"):
    """The sessions of a slot and of a driver after a handshake."""
    slot = SlotHandshake(slot_secret, Identity(slot_run, 7, 2, 99))
    driver = DriverHandshake(driver_secret, driver_run)
    challenge = driver.answer(*split(slot.hello())[0])
    proof, session = slot.answer(*split(challenge)[0])
    return session, driver.answer(*split(proof)[0])


def test_both_sides_prove_that_they_know_the_secret():
    """Then the driver knows which slot it is, and frames go both ways."""
    slot, driver = shaken()
    assert driver.identity == Identity("r", 7, 2, 99)
    for sender, receiver in ((slot, driver), (driver, slot)):
        for payload in (b"", b"one", b"two" * 1000):
            kind, sealed = split(sender.sent.seal(Frame.PROGRESS, payload))[0]
            assert receiver.received.open(kind, sealed) == payload


def test_a_driver_that_does_not_know_the_secret_is_refused():
    """The slot sends no proof to it."""
    with pytest.raises(ProtocolError, match="the listener does not know"):
        shaken(driver_secret=b"x" * 32)


def test_a_client_that_does_not_know_the_secret_is_refused():
    """Whatever it sends as a proof, the driver's own proof among it."""
    said = split(SlotHandshake(b"x" * 32, Identity("r", 7, 2)).hello())[0]
    for forged in (b"", b"\0" * 32, None):
        driver = DriverHandshake(SECRET, "r")
        ((_, challenge),) = split(driver.answer(*said))
        with pytest.raises(ProtocolError, match="does not know"):
            driver.answer(Frame.PROOF, challenge[32:] if forged is None else forged)


def test_a_slot_of_another_run_is_refused():
    """Even with the secret."""
    with pytest.raises(ProtocolError, match="another run"):
        shaken(slot_run="other")


def test_a_recorded_handshake_proves_nothing_again():
    """Each side has a nonce of its own in what is proved."""
    slot, first = SlotHandshake(SECRET, Identity("r", 7, 2)), DriverHandshake(SECRET, "r")
    hello = split(slot.hello())[0]
    challenge = split(first.answer(*hello))[0]
    proof = split(slot.answer(*challenge)[0])[0]
    assert first.answer(*proof).identity.slot == 2
    second = DriverHandshake(SECRET, "r")
    second.answer(*hello)
    with pytest.raises(ProtocolError, match="does not know"):
        second.answer(*proof)
    with pytest.raises(ProtocolError, match="does not know"):
        SlotHandshake(SECRET, Identity("r", 7, 2)).answer(*challenge)


def test_a_proof_holds_for_one_identity_alone():
    """A proof for slot 2 does not open a connection as slot 3."""
    slot, driver = SlotHandshake(SECRET, Identity("r", 7, 2)), DriverHandshake(SECRET, "r")
    kind, said = split(slot.hello())[0]
    forged = said[:32] + Identity("r", 7, 3).encode()
    ((_, challenge),) = split(driver.answer(kind, forged))
    with pytest.raises(ProtocolError, match="does not know"):
        slot.answer(Frame.CHALLENGE, challenge)


@given(st.data())
@settings(max_examples=examples(300), deadline=None)
def test_a_frame_counts_once_in_its_place_and_direction(data):
    """Frames that were changed, repeated, left out, swapped or sent back are refused."""
    slot, driver = shaken()
    sent = [(Frame.ASK, b"a"), (Frame.PROGRESS, b"b" * 50), (Frame.ASK, b"c")]
    frames = [slot.sent.seal(*one) for one in sent]
    how = data.draw(st.sampled_from(["bit", "repeat", "drop", "swap", "type", "back", "cut"]))
    if how == "bit":
        at = data.draw(st.integers(4, len(frames[0]) - 1))
        flipped = bytearray(frames[0])
        flipped[at] ^= 1 << data.draw(st.integers(0, 7))
        frames[0] = bytes(flipped)
    elif how == "repeat":
        frames.insert(1, frames[0])
    elif how == "drop":
        del frames[0]
    elif how == "swap":
        frames[0], frames[1] = frames[1], frames[0]
    elif how == "type":
        frames[0] = frames[0].replace(
            bytes([VERSION, Frame.ASK]), bytes([VERSION, Frame.PROGRESS]), 1
        )
    elif how == "back":
        frames = [driver.sent.seal(*one) for one in sent]
    else:
        frames = [frame(*sent[0])]
    with pytest.raises(ProtocolError):
        _ = [driver.received.open(*one) for one in split(b"".join(frames))]


@given(
    st.lists(st.tuples(st.sampled_from(list(Frame)), st.binary(max_size=60)), max_size=8),
    st.lists(st.integers(1, 40), min_size=1, max_size=20),
)
@settings(max_examples=examples(300), deadline=None)
def test_frames_come_whole_however_the_bytes_come(sent, cuts):
    """Byte by byte or many at once."""
    splitter, data, found = Splitter(), b"".join(frame(*one) for one in sent), []
    for size in itertools.cycle(cuts):
        splitter.feed(data[:size])
        data = data[size:]
        found += splitter.frames()
        if not data:
            break
    assert found == sent


@given(st.binary(max_size=3000))
@settings(max_examples=examples(500), deadline=None)
def test_garbage_is_refused_before_it_is_kept(garbage):
    """A client without proof has the bytes of one small frame held for it at most."""
    splitter, driver = Splitter(), DriverHandshake(SECRET, "r")
    splitter.feed(garbage)
    try:
        for kind, payload in splitter.frames():
            assert isinstance(driver.answer(kind, payload), bytes)
    except ProtocolError:
        return
    assert len(splitter._held) <= HANDSHAKE_BYTES + 4


def test_a_frame_that_is_too_long_is_refused_by_its_length():
    """Its contents need not come."""
    assert split(frame(Frame.HELLO, b"x" * (HANDSHAKE_BYTES - 2)), HANDSHAKE_BYTES)
    splitter = Splitter()
    splitter.feed(frame(Frame.HELLO, b"x" * (HANDSHAKE_BYTES - 1))[:4])
    with pytest.raises(ProtocolError, match="at most 1024"):
        list(splitter.frames())


def test_another_version_is_refused():
    """With both versions named."""
    other = bytearray(frame(Frame.HELLO, b"x"))
    other[4] = VERSION + 1
    with pytest.raises(ProtocolError, match=f"version {VERSION + 1}; expected {VERSION}"):
        split(bytes(other))


def test_the_secret_is_not_shown():
    """As specs are logged."""
    assert "sss" not in repr(ChannelSpec("h", 1, SECRET, 2.0))


# -- reports

BUCKETS = len(BOUNDS) + 1
offsets = st.integers(0, 2**63 - 1)
binary = st.none() | st.binary(max_size=12)
failures = st.builds(
    Failure, offsets, st.integers(-(2**63), 2**63 - 1), binary, st.integers(1, 99),
    st.floats(0, 1e6) | st.just(math.inf), st.text(max_size=20),
)  # fmt: skip
letters = st.builds(
    DeadLetter, st.text(max_size=9), st.integers(0, 99), offsets, binary, binary,
    st.integers(-1, 2**60), st.lists(st.tuples(st.text(max_size=5), binary)).map(tuple),
    st.integers(1, 9), st.text(max_size=20), st.text(max_size=20),
)  # fmt: skip
hashes = st.integers(-(2**63), 2**63 - 1)
at_work = st.lists(st.tuples(st.integers(0, 9), offsets, hashes), max_size=4)
reports = st.builds(
    SlotReport, batch=st.just(7), slot=st.just(2), pid=st.just(99), seq=st.integers(1, 10**9),
    partitions=st.dictionaries(
        st.integers(0, 9),
        st.builds(
            PartitionReport, done=st.binary(max_size=40), failed=st.lists(failures),
            filtered=st.binary(max_size=40), times=st.binary(max_size=40),
        ),
        max_size=3,
    ),
    stats=st.builds(
        SlotStats, handled=st.integers(0, 10**9), filtered=st.integers(0, 10**9),
        failures=st.integers(0, 10**9),
        starts=st.builds(
            Histogram, st.lists(st.integers(0, 10**9), min_size=BUCKETS, max_size=BUCKETS),
            st.floats(0, 1e12),
        ),
    ),
    dead=st.lists(letters, max_size=3), outputs=binary, kept=st.none() | at_work,
    leaving=st.none() | st.tuples(st.integers(0, 2**63 - 1), at_work),
)  # fmt: skip


@given(reports)
@settings(max_examples=examples(150), deadline=None)
def test_a_report_arrives_as_it_was_sent(report):
    """Infinite waits, missing keys and empty values too."""
    assert decode_report(encode_report(report), OF) == report


@given(reports, st.data())
@settings(max_examples=examples(150), deadline=None)
def test_a_report_that_was_cut_or_continued_is_refused(report, data):
    """By the error of the protocol, whatever is missing."""
    whole = encode_report(report)
    size = data.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:size], whole + b"x"):
        with pytest.raises(ProtocolError):
            decode_report(wrong, OF)


@given(
    st.integers(0, 2**64 - 1),
    st.dictionaries(st.integers(0, 99), st.lists(st.tuples(hashes, hashes), min_size=1)),
)
def test_key_ranges_arrive_as_they_were_sent(number, ranges):
    """And nothing that is cut."""
    payload = encode_withhold(number, ranges)
    assert decode_withhold(payload) == (number, ranges)
    for wrong in (payload[:-1], payload + b"x", b""):
        with pytest.raises(ProtocolError):
            decode_withhold(wrong)


# -- leases

#: Seconds for which the process of a slot lives once its driver was sure of its epoch.
LIFE = 7.0


class World:
    """A driver's loop and a slot, with messages that come late, twice, in any order or never."""

    def __init__(self, chance, latest, loss, skew, lease):
        self.chance, self.latest, self.loss = random.Random(chance), latest, loss
        self.skew, self.now = skew, 0.0
        self.slot, self.grants = Lease(lease), Grants(lease)
        #: The end of the slot's process, and when its driver was last sure of its epoch.
        self.life, self.sure_at = Life(), -math.inf
        self.asked = None
        self.mail: list = []
        self.numbers = itertools.count()

    @property
    def slot_clock(self):
        return self.now + self.skew

    def send(self, call, *args):
        for _ in range(self.chance.choice([1, 1, 1, 2])):
            if self.chance.random() >= self.loss:
                at = self.now + self.chance.uniform(0, self.latest)
                heapq.heappush(self.mail, (at, next(self.numbers), call, args))

    def ask(self):
        stamp = self.slot.ask(self.slot_clock)
        if stamp is not None:
            self.life.asked(stamp, self.now)
            self.send(self.take_question, stamp)

    def take_question(self, stamp):
        self.asked = stamp
        self.answer()

    def answer(self):
        left = self.grants.left((1, 1), self.now)
        life = self.sure_at + LIFE - self.now
        if self.asked is not None and life > 0 and self.grants.has_granted((1, 1)):
            stamp, self.asked = self.asked, None
            self.send(self.take_answer, stamp, left, life)

    def take_answer(self, stamp, left, life):
        self.life.granted(stamp, life)
        self.slot.granted(stamp, left, self.slot_clock)

    def may_start(self):
        return self.slot.holds(self.slot_clock)

    def pass_time(self, seconds):
        """Go on to what happens next, at most so many seconds."""
        until = self.now + seconds
        while self.mail and self.mail[0][0] <= until:
            self.now, _, call, args = heapq.heappop(self.mail)
            call(*args)
        self.now = until


@given(
    chance=st.integers(0, 10**9),
    latest=st.sampled_from([0.001, 0.3, 5.0, 60.0]),
    loss=st.sampled_from([0.0, 0.2, 0.7]),
    skew=st.sampled_from([0.0, 1e6]),
    lease=st.sampled_from([0.5, 2.0]),
    renewals=st.lists(st.tuples(st.floats(0.01, 3.0), st.floats(0, 1.0)), max_size=12),
)
@settings(max_examples=examples(600), deadline=None)
def test_no_slot_starts_longer_than_a_lease_after_the_last_renewal(
    chance, latest, loss, skew, lease, renewals
):
    """However late messages come; and once a lease is lost it never comes back."""
    world, certain, lost = World(chance, latest, loss, skew, lease), -math.inf, False
    waits = [(wait, age) for wait, age in renewals] + [(0.5, None)] * 12
    for wait, age in waits:
        if age is not None:
            since = world.now - age
            certain = world.sure_at = max(certain, since)
            world.grants.renew([(1, 1)], since)
            world.answer()
        for _ in range(5):
            world.pass_time(wait / 5)
            world.ask()
            if world.may_start():
                assert world.now < certain + lease + 1e-6
                assert not lost
            assert not certain + LIFE < world.life.until < math.inf
            lost = lost or world.slot.is_lost(world.slot_clock)


@pytest.mark.parametrize("skew", [0.0, 5_000.0])
def test_a_lease_that_is_renewed_in_time_is_never_lost(skew):
    """Renewals each half second, messages of up to 0.2 s, a lease of two seconds."""
    for chance in range(50):
        world = World(chance, 0.2, 0.0, skew, 2.0)
        for turn in range(600):
            if turn % 5 == 0:
                world.sure_at = world.now
                world.grants.renew([(1, 1)], world.now)
                world.answer()
            world.ask()
            world.pass_time(0.1)
            assert not world.slot.is_lost(world.slot_clock)
            assert world.now + LIFE - 1.5 < world.life.until or turn < 10
        assert world.may_start()


def test_a_stopped_slot_has_no_lease_whatever_is_renewed():
    """Until its batch is forgotten, also before it connects."""
    grants = Grants(2.0)
    grants.stop([(1, 1)])
    grants.renew([(1, 1), (1, 2)], 10.0)
    assert (grants.left((1, 1), 10.0), grants.left((1, 2), 10.5)) == (0.0, 1.5)
    assert grants.is_stopped((1, 1))
    grants.forget(1)
    assert not grants.is_stopped((1, 1))
    assert grants.left((1, 2), 10.5) == 0


def test_a_lease_is_never_longer_than_agreed():
    """Even if a message says so."""
    lease = Lease(2.0)
    assert lease.granted(lease.ask(100.0), 50.0, 100.1)
    assert lease.until == 102.0
    assert lease.holds(101.9)
    assert not lease.holds(102.0)
