"""What Spark's user interface shows of the Spark jobs of a batch."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

from coopconsume.runtime.dispatch import batch


def test_each_spark_job_of_a_batch_is_named_by_query_batch_and_size(monkeypatch):
    """The job that runs handlers, and the one that looks for records that no slot has reported."""
    running = SimpleNamespace(
        title="billing", number=17, tag="tag",
        plan=SimpleNamespace(wanted={0: [], 1: [], 2: []}, span=12_000, work={}, reads=[]),
        epoch_state=SimpleNamespace(partitions=[]),
    )  # fmt: skip
    assert batch._description(running) == "billing batch 17: 3 partitions, 12,000 offsets"
    named = []

    def tagged(_spark, _tag, *shown):
        named.append(shown)
        return nullcontext()

    monkeypatch.setattr(batch, "tagged", tagged)
    monkeypatch.setattr(
        batch, "batch_frame", lambda *_, **__: SimpleNamespace(isEmpty=lambda: True)
    )
    assert not batch._have_records(SimpleNamespace(spark=None, options=None), running, [])
    look = "look for records of billing batch 17: 3 partitions, 12,000 offsets"
    assert named == [("billing", look)]
