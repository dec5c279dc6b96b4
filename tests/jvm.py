"""How the JVMs of a test run start."""

from __future__ import annotations

#: Those that live for seconds or minutes take longer to optimise what they run than it saves. The
#: cache for compiled code is small then by default, and Spark 4.2 with Delta fills it.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
