"""Mutants of the channel between the driver and its slots, and of what slots do with it."""

# ruff: noqa: E501 - lines of the sources and names of tests are quoted whole

from __future__ import annotations

from tests.mutants.mutant import Mutant

_MODEL = "tests/model/test_channel_model.py::"
_SOCKETS = "tests/unit/test_channel.py::"
_SLOT = "tests/unit/test_slot_channel.py::"
_UNION = "tests/model/test_progress_model.py::test_reports_say_together_what_one_says"
_WIRE = "coopconsume/channel/wire.py"
_LEASE = "coopconsume/channel/lease.py"
_SERVER = "coopconsume/channel/server.py"
_CLIENT = "coopconsume/channel/client.py"
_FRAMES = _MODEL + "test_a_frame_counts_once_in_its_place_and_direction"
_LEASED = _MODEL + "test_no_slot_starts_longer_than_a_lease_after_the_last_renewal"

CHANNEL = [
    Mutant(
        "frames-without-number",
        "A frame of the channel counts once, in its place.",
        _WIRE,
        "self._number += 1",
        "self._number += 0",
        (_FRAMES,),
    ),
    Mutant(
        "frames-without-direction",
        "A frame that is sent back is refused.",
        _WIRE,
        'of + b" key"',
        'b" key"',
        (_FRAMES,),
    ),
    Mutant(
        "mac-not-compared",
        "A frame that was changed is refused.",
        _WIRE,
        "if not hmac.compare_digest(sealed[-MAC_BYTES:], self._mac(kind, payload)):",
        "if not self._mac(kind, payload):",
        (_FRAMES,),
    ),
    Mutant(
        "driver-takes-any-proof",
        "A client that does not know the secret is refused.",
        _WIRE,
        "if kind != Frame.PROOF or not hmac.compare_digest(payload, proof):",
        "if kind != Frame.PROOF:",
        (_MODEL + "test_a_client_that_does_not_know_the_secret_is_refused",),
    ),
    Mutant(
        "one-proof-for-both",
        "The driver's proof sent back is no proof of a slot.",
        _WIRE,
        'proof = _prove(self._secret, b"slot proof", self._said)',
        'proof = _prove(self._secret, b"driver proof", self._said)',
        (_MODEL + "test_both_sides_prove_that_they_know_the_secret",),
    ),
    Mutant(
        "driver-without-nonce",
        "A recorded handshake proves nothing again.",
        _WIRE,
        "        nonce = secrets.token_bytes(NONCE_BYTES)\n",
        "        nonce = bytes(NONCE_BYTES)\n",
        (_MODEL + "test_a_recorded_handshake_proves_nothing_again",),
    ),
    Mutant(
        "any-run-connects",
        "Slots of another run are refused.",
        _WIRE,
        "if identity.run != self._run:",
        "if not identity.run:",
        (_MODEL + "test_a_slot_of_another_run_is_refused",),
    ),
    Mutant(
        "long-frames-kept",
        "A frame that is too long is refused by its length.",
        _WIRE,
        "if not _HEAD.size <= size <= self.limit:",
        "if not _HEAD.size <= size:",
        (_MODEL + "test_a_frame_that_is_too_long_is_refused_by_its_length",),
    ),
    Mutant(
        "lease-counts-from-its-arrival",
        "A lease that comes late ends no later.",
        _LEASE,
        "until = stamp / _NANO + min(",
        "until = now + min(",
        (_LEASED,),
    ),
    Mutant(
        "lost-lease-comes-back",
        "A lease that has ended is lost for good.",
        _LEASE,
        "self.is_lost = self.is_lost or (",
        "self.is_lost = (",
        (_LEASED,),
    ),
    Mutant(
        "whole-lease-for-each-question",
        "A lease is counted from the last renewal by the driver's loop.",
        _LEASE,
        "else self._until.get(at, now) - now",
        "else self._seconds * (at in self._until)",
        (_LEASED,),
    ),
    Mutant(
        "stopped-slot-is-renewed",
        "A stopped slot gets no lease, whatever is renewed.",
        _LEASE,
        "return 0.0 if at in self._stopped else",
        "return",
        (_MODEL + "test_a_stopped_slot_has_no_lease_whatever_is_renewed",),
    ),
    Mutant(
        "slot-connects-twice",
        "A slot has one connection.",
        _SERVER,
        "if at in self._known:",
        "if at in self._known and not self._slots:",
        (_SOCKETS + "test_a_second_connection_of_a_slot_is_refused",),
    ),
    Mutant(
        "strangers-without-limit",
        "Clients without proof are few at a time.",
        _SERVER,
        "if len(self._strangers) >= STRANGERS:",
        "if not sock:",
        (_SOCKETS + "test_one_stranger_too_many_closes_the_oldest",),
    ),
    Mutant(
        "strangers-stay",
        "A client that proves nothing is closed in time.",
        _SERVER,
        "if one.deadline <= now]:",
        "if one.deadline <= 0]:",
        (_SOCKETS + "test_a_client_that_proves_nothing_is_closed_in_time",),
    ),
    Mutant(
        "unread-without-limit",
        "The driver keeps no more than a bound for a slot that does not read.",
        _SERVER,
        "if len(connection.unsent) > UNREAD_BYTES:",
        "if not connection.sock:",
        (_SOCKETS + "test_a_slot_that_does_not_read_loses_its_connection",),
    ),
    Mutant(
        "unacknowledged-dropped",
        "Reports that were not acknowledged come with the final one.",
        _CLIENT,
        "if one[0].seq > seq]",
        "if one[0].seq > seq + 1]",
        (_SOCKETS + "test_reports_that_are_not_acknowledged_come_back_at_the_end",),
    ),
    Mutant(
        "cuts-without-limit",
        "A slot whose reports are not acknowledged makes no more of them.",
        _CLIENT,
        "if self._is_too_long or waiting > UNACKNOWLEDGED_BYTES:",
        "if self._is_too_long:",
        (_SOCKETS + "test_a_driver_that_does_not_acknowledge_gets_no_more_than_fits",),
    ),
    Mutant(
        "lost-connection-ignored",
        "A slot that lost its connection starts nothing more.",
        _CLIENT,
        '        self._halt("connection", self._clock())\n',
        "",
        (_SOCKETS + "test_a_cut_connection_stops_the_slot",),
    ),
    Mutant(
        "row-at-work-is-done",
        "A record whose handler runs is in no progressive report.",
        "coopconsume/task/handling.py",
        "length_hint(self._numbers) - 1",
        "length_hint(self._numbers)",
        (_UNION,),
    ),
    Mutant(
        "failed-rows-are-done",
        "A progressive report counts no failed record as done.",
        "coopconsume/task/handling.py",
        "skipped = [i - first for i in self._skipped if first <= i < end]",
        "skipped = [i for i in self._skipped if first <= i < end]",
        (_UNION,),
    ),
    Mutant(
        "rows-are-reported-twice",
        "No output row is in two reports.",
        "coopconsume/task/rows.py",
        "        taken = copy.copy(self)\n        self._cells, self._origins, self._pieces = [], [], []\n",
        "        taken = copy.copy(self)\n",
        (_UNION,),
    ),
    Mutant(
        "calls-are-reported-twice",
        "No handler call is counted in two reports.",
        "coopconsume/task/ledger.py",
        "self.report.handled -= self._told[0]",
        "self.report.handled -= 0",
        (_UNION,),
    ),
    Mutant(
        "stopped-slot-starts-one",
        "A slot that was stopped before its rows came starts none.",
        "coopconsume/task/handling.py",
        "if life.is_over and (handled or life.stopped):",
        "if life.is_over and handled:",
        (_SLOT + "test_a_slot_that_is_stopped_before_its_rows_come_starts_nothing",),
    ),
    Mutant(
        "stopped-desk-starts",
        "Threads and coroutines of a stopped slot start nothing more.",
        "coopconsume/task/desk.py",
        "        self._is_halted = True\n        self._deadline = 0.0\n",
        "        pass\n",
        (_SLOT + "test_a_stopped_slot_ends_what_runs_and_starts_nothing_more",),
    ),
    Mutant(
        "stopped-frames-start",
        "A stopped slot calls its batch handler no more.",
        "coopconsume/task/frames.py",
        "if self._life.stopped or (ledger.report.handled and late):",
        "if ledger.report.handled and late:",
        (_SLOT + "test_a_stopped_slot_ends_what_runs_and_starts_nothing_more",),
    ),
    Mutant(
        "grace-from-the-time-box",
        "Handlers of a halted slot have the handler timeout from the halt on.",
        "coopconsume/task/handling.py",
        "over = self._halted_at if self.stopped else time.monotonic()",
        "over = time.monotonic()",
        (_SLOT + "test_a_halted_slot_has_the_handler_timeout_from_the_halt_on",),
    ),
    Mutant(
        "idle-slot-is-ended",
        "A slot that was halted before it began is not ended.",
        "coopconsume/task/handling.py",
        "            if not self.stopped:  # Else",
        "            if self._time:  # Else",
        (_SLOT + "test_a_slot_that_was_halted_before_it_began_is_not_ended",),
    ),
    Mutant(
        "no-channel-goes-unnoticed",
        "A slot that has no channel starts nothing.",
        "coopconsume/task/slot.py",
        'error = "" if channel is None or first is None else channel.wait()',
        'error = ""',
        (_SLOT + "test_a_slot_without_a_channel_starts_nothing_and_says_why",),
    ),
]
