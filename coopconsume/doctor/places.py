"""Checks of what options name: Kafka's brokers and topics, and the places of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from commits import CommitStore, CommitTableNotFound
from commits.place_trial import try_place
from commits.places import is_named
from commits.secrets import hidden, hidden_in
from coopconsume.classic import is_classic
from coopconsume.doctor.diagnosis import Check
from coopconsume.errors import CoopConsumeError
from coopconsume.errors.base import sentence_of
from coopconsume.kafka.cluster import Cluster
from coopconsume.sinks.letters import letter_tables
from coopconsume.texts import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from coopconsume.options import Options

#: Seconds for each answer of Kafka.
_PATIENCE: Final = 15.0


def kafka_checks(options: Options) -> tuple[list[Check], tuple[tuple[str, int], ...]]:
    """Returns the checks of a cluster, and the hosts and ports of its brokers.

    Args:
        options: Of the consumer; topics and rights are looked at if it names topics.
    """
    try:
        cluster = Cluster(options)
    except CoopConsumeError as error:
        return [Check("Kafka", "failed", str(error))], ()
    try:
        with cluster.patient_for(_PATIENCE):
            brokers = cluster.brokers
            version = ".".join(map(str, cluster.version))
            of = counted(len(brokers), "broker")
            checks = [Check("Kafka", "ok", f"{of} of version {version} or newer")]
            if options.subscribe or options.subscribe_pattern:
                checks.append(_topics(cluster, options))
            return checks, brokers
    except CoopConsumeError as error:
        return [Check("Kafka", "failed", str(error))], ()
    finally:
        cluster.close()


def _topics(cluster: Cluster, options: Options) -> Check:
    try:
        waits = options.on_missing_topic == "wait"
        found = cluster.topics(
            options.subscribe or None, options.subscribe_pattern, missing_ok=waits
        )
    except CoopConsumeError as error:
        return Check("topics", "failed", str(error))
    partitions = sum(topic.partitions for topic in found)
    of = f"{counted(len(found), 'topic')}, {counted(partitions, 'partition')}"
    # Brokers say by a commit of the group whether it may read.
    has_group = "group.id" in options.kafka
    if has_group and not waits:
        return Check("topics", "ok", f"{of}; the group may read them")
    remedy = "run it without onMissingTopic=wait" if waits else "give kafka.group.id"
    return Check("topics", "untried", f"{of}; the rights to them were not tried", remedy)


def table_checks(options: Options, spark: SparkSession) -> Iterator[Check]:
    """Yields whether tables can be where they are, by a file that is created at each place."""
    if options.commit_table:
        yield _table("commit table", options.commit_table, spark)
    for path in letter_tables(options.dead_letter):
        is_own = path == options.dead_letter
        yield _table("dead letters" if is_own else "decisions on dead letters", path, spark)


def _table(name: str, place: str, spark: SparkSession) -> Check:
    if is_named(place):
        return _in_catalog(name, place, spark)
    try:
        found = try_place(place)
    except Exception as error:  # noqa: BLE001 - of a library of the store, too
        return Check(name, "failed", hidden_in(sentence_of(error)))
    kind = "a Delta table" if found.has_table else "nothing yet"
    shown = (
        f"{kind} at {hidden(place)}; an existing file is not overwritten; creating one took "
        f"{found.seconds:.3f} s"
    )
    if found.left is not None:
        remedy = "grant the right to delete: old files of a table are removed, too"
        return Check(name, "warning", f"{shown}; it could not be removed: {found.left}", remedy)
    is_alone = is_classic(spark) and str(spark.conf.get("spark.master", "")).startswith("local")
    if found.is_local and not is_alone:
        remedy = "give a URI (s3://…, abfss://…, gs://…) if drivers run on several machines"
        return Check(
            name, "warning", f"{shown}; a folder of this machine, or one that several mount", remedy
        )
    return Check(name, "ok", shown)


def _in_catalog(name: str, table: str, spark: SparkSession) -> Check:
    try:
        CommitStore.open(table, spark=spark, create=False)
    except CommitTableNotFound:
        found = f"{table}: not there yet, in a catalog"
        return Check(name, "untried", found, "the job creates it, if it may")
    except Exception as error:  # noqa: BLE001 - of a catalog, too
        return Check(name, "failed", hidden_in(sentence_of(error)))
    return Check(name, "ok", f"{table}: a commit table of a catalog")
