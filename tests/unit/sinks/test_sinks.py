"""Sinks on real Delta tables: what is written once, twice, by halves, and what is left of it."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from commits import CommitRefused, CommitStore, OffsetRanges
from coopconsume.errors import InvalidOption, OutputNotWritten, TableUnusable
from coopconsume.options import Options
from coopconsume.sinks import (
    MergeTable,
    Outputs,
    OutputTable,
    OutputTopic,
    committed_rows,
    open_output,
)
from coopconsume.sinks.base import required_topics
from tests.late_chunk import COUNTING, write_late_chunk

SCHEMA = pa.schema([("text", pa.string())])
OPTIONS = Options.parse(
    {"kafka.bootstrap.servers": "a:1", "kafka.group.id": "g", "commitTable": "commits"}
)
TP = ("t", 3)


def outputs(rows: dict[int, list[str]], commit_id: str, done: list[int] | None = None) -> Outputs:
    """What handlers returned for some offsets of one partition."""
    flat = [(offset, text) for offset, texts in rows.items() for text in texts]
    table = pa.table(
        {
            "text": pa.array([text for _, text in flat], pa.string()),
            "_part": pa.array([1] * len(flat), pa.int32()),
            "_offset": pa.array([offset for offset, _ in flat], pa.int64()),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    parts = [((("t", 0), TP), sink.getvalue().to_pybytes())] if flat else []
    settled = OffsetRanges.from_offsets(done if done is not None else list(rows))
    return Outputs(parts, {TP: settled}, {"t": "id-of-t"}, commit_id)


def test_rows_are_numbered_in_their_record_of_their_partition():
    """Records of two partitions may have the same offset."""
    places = [(0, 7), (1, 7), (1, 7), (1, 8), (1, 8), (1, 8), (0, 8)]
    table = pa.table(
        {
            "text": pa.array(["x"] * len(places), pa.string()),
            "_part": pa.array([part for part, _ in places], pa.int32()),
            "_offset": pa.array([offset for _, offset in places], pa.int64()),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    rows = Outputs([((("t", 0), ("t", 1)), sink.getvalue().to_pybytes())]).table(SCHEMA)
    assert rows.column("_row").to_pylist() == [0, 0, 1, 0, 1, 2, 0]


def lying(path) -> list[tuple[int, str]]:
    """Offset and text of what is in a table, sorted."""
    rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    assert {(r["_topic"], r["_topic_id"], r["_partition"]) for r in rows} <= {("t", "id-of-t", 3)}
    return sorted((row["_offset"], row["text"]) for row in rows)


def test_appended_rows_count_with_their_commit(tmp_path):
    """Rows of a commit that the log does not count are left out by the reader, and only they.

    So are those of a partition in which a commit was refused that counts in another.
    """
    table = OutputTable(str(tmp_path / "out"), SCHEMA)
    table.write(outputs({1: ["lost"]}, "run-0"))
    table.write(outputs({1: ["a", "b"], 2: []}, "run-1"))
    store = CommitStore.open(tmp_path / "commits")
    epoch = store.open_epoch("g", {"m": [TP]}, previous=None)
    store.commit("g", epoch, "m", {TP: [(1, 2)]}, commit_id="run-1")
    assert lying(tmp_path / "out") == [(1, "a"), (1, "b"), (1, "lost")]
    other = ("t", 0)
    epoch = store.open_epoch("g", {"m": [other]}, previous=epoch)
    table.write(outputs({3: ["refused"]}, "run-2"))
    with pytest.raises(CommitRefused):
        store.commit("g", epoch, "m", {TP: [(3, 3)], other: [(0, 0)]}, commit_id="run-2")
    rows = committed_rows(str(tmp_path / "out"), str(tmp_path / "commits"), "g").to_pylist()
    assert [(row["text"], row["_commit"]) for row in rows] == [("a", "run-1"), ("b", "run-1")]


def test_rows_of_records_that_another_member_acquired_do_not_count(tmp_path):
    """A late commit of a chunk counts for what nobody else has acquired; its other rows do not."""
    rows = committed_rows(*write_late_chunk(tmp_path)).to_pylist()
    assert sorted((row["_offset"], row["text"]) for row in rows) == COUNTING


writes = st.lists(
    st.dictionaries(st.integers(0, 5), st.lists(st.sampled_from("abc"), max_size=3), min_size=1),
    min_size=1,
    max_size=4,
)


@given(writes)
@settings(max_examples=15, deadline=None)
def test_a_merged_table_has_what_each_record_gave_last(tmp_path_factory, many):
    """However often records are done, and with however few rows: the last ones alone lie there."""
    path = tmp_path_factory.mktemp("merged") / uuid.uuid4().hex
    expected: dict[int, list[str]] = {}
    for number, rows in enumerate(many):
        MergeTable(str(path), SCHEMA).write(outputs(rows, f"run-{number}"))
        expected |= rows
        wanted = sorted((offset, text) for offset, texts in expected.items() for text in texts)
        assert DeltaTable.is_deltatable(str(path)) or not wanted
        assert not wanted or lying(path) == wanted


def test_two_writers_of_the_same_records_leave_their_rows_once(tmp_path):
    """A fenced writer that wakes late changes no number of rows."""
    path = str(tmp_path / "out")
    first, late = MergeTable(path, SCHEMA), MergeTable(path, SCHEMA)
    first.write(outputs({o: [f"r{o}"] for o in range(5)}, "run-0"))
    late.write(outputs({o: [f"r{o}"] for o in range(2, 8)}, "other-0"))
    assert lying(path) == [(o, f"r{o}") for o in range(8)]
    with pytest.raises(TableUnusable, match="_row"):
        OutputTable(path, SCHEMA)


def test_a_merge_that_conflicts_with_another_one_is_repeated(tmp_path, monkeypatch):
    """The other one comes between the opening of the table and the merge."""
    path = str(tmp_path / "out")
    first, late = MergeTable(path, SCHEMA), MergeTable(path, SCHEMA)
    first.write(outputs({1: ["a"], 2: ["b"]}, "run-0"))
    merge, others = DeltaTable.merge, iter(["c", "d"])

    def merged_late(table, *args, **words):
        text = next(others, None)
        if text is not None:
            first.write(outputs({1: [text]}, "run-1"))
        return merge(table, *args, **words)

    monkeypatch.setattr(DeltaTable, "merge", merged_late)
    late.write(outputs({1: ["late"]}, "run-2"))
    assert next(others, None) is None
    assert lying(path) == [(1, "late"), (2, "b")]


@pytest.mark.parametrize(
    ("place", "mode", "words"),
    [
        ("kafka:", "append", "kafka:TOPIC"),
        ("kafka:t", "merge", "it needs a Delta table"),
        (print, "merge", "it needs a Delta table"),
        ("out", "update", "append, merge or transactional"),
        ("out", "transactional", "it needs a topic"),
        (7, "append", "a path, kafka:TOPIC"),
    ],
)
def test_an_invalid_sink_is_refused(place, mode, words):
    """A place or a mode that cannot be used names what can."""
    with pytest.raises(InvalidOption, match=words):
        open_output(place, mode, SCHEMA, OPTIONS, None)


def test_topics_that_a_job_creates_need_not_exist():
    """Those of dead letters alone are created, and only if it is said with how many partitions."""
    words = {"kafka.bootstrap.servers": "b:1", "kafka.group.id": "g", "commitTable": "/t"}
    given = Options.parse(words)
    creating = Options.parse({**words, "deadLetterPartitions": 2})
    assert required_topics("kafka:dead", "kafka:out", given) == ["dead", "out"]
    assert required_topics("kafka:dead", "kafka:out", creating) == ["out"]
    assert required_topics("/dead", "/out", given) == required_topics(None, None, given) == []


def test_columns_of_a_topic_are_those_of_kafka():
    """Without a value, or with a column of another name, there is no such sink."""
    for names in (["key"], ["value", "text"]):
        with pytest.raises(InvalidOption, match="give value"):
            OutputTopic("t", pa.schema([(name, pa.string()) for name in names]), OPTIONS)


def test_an_unreadable_table_is_reported(tmp_path):
    """What Delta does not take names the table and the cause, and may be tried again."""
    table = OutputTable(str(tmp_path / "out"), SCHEMA)
    (tmp_path / "out").write_text("not a folder")
    with pytest.raises(OutputNotWritten) as refused:
        table.write(outputs({1: ["a"]}, "run-0"))
    assert refused.value.where == str(tmp_path / "out")
    assert refused.value.retriable


PAYMENTS = pa.schema([("text", pa.string()), ("n", pa.int64())])
CLUSTERED = ["appendOnly", "invariants", "domainMetadata", "clustering"]


def payments(rows: dict[int, tuple[str, int]], commit_id: str = "run-0") -> Outputs:
    """What handlers returned for some offsets: one row each, of a text and a number."""
    with_text = outputs({offset: [text] for offset, (text, _) in rows.items()}, commit_id)
    ((partitions, data),) = with_text.parts
    numbers = pa.array([n for _, n in rows.values()], pa.int64())
    table = pa.ipc.open_stream(data).read_all().append_column("n", numbers)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return replace(with_text, parts=[(partitions, sink.getvalue().to_pybytes())])


def files_of(path) -> set[str]:
    """The folders of the files of a table, and that no file has a partition column."""
    table = DeltaTable(str(path))
    by = table.metadata().partition_columns
    assert all(not {*pq.read_schema(uri).names} & {*by} for uri in table.file_uris())
    return {os.path.relpath(os.path.dirname(uri), path) for uri in table.file_uris()}


def clustered(path, schema) -> None:
    """Makes a table that is clustered, as Spark's CLUSTER BY does."""
    DeltaTable.create(str(path), schema)
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": CLUSTERED}
    columns = json.dumps({"clusteringColumns": [["text"]], "domainName": "delta.clustering"})
    domain = {"domain": "delta.clustering", "configuration": columns, "removed": False}
    actions = {"commitInfo": {"timestamp": 1}, "protocol": protocol, "domainMetadata": domain}
    text = "\n".join(json.dumps({name: value}) for name, value in actions.items())
    (path / "_delta_log" / f"{1:020d}.json").write_text(text)


@pytest.mark.parametrize("kind", [OutputTable, MergeTable])
def test_the_first_rows_create_a_partitioned_table(tmp_path, kind):
    """Rows lie in the folder of their value; later writes and another start add to it."""
    path = tmp_path / "out"
    table = kind(str(path), PAYMENTS, partition_by=["text", "_partition"])
    table.write(payments({1: ("a b", 1), 2: ("c", 2)}))
    table.write(payments({3: ("c", 3)}, "run-1"))
    kind(str(path), PAYMENTS, partition_by=("text", "_partition")).write(
        payments({4: ("d", 4)}, "run-2")
    )
    kind(str(path), PAYMENTS).write(payments({5: ("a b", 5)}, "run-3"))
    assert lying(path) == [(1, "a b"), (2, "c"), (3, "c"), (4, "d"), (5, "a b")]
    assert files_of(path) == {f"text={text}/_partition=3" for text in ("a%20b", "c", "d")}
    found = DeltaTable(str(path)).to_pyarrow_table(filters=[("text", "=", "c")])
    assert sorted(found.column("n").to_pylist()) == [2, 3]


def test_a_record_whose_row_changes_its_partition_is_merged_once(tmp_path):
    """Its old row is gone."""
    table = MergeTable(str(tmp_path / "out"), PAYMENTS, partition_by="text")
    table.write(payments({1: ("a", 1), 2: ("b", 2)}))
    table.write(payments({1: ("b", 7)}, "run-1"))
    assert lying(tmp_path / "out") == [(1, "b"), (2, "b")]


@pytest.mark.parametrize("kind", [OutputTable, MergeTable])
def test_a_table_with_other_partition_columns_is_refused(tmp_path, kind):
    """With both lists; the order of columns does not matter, and without a list any are taken."""
    path = str(tmp_path / "out")
    kind(path, PAYMENTS, partition_by=["text", "n"]).write(payments({1: ("a", 1)}))
    kind(path, PAYMENTS, partition_by=["n", "text"])
    kind(path, PAYMENTS)
    with pytest.raises(TableUnusable, match="partitioned by text, n, and output_partition_by is n"):
        kind(path, PAYMENTS, partition_by="n")
    plain = str(tmp_path / "plain")
    kind(plain, PAYMENTS).write(payments({1: ("a", 1)}))
    with pytest.raises(TableUnusable, match="it has no partition columns, and output_partition_by"):
        kind(plain, PAYMENTS, partition_by="n")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["day"], "day.*the table has no such column: give some of text, n, _topic"),
        (["n", "n"], "give each column once"),
        (["tags"], "tags.*has the type list"),
        ([7], "give names of columns"),
        (7, "give names of columns"),
    ],
)
def test_columns_that_cannot_partition_are_refused(tmp_path, given, words):
    """Before anything is written."""
    schema = pa.schema([*PAYMENTS, ("tags", pa.list_(pa.string()))])
    with pytest.raises(InvalidOption, match=words) as refused:
        OutputTable(str(tmp_path / "out"), schema, partition_by=given)
    assert str(refused.value).startswith("option output_partition_by")


@pytest.mark.parametrize("place", ["kafka:t", print])
def test_only_tables_are_partitioned(place):
    """A topic has partitions of its own, and a function writes what it likes."""
    with pytest.raises(InvalidOption, match=r"output_partition_by.*give a path as output"):
        open_output(place, "append", SCHEMA, OPTIONS, None, partition_by="text")


def test_a_clustered_table_is_appended_to_and_not_merged_into(tmp_path, monkeypatch):
    """Also by many rows at once, which deltalake writes elsewhere: it does not write here."""
    path = tmp_path / "out"
    clustered(path, pa.schema([*SCHEMA, *OutputTable.beside]))
    table = OutputTable(str(path), SCHEMA)
    table.write(outputs({1: ["a"]}, "run-0"))
    monkeypatch.setattr("commits.table_appender._LARGE", 1)
    table.write(outputs({2: ["b"]}, "run-1"))
    assert lying(path) == [(1, "a"), (2, "b")]
    merged = tmp_path / "merged"
    clustered(merged, pa.schema([*SCHEMA, *MergeTable.beside]))
    with pytest.raises(TableUnusable, match=r"feature clustering.*output_mode='append'"):
        MergeTable(str(merged), SCHEMA)
