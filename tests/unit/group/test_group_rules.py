"""Rules of the group's core, each by one small case."""

from __future__ import annotations

import os
import re
import socket

import pytest

from assignors import MAX_KEY_HASH, AssignmentConflict, KeyRange, Share
from assignors.wire import MemberAssignment
from commits import Assignment as EpochRow
from commits import Epoch
from coopconsume.group.core import GroupCore
from coopconsume.group.owned import EpochGrant
from coopconsume.group.settings import consumer_config
from coopconsume.options import Options

HALF = MAX_KEY_HASH // 2
EPOCH = Epoch(3, "nonce")


def take(*ranges):
    """What the first of some members makes of an epoch that gives them these key ranges."""
    members = {f"m{n}": (Share("t", 0, KeyRange(*ends)),) for n, ends in enumerate(ranges)}
    row = EpochRow(EPOCH, 1, members, {}, {})
    share = Share("t", 0, KeyRange(*ranges[0]))
    data = MemberAssignment("m0", (share,), EPOCH.number, EPOCH.nonce, {}).to_bytes()
    core = GroupCore(
        "g", {"store": "store", "cluster": "cluster"}, slots=1, allow_key_share=True, life_ms=1000
    )
    return core.take("m0", data, row)


def test_an_assignment_without_holes_and_overlaps_is_taken():
    """Every key hash of the partition has one owner."""
    assert isinstance(take((0, HALF), (HALF + 1, MAX_KEY_HASH)), EpochGrant)


@pytest.mark.parametrize("second", [(HALF + 2, MAX_KEY_HASH), (HALF, MAX_KEY_HASH)])
def test_an_assignment_with_a_hole_or_an_overlap_is_refused(second):
    """One would leave keys to nobody, the other would break their order."""
    with pytest.raises(AssignmentConflict):
        take((0, HALF), second)


def test_a_member_is_named_after_its_application_host_and_process():
    """With what the metrics of Kafka take, unless its options name it."""
    given = {
        "kafka.bootstrap.servers": "nowhere:1", "kafka.group.id": "g", "subscribe": "t",
        "commitTable": "commits",
    }  # fmt: skip
    host, process = re.sub("[^a-zA-Z0-9._-]", "-", socket.gethostname()), os.getpid()
    for application, shown in (("Billing (EU)", "Billing-EU-"), ("", "coopconsume")):
        config = consumer_config(Options.parse(given), application)
        assert config["client_id"] == f"{shown}-{host}-{process}"
    named = Options.parse(given | {"kafka.client.id": "billing-7"})
    assert consumer_config(named, "billing")["client_id"] == "billing-7"
