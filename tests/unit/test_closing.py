"""Contexts that raise an error as another one."""

from __future__ import annotations

import gc
import weakref

import pytest

from coopconsume.closing import RaisedAs


def test_an_error_is_raised_as_another_one_after_the_last_call() -> None:
    """Errors that the function does not know, and interrupts, stay as they are."""
    dropped: list[str] = []
    context = RaisedAs(
        lambda error: KeyError("other") if isinstance(error, ValueError) else None,
        lambda: dropped.append("dropped"),
    )
    with context:
        pass
    for kind in (OSError, KeyboardInterrupt):
        with pytest.raises(kind), context:
            raise kind
    assert dropped == []
    with pytest.raises(KeyError, match="other") as caught, context:
        raise ValueError("first")
    assert dropped == ["dropped"]
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_error_that_is_dropped_keeps_nothing() -> None:
    """Clients in its frames end at once, and not when the garbage collector comes."""

    class Client:
        """What a frame of the error refers to."""

    def fail() -> weakref.ref[Client]:
        client = Client()
        kept = weakref.ref(client)
        try:
            with RaisedAs(lambda _: KeyError("other")):
                use(client)
        except KeyError:
            return kept
        raise AssertionError

    def use(client: Client) -> None:
        raise ValueError(client)

    gc.disable()
    try:
        assert fail()() is None
    finally:
        gc.enable()
