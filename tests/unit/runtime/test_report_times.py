"""When slots report, and what holds up the commit that follows."""

from __future__ import annotations

import math
import time
from unittest import mock

import pytest

from coopconsume.runtime.commit.committer import Committer
from coopconsume.runtime.commit.pace import CommitTime
from coopconsume.runtime.dispatch.report_times import ReportTimes
from tests.bench.idle import idle_job


@pytest.mark.parametrize(("commits", "real_time", "reports"), [
    (0.0, False, 0.1), (0.3, False, 0.15), (60.0, False, 0.2),
    (0.04, True, 0.04), (0.5, True, 0.1), (60.0, True, 0.2),
])  # fmt: skip
def test_slots_report_several_times_before_a_commit(commits, real_time, reports):
    """Twice, in real time five times, and from every 100 or 40 to every 200 ms."""
    assert ReportTimes(commits, real_time=real_time).every == reports


@pytest.mark.parametrize("commit_in", [-math.inf, -0.01, 0.0, 0.013, 0.02, 0.05, 0.1, 0.199])
@pytest.mark.parametrize(("real_time", "every"), [(False, 0.1), (True, 0.04)])
def test_a_report_comes_just_before_each_commit(commit_in, real_time, every):
    """From any instant on, slots come into step with the commits."""
    times, first = ReportTimes(0.04, real_time=real_time), max(0.0, commit_in)
    now, reports = 0.0, []
    while now < 1.0:
        wait = times.next_in(CommitTime(first - now if now < first else (first - now) % 0.2, 0.2))
        assert every / 2 - 1e-9 <= wait < 1.5 * every + 1e-9
        now += wait
        reports.append(now)
    commits = [first + 0.2 * n for n in range(2, 4)]
    for commit in commits:
        assert any(abs(commit - 0.02 - at) < 1e-6 for at in reports)


@pytest.mark.parametrize("begins_in", [-math.inf, -3.004, 0.0])
def test_a_report_with_which_a_commit_begins_is_followed_by_one_for_the_next(begins_in):
    """However long ago that commit could have begun."""
    times = ReportTimes(0.04, real_time=True)
    assert times.next_in(CommitTime(begins_in, 0.04)) == times.next_in(CommitTime(0.04, 0.04))


def test_reports_are_not_nearer_to_each_other_than_half_of_their_interval():
    """However near commits are: each report costs the handlers' processors."""
    assert ReportTimes(0.0, real_time=True).next_in(CommitTime(0.001, 0.001)) >= 0.02
    assert ReportTimes(0.04).next_in(CommitTime(0.039, 0.04)) >= 0.05


def test_a_commit_that_has_become_due_in_a_turn_begins_in_the_next():
    """And one that is held up is looked at every 20 ms."""
    job = idle_job(1)
    with mock.patch.object(Committer, "due", new_callable=mock.PropertyMock) as due:
        due.return_value = began = time.monotonic() - 1.0
        assert job._patience(began) == 0.02
        assert job._patience(began - 0.001) == 0.0
        due.return_value = time.monotonic() + 0.015
        assert 0.0 <= job._patience(time.monotonic()) <= 0.015
        due.return_value = None
        assert job._patience(time.monotonic()) >= 0.02
    assert job._epoch_state is not None
    job._epoch_state.end()
    job._dispatcher.close()


def test_a_look_at_the_brokers_does_not_hold_up_a_commit_that_is_about_to_begin():
    """The loop stands still for it; it is made half a second later all the same."""
    job = idle_job(1)
    epoch_state = job._epoch_state
    assert epoch_state is not None
    watch, now, looks = epoch_state.log_watch, time.monotonic(), mock.Mock(return_value=None)
    with (
        mock.patch.object(Committer, "due", new_callable=mock.PropertyMock) as due,
        mock.patch.object(type(watch), "_read_ends", looks),
    ):
        for due.return_value, age, count in [
            (now, 0.4, 0), (now, 0.9, 0), (now, 1.1, 1), (None, 0.4, 1), (None, 0.6, 2),
        ]:  # fmt: skip
            watch._ends_at = watch._starts_at = time.monotonic() - age
            job._look_at_logs(epoch_state)
            assert looks.call_count == count
    epoch_state.end()
    job._dispatcher.close()
