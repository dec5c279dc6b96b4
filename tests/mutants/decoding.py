"""Mutants of the decoding of keys and values."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_RECORDS = "tests/unit/worker/test_typed_records.py::"
_FRAMES = "tests/unit/worker/test_typed_frames.py::"
_REGISTRY = "tests/unit/decoding/test_schema_registry.py::"
_ANSWERS = "coopconsume/worker/handler_answers.py"

_HANDLERS = "tests/unit/worker/test_open_handlers.py::"
_DECLARATIONS = "tests/unit/decoding/test_declarations.py::"

DECODING = [
    Mutant(
        "unreadable-class-declared",
        "A class with a part that no JSON decodes to is refused by foreach.",
        "coopconsume/decoding/declaration.py",
        "        if isinstance(one, inspect.CustomType):\n",
        "        if False:\n",
        (_DECLARATIONS + "test_an_unknown_declaration_is_refused_by_name",),
    ),
    Mutant(
        "bound-argument-shown",
        "Errors of declarations and handlers do not show the arguments of a functools.partial.",
        "coopconsume/values/callables.py",
        "one if one.default is one.empty else one.replace(default=hidden)",
        "one",
        (
            _DECLARATIONS + "test_what_a_declaration_has_is_not_shown",
            _HANDLERS + "test_a_handler_is_shown_without_its_attributes",
        ),
    ),
    Mutant(
        "error-of-a-decoder-looked-at-outside",
        "An error of a decoder that raises as it is looked at costs its record alone.",
        "coopconsume/worker/row_records.py",
        "            return odd\n",
        "            return None\n",
        (_RECORDS + "test_an_error_of_a_decoder_that_cannot_be_looked_at_costs_its_record",),
    ),
    Mutant(
        "context-of-another-row",
        "A decoder gets the headers of its record, behind one that was left out, too.",
        "coopconsume/worker/row_records.py",
        "                self._cells += context\n",
        "",
        (_RECORDS + "test_each_record_has_its_own_fields",),
    ),
    Mutant(
        "validator-before-its-turn",
        "No code of the user's runs for a record before its turn.",
        "coopconsume/decoding/record_decoder.py",
        "[field.is_pure for field in self._of.values()] == [True]",
        "len(self._of) == 1",
        (_RECORDS + "test_small_values_are_decoded_before_their_turn_if_no_code_of_the_user_runs",),
    ),
    Mutant(
        "validator-not-looked-for",
        "A struct that checks itself runs code of the user.",
        "coopconsume/decoding/declaration.py",
        'hasattr(kind, "__post_init__") or ',
        "",
        (_DECLARATIONS + "test_what_may_run_code_of_the_user_is_known",),
    ),
    Mutant(
        "validator-of-generic-not-looked-for",
        "A generic struct that checks itself runs code of the user.",
        "coopconsume/decoding/declaration.py",
        "kind = get_origin(one.cls) or one.cls",
        "kind = one.cls",
        (_DECLARATIONS + "test_what_may_run_code_of_the_user_is_known",),
    ),
    Mutant(
        "large-value-before-its-turn",
        "A value that may exhaust memory is decoded right before its call: no other is charged.",
        "coopconsume/worker/serial_runner.py",
        "pc.max(pc.binary_length(cells))",
        "pc.min(pc.binary_length(cells))",
        (_RECORDS + "test_a_large_value_among_small_ones_is_decoded_right_before_its_call",),
    ),
    Mutant(
        "interrupt-costs-a-block",
        "What interrupts a decoder costs one record.",
        "coopconsume/worker/row_records.py",
        "            self._make(number + 1)\n",
        "            pass\n",
        (_RECORDS + "test_an_interrupt_of_a_decoder_costs_one_record",),
    ),
    Mutant(
        "page-of-a-proxy-makes-letters",
        "An answer that does not come from a schema registry is no fault of the record.",
        "coopconsume/decoding/failures.py",
        "        if _is_of_answer(cause):\n",
        "        if False:\n",
        (_REGISTRY + "test_a_registry_that_does_not_answer_makes_no_dead_letters",),
    ),
    Mutant(
        "decoded-value-of-another-row",
        "Behind a record that waits, each record has its own decoded value.",
        "coopconsume/worker/row_records.py",
        "                next(self._ahead, None)\n",
        "                pass\n",
        (_RECORDS + "test_each_record_has_its_own_fields",),
    ),
    Mutant(
        "recorded-manager-is-plain",
        "A handler that a context manager returns is recorded as a coroutine if it is one.",
        "coopconsume/testing/faults.py",
        "kind = _FaultyCoroutine if is_async(handler) else _Faulty\n",
        "kind = _Faulty\n",
        (_HANDLERS + "test_a_recorded_handler_is_opened_and_closed",),
    ),
    Mutant(
        "parts-of-a-proxy",
        "A handler that has every attribute is called as it is.",
        "coopconsume/values/callables.py",
        "return found if isinstance(found, HandlerParts) else None",
        "return found",
        (_RECORDS + "test_a_handler_that_has_every_attribute_is_called_as_it_is",),
    ),
    Mutant(
        "undecodable-tried-again",
        "A record that does not decode is a dead letter at once.",
        _ANSWERS,
        'gives_up = gives_up or (is_bad and policy.undecodable != "retry")',
        "gives_up = bool(gives_up)",
        (_RECORDS + "test_what_does_not_decode_is_a_dead_letter_at_once",),
    ),
    Mutant(
        "undecodable-not-parked",
        "The key of a record that does not decode waits if the policy says so.",
        "coopconsume/worker/outcome.py",
        "parks = self.spec.park or verdict.is_parked",
        "parks = self.spec.park",
        (_RECORDS + "test_what_does_not_decode_is_parked_if_the_policy_says_so",),
    ),
    Mutant(
        "undecodable-opens-the-breaker",
        "What does not decode says nothing of a service.",
        _ANSWERS,
        "is_retry or is_reject or is_bad",
        "is_retry or is_reject",
        (_RECORDS + "test_what_does_not_decode_does_not_open_the_circuit_breaker",),
    ),
    Mutant(
        "dead-letters-of-an-outage",
        "A connection that breaks makes no dead letters.",
        "coopconsume/decoding/failures.py",
        " or _is_outside(error):",
        ":",
        (
            _RECORDS + "test_a_connection_that_breaks_makes_no_dead_letters",
            _REGISTRY + "test_a_registry_that_does_not_answer_makes_no_dead_letters",
        ),
    ),
    Mutant(
        "frame-passes-a-row-that-waits",
        "A row behind one of its key that does not decode and waits is not handled.",
        "coopconsume/worker/frame_runner.py",
        "is_blocked = outcome.lanes.is_behind(row)",
        "is_blocked = False",
        (_FRAMES + "test_a_row_behind_one_that_waits_is_not_handled",),
    ),
    Mutant(
        "decoder-made-for-each-batch",
        "A process makes the decoder of a job once.",
        "coopconsume/decoding/record_decoder.py",
        "found: T | None = _kept.get(name)",
        "found: T | None = None",
        (_REGISTRY + "test_a_process_reads_a_schema_once",),
    ),
    Mutant(
        "null-passed-to-the-library",
        "Null reaches the handler as None, or does not decode, as the declaration says.",
        "coopconsume/decoding/record_decoder.py",
        'if data is None and null != "decoded":',
        "if False:",
        (_RECORDS + "test_null_reaches_a_handler_whose_type_allows_it",),
    ),
    Mutant(
        "null-decoded-without-its-rule",
        "Of an Arrow batch with nulls, the typed handler itself decides.",
        "coopconsume/worker/serial_runner.py",
        " or any(batch.column(_COLUMNS[name]).null_count for name in parts.decode)",
        "",
        (_RECORDS + "test_null_reaches_a_handler_whose_type_allows_it",),
    ),
    Mutant(
        "records-behind-an-undecodable-one-mixed",
        "Behind a record that does not decode, each record has its own fields.",
        "coopconsume/worker/row_records.py",
        "if length_hint(cells) > rest:",
        "if length_hint(cells) == self._rows:",
        (_RECORDS + "test_each_record_has_its_own_fields",),
    ),
]
