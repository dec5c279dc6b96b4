"""Errors of coopconsume: each says what was found, what was expected and what to do.

Every error keeps its facts as attributes, survives pickling (all facts are in ``args``) and knows
by ``retriable`` whether the same call may succeed later without anybody changing anything.

The errors of `commits`, of `assignors` and of the fenced writer can be imported from here, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from coopconsume.errors.base import CoopConsumeError
from coopconsume.errors.cluster import (
    AuthenticationFailed,
    BrokerUnreachable,
    DataLoss,
    NotAuthorized,
    TopicNotFound,
    TopicReplaced,
)
from coopconsume.errors.group import (
    ConsumerRangeFetchNotAccepted,
    ExternalReset,
    GroupActive,
    GroupNotFound,
    GroupRefused,
    TopicRangeFetchNotAllowed,
)
from coopconsume.errors.local import (
    BrokerStartFailed,
    BrokerStopped,
    JarsUnavailable,
    JavaNotFound,
    JavaVersionUnsupported,
    SparkNotFound,
    SparkSessionConflict,
    SparkVersionUnsupported,
)
from coopconsume.errors.options import (
    InvalidOption,
    MissingOption,
    OptionError,
    UnknownOption,
)
from coopconsume.errors.processing import (
    AlreadyClosed,
    HandlerFailed,
    HandlerNotUsable,
    NotPolled,
    OutputNotWritten,
    OutputRefused,
    OutputsNotPublished,
    SessionUnusable,
    TableUnusable,
)

if TYPE_CHECKING:
    from assignors.errors import *  # noqa: F403
    from commits.errors import *  # noqa: F403
    from coopconsume.errors.fenced import *  # noqa: F403

__all__ = [
    "AlreadyClosed",
    "AuthenticationFailed",
    "BrokerStartFailed",
    "BrokerStopped",
    "BrokerUnreachable",
    "ConsumerRangeFetchNotAccepted",
    "CoopConsumeError",
    "DataLoss",
    "ExternalReset",
    "GroupActive",
    "GroupNotFound",
    "GroupRefused",
    "HandlerFailed",
    "HandlerNotUsable",
    "InvalidOption",
    "JarsUnavailable",
    "JavaNotFound",
    "JavaVersionUnsupported",
    "MissingOption",
    "NotAuthorized",
    "NotPolled",
    "OptionError",
    "OutputNotWritten",
    "OutputRefused",
    "OutputsNotPublished",
    "SessionUnusable",
    "SparkNotFound",
    "SparkSessionConflict",
    "SparkVersionUnsupported",
    "TableUnusable",
    "TopicNotFound",
    "TopicRangeFetchNotAllowed",
    "TopicReplaced",
    "UnknownOption",
]

_ROOMS = ("assignors.errors", "coopconsume.errors.fenced", "commits.errors")


def __getattr__(name: str) -> object:
    # Looked up when asked for: `commits` loads Delta, which a mere broker has no use for.
    for room in () if name.startswith("_") else _ROOMS:
        found = getattr(import_module(room), name, None)
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


for _name in __all__:
    globals()[_name].__module__ = __name__  # As users import them, so they are told and pickled.
