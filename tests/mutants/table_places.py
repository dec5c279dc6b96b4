"""Mutants of the rule that no table is inside another one."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_PLACES = "tests/unit/test_table_places.py::"
_NESTED = (_PLACES + "test_a_table_inside_another_one_is_refused_both_ways",)
_LINKS = (_PLACES + "test_symbolic_links_and_tables_of_others_are_seen",)
_EACH = (_PLACES + "test_each_table_of_a_job_and_a_queue_is_checked",)
_TRIAL = "tests/unit/commits/test_place_trial.py::"
_RULE, _COMMITS = "coopconsume/table_places.py", "commits/places.py"
_JOB, _QUEUE = "coopconsume/runtime/checks.py", "coopconsume/queue/settings.py"

TABLE_PLACES = [
    Mutant(
        "tables-nested-one-way",
        "A table is refused inside another one and around it.",
        _RULE,
        "if outer.contains(inner):",
        "if outer.contains(inner) and outer == tables[0]:",
        _NESTED,
    ),
    Mutant(
        "tables-nested-by-text",
        "A common beginning of two names is no common folder.",
        _RULE,
        "its[: len(mine)] == mine",
        "''.join(its).startswith(''.join(mine))",
        (_PLACES + "test_tables_beside_each_other_are_taken",),
    ),
    Mutant(
        "tables-nested-by-links",
        "Symbolic links are resolved.",
        _COMMITS,
        "*Path(os.path.realpath(_on_disk(place))).parts",
        "*Path(os.path.abspath(_on_disk(place))).parts",
        _LINKS,
    ),
    Mutant(
        "schemes-of-a-bucket-differ",
        "s3 and s3a are one place, and so are the schemes of Azure.",
        _COMMITS,
        "return _SAME_SCHEME.get(name, name), ",
        "return name, ",
        _NESTED,
    ),
    Mutant(
        "tables-of-others-not-seen",
        "A path inside a Delta table of others is refused.",
        _RULE,
        "if around is not None:",
        "if not around and around:",
        _LINKS,
    ),
    Mutant(
        "stores-of-buckets-not-distinguished",
        "The same bucket of two stores is two places.",
        _RULE,
        "self._store == other._store and ",
        "",
        (_PLACES + "test_the_same_bucket_of_two_stores_is_two_places",),
    ),
    *(
        Mutant(
            f"place-of-{name}-not-checked",
            "Each table beside a commit table is checked.",
            file,
            old,
            new,
            _EACH,
        )
        for name, file, old, new in (
            ("outputs", _JOB, 'tables.append(TablePlace("output", output))', "pass"),
            ("letters", _JOB, "for path in letter_tables(letters)]", "for path in ()]"),
            ("state", _JOB, "for path in table_paths(state)] if state else []", "for path in ()]"),
            ("purgatory", _JOB, 'tables.append(TablePlace("purgatory", path))', "pass"),
            ("a-job", _JOB, "    check_tables(options, settings)\n", ""),
            ("replicas", _QUEUE, "        refuse_nested(list(settings._tables()))\n", ""),
            (
                "decisions",
                "coopconsume/sinks/letters.py",
                "else [place, decisions_table(place)]",
                "else [place]",
            ),
        )
    ),
    Mutant(
        "place-that-overwrites-is-taken",
        "A place that overwrites a file is refused, also if it says that it has not.",
        "commits/place_trial.py",
        'and files.read(name) == b"1"',
        "",
        (_TRIAL + "test_a_place_that_overwrites_is_refused",),
    ),
    Mutant(
        "trial-stays",
        "What a trial has created is removed.",
        "commits/place_trial.py",
        "        files.remove(name)",
        "        pass",
        (_TRIAL + "test_a_folder_is_tried_and_left_as_it_was",),
    ),
]
