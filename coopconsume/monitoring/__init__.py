"""Monitoring of jobs: listeners, OpenTelemetry, Prometheus and JSON logs.

Modules are imported when first used. OpenTelemetry and Prometheus are optional dependencies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.lazy_names import lazy_names

if TYPE_CHECKING:
    from coopconsume.monitoring.listener import QueryIdleEvent as QueryIdleEvent
    from coopconsume.monitoring.listener import QueryListener as QueryListener
    from coopconsume.monitoring.listener import QueryProgressEvent as QueryProgressEvent
    from coopconsume.monitoring.listener import QueryStartedEvent as QueryStartedEvent
    from coopconsume.monitoring.listener import QueryTerminatedEvent as QueryTerminatedEvent
    from coopconsume.monitoring.logs import JsonFormatter as JsonFormatter
    from coopconsume.monitoring.logs import LoggingListener as LoggingListener
    from coopconsume.monitoring.prometheus import PrometheusListener as PrometheusListener
    from coopconsume.monitoring.telemetry import OpenTelemetryListener as OpenTelemetryListener

_HOME = {
    "JsonFormatter": "logs",
    "LoggingListener": "logs",
    "OpenTelemetryListener": "telemetry",
    "PrometheusListener": "prometheus",
    "QueryIdleEvent": "listener",
    "QueryListener": "listener",
    "QueryProgressEvent": "listener",
    "QueryStartedEvent": "listener",
    "QueryTerminatedEvent": "listener",
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy_names(__name__, _HOME)
