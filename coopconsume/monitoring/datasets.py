"""Topics and tables as datasets, with the names that OpenLineage's naming conventions give them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from commits.places import local_folder
from commits.secrets import hidden

_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)", re.DOTALL)
_PORT: Final = re.compile(r":\d+$")
_DEFAULT_PORT: Final = ":9092"
#: The scheme in namespaces, where a place has another one.
_SCHEMES: Final = {
    "s3a": "s3", "s3n": "s3", "gcs": "gs", "wasb": "wasbs",
    "abfs": "abfss", "az": "abfss", "azure": "abfss", "adl": "abfss",
}  # fmt: skip
#: Schemes whose names are keys of objects, without a slash at the beginning.
_OBJECTS: Final = ("s3", "gs", "wasbs")
#: Schemes whose authority has a container before the account: abfss://container@account.
_CONTAINERS: Final = ("abfss", "wasbs")


@dataclass(frozen=True)
class Dataset:
    """A topic or a table.

    Attributes:
        namespace: Where it is: the cluster, the bucket, the file system.
        name: Its name there.
        columns: Names and types of its columns; empty: they are not known.
    """

    namespace: str
    name: str
    columns: tuple[tuple[str, str], ...] = ()


def topic_dataset(servers: str, topic: str) -> Dataset:
    """Returns the dataset of a topic; its cluster has the name of the first server.

    Args:
        servers: The ``bootstrap.servers``.
        topic: Its name.
    """
    first = servers.split(",", maxsplit=1)[0].strip().rpartition("://")[2]
    port = "" if _PORT.search(first) else _DEFAULT_PORT
    return Dataset(f"kafka://{first}{port}", topic)


def table_dataset(place: str, columns: tuple[tuple[str, str], ...] = ()) -> Dataset:
    """Returns the dataset of a table, without the secrets that its place may have.

    Args:
        place: The path or URI.
        columns: Names and types of its columns.
    """
    folder = local_folder(place)
    if folder is not None:
        return Dataset("file", os.path.abspath(folder), columns)  # noqa: PTH100 - keeps links
    found = _URI.fullmatch(hidden(place).partition("?")[0])
    assert found is not None, "a place that is not local has a scheme"
    scheme, authority, path = found[1].lower(), found[2], found[3].rstrip("/")
    scheme = _SCHEMES.get(scheme, scheme)
    if authority is None:
        return Dataset(scheme, path, columns)
    if scheme not in _CONTAINERS:
        authority = authority.rpartition("@")[2]  # a user may come before the bucket
    name = path.lstrip("/") if scheme in _OBJECTS else path
    return Dataset(f"{scheme}://{authority}", name, columns)
