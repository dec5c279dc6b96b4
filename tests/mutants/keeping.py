"""Mutants of members that go on with their key ranges while the group rebalances."""

# ruff: noqa: E501 - lines of the sources and names of tests are quoted whole

from __future__ import annotations

from tests.mutants.mutant import Mutant

_GROUP = "tests/model/test_group_model.py::TestGroup::runTest"
_KEEPING = "tests/model/test_group_model.py::test_keys_that_do_not_move_keep_running"
_EVENTS = "tests/unit/test_fold_rules.py::"
_CORE = "tests/unit/test_group_core.py::"
_JOB = "tests/model/test_job_model.py::"

KEEPING = [
    Mutant(
        "moving-range-dealt-at-once",
        "A key range that moves stays with its holder until that has released it.",
        "coopconsume/group/keeping.py",
        "    if not held:\n        return dict(wanted), {}",
        "    if held or not held:\n        return dict(wanted), {}",
        (_KEEPING,),
    ),
    Mutant(
        "moving-range-not-named",
        "The leader names to a holder what it is to release.",
        "coopconsume/group/core.py",
        "moving = self.moving.get(member, ())",
        "moving = ()",
        (_KEEPING,),
    ),
    Mutant(
        "own-doubts-of-others-ignored",
        "Of what a member gains it waits for the earlier owner.",
        "coopconsume/group/core.py",
        "waits = _waits(without(shares, held), row)",
        "waits = _waits(without(shares, shares if held else ()), row)",
        (_GROUP,),
    ),
    Mutant(
        "continues-over-a-gap",
        "A member goes on with its work only if no epoch of others came in between.",
        "coopconsume/group/core.py",
        "return self.is_holding and is_next and not",
        "return self.is_holding and not",
        (_CORE + "test_a_member_goes_on_with_what_was_its_own_without_a_pause",),
    ),
    Mutant(
        "loss-continues",
        "A member goes on with its work only if it still has all of it.",
        "coopconsume/group/core.py",
        "is_next and not without(self.owned, _given_to(me, row))",
        "is_next",
        (_CORE + "test_a_member_goes_on_with_what_was_its_own_without_a_pause",),
    ),
    Mutant(
        "stale-holder-believed",
        "The leader leaves with a member only what the epoch in force gives it.",
        "coopconsume/group/core.py",
        "for share in common(said.owned, without(given, handed))",
        "for share in said.owned",
        (_CORE + "test_a_leader_leaves_with_a_member_what_the_row_in_force_gives_it",),
    ),
    Mutant(
        "partial-release-forgets-doubts",
        "What is released while it runs is in doubt.",
        "commits/group.py",
        "            self._doubt(grant, running)\n            return Answer(counted=True)",
        "            return Answer(counted=True)",
        (_GROUP,),
    ),
    Mutant(
        "partial-release-fences",
        "A member that releases part of its shares commits on.",
        "commits/group.py",
        "            self._doubt(grant, running)\n            return Answer(counted=True)",
        "            self._doubt(grant, running)\n            grant.fenced[event.member] = RELEASED\n            return Answer(counted=True)",
        (_EVENTS + "test_a_member_that_releases_a_share_keeps_the_others",),
    ),
    Mutant(
        "released-in-doubt",
        "Nobody waits for what was released with nothing of it running.",
        "commits/grants.py",
        "left += cut(doubts, self.handed.get(member, ()))[1]",
        "left += doubts",
        (_EVENTS + "test_a_member_that_releases_a_share_keeps_the_others",),
    ),
    Mutant(
        "missed-epoch-stops",
        "A member goes on under an epoch that ended before its assignment came.",
        "coopconsume/group/core.py",
        "        self.owned_under = self.begun_under = row.epoch\n",
        "        return None\n",
        (_KEEPING,),
    ),
    Mutant(
        "written-parcel-committed-between-epochs",
        "What is written with a commit id is committed under an epoch that is known to be in force.",
        "coopconsume/runtime/committer.py",
        "ready = () if self._holding.is_between_epochs else self.outbox.ready",
        "ready = self.outbox.ready",
        (_JOB + "test_what_is_written_between_two_epochs_is_committed_under_the_next",),
    ),
    Mutant(
        "refused-between-epochs-stops",
        "What the log refuses as the next epoch is not known yet is committed under that.",
        "coopconsume/runtime/committer.py",
        "if self._commits_written or not self._holding.may_be_late(error):",
        "if True:",
        (_JOB + "test_what_the_log_refuses_between_two_epochs_is_committed_under_the_next",),
    ),
    Mutant(
        "released-before-the-drain",
        "What moves is committed before it is released.",
        "coopconsume/group/membership.py",
        "        running = self._worker.drain(self.options.drain_timeout)\n        refused =",
        "        holding.release((), tenure.moving)\n        running = self._worker.drain(self.options.drain_timeout)\n        refused =",
        (_JOB + "test_what_moves_is_drained_and_released_and_the_rest_goes_on",),
    ),
    Mutant(
        "late-handlers-not-in-doubt",
        "Of what moves the keys of handlers that outlast drainTimeout are in doubt.",
        "coopconsume/group/membership.py",
        "holding.release(running, tenure.moving)",
        "holding.release((), tenure.moving)",
        (_JOB + "test_late_handlers_alone_are_in_doubt_of_what_moves",),
    ),
    Mutant(
        "own-late-handlers-forgotten",
        "A member does not start a key again while its own handler may run.",
        "coopconsume/group/membership.py",
        "doubts = [*((share, life) for share in running), *",
        "doubts = [*",
        (_JOB + "test_late_handlers_alone_are_in_doubt_of_what_moves",),
    ),
    Mutant(
        "loss-is-worked-on",
        "A member that lost part of its work begins again.",
        "coopconsume/group/membership.py",
        "        if not tenure.continues:\n",
        "        if not tenure.continues and holding is None:\n",
        (_JOB + "test_a_member_that_loses_part_of_its_work_begins_again",),
    ),
    Mutant(
        "own-rebalance-keeps",
        "A member that asked for a rebalance hands over at it.",
        "coopconsume/group/membership.py",
        "if hands_over or self._holding is None:",
        "if self._holding is None:",
        (_JOB + "test_who_asks_for_a_rebalance_begins_again",),
    ),
    Mutant(
        "refused-drain-leaves-nothing",
        "A member that is refused while it drains joins again.",
        "coopconsume/group/membership.py",
        "self._group.rejoin(refused)",
        "pass",
        (_JOB + "test_a_member_that_is_refused_while_it_drains_joins_again",),
    ),
]
