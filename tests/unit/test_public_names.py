"""What others import: each package shows what it promises, and signatures stay as they are."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import pytest

import coopconsume
from coopconsume.cli import main
from coopconsume.query import CooperativeForeach
from coopconsume.record import Record

FACES = (
    "assignors",
    "commits",
    "coopconsume",
    "coopconsume.cli",
    "coopconsume.fenced",
    "coopconsume.fenced.ownership",
    "coopconsume.group",
    "coopconsume.testing.history",
    "coopconsume.monitoring",
    "coopconsume.queue",
    "coopconsume.admin.offsets",
    "coopconsume.admin.overview",
    "coopconsume.sinks",
)

ASSIGN = "(partitions, members, *, shareable_topics=None)"
#: Each of them must be callable as it is written here; more parameters with defaults may follow.
SIGNATURES = {
    "assignors:key_hash": "(key)",
    "assignors:KeyRange": f"(first=0, last={2**63 - 1})",
    "assignors:KeyRange.split": "(n)",
    "assignors:KeyRange.contains": "(key_hash)",
    "assignors:Share": "(topic, partition, key_range)",
    "assignors:Member": "(id, topics, slots=1, allow_key_share=False, instance_id=None, owned=())",
    "assignors:RoundRobinKeyRangeAssignor.assign": ASSIGN,
    "assignors:RangeKeyRangeAssignor.assign": ASSIGN,
    "assignors:StickyKeyRangeAssignor.assign": ASSIGN,
    "assignors:coverage": "(ranges)",
    "assignors:Coverage": "(holes=(), overlaps=())",
    "commits:OffsetRanges": "(pairs=())",
    "commits:OffsetRanges.to_bytes": "()",
    "commits:OffsetRanges.from_bytes": "(data)",
    "commits:PartitionCommits": "(stable_offset=0, ranges=(), max_ranges=1000000)",
    "commits:PartitionCommits.commit": "(pairs)",
    "commits:PartitionCommits.amend": "(pairs)",
    "commits:PartitionCommits.log_start": "(offset)",
    "commits:PartitionCommits.truncate": "(end)",
    "commits:PartitionCommits.reset": "(offset)",
    "commits:PartitionCommits.uncommitted": "(first, last)",
    "commits:CommitResult": "(stable_offset, committed, duplicates, range_count)",
    "commits:Epoch": "(number, nonce)",
    "commits:CommitStore.open": "(target, *, spark=None, storage_options=None)",
    "commits:CommitStore.open_epoch": "(group, assignment, *, previous, generation)",
    "commits:CommitStore.commit": "(group, epoch, member, offsets, *, pending=None)",
    "commits:CommitStore.state": "(group)",
    "commits:CommitStore.history": "(group)",
    "commits:CommitStore.compact": "()",
    "coopconsume:CooperativeConsumer": "(options, spark=None)",
    "coopconsume:CooperativeConsumer.subscribe": "(topics, listener=None)",
    "coopconsume:CooperativeConsumer.assign": "(partitions)",
    "coopconsume:CooperativeConsumer.assignment": "()",
    "coopconsume:CooperativeConsumer.poll": "(timeout=1.0)",
    "coopconsume:CooperativeConsumer.commit": "(done)",
    "coopconsume:CooperativeConsumer.retry": "(frame, *, delay=0.0)",
    "coopconsume:CooperativeConsumer.reject": "(frame, *, reason)",
    "coopconsume:CooperativeConsumer.seek": "(partition, offset)",
    "coopconsume:CooperativeConsumer.foreach": (
        "(handler, *, concurrency=1, ordering='key', retry=None, dead_letter=None)"
    ),
    "coopconsume:CooperativeQuery.awaitTermination": "(timeout=None)",
    "coopconsume:Retry": "(after=None)",
    "coopconsume:Reject": "(reason='')",
    "coopconsume:OwnershipRegistry": "(store, *, owner=None)",
    "coopconsume:OwnershipRegistry.own": "(group, resources)",
    "coopconsume:FencedWriter": "(options, topic, partition=0)",
    "coopconsume:ExclusiveProducer": "(options, topic, partition=0)",
    "coopconsume:LeaderElection": "(options, topic, partition=0)",
    "coopconsume:LocalKafka": "()",
    "coopconsume:QueueConsumer": "(options, topic, replicas=None)",
    "coopconsume:QueueConsumer.poll": "(max_records=500)",
    "coopconsume:QueueConsumer.acknowledge": "(record, kind='accept')",
    "coopconsume:QueueConsumer.commit": "()",
}
MEMBERS = {
    "assignors:KeyRange": ("is_full",),
    "commits:OffsetRanges": ("range_count", "__iter__", "__len__"),
    "commits:PartitionCommits": ("stable_offset", "ranges"),
    "coopconsume:CooperativeConsumer": ("committed", "gaps", "lag", "pause", "resume", "close"),
    "coopconsume:CooperativeQuery": (
        *("id", "runId", "name", "isActive", "status", "lastProgress", "recentProgress"),
        *("processAllAvailable", "exception", "stop"),
    ),
    "coopconsume:LocalKafka": ("bootstrap_servers", "__enter__", "__exit__"),
    "coopconsume:QueueConsumer": ("close", "__enter__", "__exit__"),
}
ERRORS = (
    *("AssignmentConflict", "ConsumerRangeFetchNotAccepted", "CorruptCommitLog", "DataLoss"),
    *("FencedMember", "IndividualCommitNotAllowed", "IndividualCommitTooOld"),
    *("MaxIndividualCommitsReached", "TopicRangeFetchNotAllowed"),
)


def named(place: str) -> Any:
    """What ``module:name`` or ``module:name.name`` stands for."""
    module, _, path = place.partition(":")
    found: Any = import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("module", FACES)
def test_a_package_shows_what_it_names(module: str) -> None:
    """All that ``__all__`` names is there and documented, and nothing is found beside it."""
    package = import_module(module)
    shown = package.__all__
    assert len(set(shown)) == len(shown)
    for name in shown:
        found = getattr(package, name)
        assert inspect.getdoc(found), name
    homes = getattr(package, "_HOME", getattr(package, "_HOMES", {}))
    assert set(homes) <= set(shown)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


@pytest.mark.parametrize("place", SIGNATURES)
def test_signatures_that_others_rely_on(place: str) -> None:
    """Calls as promised still work: same names, same order, same defaults."""
    promised = inspect.signature(eval(f"lambda {SIGNATURES[place][1:-1]}: None"))
    found = {
        name: each
        for name, each in inspect.signature(named(place)).parameters.items()
        if name != "self"
    }
    for name, each in promised.parameters.items():
        assert name in found
        assert found[name].kind in {each.kind, inspect.Parameter.POSITIONAL_OR_KEYWORD}
        if each.default is not inspect.Parameter.empty:
            assert found[name].default == each.default
    positional = [n for n, p in promised.parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert list(found)[: len(positional)] == positional
    for name in set(found) - set(promised.parameters):
        each = found[name]
        assert each.default is not each.empty or each.kind in {
            each.VAR_POSITIONAL,
            each.VAR_KEYWORD,
        }


@pytest.mark.parametrize("place", MEMBERS)
def test_members_that_others_rely_on(place: str) -> None:
    """Attributes and methods without arguments."""
    for name in MEMBERS[place]:
        assert hasattr(named(place), name), name


def test_the_rest_that_others_rely_on() -> None:
    """Constants, the fields of a record, the builder of queries, the modes, the errors."""
    assert coopconsume.MAX_KEY_HASH == 2**63 - 1
    fields = ("topic", "partition", "offset", "key", "value", "timestamp", "headers", "attempt")
    assert Record._fields == fields
    for name in ("queryName", "trigger", "start"):
        assert callable(getattr(CooperativeForeach, name))
    modes = {"SHARED", "EXCLUSIVE", "EXCLUSIVE_WITH_FENCING", "WAIT_FOR_EXCLUSIVE"}
    assert set(coopconsume.AccessMode.__members__) == modes
    errors = import_module("coopconsume.errors")
    for name in ERRORS:
        assert issubclass(getattr(errors, name), Exception)
    assert main.name == "main"
