"""What a notebook shows of a consumer, its assignment and its group; and with no broker there."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from coopconsume import CooperativeConsumer, KeyRange, LocalKafka, TopicPartition, key_hash
from coopconsume import consumer as module
from tests.spark.support import PATIENCE, options

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def test_a_consumer_draws_itself_and_never_raises(spark, tmp_path, monkeypatch):
    """Its group with its own share marked; the text where there is nothing to draw."""
    patience = module._DRAW_TIMEOUT
    monkeypatch.setattr(module, "_DRAW_TIMEOUT", PATIENCE)
    with LocalKafka() as kafka:
        kafka.create_topic("drawn", 2)
        with CooperativeConsumer(options(kafka, tmp_path, "drawn"), spark) as consumer:
            assert consumer._repr_html_() is None
            assert consumer.assignment() == {}
            consumer.subscribe()
            page = ET.fromstring(consumer._repr_html_())
            text = "".join(page.itertext())
            assert page.find("p").text == "All done"
            assert "group drawn-group: Stable, 1 member, 0 records not done" in text
            assert f"{consumer._subscription.joined().assignment.member} (this one)" in text
            assert len(page.findall(".//svg[@width='320']")) == 2

            owned = consumer.assignment()
            assert owned == {TopicPartition("drawn", p): [KeyRange()] for p in (0, 1)}
            assert len(ET.fromstring(owned._repr_html_()).findall(".//svg")) == 2

            job = consumer.foreach(print).queryName("show")
            assert "print" in "".join(ET.fromstring(job._repr_html_()).itertext())

            group = consumer.describe_group()
            assert [(event.kind, event.members) for event in group.events] == [("epoch", 1)]
            assert [member.slots for member in group.members] == [4]
            owner = consumer.key_metadata("drawn", b"k")
            assert owner.member == consumer._subscription.joined().assignment.member
            assert owner.host
            assert owner.key_range == KeyRange().split(4)[owner.slot]
            assert owner.key_range.contains(key_hash(b"k"))
            moved = consumer.key_metadata("drawn", b"k", partition=1 - owner.partition)
            assert moved.partition != owner.partition

            monkeypatch.setattr(module, "_DRAW_TIMEOUT", patience)
            kafka.freeze()
            try:
                assert consumer._repr_html_() is None
                assert repr(consumer) == "CooperativeConsumer(group='drawn-group', open)"
            finally:
                kafka.thaw()
        assert consumer._repr_html_() is None
