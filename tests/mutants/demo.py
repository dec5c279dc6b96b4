"""Mutants of the demo: what it says of a kill, and that a job that fails ends it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TEST = "tests/unit/demo/test_runner.py::"

DEMO = [
    Mutant(
        "next-call-on-the-clock",
        "The time to the next call begins at the kill.",
        "coopconsume/demo/report.py",
        "(int(later.min()) - at_ns) / 1e9",
        "int(later.min()) / 1e9",
        (_TEST + "test_the_time_to_the_next_call_is_that_after_the_kill",),
    ),
    Mutant(
        "demo-without-a-kill",
        "A job that ends before its kill fails the demo.",
        "coopconsume/demo/runner.py",
        "        if until is not None:\n            job.fail(",
        "        if False:\n            job.fail(",
        (_TEST + "test_a_job_that_ends_before_its_kill_fails_the_demo",),
    ),
    Mutant(
        "failed-job-of-the-demo-goes-on",
        "A job that ends with an error ends the demo.",
        "coopconsume/demo/job.py",
        "        if self._process.returncode:",
        "        if False:",
        (_TEST + "test_a_job_that_fails_ends_the_demo_with_the_last_lines_of_its_log",),
    ),
]
