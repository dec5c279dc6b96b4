"""Mutants of what the members of a group agree on."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LIST = "coopconsume/group/agreement.py"
_SETTINGS = "coopconsume/runtime/read/session_settings.py"
_TESTS = "tests/unit/group/test_agreement.py::"
_LIVE = _TESTS + "test_members_that_do_not_agree_are_refused"
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
            (_LIVE,),
        )
        for field in ("store", "cluster", "hash", "sharing", "filter", "ordering_key", "settings")
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
        "coopconsume/group/epoch_assignment.py",
        "        check(store, group, terms_of(self.options, store, self.cluster))\n",
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
