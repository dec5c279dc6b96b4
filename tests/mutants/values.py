"""Planted faults in what fits a type, and in the answers of frame handlers."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CONVERSION = "coopconsume/values/conversion.py"
_SCHEMA = "coopconsume/values/schema.py"
_ANSWERS = "coopconsume/worker/handler_answers.py"
_FITS = "tests/unit/values/test_conversion.py::"
_REFUSED = (_FITS + "test_a_value_that_does_not_fit_is_refused",)
_HELD = (_FITS + "test_a_value_that_fits_becomes_what_the_type_holds",)
_ODD = "tests/unit/worker/test_odd_answers.py::"
_NAMES = "tests/unit/values/test_schema.py::"
_FRAMES = "tests/unit/worker/test_frames.py::"

_MONITORING = "tests/unit/monitoring/test_monitoring.py::"
_STARTS = "tests/unit/test_cli.py::test_a_command_loads_what_it_needs"
_LATE = (
    "tests/unit/commits/test_acquisitions.py::test_a_late_commit_counts_for_what_nobody_else_has"
)

VALUES = [
    Mutant(
        "fraction-is-cut",
        "A number with a fraction does not fit a whole number.",
        _CONVERSION,
        "if (whole := int(value)) != value:",
        "if (whole := int(value)) != int(value):",
        _REFUSED,
    ),
    Mutant(
        "true-is-one",
        "A truth value is no number.",
        _CONVERSION,
        "    return isinstance(value, bool) or _is_numpys(value, *_FLAGS)",
        "    return False",
        _REFUSED,
    ),
    Mutant(
        "long-int-loses-digits",
        "An int with more digits than a double has does not fit it.",
        _CONVERSION,
        "if isinstance(value, numbers.Rational) and number != value:",
        "if isinstance(value, numbers.Rational) and number != number:",
        _REFUSED,
    ),
    Mutant(
        "int-stays-an-int",
        "An int for a double becomes a float at once.",
        _CONVERSION,
        "    if type(value) is float:\n        return value",
        "    if type(value) in (float, int):\n        return value",
        _HELD,
    ),
    Mutant(
        "float-is-not-rounded",
        "A value is what its type holds as soon as it is returned.",
        _CONVERSION,
        "        return rounded\n",
        "        return number\n",
        _HELD,
    ),
    Mutant(
        "number-is-a-time",
        "A number is no time.",
        _CONVERSION,
        "if is_time and isinstance(value, numbers.Number):",
        "if False:",
        _REFUSED,
    ),
    Mutant(
        "time-of-a-date-is-cut",
        "A datetime with a time does not fit a date.",
        _CONVERSION,
        "if when.tzinfo is not None or when.time() != dt.time():",
        "if when.tzinfo is not None:",
        _REFUSED,
    ),
    Mutant(
        "nanoseconds-are-cut",
        "A time between two microseconds does not fit.",
        _CONVERSION,
        'if getattr(value, "nanosecond", 0):',
        "if False:",
        _REFUSED,
    ),
    Mutant(
        "zone-is-dropped",
        "A time in another zone is the same time in UTC.",
        _CONVERSION,
        "                when = when.astimezone(dt.UTC)",
        "                pass",
        _HELD,
    ),
    Mutant(
        "decimal-is-rounded",
        "A Decimal with more digits than its type does not fit.",
        _CONVERSION,
        "traps = [decimal.Inexact, decimal.InvalidOperation]",
        "traps = [decimal.InvalidOperation]",
        _REFUSED,
    ),
    Mutant(
        "unknown-field-is-dropped",
        "A field that the type does not have does not fit.",
        _CONVERSION,
        "        if name not in known:",
        "        if name is ...:",
        (*_REFUSED, _ODD + "test_a_column_that_is_not_known_fails_its_record"),
    ),
    Mutant(
        "misspelt-column-is-null",
        "A row with a column that the schema does not have fails its record.",
        "coopconsume/worker/output_rows.py",
        "if all(type(row) is dict and names.issuperset(row) for row in rows):",
        "if all(type(row) is dict for row in rows):",
        (_ODD + "test_a_column_that_is_not_known_fails_its_record",),
    ),
    Mutant(
        "key-twice-in-a-map",
        "A map does not hold a key twice.",
        _CONVERSION,
        "            if key in taken:",
        "            if False:",
        _REFUSED,
    ),
    Mutant(
        "pandas-na-is-no-null",
        "Null of pandas is null.",
        _CONVERSION,
        'kind.__name__ in ("NAType", "NaTType")',
        'kind.__name__ in ("NaTType",)',
        (*_HELD, _FRAMES + "test_a_column_says_which_rows_are_done"),
    ),
    Mutant(
        "null-where-none-may-be",
        "A field that may not be null takes no null.",
        _CONVERSION,
        "        if is_null(value):\n            raise DoesNotFit",
        "        if False:\n            raise DoesNotFit",
        (_FITS + "test_a_value_that_does_not_fit_is_refused",),
    ),
    Mutant(
        "elements-are-shared",
        "A value that is kept shares nothing with the handler.",
        _CONVERSION,
        "        return taken\n\n    return convert\n\n\ndef _elements",
        "        return found\n\n    return convert\n\n\ndef _elements",
        (_FITS + "test_a_converted_value_shares_nothing_with_the_handlers",),
    ),
    Mutant(
        "times-without-a-zone",
        "A timestamp of Spark is in UTC, whatever the version of PySpark.",
        _SCHEMA,
        '{"timezone": "UTC"}',
        '{"timezone": "Asia/Tokyo"}',
        (_NAMES + "test_times_are_in_utc_at_each_depth",),
    ),
    Mutant(
        "names-of-the-library-are-taken",
        "No column has a name of the library.",
        _SCHEMA,
        "if name.lower() in reserved:",
        "if name in reserved and name == '_offset':",
        (_NAMES + "test_a_name_that_is_taken_is_refused_before_the_job_starts",),
    ),
    Mutant(
        "names-that-differ-in-case",
        "No two fields of a struct have names that differ in case only.",
        _SCHEMA,
        "seen.get(name.lower())",
        "seen.get(name)",
        (_NAMES + "test_fields_of_one_struct_that_differ_in_case_are_refused",),
    ),
    Mutant(
        "names-inside-are-not-checked",
        "The names of inner structs are checked, too.",
        _SCHEMA,
        "        check_names(option, field.type)",
        "        pass",
        (_NAMES + "test_fields_of_one_struct_that_differ_in_case_are_refused",),
    ),
    Mutant(
        "table-of-another-type",
        "A table whose columns have other types is refused at the start.",
        "coopconsume/sinks/table.py",
        "if _without_nulls(kind) != _without_nulls(field.type):",
        "if False:",
        (_NAMES + "test_an_output_table_knows_at_the_start_what_it_takes",),
    ),
    Mutant(
        "schema-that-the-table-does-not-keep",
        "Rows fit the types that the table keeps.",
        "coopconsume/sinks/table.py",
        "            self.schema = kept_by_delta(schema)",
        "            self.schema = kept_by_delta(schema) and schema",
        (_NAMES + "test_an_output_table_knows_at_the_start_what_it_takes",),
    ),
    Mutant(
        "column-by-position",
        "A pandas column answers by its index.",
        _ANSWERS,
        "    return [at[row] for row in rows]",
        "    return outcomes",
        (_FRAMES + "test_a_sorted_column_answers_by_its_index",),
    ),
    Mutant(
        "index-that-says-nothing",
        "A column with another index than the frame's answers for no row.",
        _ANSWERS,
        "    if len(at) != len(rows) or any(row not in at for row in rows):",
        "    if any(row not in at for row in ()):",
        (_FRAMES + "test_a_column_with_another_index_says_nothing",),
    ),
    Mutant(
        "frame-is-a-column",
        "A returned frame is refused with what to return.",
        _ANSWERS,
        'is_frame = hasattr(answer, "columns")',
        "is_frame = False",
        (_FRAMES + "test_a_returned_frame_is_refused_with_what_to_return",),
    ),
    Mutant(
        "open-offset-is-too-old",
        "A commit with an offset that another member has acquired is not too old.",
        "commits/fold.py",
        'is_lost = is_lost or (bool(taken) and result.status == "too_old")',
        "pass",
        (_LATE,),
    ),
    Mutant(
        "connector-of-another-spark",
        "A Kafka source of another minor version of Spark is refused.",
        "coopconsume/spark_versions.py",
        "if connector is not None and _minor(connector) not in minors:",
        "if connector is not None and _minor(connector) in ():",
        ("tests/unit/test_classic.py::test_a_kafka_source_of_another_spark_is_refused",),
    ),
    Mutant(
        "terminal-without-utf8",
        "The help is shown on any terminal.",
        "coopconsume/cli/__init__.py",
        'stream.reconfigure(errors="replace")',
        "pass",
        ("tests/unit/test_cli.py::test_a_terminal_without_utf8_shows_the_help",),
    ),
    Mutant(
        "command-loads-libraries",
        "A command loads the libraries of its work when the work begins.",
        "coopconsume/cli/exit_codes.py",
        "from coopconsume.interrupts import interruptible\n",
        "from coopconsume.interrupts import interruptible\nimport kafka\n",
        (_STARTS,),
    ),
    Mutant(
        "command-loads-others",
        "A command loads no other command.",
        "coopconsume/cli/__init__.py",
        'module = import_module(f"{__name__}.{self._modules[name]}")',
        "module = {n: import_module(f'{__name__}.{m}') for n, m in self._modules.items()}[name]",
        (_STARTS,),
    ),
    Mutant(
        "worker-loads-asyncio",
        "A worker without coroutines loads no asyncio.",
        "coopconsume/worker/handler_spans.py",
        "from coopconsume.worker.handler_lines import column_of\n",
        "from coopconsume.worker.handler_lines import column_of\nimport asyncio\n",
        ("tests/unit/worker/test_slot.py::test_a_worker_needs_pyarrow_alone",),
    ),
    Mutant(
        "misspelt-group-is-new",
        "Offsets of a group that nothing knows are an error unless it is said to be new.",
        "coopconsume/admin/offsets/admin.py",
        "(may_be_new or self.group in self.store.groups())",
        "True",
        ("tests/broker/test_offsets_cli.py::test_a_misspelt_group_is_an_error",),
    ),
    Mutant(
        "shared-partition-is-counted-by-each",
        "What holds for a whole partition is reported by one member.",
        "coopconsume/monitoring/numbers.py",
        'return partition["ownsFirst"] or number.field in own',
        "return True",
        (
            _MONITORING + "test_sums_over_members_count_a_shared_partition_once",
            _MONITORING + "test_opentelemetry_reports_a_shared_partition_once",
        ),
    ),
    Mutant(
        "pending-records-of-chunks-are-counted-by-each",
        "In a partition that is shared by chunks, one member reports what is pending.",
        "coopconsume/monitoring/numbers.py",
        'own = _OF_MEMBER if partition["sharesChunks"] else',
        "own = _OF_MEMBER | _OF_KEY_RANGES if True else",
        (_MONITORING + "test_sums_over_members_count_a_shared_partition_once",),
    ),
]
