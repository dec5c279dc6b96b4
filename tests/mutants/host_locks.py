"""Mutants of what a host knows of its dead, and of what the next member on it does for them."""

# ruff: noqa: E501 - lines of the sources and names of tests are quoted whole

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LOCKS = "tests/unit/worker/test_host_locks.py::"
_DEAD = "tests/unit/group/test_dead_members.py::"
_SLOT = "tests/unit/worker/test_slot_channel.py::test_while_handlers_of_a_slot_may_run_its_host_knows_that"
_SOURCE = "coopconsume/worker/host_locks.py"
_RUN = "coopconsume/worker/slot.py"
_LEAVE = "coopconsume/group/dead_members.py"

HOST_LOCKS = [
    Mutant(
        "worker-of-the-dead-not-waited-for",
        "Nobody goes on while a worker of a dead driver may run a handler.",
        _SOURCE,
        "while not _is_free(workers):",
        "while False:",
        (
            _LOCKS + "test_a_worker_that_outlives_its_driver_is_waited_for_and_not_longer",
            _LOCKS + "test_a_frozen_worker_still_has_its_lock",
            _DEAD + "test_while_its_handlers_may_run_it_is_in_the_group",
        ),
    ),
    Mutant(
        "driver-that-lives-is-dead",
        "A driver that has its lock lives.",
        _SOURCE,
        "        if _is_free(descriptor):\n            _check_excludes(path)\n",
        "        if True:\n",
        (
            _LOCKS + "test_a_driver_that_lives_is_not_dead_and_one_that_was_killed_is",
            _LOCKS + "test_of_two_members_on_one_host_only_the_dead_one_is_found",
        ),
    ),
    Mutant(
        "locks-that-exclude-nobody",
        "Where a file system does not keep locks apart, nothing is known.",
        _SOURCE,
        "        if _is_free(other):\n",
        "        if False:\n",
        (_LOCKS + "test_without_locks_nothing_is_known",),
    ),
    Mutant(
        "every-boot-is-this-one",
        "What was locked on another host, or before a boot, says nothing here.",
        _SOURCE,
        'f"{host}\\0{group}"',
        "group",
        (_LOCKS + "test_a_folder_of_another_host_or_of_an_earlier_boot_says_nothing",),
    ),
    Mutant(
        "every-group-is-this-one",
        "A group does not know the dead of another one.",
        _SOURCE,
        'f"{host}\\0{group}"',
        "host",
        (_LOCKS + "test_a_group_does_not_know_the_dead_of_another_one",),
    ),
    Mutant(
        "folder-of-anybody",
        "A folder that others may change is not used.",
        "coopconsume/worker/user_folder.py",
        "if found.st_uid != os.getuid() or found.st_mode & 0o077 or not folder.is_dir():",
        "if not folder.is_dir():",
        (_LOCKS + "test_a_folder_of_another_user_is_not_used",),
    ),
    Mutant(
        "worker-locks-any-file",
        "A worker holds the lock of its own driver, not of a file of that name elsewhere.",
        _SOURCE,
        "if os.pread(descriptor, _MOST, 0) == file.content.encode():",
        "if True:",
        (_LOCKS + "test_a_worker_has_no_lock_of_a_file_that_is_not_its_drivers",),
    ),
    Mutant(
        "slot-without-a-lock-is-not-named",
        "Before a slot gets a lease that its host does not know, the driver withdraws its files.",
        "coopconsume/worker/channel/server.py",
        "            self._driver_lock.withdraw()\n",
        "            pass\n",
        (
            "tests/unit/worker/test_channel.py::test_before_a_slot_gets_a_lease_that_its_host_does_not_know_the_driver_withdraws",
            _SLOT,
        ),
    ),
    Mutant(
        "slot-always-says-that-it-is-locked",
        "A slot says whether its host knows that it runs.",
        _RUN,
        "is_locked=lock.is_held",
        "is_locked=True",
        (_SLOT,),
    ),
    Mutant(
        "lock-released-before-the-handlers",
        "A slot has its lock while its handlers may run.",
        _RUN,
        "        try:\n            report = self._run(slot, iter(batches), channel)\n",
        "        lock.release()\n        try:\n            report = self._run(slot, iter(batches), channel)\n",
        (_SLOT,),
    ),
    Mutant(
        "lock-kept-after-the-task",
        "An idle worker keeps nobody waiting.",
        _RUN,
        "            lock.release()\n",
        "            pass\n",
        (_SLOT,),
    ),
    Mutant(
        "locked-without-a-channel",
        "Before a batch has no channel, the driver withdraws its files.",
        "coopconsume/runtime/dispatch/slot_leases.py",
        "            self._driver_lock.withdraw()\n",
        "            pass\n",
        (
            "tests/unit/runtime/test_slot_leases.py::test_the_driver_withdraws_its_lock_before_a_batch_has_no_channel",
        ),
    ),
    Mutant(
        "locked-while-frames-are-polled",
        "Before a frame is polled, the driver withdraws its files.",
        "coopconsume/runtime/poll/poller.py",
        "            membership.driver_lock.withdraw()",
        "            pass",
        (
            "tests/unit/runtime/test_polling.py::test_a_host_does_not_know_who_works_on_polled_frames",
        ),
    ),
    Mutant(
        "wait-of-the-dead-is-forgotten",
        "What a dead member still waited for is waited for by the next one.",
        "coopconsume/group/core.py",
        "(member, waits_of(row.members[member], row))\n        for member in members",
        "(member, ())\n        for member in members",
        (
            _DEAD + "test_what_it_still_waited_for_is_waited_for",
            "tests/model/test_group_model.py::test_what_a_dead_member_still_waited_for_is_waited_for_by_the_next_one",
        ),
    ),
    Mutant(
        "dead-released-under-one-epoch",
        "A dead member is released under the epoch that is in force then.",
        _LEAVE,
        "for _ in range(_TRIES):",
        "for _ in range(1):",
        (_DEAD + "test_an_epoch_that_is_opened_meanwhile_is_left_as_well",),
    ),
    Mutant(
        "dead-stays-in-kafkas-group",
        "Kafka forgets a dead member at once.",
        _LEAVE,
        "        cluster.remove_members(gone)\n",
        "        pass\n",
        (
            _DEAD + "test_it_leaves_as_a_member_that_ends_does",
            _DEAD + "test_an_instance_takes_its_own_place_in_kafka",
        ),
    ),
]
