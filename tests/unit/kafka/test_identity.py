"""The group id under which Spark reads: one for logs that stay, another once one has changed."""

from __future__ import annotations

from unittest import mock

from coopconsume.kafka.identity import LogIdentities, is_other_topic
from coopconsume.options import Options
from coopconsume.runtime.read.offset_frames import read_spans
from coopconsume.runtime.read.spans import Span


def test_the_group_id_for_reads_changes_with_a_topic_id_and_a_leader_epoch() -> None:
    """And with nothing else: not with more partitions, nor with what was seen before."""
    logs = LogIdentities()
    seen = [logs.read_group("g", {})]
    assert seen[0].startswith("g-reads-")

    def has_changed() -> bool:
        seen.append(logs.read_group("g", {}))
        return seen[-1] not in seen[:-1]

    logs.saw_topics("c", {"t": "", "u": "id-u"})
    logs.saw_topics("c", {"t": "id-t"})
    logs.saw_epochs("c", {("t", 0): 4, ("u", 0): 0})
    assert not has_changed()
    logs.saw_topics("other", {"t": "its-id"})
    logs.saw_epochs("other", {("t", 0): 7})
    logs.saw_topics("c", {"t": "id-t", "u": ""})
    logs.saw_epochs("c", {("t", 0): 4, ("t", 1): 9})
    assert not has_changed()
    logs.saw_topics("c", {"t": "id-of-the-new-one"})
    assert has_changed()
    for epoch in (5, 4):  # A topic that was created again begins at a lower epoch.
        logs.saw_epochs("c", {("t", 0): epoch})
        assert has_changed()
    assert not has_changed()
    assert LogIdentities().read_group("g", {}) not in seen, "another process shares the executors"


def test_the_group_id_for_reads_is_that_of_the_settings() -> None:
    """Spark's executors take no two settings for one; the same settings have the same again."""
    logs = LogIdentities()
    first, second = {"kafka.client.id": "a"}, {"kafka.client.id": "b"}
    groups = [logs.read_group("g", one) for one in (first, second, first, {})]
    assert groups[0] == groups[2]
    assert len(set(groups)) == 3
    logs.saw_topics("c", {"t": "one"})
    logs.saw_topics("c", {"t": "two"})
    assert logs.changes == 1
    assert logs.read_group("g", first) not in groups


def test_a_topic_is_another_one_only_if_both_ids_are_known() -> None:
    """Brokers before 2.8 have no ids, and old commit tables do not have them either."""
    assert is_other_topic("id-1", "id-2")
    assert not any(is_other_topic(*ids) for ids in [("a", "a"), ("a", ""), ("", "a"), ("", "")])


def test_every_read_is_made_under_that_group_id() -> None:
    """Long and short reads each under their own; without a group, Spark makes one for a query."""
    given = {"kafka.bootstrap.servers": "nowhere:1", "commitTable": "/c", "kafka.group.id": "g"}
    spans = [Span("t", 0, 10_000 * i, 10_000 * i + size) for i, size in enumerate([9, 9, 9, 9_000])]
    for group in (True, False):
        if not group:
            del given["kafka.group.id"]
        spark = mock.MagicMock()
        read_spans(spark, Options.parse(given, group=group), spans, 1)
        options = spark.read.format.return_value.options.call_args_list
        groups = {call.kwargs.get("kafka.group.id", "") for call in options}
        assert len(groups) == (2 if group else 1)
        assert all("g-reads-" in name for name in groups) == group
