"""Typed records in real jobs: what decodes, letters with raw bytes, and replays that decode."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest

from coopconsume import CooperativeConsumer, RetryPolicy
from coopconsume.admin.dead_letters.actions import DeadLetters
from coopconsume.admin.dead_letters.choice import Choice
from tests.spark.support import PATIENCE, options, until

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@dataclasses.dataclass
class Order:
    """What the values are, in a class that workers get with the job."""

    amount: int


class Decode:
    """Decodes orders; an amount may be text once a file is there.

    Args:
        path: The file.
    """

    def __init__(self, path):
        self.path = str(path)

    def __call__(self, data):
        """Returns the order."""
        amount = json.loads(data)["amount"]
        if isinstance(amount, str) and not os.path.exists(self.path):
            raise ValueError("the amount is text")
        return Order(int(amount))


class Handle:
    """Notes each record that it gets in a file.

    Args:
        path: The file.
    """

    def __init__(self, path):
        self.path = str(path)

    def __call__(self, record):
        """Note it."""
        with open(self.path, "a") as file:
            file.write(f"{record.offset} {record.key} {record.value.amount}\n")


@pytest.mark.parametrize("trigger", [{"processingTime": "0 seconds"}, {"realTime": "5 minutes"}])
def test_a_replayed_letter_is_decoded_again(spark, kafka, topic, produce, tmp_path, trigger):
    """In batches and in real time a parked record has a letter with its bytes; then it decodes."""
    name, seen = topic(1), tmp_path / "seen"
    amounts = [0, 1, "2", 3, 4, 5]
    values = [json.dumps({"amount": amount}).encode() for amount in amounts]
    produce(name, [(b"k%d" % (i % 2), value) for i, value in enumerate(values)])
    opts = options(kafka, tmp_path, name, deadLetter=str(tmp_path / "dead"), slots=1)
    fixed = tmp_path / "fixed"

    def lines():
        return sorted(seen.read_text().splitlines()) if seen.exists() else []

    with CooperativeConsumer(opts, spark) as consumer:
        policy = RetryPolicy(undecodable="park")
        job = consumer.foreach(Handle(seen), retry=policy, value=Decode(fixed), key="text")
        query = job.trigger(**trigger).start()
        letters = DeadLetters(opts)
        (letter,) = until(letters.letters)
        assert (letter.offset, letter.status, letter.value) == (2, "parked", values[2])
        assert letter.reason == "NotDecodable: value: ValueError: the amount is text"
        until(lambda: lines() == ["0 k0 0", "1 k1 1", "3 k1 3", "5 k1 5"])
        fixed.touch()
        letters.carry_out("replay", letters.plan(Choice()))
        until(lambda: lines() == [f"{i} k{i % 2} {i}" for i in range(6)])
        query.processAllAvailable()
        assert query.lastProgress["totals"]["deadLetters"] == 1
        query.stop()
    assert not letters.letters()
    assert query.awaitTermination(PATIENCE)
