"""The port on which a job listens for its slots, and what others do to it."""

from __future__ import annotations

import socket

import pytest

from tests.model.job_group import KEYS, slot_mates
from tests.model.job_world import TP, until
from tests.strangers import flood, forged


def a_free_port():
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_a_job_listens_on_the_port_of_its_option(world):
    """Firewalls let no other one through; it is free again after the job."""
    port = a_free_port()
    there = world(channel=True, channelPort=port)
    for _ in range(2):
        member = there.claim()
        job = there.run(member, there.gate())
        assert job._dispatcher.leases.spec.port == port
        there.until(lambda member=member: there.done(member) == set(range(20)))
        assert until(lambda job=job: job._meter.recent)[-1]["channelError"] == ""
        job.stop()
        member.leave()


@pytest.mark.parametrize("where", ["on Spark Connect", "the port of the option is in use"])
def test_without_a_channel_a_job_works_and_says_once_what_is_lost(world, caplog, where):
    """In its log and in progress, with what helps."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        there = world(channel=where != "on Spark Connect", channelPort=port)
        member, gate = there.claim(), there.gate()
        job = there.run(member, gate)
        for end in (20, 40):
            there.kafka.log |= {offset: KEYS[offset % 5] for offset in range(end - 20, end)}
            there.kafka.end = end
            there.until(lambda end=end: there.done(member) == set(range(end)))
    (said,) = (
        line.getMessage() for line in caplog.records if "goes on without a channel" in line.msg
    )
    for lost in (
        "a running batch does not stop before its end", "results are committed as its slots end",
        "the next owner waits for batchTime + handlerTimeout",
    ):  # fmt: skip
        assert lost in said
    error, remedy = {
        "on Spark Connect": ("slots cannot reach a driver on Spark Connect", "classic session"),
    }.get(where, (f"no channel to slots on 127.0.0.1, port {port}", "the option channelPort"))
    assert said.startswith(error)
    assert remedy in said
    assert until(lambda: job._meter.recent)[-1]["channelError"].startswith(error)


@pytest.mark.parametrize("says", ["garbage", "a forged handshake", "a report"])
def test_a_job_goes_on_while_others_flood_its_port(world, says):
    """Nothing that they say counts."""
    there = world(channel=True)
    member, gate = there.claim(), there.gate(3)
    job = there.run(member, gate)
    there.until(lambda: gate.at_work)
    others = set(range(20)) - slot_mates(3)
    spec = job._dispatcher.leases.spec
    said = forged(job._dispatcher._context.run_id)[says]
    with flood(spec.host, spec.port, said) as tries:
        there.until(lambda: others <= there.done(member))
        until(lambda: len(tries) > 100)
        assert 3 not in there.done(member)
        there.kafka.log |= {offset: KEYS[offset % 5] for offset in range(20, 40)}
        there.kafka.end = 40
        gate.opened.set()
        there.until(lambda: there.done(member) == set(range(40)))
    assert sorted(offset for offset, _ in gate.calls) == list(range(40))
    assert job._dispatcher.leases.spec is not None
    assert member.store.state("g")[TP].stable_offset == 40
