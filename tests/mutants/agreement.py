"""Mutants of what the members of a group agree on."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LIST = "coopconsume/group/agreement.py"
_SETTINGS = "coopconsume/runtime/read/session_settings.py"
_TESTS = "tests/unit/group/test_agreement.py::"
_START = _TESTS + "test_a_group_has_the_terms_that_it_agreed_on"
_PENDING = _TESTS + "test_pending_records_keep_the_ordering_key_and_its_settings"
_SPARK = "tests/spark/test_session_settings.py::"


def _never_said(field: str, name: str, value: str) -> Mutant:
    return Mutant(
        f"{field}-not-said",
        f"A member says its {name}.",
        _LIST,
        f'"{field}": {value},',
        f'"{field}": None,',
        (_TESTS + "test_a_member_says_its_options",),
    )


AGREEMENT = [
    *(
        Mutant(
            f"{field}-not-compared",
            f"Members of a group have the same {field}.",
            _LIST,
            f'"{field}", "',
            f'"no {field}", "',
            (_TESTS + "test_a_newcomer_is_refused_and_not_the_group",),
        )
        for field in (
            "store",
            "cluster",
            "hash",
            "state",
            "sharing",
            "filter",
            "ordering_key",
            "settings",
        )
    ),
    _never_said("store", "commit table", "store.id"),
    _never_said("cluster", "Kafka cluster", "cluster.cluster_id"),
    _never_said("sharing", "sharing", 'COOPERATIVE if options.uses_chunks else ""'),
    _never_said("filter", "filter", "str(options.record_filter)"),
    _never_said("ordering_key", "ordering key", 'options.ordering_key or ""'),
    Mutant(
        "settings-not-said",
        "A member says the settings of its expressions.",
        _LIST,
        '"settings": options.expression_settings,',
        '"settings": None,',
        (_TESTS + "test_a_claim_has_the_ordering_key_and_its_settings_of_others_at_work",),
    ),
    Mutant(
        "term-of-a-member-refused-before-counts",
        "A member that is refused decides on no other term.",
        _LIST,
        "for m, terms in said.items() if m not in refused}",
        "for m, terms in said.items()}",
        (_TESTS + "test_a_term_does_not_count_for_members_that_are_refused_before",),
    ),
    Mutant(
        "silence-of-an-earlier-version-refused",
        "A member of an earlier version is compared in what it says.",
        _LIST,
        "if value not in (None, most)",
        "if value != most",
        (_TESTS + "test_a_member_of_the_version_before_works_beside_others",),
    ),
    Mutant(
        "silence-of-an-earlier-version-counts",
        "Of a term that most members do not say, the others decide.",
        _LIST,
        "counts = Counter(value for value in values.values() if value is not None)",
        "counts = Counter(values.values())",
        (_TESTS + "test_a_member_of_the_version_before_works_beside_others",),
    ),
    Mutant(
        "terms-changed-with-pending-records",
        "The ordering key of a group does not change while records are pending.",
        _LIST,
        "for (topic, partition), records in sorted(store.pending(group).items()):",
        "for (topic, partition), records in ():",
        (_PENDING,),
    ),
    Mutant(
        "terms-changed-beside-others",
        "The ordering key of a group does not change while others work with it.",
        _LIST,
        "if at_start is Start.REFUSED or at_work:",
        "if at_start is Start.REFUSED:",
        (_PENDING,),
    ),
    Mutant(
        "settings-no-part-of-the-ordering-key",
        "The settings that an ordering key is computed with change as it does.",
        _LIST,
        "ORDERING_KEY.at_start if term is _SETTINGS and has_key else term.at_start",
        "term.at_start",
        (_PENDING,),
    ),
    Mutant(
        "hash-version-changed-at-a-start",
        "The hash version of a group never changes.",
        _LIST,
        "if at_start is Start.REFUSED or at_work:",
        "if at_work:",
        (_START,),
    ),
    Mutant(
        "terms-of-the-group-not-checked",
        "A member that begins has the terms of its group.",
        _LIST,
        "if found is not None and at_start is not Start.LOGGED:",
        "if found is not None and at_start is Start.REFUSED:",
        (_START, _PENDING),
    ),
    Mutant(
        "terms-of-a-member-that-begins-not-checked",
        "A member that begins has the terms of its group, also without a word to the leader.",
        "coopconsume/group/loading.py",
        "    check(store, group, terms_of(options, store, cluster))\n",
        "",
        (_TESTS + "test_a_static_member_that_comes_back_has_the_terms_of_its_group",),
    ),
    Mutant(
        "terms-noted-by-a-claim-beside-others",
        "A claim beside others does not note the settings of its filter.",
        _LIST,
        "if found is None or not at_work:",
        "if found is None or at_work is not None:",
        (_TESTS + "test_settings_of_a_filter_may_change_and_are_logged",),
    ),
    Mutant(
        "terms-not-noted-by-an-earlier-version-refused",
        "What a table of an earlier version does not note is noted at the next start.",
        _LIST,
        "        elif found is not None:\n            if at_start is Start.REFUSED",
        "        else:\n            if at_start is Start.REFUSED",
        (_TESTS + "test_a_group_of_the_version_before_goes_on_and_notes_its_terms",),
    ),
    Mutant(
        "changed-terms-of-an-epoch-not-logged",
        "A filter or sharing that differs from that of the last epoch is logged.",
        _LIST,
        "    for term in TERMS:\n        found = {",
        "    for term in ():\n        found = {",
        (
            _TESTS + "test_terms_of_the_epoch_before_that_have_changed_are_logged_once",
            _TESTS + "test_a_claim_is_warned_of_other_filters_in_its_group",
        ),
    ),
    Mutant(
        "session-settings-not-compared-with-the-start",
        "A consumer whose session has changed reads no more.",
        _SETTINGS,
        "if now != options.expression_settings:",
        "if not now:",
        (_SPARK + "test_members_in_other_time_zones_are_refused",),
    ),
    Mutant(
        "session-setting-left-out",
        "Members agree on each setting that changes an expression.",
        _SETTINGS,
        "legacy.sizeOfNull\n",
        "\n",
        (_SPARK + "test_each_setting_of_spark_that_may_change_an_expression_is_known",),
    ),
    Mutant(
        "expression-of-a-variable-accepted",
        "An expression that has a variable of the session is refused.",
        "coopconsume/filters.py",
        "return variable.group() if variable else None",
        "return None",
        ("tests/unit/test_filters.py::test_what_may_change_between_two_reads_is_refused",),
    ),
]

_NOTE = "coopconsume/state/note.py"
_CHANGELOG = "coopconsume/state/changelog.py"
_STATES = "tests/unit/state/test_state_note.py::"
_OTHER = _STATES + "test_another_state_is_refused_with_both"
_ONE_STATE = "tests/spark/test_state_of_a_group.py::"

STATE_OF_A_GROUP = [
    Mutant(
        "noted-state-not-compared",
        "A job begins with the state of its group.",
        _NOTE,
        "        is_same = mine == noted\n    if is_same",
        "        is_same = True\n    if is_same",
        (_OTHER, _STATES + "test_a_state_that_was_removed_is_refused"),
    ),
    Mutant(
        "state-compared-by-path",
        "A state is known by the id of its table, however its path is spelt.",
        _NOTE,
        "        is_same = mine == noted\n    if is_same",
        "        is_same = path == note.path\n    if is_same",
        (
            _STATES + "test_a_group_has_the_state_that_it_began_with",
            _STATES + "test_a_state_that_was_removed_is_refused",
        ),
    ),
    Mutant(
        "state-over-committed-records-begun",
        "State over records that were processed without it is an explicit choice.",
        _NOTE,
        '        is_same = mine == "" or not has_committed\n',
        "        is_same = True\n",
        (_STATES + "test_a_state_over_committed_records_is_an_explicit_choice",),
    ),
    Mutant(
        "state-changed-beside-others",
        "A state does not change while others work.",
        _NOTE,
        "if is_same or (may_change and",
        "if is_same or (may_change is not None and",
        (
            _STATES + "test_a_group_that_has_committed_nothing_may_change_while_nobody_else_works",
            _STATES + "test_a_member_without_state_is_noted_so_that_one_with_state_is_refused",
            _STATES + "test_of_two_that_note_at_the_same_time_one_begins",
        ),
    ),
    Mutant(
        "state-changed-over-committed-records",
        "The state of a group that has committed records changes by a command alone.",
        _NOTE,
        "not note.is_started and not _has_committed(store, group)):",
        "not note.is_started):",
        (_OTHER,),
    ),
    Mutant(
        "start-at-other-offsets-not-noted",
        "State over another consumer's offsets is an explicit choice.",
        "coopconsume/group/loading.py",
        "    if found.from_primary:\n        note_start_elsewhere(store, group)\n",
        "",
        (_ONE_STATE + "test_a_state_that_is_added_later_is_an_explicit_choice",),
    ),
    Mutant(
        "start-at-other-offsets-forgotten",
        "State over another consumer's offsets stays an explicit choice.",
        _NOTE,
        "not note.is_started and not _has_committed(store, group)):",
        "not _has_committed(store, group)):",
        (_STATES + "test_a_state_over_another_consumers_offsets_is_an_explicit_choice",),
    ),
    Mutant(
        "state-of-an-earlier-note-not-compared",
        "A note of an earlier version means the table at its path.",
        _NOTE,
        "        is_same = mine is not None and mine == noted\n",
        "        is_same = True\n",
        (_STATES + "test_a_note_of_the_version_before_means_the_table_at_its_path",),
    ),
    Mutant(
        "missing-state-of-an-earlier-note-begins",
        "A table that an earlier version has noted and that is not there may have been removed.",
        _NOTE,
        "        is_same = mine is not None and mine == noted\n",
        "        is_same = mine == noted\n",
        (
            _STATES
            + "test_a_note_of_the_version_before_without_a_table_is_refused_with_the_command",
        ),
    ),
    Mutant(
        "state-note-not-looked-at-again",
        "Of two that note a state at the same time one begins.",
        _NOTE,
        "        check_state(store, group, cluster, changelog, may_change=False)\n",
        "",
        (_STATES + "test_of_two_that_note_at_the_same_time_one_begins",),
    ),
    Mutant(
        "state-schema-not-compared-at-a-start",
        "A job whose table has come to another schema is refused.",
        _CHANGELOG,
        "        self._schema_of(table, self.schema)\n",
        "",
        (_STATES + "test_a_member_with_another_schema_is_refused",),
    ),
    Mutant(
        "removed-state-made-again",
        "A state that is removed under a job is not made again.",
        _CHANGELOG,
        "if table is None and not self.id:",
        "if table is None:",
        (_STATES + "test_a_state_that_is_removed_under_a_job_is_not_made_again",),
    ),
    Mutant(
        "replaced-state-written",
        "A job does not write to a table that was put in the place of its state.",
        _CHANGELOG,
        "if self.id and found != self.id:",
        "if not found:",
        (_STATES + "test_a_state_that_is_removed_under_a_job_is_not_made_again",),
    ),
    Mutant(
        "state-appended-unchecked",
        "An append looks at the id of the state's table whenever it opens the table.",
        _CHANGELOG,
        "appender.append(rows, self._keep)",
        "appender.append(rows)",
        (_STATES + "test_a_state_that_is_removed_under_a_job_is_not_made_again",),
    ),
    Mutant(
        "job-without-state-not-compared",
        "A job without state is refused in a group that has one.",
        "coopconsume/runtime/epoch_state.py",
        "            self.assignment.begin_with_state(None)\n",
        "            pass\n",
        (
            "tests/model/test_moving_state.py::test_a_job_without_state_is_refused_in_a_group_with_one",
        ),
    ),
    Mutant(
        "poll-not-compared",
        "A poll is refused in a group that has state.",
        "coopconsume/runtime/poll/poller.py",
        "                                assignment.begin_with_state(None)\n",
        "",
        (_ONE_STATE + "test_a_group_has_one_state_over_members_and_starts",),
    ),
    Mutant(
        "job-compared-after-joining",
        "A job with another state does not disturb the group.",
        "coopconsume/query.py",
        "member.keep_state(None if",
        "(None if",
        (_ONE_STATE + "test_a_group_has_one_state_over_members_and_starts",),
    ),
    Mutant(
        "state-not-said",
        "A member says its state when it joins.",
        "coopconsume/group/member.py",
        '{} if table is None else {"state": table}',
        "{}",
        ("tests/unit/group/test_group_member.py::test_a_member_says_the_state_that_it_keeps",),
    ),
]
