"""A job's verdict foresees what retention deletes before it is done; nothing waits for that."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

from assignors import key_hash
from commits import OffsetRanges, Pending
from commits.model import PARKED_MS
from coopconsume.cli.run import status_line
from coopconsume.kafka.retention import OpenOffsets, RetentionForecast
from coopconsume.query import CooperativeQuery
from tests.model.job_world import TP, World

KEYS = {offset: b"k%d" % offset for offset in range(8)}
HOURS = 3 * 3_600.0
DANGER = (
    f"Within 3 h, retention deletes up to 1 record of {TP[0]}-{TP[1]} that is not done. "
    "Raise retention.ms, work faster, or decide on parked records"
)


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Return a world in which retention soon deletes the records below offset 3, and 5 is parked.

    So the rates of the job do not say that all is done in time.
    """
    monkeypatch.setattr("coopconsume.runtime.status.retention_watch._LOOK_EVERY", 0.0)
    made = World(monkeypatch, tmp_path, KEYS)
    made.kafka.forecast = RetentionForecast({HOURS: {TP: 3}})
    before = made.claim()
    parked = Pending(5, key_hash(KEYS[5]), 3, PARKED_MS, "no")
    before.assignment.commit({}, pending={TP: [parked]}, commit_id="before")
    before.leave()
    yield made
    made.close()


class Handler:
    """Fails on record 1 until it may succeed."""

    def __init__(self):
        self.may_succeed = threading.Event()

    def __call__(self, record):
        if record.offset == 1 and not self.may_succeed.is_set():
            raise ValueError("no")


def verdict(job):
    """The verdict in the job's last progress event; nothing before it."""
    recent = job._meter.recent
    return recent[-1]["verdict"] if recent else {"reason": None}


def test_records_that_are_deleted_before_they_are_done_are_in_the_verdict(world):
    """With their number, in progress, its gauge, and on the status line."""
    member = world.claim()
    job = world.run(member, Handler())
    world.until(lambda: world.done(member) == set(KEYS) - {1, 5})
    world.until(lambda: verdict(job).get("sentence") == DANGER)
    event = job._meter.recent[-1]
    assert event["verdictSeverity"] == 4
    assert status_line(event, 0.0).endswith(f"; {DANGER}")
    run = SimpleNamespace(job=job, meter=job._meter, is_active=True)
    page = CooperativeQuery(run, {"id": "q", "name": None}, None, None)._repr_html_()
    assert ET.fromstring(page).find("p").text == DANGER, "as in a notebook"
    wanted = {TP: OpenOffsets(1, 8, OffsetRanges([(2, 4), (6, 7)]))}
    world.until(lambda: wanted in world.kafka.forecasts_asked)


def test_what_is_done_since_the_forecast_is_no_danger(world):
    """Although Kafka is not asked about it again."""
    handler = Handler()
    job = world.run(world.claim(), handler)
    world.until(lambda: verdict(job).get("sentence") == DANGER)
    world.kafka.may_forecast.clear()
    handler.may_succeed.set()
    world.until(lambda: verdict(job)["reason"] == "decision")


def test_nothing_waits_for_what_retention_deletes(world):
    """Batches and commits go on while Kafka does not answer; one request is under way."""
    world.kafka.may_forecast.clear()
    member = world.claim()
    job = world.run(member, Handler())
    world.until(lambda: world.kafka.forecasts_asked)
    world.until(lambda: world.done(member) == set(KEYS) - {1, 5})
    world.turns(job)
    assert len(world.kafka.forecasts_asked) == 1
    assert verdict(job)["reason"] == "decision"
    world.kafka.may_forecast.set()
    world.until(lambda: verdict(job)["reason"] == "retention")


def test_a_forecast_that_fails_is_made_later(world, caplog):
    """It is no warning."""
    world.kafka.forecast_errors.append(RuntimeError("away"))
    with caplog.at_level("DEBUG", "coopconsume.runtime.status.retention_watch"):
        job = world.run(world.claim(), Handler())
        world.until(lambda: verdict(job)["reason"] == "retention")
    (line,) = [one for one in caplog.records if "away" in one.getMessage()]
    assert line.levelname == "DEBUG"
