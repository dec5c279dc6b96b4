"""Mutants of the tables that Python appends to: their openings, entries and files."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_APPENDER = "tests/unit/commits/test_table_appender.py::"
_REPAIR = "tests/unit/commits/test_commit_repair.py::"
_FEATURES = "test_a_table_with_a_feature_of_writers_is_refused_and_can_be_moved"
_TABLE_FILES = "tests/unit/commits/test_table_files.py::"
_STATE = "tests/unit/commits/test_table_state.py::"
_STORES = "tests/unit/commits/test_commit_object_stores.py::"
_OF_STATE = "tests/unit/state/test_state.py::"
_LOCK = "tests/unit/test_interpreter_lock.py::"

_KEPT = "tests/unit/commits/test_kept_tables.py::"
_TABLE = "tests/unit/commits/test_commit_table.py::"

TABLES = [
    Mutant(
        "kept-table-loses-chunks",
        "The chunks in a snapshot of an older version are held on.",
        "commits/snapshot.py",
        '_acquisitions_from_plain(plain.get("acquisitions", ()), plain.get("watched", ()))',
        '_acquisitions_from_plain((), plain.get("watched", ()))',
        (_KEPT + "test_a_kept_table_is_read_as_its_version_reads_it",),
    ),
    Mutant(
        "kept-table-loses-settings",
        "The settings in a snapshot of an older version hold on.",
        "commits/snapshot.py",
        'settings=_settings_from_plain(head.detail["settings"])',
        "settings={}",
        (_KEPT + "test_a_kept_table_is_read_as_its_version_reads_it",),
    ),
    *(
        Mutant(f"store-{name}", text, "commits/table_files.py", old, new, (_TABLE_FILES + test,))
        for name, text, old, new, test in [
            (
                "repeats-by-other-limits",
                "Repeats of a request have the limits that the options name.",
                "(backoff if of else retry)[key] = _REPEATED[name](value)",
                "pass",
                "test_a_store_that_refuses_is_asked_again_as_often_as_is_said",
            ),
            (
                "option-not-named",
                "A value of an option that makes no sense is refused with the option's name.",
                "        if named:",
                "        if False:",
                "test_a_setting_of_a_store_that_makes_no_sense_is_named",
            ),
            (
                "at-an-address-of-the-web",
                "A place in which deltalake has no tables is refused.",
                'if not name.startswith("http"):',
                "if True:",
                "test_settings_of_a_store_keep_their_names",
            ),
        ]
    ),
    *(
        Mutant(f"appender-{name}", text, file, old, new, (_APPENDER + test,))
        for name, text, file, old, new, test in [
            (
                "behind-changes-of-the-table",
                "An append looks at a table again that others have changed.",
                "commits/table_appender.py",
                "return entry.changes_table",
                "return False",
                "test_what_others_change_is_obeyed",
            ),
            (
                "of-removals-conflicts",
                "An append goes on behind removals of rows.",
                "commits/table_appender.py",
                "opened.log.append(actions, {}, token, files=files, conflicts=_changes_table)",
                "opened.log.append(actions, {}, token, files=files)",
                "test_a_removal_beside_appends_makes_no_second_file",
            ),
            (
                "knows-no-features",
                "A table with features that an append has to obey is left to deltalake.",
                "commits/table_appender.py",
                "asks_of_append(table, removes=False) is None\n            and",
                "table is not None\n            and",
                "test_what_others_change_is_obeyed",
            ),
            (
                "to-another-table",
                "An entry is created behind one that is there.",
                "commits/table_appender.py",
                "calls = [opened.log.is_newest_there]",
                "calls = [lambda: True]",
                "test_a_table_that_takes_the_place_of_another_gets_the_next_version",
            ),
            (
                "takes-nulls",
                "A null is not appended where there may be none.",
                "commits/table_appender.py",
                "and (field.nullable or not rows.column(field.name).null_count)",
                "",
                "test_a_null_is_not_appended_where_there_may_be_no_null",
            ),
            (
                "beside-locks",
                "A store whose writers take locks is left to deltalake.",
                "commits/table_appender.py",
                '"locking_provider copy_if_not_exists conditional_put unsafe_rename"',
                '"copy_if_not_exists conditional_put unsafe_rename"',
                "test_places_whose_writers_create_entries_otherwise_are_left_to_deltalake",
            ),
            (
                "makes-no-checkpoint",
                "The writer of a version makes its checkpoint.",
                "commits/table_appender.py",
                "table.create_checkpoint()",
                "pass",
                "test_checkpoints_are_made_and_old_entries_removed",
            ),
            (
                "keeps-old-entries",
                "Entries that are older than the retention are removed with a checkpoint.",
                "commits/table_appender.py",
                "table.cleanup_metadata()",
                "pass",
                "test_checkpoints_are_made_and_old_entries_removed",
            ),
            (
                "bounds-floats-with-nan",
                "A column with NaN has no bounds.",
                "commits/added_files.py",
                "pc.any(pc.is_nan(column)).as_py()",
                "False",
                "test_a_bound_that_is_not_certain_is_left_out",
            ),
            (
                "cuts-upper-bounds",
                "The upper bound of a long text is above it.",
                "commits/added_files.py",
                "text[:_LONGEST] + _ABOVE",
                "text[:_LONGEST]",
                "test_a_bound_that_is_not_certain_is_left_out",
            ),
            (
                "leaves-a-damaged-table-to-deltalake",
                "A table whose newest entry is empty or torn is not appended to.",
                "commits/table_state.py",
                "raise DamagedEntry(",
                "raise ValueError(",
                "test_a_table_whose_newest_entry_is_damaged_is_not_appended_to",
            ),
            (
                "makes-one-folder",
                "A partition has a folder for each column.",
                "commits/table_files.py",
                "if self._folder in one.parents]",
                "if self._folder == one.parent]",
                "test_new_partitions_of_several_columns_get_their_folders",
            ),
            (
                "names-partitions-once-quoted",
                "The path of an action is the quoted name of its file.",
                "commits/added_files.py",
                'quote(name, safe="/=-_.~")',
                "name",
                "test_partition_values_of_any_text",
            ),
        ]
    ),
    *(
        Mutant(f"opening-{name}", text, f"commits/{file}.py", old, new, (test,))
        for name, text, file, old, new, test in [
            (
                "reads-entries-twice",
                "Entries that an opening has read are not read again.",
                "path_engine",
                "read = self._table.take_entries(versions)",
                "read = self._table.take_entries(range(0))",
                _STORES + "test_a_commit_is_two_requests_and_a_look_is_one",
            ),
            (
                "reads-snapshots-twice",
                "The file of a snapshot is read once.",
                "rows_file",
                "if file in self._snapshot:",
                "if False:",
                _STORES + "test_a_commit_is_two_requests_and_a_look_is_one",
            ),
            (
                "writes-checkpoints-side-by-side",
                "One process of a host writes a checkpoint at a time.",
                "path_engine",
                "if not is_free and self.version < newest + _LATE_VERSIONS:",
                "if False:",
                _TABLE + "test_one_process_of_a_host_writes_a_checkpoint_at_a_time",
            ),
            (
                "waits-for-a-stopped-checkpoint",
                "A process that is stopped while it writes a checkpoint keeps no other from it.",
                "path_engine",
                "if not is_free and self.version < newest + _LATE_VERSIONS:",
                "if not is_free:",
                _TABLE + "test_a_process_stopped_at_a_checkpoint_does_not_hold_up_others",
            ),
            (
                "repeats-checkpoints-of-others",
                "A checkpoint that others have written is not written again.",
                "path_engine",
                "if due <= newest <= self.version:",
                "if False:",
                _TABLE + "test_a_checkpoint_that_others_have_written_is_not_written_again",
            ),
            (
                "goes-back-behind-the-snapshot",
                "A snapshot has a checkpoint: entries before it are not read.",
                "path_engine",
                "if version % CHECKPOINT_VERSIONS == 0 or snapshot_of is not None:",
                "if version % CHECKPOINT_VERSIONS == 0:",
                _STORES + "test_a_commit_is_two_requests_and_a_look_is_one",
            ),
            (
                "believes-the-pointer",
                "A checkpoint that is not where it is said to be is looked for.",
                "table_state",
                "if hint and base < 0:",
                "if False:",
                _STATE + "test_what_points_at_the_checkpoint_is_a_hint",
            ),
            (
                "by-a-part",
                "A checkpoint without one of its parts does not count.",
                "table_state",
                "if len(some) == int(found[3]):",
                "if some:",
                _STATE + "test_a_checkpoint_without_one_of_its_parts_does_not_count",
            ),
            (
                "without-sidecars",
                "Files that a checkpoint of the second format names are read.",
                "table_state",
                'if "sidecar" not in kinds or not named:',
                "if True:",
                _STATE + "test_checkpoints_of_all_formats_are_read",
            ),
            (
                "keeps-removed-files",
                "A file that a version removes is no longer one of the table.",
                "table_state",
                'self.files.pop(action["remove"]["path"], None)',
                "pass",
                _STATE + "test_every_version_is_as_deltalake_reads_it",
            ),
            (
                "looks-once",
                "Entries that others remove during an opening are looked for again.",
                "table_state",
                "for _ in range(2):",
                "for _ in range(1):",
                _STATE + "test_entries_that_go_during_an_opening_are_looked_for_again",
            ),
            (
                "reads-all-of-a-torn-log",
                "What a listing lacks is read first.",
                "table_state",
                "for version in range(base + 1, newest + 1) if version not in known)",
                "for version in range(0))",
                _STATE + "test_a_log_without_its_beginning_is_not_read_to_its_end",
            ),
            (
                "of-a-later-protocol",
                "A table of a protocol that is not known is refused.",
                "table_features",
                "if writer > _NEWEST_WRITER or reader > _NEWEST_READER:",
                "if False:",
                _STATE + "test_protocols_that_are_not_known_ask_more_of_an_append",
            ),
        ]
    ),
    *(
        Mutant(f"commit-table-{name}", text, file, old, new, (_REPAIR + _FEATURES,))
        for name, text, file, old, new in [
            (
                "with-deletion-vectors",
                "A commit table with deletion vectors is refused.",
                "commits/table_features.py",
                "columnMapping domainMetadata",
                "columnMapping deletionVectors domainMetadata",
            ),
            (
                "not-moved-for-its-features",
                "A table that is only read may have any feature.",
                "commits/repair.py",
                "storage_options, is_written=False).check",
                "storage_options, is_written=True).check",
            ),
            (
                "repaired-in-spite-of-features",
                "A table that is repaired in its place has no feature that an append has to obey.",
                "commits/repair.py",
                "is_written=into is None)",
                "is_written=False)",
            ),
        ]
    ),
    Mutant(
        "notes-by-the-history",
        "Other threads run while a store answers what writers noted in a table's log.",
        "commits/table_notes.py",
        "files = files_of(uri, options)",
        'files = files_of("none://" + uri, options)',
        (_LOCK + "test_no_call_holds_the_interpreter_while_a_store_answers[s3]",),
    ),
    Mutant(
        "notes-with-a-gap",
        "A reader of a state whose next entries were removed is restored.",
        "coopconsume/state/changelog.py",
        "is_known = len(notes) == max(notes, default=have) - have > 0",
        "is_known = bool(notes)",
        (_OF_STATE + "test_old_entries_of_the_changelog_go_and_an_older_store_is_restored",),
    ),
]
