"""Monitoring of jobs: listeners, OpenTelemetry, Prometheus and JSON logs.

Modules are imported when first used. OpenTelemetry and Prometheus are optional dependencies.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from coopconsume.monitoring.listener import (
    QueryIdleEvent,
    QueryListener,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

if TYPE_CHECKING:
    from coopconsume.monitoring.logs import JsonFormatter, LoggingListener
    from coopconsume.monitoring.prometheus import PrometheusListener
    from coopconsume.monitoring.telemetry import OpenTelemetryListener

__all__ = [
    "JsonFormatter",
    "LoggingListener",
    "OpenTelemetryListener",
    "PrometheusListener",
    "QueryIdleEvent",
    "QueryListener",
    "QueryProgressEvent",
    "QueryStartedEvent",
    "QueryTerminatedEvent",
]

_HOME = {
    "JsonFormatter": "logs",
    "LoggingListener": "logs",
    "OpenTelemetryListener": "telemetry",
    "PrometheusListener": "prometheus",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
