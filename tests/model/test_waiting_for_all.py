"""`processAllAvailable` while brokers are away, and while topics go and come again."""

from __future__ import annotations

import threading

from coopconsume.errors import BrokerUnreachable, TopicNotFound
from coopconsume.record import RetryPolicy
from tests.model.job_world import _PATIENCE, TP


def test_brokers_that_do_not_answer_are_waited_for(world):
    """As the job itself does; it asks again until they do."""
    there = world()
    member = there.claim()
    job = there.run(member, there.gate())
    ends, looks = there.kafka.ends, []

    def away(partitions):
        looks.append(partitions)
        if len(looks) < 3:
            raise BrokerUnreachable("nowhere:1", "no route")
        return ends(partitions)

    there.kafka.ends = away
    job.wait_for_available()
    assert len(looks) == 3
    assert there.done(member) == set(range(20))


def test_a_topic_that_is_deleted_is_not_waited_for(world, monkeypatch):
    """Also where the job has not noticed yet that it is gone."""
    monkeypatch.setattr("coopconsume.runtime.log_watch._STARTS_EVERY", 0.05)
    there = world(onMissingTopic="wait")
    member = there.claim()
    job = there.run(member, there.gate())
    there.until(lambda: there.done(member) == set(range(20)))
    gone = threading.Event()

    def ends(partitions):
        there.kafka.is_deleted = True
        gone.set()
        if partitions:
            raise TopicNotFound("t", "nowhere:1")
        return {}

    there.kafka.ends = ends
    job.wait_for_available()
    assert gone.is_set()
    assert member.assignment.owned[TP].is_deleted
    assert job.error is None


def test_records_of_an_earlier_topic_of_the_name_are_not_waited_for(world):
    """The topic is created again meanwhile, and its log is shorter than the old one was."""
    there = world(onMissingTopic="wait", failOnDataLoss="false")
    member = there.claim()

    def handler(record):
        if record.offset == 7:
            raise RuntimeError("not yet")

    job = there.run(member, handler, policy=RetryPolicy(backoff=1000, max_backoff=1000, jitter=0))
    there.until(lambda: there.done(member) == set(range(20)) - {7, 12, 17})
    first = member.assignment

    def rejoin(_why, _running):
        """A member of a group joins again; here the shares are claimed once more."""
        threading.Thread(target=member._claim_again, args=(first,)).start()
        return True

    member.rejoin = rejoin
    waiting = threading.Thread(target=job.wait_for_available)
    waiting.start()
    there.until(lambda: job._completion._waiters)
    there.kafka.log = dict.fromkeys(range(5), b"k0")
    there.kafka.topic_id, there.kafka.end = "new", 5
    there.until(lambda: member.assignment not in (None, first) and len(there.done(member)) == 5)
    waiting.join(_PATIENCE)
    assert not waiting.is_alive()
