"""What others import: each package shows what it promises, and signatures stay as they are."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import coopconsume
from coopconsume.cli import main
from coopconsume.handler_types import ForeachSettings, FrameSettings
from coopconsume.query import CooperativeForeach
from coopconsume.record import Record
from coopconsume.runtime.job_spec import HandlerSettings

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
REFERENCE = Path(__file__).parents[2] / "docs/reference/api"
#: The methods that take a handler, and the argument of the others that each does not have.
METHODS = {"foreach": "", "foreach_with_state": "ordering", "foreach_frame": "concurrency"}
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
#: What editors offer of the classes that users work with: internals begin with an underscore.
OFFERED = {
    "coopconsume:CooperativeConsumer": (
        "assign assignment close commit committed describe_group foreach foreach_frame "
        "foreach_with_state gaps key_metadata lag options pause poll reject resume retry seek "
        "slots spark status subscribe unsubscribe wakeup"
    ),
    "coopconsume.query:CooperativeForeach": (
        "addListener onHandlerLine onProgress queryName start trigger"
    ),
    "coopconsume:CooperativeQuery": (
        "abort awaitTermination exception id isActive lastProgress name pause "
        "processAllAvailable recentProgress resume runId state status stop ui_url"
    ),
    "coopconsume:QueueConsumer": "acknowledge close commit poll stable_offsets",
    "coopconsume:AsyncQueueConsumer": "acknowledge close commit poll",
    "coopconsume:Admin": (
        "check dead_letters describe groups lag offsets reader records repair set_shareable topics"
    ),
    "coopconsume:FencedWriter": (
        "acquire append append_async checkpoint checks close epoch is_open last_batch log "
        "max_request_size next_offset next_seq opened_at peek refresh release resolve session"
    ),
    "coopconsume.fenced:MultiLogWriter": (
        "acquire append close last_batch next_offset next_seq refresh"
    ),
    "coopconsume.fenced:LogReader": "close end epoch next_seq position read timeout",
    "coopconsume:ExclusiveProducer": (
        "acquire append append_async check close confirm epoch held_by is_open mode owner "
        "partition registry session topic writer"
    ),
    "coopconsume:LeaderElection": "close lead leader leader_name resign start",
    "coopconsume:OwnershipRegistry": (
        "acquire close evict history holds keeps list own poll release session show store wait"
    ),
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


@pytest.mark.parametrize("place", OFFERED)
def test_an_editor_offers_what_the_reference_describes(place: str) -> None:
    """Methods, properties and what is set on the instance, with those of the bases."""
    kind = named(place)
    ours = [base for base in kind.__mro__ if base.__module__.startswith("coopconsume.")]
    offered = {name for base in ours for name in {*vars(base), *_set_on_instances(base)}}
    assert sorted(name for name in offered if not name.startswith("_")) == OFFERED[place].split()
    described = _described(kind)
    assert {name for name in OFFERED[place].split() if name not in described} == set()


def _set_on_instances(kind: type) -> set[str]:
    return {
        node.attr
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(kind))))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def _described(kind: type) -> set[str]:
    """The arguments, attributes, methods and properties that the reference describes of a class."""
    pages = "".join(page.read_text("utf-8") for page in sorted(REFERENCE.glob("*.md")))
    _, _, section = pages.partition(f"\n## {kind.__name__}\n")
    entries = re.findall(
        r"^(?:- `([^`]+)`: |\*\*`(\w+))", section.partition("\n## ")[0], re.MULTILINE
    )
    return {name for names in entries for name in "".join(names).split(", ")} | {
        *inspect.signature(kind).parameters
    }


def test_arguments_of_handlers_are_declared_once() -> None:
    """What callers may give is what `HandlerSettings` declares, with its types and defaults."""
    of_callers = {**_types(ForeachSettings), **_types(FrameSettings)}
    declared = {field.name: str(field.type) for field in fields(HandlerSettings)}
    assert of_callers.keys() == declared.keys()
    # They hold what has been checked as any value.
    exact = {name: kind for name, kind in declared.items() if kind != "Any"}
    assert {name: of_callers[name] for name in exact} == exact
    defaults = vars(HandlerSettings())
    for method, left_out in METHODS.items():
        shown = inspect.signature(getattr(coopconsume.CooperativeConsumer, method)).parameters
        assert {name: shown[name].default for name in shown if name in defaults} == {
            name: value for name, value in defaults.items() if name != left_out
        }


@pytest.mark.parametrize("method", METHODS)
def test_an_unknown_argument_of_a_handler_is_refused_by_name(method: str) -> None:
    """As Python does it, before anything begins."""
    call = getattr(object.__new__(coopconsume.CooperativeConsumer), method)
    given = {"state": "s", "state_schema": "long"} if method == "foreach_with_state" else {}
    for unknown in {"concurency", METHODS[method]} - {""}:
        said = rf"^CooperativeConsumer\.{method}\(\) got an unexpected .* '{unknown}'"
        with pytest.raises(TypeError, match=said):
            call(print, **given, **{unknown: 2})
    with pytest.raises(TypeError, match=rf"{method}\(\) missing .*'handler'"):
        call(**given)


def _types(settings: Any) -> dict[str, str]:
    """The types of a dictionary's keys, as they are written."""
    return {
        name: getattr(kind, "__forward_arg__", str(kind))
        for name, kind in settings.__annotations__.items()
    }


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
