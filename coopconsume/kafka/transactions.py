"""Requests about transactions that Python's clients have no function for."""

from __future__ import annotations

import ctypes
import time
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors.fenced import EngineNotUsable
from coopconsume.kafka import kafka_python_compat

if TYPE_CHECKING:
    from collections.abc import Callable

#: Brokers from here on verify that a record belongs to an open transaction (KIP-890, part 1).
_OLDEST: Final = (3, 6)
#: Seconds between two requests while the coordinator ends a transaction.
_PAUSE: Final = 0.005
_CLIENT: Final = "confluent-kafka"


def check_brokers(admin: Any) -> None:
    """Check that producers of these brokers are safe.

    Args:
        admin: kafka-python's admin client.

    Raises:
        EngineNotUsable: The brokers are too old.
    """
    found = kafka_python_compat.broker_version(admin)
    if found < _OLDEST:
        versions = (".".join(map(str, version)) for version in (found, _OLDEST))
        raise EngineNotUsable(
            _CLIENT, "the brokers are of version {}; {} is needed".format(*versions)
        )


def fence_producers(
    admin: Any, transactional_id: str, timeout_ms: int, left: Callable[[], float]
) -> None:
    """Fence the producers of a transactional id and wait until their transaction is decided.

    It is what Kafka's ``Admin.fenceProducers`` does. librdkafka would do it as well, but looks
    only every 500 ms whether the transaction is decided, which takes some milliseconds.

    Args:
        admin: kafka-python's admin client.
        transactional_id: The transactional id.
        timeout_ms: The timeout of its transactions.
        left: Returns the seconds that are left.

    Raises:
        kafka.errors.KafkaError: The coordinator refused, or has not ended the transaction in time.
        EngineNotUsable: The brokers are too old.
    """
    from kafka import errors

    check_brokers(admin)
    # The coordinator still ends the transaction, or is another broker by now.
    passing = (
        errors.ConcurrentTransactionsError, errors.CoordinatorLoadInProgressError,
        errors.CoordinatorNotAvailableError, errors.NotCoordinatorError,
    )  # fmt: skip
    while True:
        try:
            kafka_python_compat.run(admin, _init_producer_id, transactional_id, timeout_ms)
        except errors.KafkaError as error:
            if not isinstance(error, errors.ConcurrentTransactionsError):
                kafka_python_compat.forget_coordinators(admin)
            if not isinstance(error, passing) or left() <= _PAUSE:
                raise
        else:
            return
        time.sleep(_PAUSE)


async def _init_producer_id(admin: Any, transactional_id: str, timeout_ms: int) -> None:
    from kafka.errors import for_code
    from kafka.protocol.producer import InitProducerIdRequest

    kind = kafka_python_compat.TRANSACTION_COORDINATOR
    found = await kafka_python_compat.coordinators(admin, [transactional_id], kind)
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=timeout_ms,
        producer_id=-1, producer_epoch=-1,
    )  # fmt: skip
    answer = await kafka_python_compat.send(admin, request, found[transactional_id])
    if answer.error_code:
        raise for_code(answer.error_code)(f"transactional id {transactional_id}")


def group_metadata(
    group: str, generation: int = -1, member: str = "", instance: str | None = None
) -> bytes:
    """Return a place in a consumer group as confluent-kafka's producers take it (KIP-447).

    They otherwise get it from a consumer of their own, which cannot be a member of kafka-python.

    Args:
        group: The group id.
        generation: The generation; below 0 if the offsets are those of no member.
        member: The member id.
        instance: The ``group.instance.id`` of a static member.

    Raises:
        EngineNotUsable: This release of confluent-kafka does not have the functions.
    """
    lib = _librdkafka()
    texts = [group, member, instance]
    group_, member_, instance_ = (None if text is None else text.encode() for text in texts)
    made = lib.rd_kafka_consumer_group_metadata_new_with_genid(
        group_, generation, member_, instance_
    )
    data, size = ctypes.c_void_p(), ctypes.c_size_t()
    try:
        lib.rd_kafka_consumer_group_metadata_write(made, ctypes.byref(data), ctypes.byref(size))
        return ctypes.string_at(data, size.value)
    finally:
        lib.rd_kafka_mem_free(None, data)
        lib.rd_kafka_consumer_group_metadata_destroy(made)


@cache
def _librdkafka() -> Any:
    """Return the library that confluent-kafka is linked with, with the types of what is called."""
    from confluent_kafka import cimpl

    pointer, text, place = ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER
    prefix = "rd_kafka_consumer_group_metadata_"
    types: dict[str, tuple[Any, list[Any]]] = {
        prefix + "new_with_genid": (pointer, [text, ctypes.c_int32, text, text]),
        prefix + "write": (pointer, [pointer, place(pointer), place(ctypes.c_size_t)]),
        prefix + "destroy": (None, [pointer]),
        "rd_kafka_mem_free": (None, [pointer, pointer]),
    }
    try:
        lib = ctypes.CDLL(cimpl.__file__)
        for name, (result, arguments) in types.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
    except (AttributeError, OSError) as error:
        problem = f"its library has no functions for groups ({error}): install release 2.16"
        raise EngineNotUsable(_CLIENT, problem) from None
    return lib
