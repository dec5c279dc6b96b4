"""Has Spark find the data source ``coopconsume`` without a registration.

Spark imports the packages of the driver's Python whose names begin with ``pyspark_``, and takes
their ``DefaultSource``.
"""

from coopconsume.admin.sql_source import CommitsSource as DefaultSource

__all__ = ["DefaultSource"]
