"""The alert rules and the dashboard, evaluated by Prometheus' own tool on histories of metrics."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Final

import pytest

from tests import prometheus
from tests.prometheus import Case, constant

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.prometheus

_GROUP: Final = 'group="shop"'
_PLACE: Final = f'{_GROUP},topic="orders",partition="0"'
_JOB: Final = f'{_GROUP},query="billing",member="a"'
_OTHER: Final = f'{_GROUP},query="billing",member="b"'
_EPOCH: Final = f"coopconsume_epoch{{{_JOB}}}"
_GONE: Final = f'coopconsume_members{{{_GROUP},state="gone"}}'
_PARKED: Final = f"coopconsume_parked{{{_PLACE}}}"
_LAG: Final = f'coopconsume_lag{{{_JOB},topic="orders",partition="0"}}'
_DONE: Final = f"coopconsume_records_done_total{{{_JOB}}}"
_OWN_PARKED: Final = f'coopconsume_parked{{{_JOB},topic="orders",partition="0"}}'
_BEHIND: Final = f"coopconsume_parked_behind{{{_GROUP}}}"
#: A job that does nothing, with records.
_STUCK: Final = {_LAG: constant(9), _DONE: constant(4), _EPOCH: constant(4)}
_LEFT: Final = f"coopconsume_retention_left_seconds{{{_GROUP}}}"
_UP: Final = 'coopconsume_exporter_up{source="kafka"}'
_AGE: Final = f"coopconsume_exporter_age_seconds{{{_GROUP}}}"
_INTERVAL: Final = "coopconsume_exporter_interval_seconds"
_VERDICT: Final = f"coopconsume_verdict{{{_GROUP}}}"
_DUE: Final = "coopconsume_commit_table_snapshot_due"
_REBALANCES: Final = "coopconsume_rebalances_total"


def _reason(name: str) -> str:
    return f'coopconsume_verdict_reason{{{_GROUP},reason="{name}"}}'


def _buckets(metric: str, labels: str, seconds: float) -> dict[str, str]:
    """A histogram in which each minute has 60 times of a length."""
    return {
        f'{metric}_bucket{{{labels},le="{bound}"}}': f"0+{60 * (seconds <= float(bound))}x120"
        for bound in (1, 10, 1000, "+Inf")
    }


#: Histories in which one alert fires, and beside it those in which it does not.
CASES: Final = [
    Case("nobody", {_reason("nobody"): constant(3)}, ["NobodyWorks"]),
    Case("nobody for a moment", {_reason("nobody"): "_x117 3+0x3"}),
    Case("others hold", {_reason("failed"): constant(2)}),
    Case("gone", {_GONE: constant(1)}, ["MemberGone"]),
    Case("none gone", {_GONE: constant(0)}),
    Case("a job vanishes", {_EPOCH: "4+0x105 stale"}, ["JobVanished"]),
    Case("one of two vanishes", {
        _EPOCH: "4+0x105 stale", f"coopconsume_epoch{{{_OTHER}}}": constant(4),
    }, ["JobVanished"]),
    Case("a job works", {_EPOCH: constant(4)}),
    Case("a job begins", {_EPOCH: "_x110 4+0x10"}),
    Case("a job restarts", {
        _EPOCH: "4+0x105 stale", f"coopconsume_epoch{{{_OTHER}}}": "_x108 4+0x12",
    }),
    Case("a job was stopped long ago", {_EPOCH: "4+0x80 stale"}),
    Case("a group without a job is read", {f"coopconsume_epoch{{{_GROUP}}}": "4+0x105 stale"}),
    Case("deleted", {f"coopconsume_retention_deleted{{{_GROUP}}}": constant(3)},
         ["RecordsDeleted"]),
    Case("nothing is deleted", {f"coopconsume_retention_deleted{{{_GROUP}}}": constant(0)}),
    Case("retention comes", {_LEFT: constant(10_800), _reason("retention"): constant(4)},
         ["RetentionNear"]),
    # The group is faster than retention.
    Case("retention comes too late", {_LEFT: constant(10_800), _reason("working"): constant(1)}),
    Case("parked, seen from outside", {_PARKED: constant(2)}, ["RecordsParked"]),
    Case("parked, by a job", {f'coopconsume_parked{{{_JOB},topic="orders",partition="0"}}':
                              constant(1)}, ["RecordsParked"]),
    Case("decided in time", {_PARKED: "2+0x110 0+0x9"}),
    Case("the table grows", {_DUE: "0+0.1x120"}, ["CommitTableGrows"]),
    Case("snapshots are written", {_DUE: constant(1.1)}),
    Case("Kafka is away", {_UP: "1+0x100 0+0x19"}, ["ExporterSourceDown"]),
    Case("Kafka is there", {_UP: constant(1)}),
    Case("a group is not read", {_AGE: "0+60x120", _INTERVAL: constant(15)}, ["ExporterStale"]),
    Case("a group is read", {_AGE: constant(14), _INTERVAL: constant(15)}),
    Case("a group is read now and then", {_AGE: constant(3500), _INTERVAL: constant(1800)}),
    Case("a group is not read any more", {_AGE: constant(5401), _INTERVAL: constant(1800)},
         ["ExporterStale"]),
    Case("blocked", {f"coopconsume_stable_offset_age_seconds{{{_PLACE}}}": constant(601)},
         ["StableOffsetBlocked"]),
    Case("not blocked for long", {f"coopconsume_stable_offset_age_seconds{{{_PLACE}}}":
                                  constant(60)}),
    Case("fails", {f"coopconsume_blocker_attempts{{{_PLACE}}}": constant(10)},
         ["BlockerFailsAgainAndAgain"]),
    Case("fails a few times", {f"coopconsume_blocker_attempts{{{_PLACE}}}": constant(9)}),
    Case("nothing done", _STUCK, ["NothingDone"]),
    Case("done", _STUCK | {_DONE: "0+1x120"}),
    Case("a record comes after a pause", _STUCK | {_LAG: "0+0x118 1+0x1"}),
    Case("all that is left is parked", _STUCK | {_OWN_PARKED: constant(9)}, ["RecordsParked"]),
    Case("all that is left is behind parked ones", _STUCK | {
        _PARKED: constant(1), f"coopconsume_lag{{{_PLACE}}}": constant(9), _BEHIND: constant(8),
    }, ["RecordsParked"]),
    Case("nothing done beside parked ones", _STUCK | {
        _OWN_PARKED: constant(1), _PARKED: constant(1), _BEHIND: constant(7),
    }, ["NothingDone", "RecordsParked"]),
    Case("an idle job is stopped on purpose", {
        _DONE: "500+0x112 stale", _EPOCH: "4+0x112 stale",
        f"coopconsume_lag{{{_PLACE}}}": "0+0x113 5+1x6",
    }, ["JobVanished"]),
    Case("silent", {f"coopconsume_slot_silent_seconds{{{_JOB}}}": constant(901)}, ["SlotSilent"]),
    Case("heard", {f"coopconsume_slot_silent_seconds{{{_JOB}}}": constant(20)}),
    Case("slow commits", _buckets("coopconsume_phase_duration_seconds", f'{_JOB},phase="commit"',
                                  100), ["CommitsSlow"]),
    Case("fast commits", _buckets("coopconsume_phase_duration_seconds", f'{_JOB},phase="commit"',
                                  0.5)),
    Case("slow handlers", _buckets("coopconsume_phase_duration_seconds",
                                   f'{_JOB},phase="handlers"', 100)),
    Case("late", _buckets("coopconsume_latency_commit_seconds", _JOB, 900), ["RecordsLate"]),
    Case("in time", _buckets("coopconsume_latency_commit_seconds", _JOB, 5)),
    Case("rebalances", {f"{_REBALANCES}{{{_JOB}}}": "0+1x120"}, ["RebalancesOften"]),
    # Each member counts each epoch.
    Case("three members rebalance", {
        f'{_REBALANCES}{{{_GROUP},query="billing",member="{name}"}}': "0+0.2x120"
        for name in "abc"
    }),
    Case("act", {_VERDICT: constant(3)}, ["SomebodyMustAct"]),
    Case("wait", {_VERDICT: constant(2)}),
    Case("slots are lost", {f"coopconsume_slots_lost_total{{{_JOB}}}": "0+0x110 1+0x9"},
         ["SlotsLost"]),
    Case("slots were lost", {f"coopconsume_slots_lost_total{{{_JOB}}}": constant(7)}),
]  # fmt: skip


def test_each_alert_fires_on_its_failure_and_on_no_other(tmp_path: Path) -> None:
    """The whole set that fires is compared; each alert has a history of its own."""
    declared = set(re.findall(r"- alert: (\w+)", prometheus.RULES.read_text()))
    assert {name for case in CASES for name in case.firing} == declared
    prometheus.judge(tmp_path, CASES)


def test_the_judge_notices_alerts_that_do_not_fire_and_those_that_do(tmp_path: Path) -> None:
    """Else the test above would hold of all rules."""
    for case in (
        Case("none fires", {_GONE: constant(0)}, ["MemberGone"]),
        Case("one fires", {_GONE: constant(1)}),
        Case("another", {_GONE: constant(1)}, ["MemberGone"], {f"sum({_GONE}) + 0 * 7": 2}),
    ):
        with pytest.raises(AssertionError, match=rf"{case.name}|0 \* 7"):
            prometheus.judge(tmp_path, [case])


def _of_panel(title: str) -> str:
    (expression,) = prometheus.expressions(group="shop")[title]
    return f"sum({expression})"


def test_sums_of_the_dashboard_count_once(tmp_path: Path) -> None:
    """What jobs and the exporter both report, and what members report of their parts."""
    own = 'topic="orders",partition="0"'
    jobs = {
        f"coopconsume_lag{{{_JOB},{own}}}": constant(7),
        f"coopconsume_parked{{{_JOB},{own}}}": constant(1),
        f"coopconsume_parked{{{_OTHER},{own}}}": constant(2),
        f"coopconsume_pending{{{_JOB},{own}}}": constant(3),
        f"coopconsume_pending{{{_OTHER},{own}}}": constant(2),
    }
    outside = {
        f"coopconsume_lag{{{_PLACE}}}": constant(7),
        f"coopconsume_parked{{{_PLACE}}}": constant(3),
        f"coopconsume_pending{{{_PLACE}}}": constant(5),
    }
    both = jobs | outside | {
        name.replace("{", '{instance="another",', 1): value for name, value in outside.items()
    }  # fmt: skip
    values = {
        _of_panel("Records not done"): 7,
        _of_panel("Failed records (parked ones included)"): 5,
        _of_panel("Parked records"): 3,
    }
    prometheus.judge(tmp_path, [
        Case(name, series, ["RecordsParked"], values)
        for name, series in (("jobs", jobs), ("exporter", outside), ("both", both))
    ])  # fmt: skip


def test_texts_of_alerts_have_their_values(tmp_path: Path) -> None:
    """The group is named, and what is to be done."""
    test = {
        "interval": "1m",
        "input_series": [
            {"series": _LEFT, "values": constant(10_800)},
            {"series": _reason("retention"), "values": constant(4)},
        ],
        "alert_rule_test": [{
            "eval_time": "60m", "alertname": "RetentionNear",
            "exp_alerts": [{
                "exp_labels": {"group": "shop", "severity": "critical"},
                "exp_annotations": {
                    "summary": "shop: within 3h 0m 0s, retention deletes records that are not done",
                    "description": "Work faster, decide on parked records, or raise retention.ms.",
                },
            }],
        }],
    }  # fmt: skip
    file = tmp_path / "texts.json"
    file.write_text(json.dumps({"rule_files": [str(prometheus.RULES)], "tests": [test]}))
    promtool = prometheus.PROGRAMS.path()
    ran = subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
