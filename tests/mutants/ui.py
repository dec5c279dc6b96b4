"""Faults of the live page, and of the verdict on a group."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_UNIT = "tests/unit/ui/test_live_page.py::"
_VERDICT = "tests/unit/monitoring/test_verdict.py::"

UI = [
    Mutant(
        "page-needs-no-cookie",
        "Files and data of the page need the cookie.",
        "coopconsume/ui/authentication.py",
        "if not self._access.has_session(request, self._port):",
        "if False:",
        (_UNIT + "test_nothing_is_shown_without_the_token",),
    ),
    Mutant(
        "page-opens-everywhere-by-token",
        "The token opens the first page alone.",
        "coopconsume/ui/authentication.py",
        "if is_entry and self._access.has_token(request.query_params):",
        "if self._access.has_token(request.query_params):",
        (_UNIT + "test_nothing_is_shown_without_the_token",),
    ),
    Mutant(
        "page-cookie-for-other-sites",
        "Other sites cannot use the cookie.",
        "coopconsume/ui/authentication.py",
        'samesite="strict"',
        'samesite="lax"',
        (_UNIT + "test_the_token_gives_a_cookie_that_other_sites_cannot_use",),
    ),
    Mutant(
        "page-writes-without-secret",
        "A request that changes something needs the secret of the page.",
        "coopconsume/ui/authentication.py",
        "and not self._access.may_write(request)",
        "and False",
        (_UNIT + "test_requests_that_change_something_need_the_secret_and_the_switch",),
    ),
    Mutant(
        "page-decides-by-default",
        "Decisions on dead letters are off unless they are allowed.",
        "coopconsume/ui/app.py",
        "if not self._allow_decisions:",
        "if False:",
        (_UNIT + "test_requests_that_change_something_need_the_secret_and_the_switch",),
    ),
    Mutant(
        "page-decides-unconfirmed",
        "A decision is carried out if it was confirmed for the letters that there are.",
        "coopconsume/ui/letters.py",
        "confirmed is not None and dict(confirmed) == counts",
        "confirmed is not None",
        (
            "tests/broker/test_live_page.py::test_a_decision_whose_letters_have_changed_is_not_carried_out",
        ),
    ),
    Mutant(
        "page-forgets-status",
        "A group that cannot be read keeps its last status.",
        "coopconsume/ui/watch.py",
        "known.reading, known.at, known.samples",
        "None, known.at, known.samples",
        (_UNIT + "test_a_group_that_cannot_be_read_keeps_its_last_status_and_recovers",),
    ),
    Mutant(
        "page-outage-begins-late",
        "An outage begins when the first reading that fails begins.",
        "coopconsume/ui/watch.py",
        "since = known.error_since if known.error else since",
        "since = known.error_since if known.error else time.time()",
        (_UNIT + "test_a_group_that_cannot_be_read_keeps_its_last_status_and_recovers",),
    ),
    Mutant(
        "page-gaps-of-elsewhere",
        "A part of a partition is shown with its own gaps.",
        "coopconsume/ui/content.py",
        "if gap.last >= first and gap.first < end]",
        "if gap.last >= low]",
        (_UNIT + "test_a_part_of_a_partition_has_its_gaps",),
    ),
    Mutant(
        "page-rates-below-zero",
        "Offsets that are moved back are no rate.",
        "coopconsume/ui/watch.py",
        "done = sum(max(0, found[0] - before[0])",
        "done = sum(abs(found[0] - before[0])",
        (_UNIT + "test_rates_are_those_between_two_readings",),
    ),
    Mutant(
        "page-all-rows",
        "The page gets the rows that it shows.",
        "coopconsume/ui/content.py",
        "rows[start : start + limit]",
        "rows",
        (_UNIT + "test_a_thousand_partitions_are_a_small_answer",),
    ),
    Mutant(
        "open-offset-not-drawn",
        "An open offset is drawn also where its column is narrower than a pixel.",
        "coopconsume/admin/pictures.py",
        "middles[worst == state], 0, 1,",
        "middles[worst < 0], 0, 1,",
        ("tests/unit/admin/test_pictures.py::test_one_open_offset_among_millions_is_drawn",),
    ),
    Mutant(
        "parked-shown-as-pending",
        "Maps distinguish parked records from those that are tried again.",
        "coopconsume/admin/pictures.py",
        "waiting = waiting - undecided if waiting and undecided else waiting",
        "undecided = undecided - waiting",
        ("tests/unit/admin/test_pictures.py::test_counts_equal_those_of_looking_at_every_offset",),
    ),
    Mutant(
        "verdict-counts-parked-as-work",
        "Records behind parked ones do not count in the time until all is done.",
        "coopconsume/monitoring/verdict.py",
        "return max(0, self.lag - self.parked_count - behind)",
        "return self.lag",
        (_VERDICT + "test_what_waits_for_a_decision_is_not_to_be_done",),
    ),
    Mutant(
        "verdict-waits-before-losses",
        "The most urgent verdict is the first one.",
        "coopconsume/monitoring/verdict.py",
        "urgent = [*_losses(found), *_tasks(found, now), *_waits(found, now)]",
        "urgent = [*_waits(found, now), *_losses(found), *_tasks(found, now)]",
        (_VERDICT + "test_the_most_urgent_one_comes_first",),
    ),
    Mutant(
        "verdict-stable-is-work",
        "Nobody works on a group whose members are fenced or gone.",
        "coopconsume/admin/overview/data.py",
        "return bool(self.claims) or any(m.status in (WORKING, JOINING) for m in self.members)",
        "return bool(self.claims or self.members)",
        ("tests/unit/admin/test_verdict.py::test_the_state_of_a_group_decides",),
    ),
]
