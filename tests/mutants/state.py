"""Mutants of the state per key: what counts, what a store keeps, and the order of changes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CHANGELOG = "coopconsume/state/changelog.py"
_ROWS = "coopconsume/state/rows.py"
_STORE = "coopconsume/state/store.py"
_SLOT = "coopconsume/state/slot_state.py"
_TESTS = "tests/unit/state/test_state.py::"
_WORLD = _TESTS + "test_a_store_has_what_counts"
_WRITTEN = _TESTS + "test_a_slot_shows_what_is_written_and_keeps_only_what_is_decided"
_OLDER = _TESTS + "test_a_store_of_an_older_version_is_restored_after_rows_were_removed"
_RULES = "coopconsume/testing/history/rules.py"
_PLANTED = "tests/model/test_checker_planted.py::test_a_fault_planted_in_a_right_run_is_found"
_TABLE = "coopconsume/state/table.py"
_VERSIONS = (
    "tests/unit/state/test_state_reading.py"
    "::test_a_version_is_opened_once_and_the_newest_is_looked_up_each_time"
)
_NOTE = "coopconsume/state/note.py"
_RESETTING = "coopconsume/state/resetting.py"
_RESET = "tests/unit/state/test_state_reset.py::"
_RUNNER = "coopconsume/worker/row_progress.py"
_IN_REPORTS = (
    "tests/model/test_progress_model.py"
    "::test_changes_of_the_state_are_in_the_reports_of_their_records"
)
_HISTORY = "tests/unit/state/test_state_history.py::"
_BACK = _RESET + "test_the_state_goes_back_with_the_offsets"
_LOG = "coopconsume/runtime/commit/state_log.py"
_MOVING = "tests/model/test_moving_keys.py::"
_COME_BACK = _MOVING + "test_keys_with_state_go_on_while_others_leave_and_come_back"
_ALL_MOVES = _MOVING + "test_all_is_handed_over_where_changes_of_keys_that_leave_may_count_later"
_TO_ANOTHER_SLOT = (
    _MOVING + "test_a_key_with_state_moves_to_another_slot_after_its_changes_are_written"
)
_INTERRUPTED = _RESET + "test_a_reset_that_is_interrupted_anywhere_is_finished_by_a_repeat"

STATE = [
    Mutant(
        "changes-before-their-records",
        "A report has the changes of the records that it counts as done, and no others.",
        _RUNNER,
        "changes, count = self._outcome.changes, bisect_left(self._changed, end)",
        "changes, count = self._outcome.changes, len(self._changed)",
        (_IN_REPORTS,),
    ),
    Mutant(
        "kept-change-not-seen",
        "The next record of a key sees a change that is kept by columns.",
        _RUNNER,
        "state.pass_on(value, expires)",
        "pass",
        (_IN_REPORTS,),
    ),
    Mutant(
        "prefetch-of-known-keys",
        "Values that are read at once are not those of keys that have changed since.",
        _SLOT,
        "if key not in values]",
        "]",
        (_IN_REPORTS,),
    ),
    Mutant(
        "changes-during-a-snapshot-are-old",
        "Changes that are written during a snapshot are new ones for the next.",
        _LOG,
        "size = self._changelog.size(origin, version)",
        "size = self._changelog.size(origin, self._changelog.version)",
        (_HISTORY + "test_changes_that_are_written_during_a_snapshot_are_new_ones",),
    ),
    Mutant(
        "full-store-taken-for-empty",
        "Keys that a slot has not seen have the state that the store has.",
        _SLOT,
        "if store.is_empty:",
        "if True:",
        (_TESTS + "test_the_values_of_many_keys_are_read_at_once",),
    ),
    Mutant(
        "returned-state-taken",
        "A handler that returns its state fails.",
        _SLOT,
        "if type(answer) is State:",
        "if False:",
        (_TESTS + "test_a_handler_that_returns_its_state_fails_with_the_remedy",),
    ),
    Mutant(
        "changes-lost-to-a-removal",
        "Changes of the state are written beside the removal of others.",
        "coopconsume/state/changelog.py",
        "return repeated_write(write)",
        "return write()",
        (_HISTORY + "test_changes_that_deltalake_writes_are_repeated_after_a_removal",),
    ),
    Mutant(
        "version-of-a-state-opened-again",
        "A version of a table of a state is opened once.",
        _TABLE,
        "return self._read.get(version) or self._to_be_read(self.open(version))",
        "return self._to_be_read(self.open(version))",
        (_VERSIONS,),
    ),
    Mutant(
        "state-changed-under-its-readers",
        "What removes rows of a state opens the table for itself.",
        _CHANGELOG,
        "        table = self._table.open()\n        if table is None and not self.id:\n",
        "        table = self._table.newest()\n        if table is None and not self.id:\n",
        (_VERSIONS,),
    ),
    Mutant(
        "state-journal-mode-not-waited-for",
        "Two slots that make a store at once both get it.",
        _STORE,
        "if not _is_busy(error) or time.monotonic() > deadline:",
        "if _is_busy(error):",
        (_TESTS + "test_a_store_that_another_slot_is_just_making_is_waited_for",),
    ),
    Mutant(
        "state-unreadable-leaves-doubt",
        "A slot that has started nothing leaves nothing in doubt.",
        "coopconsume/runtime/dispatch/dispatcher.py",
        "return set(self.slots.barred) | {\n",
        "return {*self.slots.barred, *self.slots.failing} | {\n",
        (_MOVING + "test_a_slot_that_cannot_read_the_state_leaves_nothing_in_doubt",),
    ),
    Mutant(
        "older-changes-come-again",
        "A change that a rewritten file has again does not hide a later one.",
        "coopconsume/state/slot_state.py",
        "unseen = there - known if is_kept else None",
        "unseen = there - known",
        (_TESTS + "test_changes_before_those_that_are_not_decided_do_not_come_again",),
    ),
    Mutant(
        "changes-in-a-snapshot-alone-passed-over",
        "A slot has all changes that its batch needs, or does not begin.",
        "coopconsume/state/slot_state.py",
        "if not (is_kept or changelog.is_complete(origin, spec.decided, spec.version)):",
        "if False:",
        (_TESTS + "test_a_slot_waits_if_changes_that_it_needs_are_in_a_snapshot_alone",),
    ),
    Mutant(
        "value-stays-for-a-batch",
        "A value with a time to live is gone at its time.",
        "coopconsume/state/slot_state.py",
        "return None if milliseconds is None else",
        "return None if True else",
        (_TESTS + "test_a_value_that_a_slot_has_seen_is_gone_at_its_time",),
    ),
    Mutant(
        "changes-of-gained-keys-not-looked-at",
        "The changes of an earlier owner count as soon as its key ranges have come.",
        "coopconsume/runtime/group_requests.py",
        "            self._state.extend(gained)",
        "            pass",
        (_COME_BACK,),
    ),
    Mutant(
        "version-above-a-change-that-is-being-written",
        "A local store never passes over a change that is being written.",
        _LOG,
        "*self._appending.values(), ",
        "",
        (_TESTS + "test_a_change_that_is_being_written_as_key_ranges_come_is_not_passed_over",),
    ),
    Mutant(
        "state-of-late-handlers-counts",
        "No change of a key range that was given up comes to count later.",
        "coopconsume/runtime/rebalance.py",
        "            if is_late and self._is_exact:",
        "            if False:",
        (_ALL_MOVES,),
    ),
    Mutant(
        "state-given-up-before-its-commit",
        "A key range with state is given up once its changes are committed.",
        "coopconsume/runtime/rebalance.py",
        "if self._is_exact and not epoch_state.committer.is_committed(leaving.mark):",
        "if False:",
        (_ALL_MOVES,),
    ),
    Mutant(
        "key-moves-before-its-changes",
        "A key moves to another slot after its changes are written.",
        "coopconsume/runtime/dispatch/batch_planner.py",
        "{s for s in range(self._slot_count) if not written(s)}",
        "set()",
        (_TO_ANOTHER_SLOT,),
    ),
    Mutant(
        "key-moves-from-a-slow-handler",
        "A key moves to another slot after its slow handler has ended.",
        "coopconsume/runtime/dispatch/batch_planner.py",
        "{task.slot for task in tasks if task.is_keeping}",
        "set()",
        (_TO_ANOTHER_SLOT,),
    ),
    Mutant(
        "refused-change-is-applied",
        "A change whose commit does not count is in no local store.",
        _ROWS,
        "those = [one for one in ids.unique().to_pylist() if counts(one)]",
        "those = ids.unique().to_pylist()",
        (_WORLD,),
    ),
    Mutant(
        "older-change-wins",
        "The change of the highest offset of a key is its state.",
        _ROWS,
        '[("key", "ascending"), ("_offset", "ascending")]',
        '[("key", "ascending"), ("_offset", "descending")]',
        (_WORLD,),
    ),
    Mutant(
        "store-ignores-removed-rows",
        "A store that has not seen removed rows is restored.",
        _CHANGELOG,
        "max(removed, default=-1) <= have",
        "True",
        (_OLDER,),
    ),
    Mutant(
        "earlier-state-from-a-later-snapshot",
        "The state of an earlier commit is read from a snapshot that has no later one.",
        "coopconsume/state/snapshots.py",
        "one.commits is not None and one.commits <= commits",
        "one.commits is not None",
        (_WORLD,),
    ),
    Mutant(
        "state-below-an-offset-from-a-higher-snapshot",
        "The state below an offset is read from a snapshot without a higher one.",
        "coopconsume/state/snapshots.py",
        "one.top is not None and one.top < offset",
        "one.top is not None",
        (_WORLD,),
    ),
    Mutant(
        "snapshot-before-the-last-is-removed",
        "The last two snapshots are kept, so that the state of earlier commits can be read.",
        _CHANGELOG,
        "last.version if keeps_last else version",
        "version",
        (_WORLD,),
    ),
    Mutant(
        "all-below-the-stable-offset-removed-by-an-old-snapshot",
        "Changes are removed only after a snapshot that was made of what counts by then.",
        _LOG,
        "else self._changelog.version_for_snapshot(origin, check)",
        "else self._changelog.version",
        (_HISTORY + "test_a_snapshot_of_the_newest_version_removes_nothing_that_it_lacks",),
    ),
    Mutant(
        "changes-removed-by-a-snapshot-that-was-not-written",
        "A snapshot that was not written removes nothing.",
        _LOG,
        "if keys is None:",
        "if False:",
        (_HISTORY + "test_an_older_snapshot_removes_nothing",),
    ),
    Mutant(
        "earlier-state-without-its-changes",
        "Without history an earlier state is refused, from the first snapshot on.",
        _CHANGELOG,
        "is_first = last is None and keeps_last",
        "is_first = last is None",
        (_HISTORY + "test_an_earlier_state_that_is_not_kept_is_refused_with_the_remedy",),
    ),
    Mutant(
        "changes-removed-by-an-earlier-version",
        "A local store that has not seen the removed changes is restored.",
        _LOG,
        "last = self._snapshots.get(origin) if keeps_last else (version, stable)",
        "last = self._snapshots.get(origin) if keeps_last else (0, stable)",
        (_HISTORY + "test_a_store_behind_what_was_removed_is_restored_and_says_so",),
    ),
    Mutant(
        "snapshot-of-another-version-of-the-table",
        "A slot restores from a snapshot that is in the version of the table that it reads.",
        "coopconsume/state/snapshots.py",
        "known = self._versions(table, origin)",
        "known = self.versions(origin)",
        (_HISTORY + "test_a_snapshot_that_is_written_while_a_slot_restores_is_not_missed",),
    ),
    Mutant(
        "snapshot-for-each-new-owner",
        "With history a new owner makes a snapshot after as many new changes as another one.",
        _LOG,
        "self._changelog.size(origin, version, since=made_at)",
        "self._changelog.size(origin, version)",
        (_HISTORY + "test_a_new_owner_keeps_as_many_changes",),
    ),
    Mutant(
        "small-files-not-counted",
        "Without history small commits do not make the changelog larger than a snapshot.",
        _LOG,
        "return found.size >= enough or",
        "return found.rows * 16 >= enough or",
        (_HISTORY + "test_without_history_a_state_at_rest_is_below_three_snapshots",),
    ),
    Mutant(
        "later-commits-count-at-a-place",
        "At a place of the commit log no later commit counts.",
        "commits/log.py",
        "for v, event in events if v <= version",
        "for v, event in events",
        ("tests/unit/state/test_state_reading.py::test_what_changed_between_two_commits_or_times",),
    ),
    Mutant(
        "interrupted-reset-is-not-noted",
        "A reset notes that it has begun before it changes anything.",
        _RESETTING,
        "self._note(left := before | set(self._origins))",
        "left = before | set(self._origins)",
        (_INTERRUPTED,),
    ),
    Mutant(
        "job-begins-after-half-a-reset",
        "No job begins with a state whose reset was interrupted.",
        _NOTE,
        "if note.resetting:",
        'if note.resetting == "":',
        (_INTERRUPTED,),
    ),
    Mutant(
        "first-removed-change-stays",
        "A reset removes the change by the record at the new offset, too.",
        _CHANGELOG,
        'table.delete(f"{origin.predicate} AND _offset >= {below}")',
        'table.delete(f"{origin.predicate} AND _offset > {below}")',
        (_BACK,),
    ),
    Mutant(
        "stores-keep-what-a-reset-removed",
        "All local stores of a partition are restored after its state was set back.",
        _CHANGELOG,
        "words = {_COMPLETE + str(origin): str(table.version())}",
        "words = {_COMPLETE: str(table.version())}",
        (_BACK,),
    ),
    Mutant(
        "trim-by-a-snapshot-before-a-reset",
        "A snapshot from before offsets were set back trims nothing.",
        "coopconsume/runtime/commit/state_log.py",
        "if last is not None and last[1] <= owned.stable:",
        "if last is not None:",
        ("tests/unit/state/test_state_reset.py::test_a_snapshot_before_a_reset_trims_nothing",),
    ),
    Mutant(
        "checker-takes-any-state",
        "A call sees what the done call of the record before it left.",
        _RULES,
        "if saw[int(self._calls[call])] not in known:",
        "if not known:",
        (_PLANTED + "[saw_another_state]", _PLANTED + "[saw_the_state_before_the_last]"),
    ),
    Mutant(
        "checker-ignores-the-final-state",
        "The final state of a key was left by its highest done record.",
        _RULES,
        "if not links and not is_deleted:",
        "if not links and is_deleted:",
        (_PLANTED + "[the_last_change_is_lost]",),
    ),
    Mutant(
        "slot-of-another-range",
        "The slot of a key is that of the key range that its hash is in.",
        "coopconsume/admin/overview/keys.py",
        "if piece.contains(key_hash)",
        "if piece.first >= 0",
        ("tests/unit/admin/test_overview.py::test_the_owner_of_a_key_is_named_with_its_slot",),
    ),
    Mutant(
        "late-answer-drops-a-change",
        "What a commit of an earlier epoch changed is decided by the log alone.",
        "coopconsume/runtime/commit/state_log.py",
        "if self._assignment is assignment:",
        "if True:",
        (_TESTS + "test_a_change_that_comes_late_never_counts",),
    ),
    Mutant(
        "store-keeps-a-change-without-effect",
        "A change of state that does not count is in no local store, and is not shown.",
        "coopconsume/runtime/commit/state_log.py",
        "self._counted.discard(commit_id)",
        "self._counted.add(commit_id)",
        (_TESTS + "test_a_commit_that_changed_nothing_does_not_count",),
    ),
    Mutant(
        "used-store-is-deleted",
        "Local stores are deleted if no slot has used them for a week.",
        _STORE,
        "os.utime(self.file)",
        "self.file.stat()",
        (_TESTS + "test_files_that_no_slot_has_used_for_a_week_are_deleted",),
    ),
    Mutant(
        "rewritten-file-applied-alone",
        "Where files were rewritten, all changes of a key range are applied again.",
        _STORE,
        "unseen = there - seen if seen <= there else None",
        "unseen = there - seen",
        (_TESTS + "test_a_rewritten_file_brings_no_removed_key_back",),
    ),
    Mutant(
        "undecided-change-is-kept",
        "A store has no change whose commit may yet fail.",
        _SLOT,
        "store.bring_up_to_date(ranges, spec.decided,",
        "store.bring_up_to_date(ranges, spec.version,",
        (_WRITTEN,),
    ),
    Mutant(
        "others-undecided-change-is-shown",
        "Of undecided changes a slot sees those of its own process.",
        _SLOT,
        "rows = newest([counted(rows, spec.counted.__contains__)])",
        "rows = newest([rows])",
        (_WRITTEN,),
    ),
    Mutant(
        "change-written-out-of-order",
        "A change that was not written goes before all later ones.",
        "coopconsume/runtime/commit/deliveries.py",
        "if self._in_order:\n            self._waiting.appendleft(parcel)\n            return",
        "if self._in_order:\n            self._waiting.append(parcel)\n            return",
        (_TESTS + "test_changes_are_written_strictly_in_their_order",),
    ),
    Mutant(
        "changes-lost-on-the-wire",
        "Progressive reports have the changes of the state.",
        "coopconsume/worker/channel/messages.py",
        'changes=parts.take(header["changes"]),',
        'changes=parts.take(header["changes"]) and None,',
        (_TESTS + "test_a_progressive_report_has_changes",),
    ),
    Mutant(
        "change-of-an-ended-epoch-counts",
        "A change that is written after its epoch is over does not count.",
        "coopconsume/runtime/commit/state_log.py",
        "if self._assignment is not assignment:",
        "if self._assignment is None:",
        (_TESTS + "test_a_change_that_comes_late_never_counts",),
    ),
    Mutant(
        "state-ahead-not-seen",
        "A job does not begin with a state that is ahead of its offsets.",
        "coopconsume/runtime/commit/state_log.py",
        "if offset not in owned.committed:",
        "if offset < 0:",
        (_TESTS + "test_a_state_that_is_ahead_of_the_offsets_is_refused",),
    ),
    Mutant(
        "old-epoch-removes-changes",
        "Changes are removed only while the epoch is in force that looked at them.",
        "coopconsume/runtime/commit/state_log.py",
        "self._changelog.trim(origin, below, complete, check=check)",
        "self._changelog.trim(origin, below, complete)",
        (_RESET + "test_a_snapshot_that_outlives_its_epoch_changes_nothing",),
    ),
    Mutant(
        "changes-are-removed-unseen",
        "Changes that are written while others are removed are kept.",
        _CHANGELOG,
        "        table = self.create()\n        check()\n",
        "        check()\n        table = self.create()\n",
        (_RESET + "test_rows_that_are_written_while_others_are_removed_are_kept",),
    ),
    Mutant(
        "repeat-counts-by-its-answer",
        "Whether a commit counted is decided by the log and not by a repeated answer.",
        "commits/store.py",
        "return commit_id in self._log.group(self._cluster, group).counted",
        "return commit_id in self._log.group(self._cluster, group).answers",
        (
            "tests/unit/commits/test_commit_store.py::test_whether_a_commit_counted_is_known_without_its_answer",
        ),
    ),
    Mutant(
        "another-state-ends-a-reset",
        "A reset that was interrupted is repeated with its own state.",
        "coopconsume/state/resetting.py",
        "if note.resetting and hidden(path) != note.path:",
        "if False:",
        (_RESET + "test_an_interrupted_reset_is_repeated_with_its_state",),
    ),
    Mutant(
        "change-of-a-generator-is-lost",
        "A handler that yields its rows ends before the change that it made is taken.",
        _SLOT,
        "    answer = exhausted(answer)\n    if not state.is_changed:\n        return answer\n",
        "    if not state.is_changed:\n        return answer\n    answer = exhausted(answer)\n",
        (_TESTS + "test_a_handler_that_yields_its_rows_changes_the_state",),
    ),
    Mutant(
        "state-in-the-folder-of-the-worker",
        "Slots find a state by a path that does not depend on the current folder.",
        _LOG,
        'self.path if "://" in self.path else str(Path(self.path).absolute())',
        "self.path",
        (_TESTS + "test_slots_get_the_whole_path_of_a_state",),
    ),
]
