"""The files of a Delta table, on a local disk or in an object store.

A version of a table is made by creating the file of its entry if it does not exist. On a disk that
is a hard link, in an object store a conditional put. `deltalake` has no public way to do either,
and its files keep Python's interpreter lock while a store answers. In an object store this uses
`obstore`, the Python interface of the Rust library that `deltalake` is built on.
"""

from __future__ import annotations

import errno
import os
import re
import time
import uuid
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar

from commits.errors import UnsupportedTarget
from commits.places import local_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


LOG_FOLDER: Final = "_delta_log"
ENTRY: Final = re.compile(r"(\d{20})\.json")
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP)
_DRAFT, _DAY = ".tmp", 86_400.0
#: Settings of the HTTP client of an object store, by their names without the prefix of its maker.
_CLIENT: Final = """
allow_http allow_invalid_certificates connect_timeout default_content_type http1_only
http2_keep_alive_interval http2_keep_alive_timeout http2_keep_alive_while_idle http2_max_frame_size
http2_only pool_idle_timeout pool_max_idle_per_host proxy_url proxy_ca_certificate proxy_excludes
randomize_addresses read_timeout timeout user_agent
"""
_STORES: Final = ("s3", "azure", "gcs")
_MAKERS: Final = ("aws_", "azure_", "google_")
#: What the library says of a request that its HTTP client does not make.
_NO_REQUEST: Final = "builder error"
#: Seconds for a request, and for it with its repeats.
_REQUEST, _REPEATS = 20, 60
_PAGE: Final = 1_000  # names of a listing that one request of a store returns
ONE_BY_ONE: Final = 16  # files on a local disk up to which one thread reads them
_READERS: Final = 16
_TOGETHER: Final = 64  # files of an append that are open at once
_NO_FILES: Final[Mapping[str, bytes]] = MappingProxyType({})

T = TypeVar("T")
R = TypeVar("R")
#: Units of durations, in seconds.
_NAMES_OF_UNITS: Final = (
    ("ns nsec", 1e-9), ("us usec", 1e-6), ("ms msec millis", 1e-3),
    ("s sec secs second seconds", 1.0), ("m min mins minute minutes", 60.0),
    ("h hr hrs hour hours", 3_600.0),
)  # fmt: skip
_UNITS: Final = {word: seconds for words, seconds in _NAMES_OF_UNITS for word in words.split()}


class TableFiles(ABC):
    """Reads and creates files of a table by their names within its folder.

    Methods raise `FileNotFoundError` for a missing file, and another `OSError` if the storage does
    not answer or refuses. No method keeps Python's interpreter lock while it waits.

    Attributes:
        is_synced: Whether what is written to a disk outlasts a loss of power.
        is_far: Whether each answer takes its time, as that of an object store does.
    """

    is_synced = True
    is_far = False

    @abstractmethod
    def prepare(self) -> None:
        """Create the folder of the table's log where there are folders."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the content of a file."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Return whether there is a file."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write a file of a new name."""

    @abstractmethod
    def create(self, name: str, data: bytes, files: Mapping[str, bytes] = _NO_FILES) -> bool:
        """Write a file that does not exist, after others of new names; return whether it was."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file."""

    @abstractmethod
    def remove_drafts(self) -> None:
        """Remove what processes have left of entries that they were killed at."""

    @abstractmethod
    def names(self, folder: str, after: str = "") -> list[str]:
        """Return the names of the files in a folder, sorted; none of a missing folder.

        Args:
            folder: The folder.
            after: Only names after this text are wanted.
        """


class DiskFiles(TableFiles):
    """Files on a local disk.

    Args:
        folder: The folder of the table.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def prepare(self) -> None:
        """Create the folder of the table's log, and those that it is in."""
        path = self._folder / LOG_FOLDER
        path.mkdir(parents=True, exist_ok=True)
        for folder in (path.parent, path.parent.parent):
            self._sync(folder)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with open(f"{self._folder}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - faster
            return file.readall()

    def has(self, name: str) -> bool:
        """Return whether there is a file."""
        return os.path.exists(self._folder / name)  # noqa: PTH110 - of a path that fails, too

    def write(self, name: str, data: bytes) -> None:
        """Write a file of a new name, in new folders of the table if need be."""
        self._write({name: data})

    def create(self, name: str, data: bytes, files: Mapping[str, bytes] = _NO_FILES) -> bool:
        """Write a file that does not exist; return whether it was written."""
        path = self._folder / name
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_DRAFT}")
        try:
            self._write(files, (draft, data))
            os.link(draft, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _NO_LINKS and draft.exists():
                words = "this file system has no hard links, and a version is created by one"
                raise OSError(error.errno, f"{words}: give a folder on another one") from error
            raise
        finally:
            draft.unlink(missing_ok=True)
        self._sync(path.parent)
        return True

    def names(self, folder: str, after: str = "") -> list[str]:
        """Return the names of the files in a folder, sorted; none of a missing folder."""
        with suppress(FileNotFoundError), os.scandir(self._folder / folder) as found:
            return sorted(entry.name for entry in found if entry.name > after and entry.is_file())
        return []

    def remove(self, name: str) -> None:
        """Remove a file."""
        (self._folder / name).unlink()

    def remove_drafts(self) -> None:
        """Remove drafts of entries that are over a day old."""
        for draft in (self._folder / LOG_FOLDER).glob(f".*{_DRAFT}"):
            with suppress(OSError):  # others remove them, too
                if time.time() - draft.stat().st_mtime > _DAY:
                    draft.unlink()

    def _write(self, files: Mapping[str, bytes], *drafts: tuple[Path, bytes]) -> None:
        """Write files and their folders, and drafts; wait for the disk once for up to 64 files."""
        many = list(files.items())
        while len(many) > _TOGETHER:  # A process may open only so many at once.
            self._write_together(dict(many[:_TOGETHER]))
            del many[:_TOGETHER]
        self._write_together(dict(many), *drafts)

    def _write_together(self, files: Mapping[str, bytes], *drafts: tuple[Path, bytes]) -> None:
        with ExitStack() as opened:
            handles: list[int] = []
            folders: dict[Path, None] = {}

            def write(file: BinaryIO, data: bytes) -> None:
                opened.enter_context(file).write(data)
                file.flush()
                handles.append(file.fileno())

            for name, data in files.items():
                path = self._folder / name
                folders[path.parent] = None
                try:
                    file = path.open("xb")
                except FileNotFoundError:
                    folders |= dict.fromkeys(self._make_folders(path))
                    file = path.open("xb")
                write(file, data)
            for path, data in drafts:
                write(path.open("xb"), data)
            if self.is_synced:
                for folder in folders:
                    handles.append(os.open(folder, os.O_RDONLY))
                    opened.callback(os.close, handles[-1])
                side_by_side(os.fsync, handles, is_far=True)

    def _make_folders(self, path: Path) -> list[Path]:
        """Make the folders of a file within the table; return the folders that those are in."""
        # Not the table's own folder: its disk may not be mounted.
        missing = [one for one in path.parents if self._folder in one.parents]
        for folder in reversed(missing):
            with suppress(FileExistsError):
                folder.mkdir()
        return [folder.parent for folder in missing]

    def _sync(self, folder: Path) -> None:
        if not self.is_synced:
            return
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class StoreFiles(TableFiles):
    """Files in an object store.

    Args:
        uri: The URI of the table's folder.
        options: Options of the object store; see `deltalake.DeltaTable`.

    Raises:
        UnsupportedTarget: It is no store, or the options do not suffice to reach it.
    """

    is_far = True

    def __init__(self, uri: str, options: Mapping[str, str] | None) -> None:
        import obstore

        self._calls = obstore
        self._store = _store(uri, dict(options or {}))

    def prepare(self) -> None:
        """Do nothing: an object store has no folders."""

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with _as_of_files():
            return bytes(self._calls.get(self._store, name).bytes())

    def has(self, name: str) -> bool:
        """Return whether there is a file."""
        try:
            with _as_of_files():
                self._calls.head(self._store, name)
        except FileNotFoundError:
            return False
        return True

    def write(self, name: str, data: bytes) -> None:
        """Write a file of a new name."""
        with _as_of_files():
            self._calls.put(self._store, name, data)  # a large file in parts

    def create(self, name: str, data: bytes, files: Mapping[str, bytes] = _NO_FILES) -> bool:
        """Write a file that does not exist; return whether it was written."""
        for other, content in files.items():
            self.write(other, content)
        try:
            with _as_of_files():
                self._calls.put(self._store, name, data, mode="create", use_multipart=False)
        except FileExistsError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Remove a file."""
        with _as_of_files():
            self._calls.delete(self._store, name)

    def remove_drafts(self) -> None:
        """Do nothing: a put leaves nothing."""

    def names(self, folder: str, after: str = "") -> list[str]:
        """Return the names of the files in a folder, sorted; none of a missing folder."""
        start = f"{folder}/{after}" if after else None  # a long log is many pages
        with _as_of_files():
            pages = list(self._calls.list(self._store, folder, offset=start, chunk_size=_PAGE))
        names = (info["path"].rpartition(f"{folder}/")[2] for some in pages for info in some)
        return sorted(name for name in names if "/" not in name)


def entry_name(version: int) -> str:
    """Return the name of the entry of a version."""
    return f"{LOG_FOLDER}/{version:020d}.json"


def side_by_side(
    read: Callable[[T], R], things: Sequence[T], *, is_far: bool, oldest_alone: bool = False
) -> list[R]:
    """Return what each thing reads as; by several threads where that is faster.

    Args:
        read: Reads one.
        things: All of them, the oldest first.
        is_far: Whether each takes as long as an object store answers.
        oldest_alone: Whether the others are not read if the first one is missing.
    """
    if len(things) <= (1 if is_far else ONE_BY_ONE):
        return [read(thing) for thing in things]
    first = [read(things[0])] if oldest_alone else []
    mine, *others = things[len(first) :]
    try:
        with ThreadPoolExecutor(_READERS) as pool:
            reads = pool.map(read, others)
            return [*first, read(mine), *reads]  # this thread waits for them anyway
    except RuntimeError:  # no thread can be started
        return [*first, *map(read, [mine, *others])]


def files_of(uri: str, options: Mapping[str, str] | None = None) -> TableFiles:
    """Return the files of a table.

    Args:
        uri: The path or URI of its folder.
        options: Options of an object store; see `deltalake.DeltaTable`.
    """
    folder = local_folder(uri)
    return StoreFiles(uri, options) if folder is None else DiskFiles(folder)


def _store(uri: str, options: dict[str, str]) -> Any:
    from obstore import parse_scheme
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    scheme = ""
    name = uri.partition("://")[0]
    if not name.startswith("http"):  # `deltalake` has no tables there, nor checkpoints
        with suppress(BaseError):
            scheme = parse_scheme(uri)
    if scheme not in _STORES:
        raise UnsupportedTarget(
            uri,
            f"there is no storage for {name}://; give a path or a URI of "
            "file://, s3://, az://, abfss:// or gs://",
        )
    profile: dict[str, Any] = {}
    if scheme == "s3" and _needs_profile(options):
        profile = {"credential_provider": _profile_of_aws(uri)}
    try:
        config, more = _settings(options)
        # Without what is an option of `deltalake` alone, such as those of its locks.
        known = {name: value for name, value in config.items() if _is_known(uri, name, value)}
        return from_url(uri, config=known, **more, **profile)  # type: ignore[call-overload]
    except (BaseError, ValueError) as error:
        problem = f"its options do not suffice: {_first_line(error)}"
        named = [name for name, value in options.items() if f'"{value}"' in problem]
        if named:  # the library has the value alone
            problem += f"; change {' or '.join(named)}"
        raise UnsupportedTarget(uri, problem) from error


def _settings(options: dict[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the settings of a store, and those of its HTTP client and of repeats."""
    client: dict[str, Any] = {"timeout": f"{_REQUEST}s", "connect_timeout": f"{_REQUEST}s"}
    backoff: dict[str, Any] = {}
    retry: dict[str, Any] = {"max_retries": 10, "retry_timeout": timedelta(seconds=_REPEATS)}
    retry["backoff"] = backoff
    config: dict[str, str] = {}
    # `deltalake` takes the client's settings from the environment as well.
    given = {n: v for n, v in os.environ.items() if n.lower().startswith(_MAKERS)} | options
    for name, value in given.items():
        bare = _bare(name)
        if bare in _CLIENT.split():
            client[bare] = value
        elif name in _REPEATED and name in options:  # as `deltalake` takes them: no other spelling
            of, _, key = name.rpartition(".")
            (backoff if of else retry)[key] = _REPEATED[name](value)
        elif name in options:  # the library reads the environment itself
            config = {k: v for k, v in config.items() if _bare(k) != bare} | {name: value}
    return config, {"client_options": client, "retry_config": retry}


def _duration(text: str) -> timedelta:
    """Return a duration such as `30s`, `500ms` or `1m 30s`, as `deltalake` reads it."""
    parts = re.findall(r"(\d+)\s*([a-z]+)\s*", text)
    if not parts or re.sub(r"\d+\s*[a-z]+\s*", "", text) or {u for _, u in parts} - {*_UNITS}:
        raise ValueError(f'failed to parse "{text}" as a duration such as 30s')
    return timedelta(seconds=sum(int(number) * _UNITS[unit] for number, unit in parts))


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise ValueError(f'failed to parse "{text}" as a number such as 10')
    return int(text)


def _base(text: str) -> float:
    with suppress(ValueError):
        if (base := float(text)) > 1:  # by 1 the library ends a thread of its own
            return base
    raise ValueError(f'failed to parse "{text}" as a number above 1 such as 2')


#: Options of repeats of a request.
_REPEATED: Final[dict[str, Callable[[str], Any]]] = {
    "max_retries": _count,
    "retry_timeout": _duration,
    "backoff_config.init_backoff": _duration,
    "backoff_config.max_backoff": _duration,
    "backoff_config.base": _base,
}


#: Options of credentials that the library takes by itself, and what names a profile of AWS.
_OWN_WAYS: Final = """
access_key_id skip_signature web_identity_token_file container_credentials_relative_uri
container_credentials_full_uri
"""
_PROFILE: Final = ("AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE")


def _needs_profile(options: Mapping[str, str]) -> bool:
    """Whether the credentials are those of a profile of AWS's command line."""
    given = {_bare(name) for name in [*options, *os.environ]}
    if given & {*_OWN_WAYS.split()}:
        return False
    is_named = any(name in os.environ for name in _PROFILE)
    return is_named or Path("~/.aws/credentials").expanduser().exists()


def _profile_of_aws(uri: str) -> Any:
    try:
        from boto3 import Session  # type: ignore[import-untyped]
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise UnsupportedTarget(
            uri,
            "credentials of an AWS profile need boto3: pip install boto3, or give "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ) from None
    return Boto3CredentialProvider(Session())


def _bare(name: str) -> str:
    """Return the name of an option without the prefix of a maker."""
    bare = name.lower()
    for maker in _MAKERS:
        bare = bare.removeprefix(maker)
    return bare


def _is_known(uri: str, name: str, value: str) -> bool:
    from obstore.exceptions import BaseError, UnknownConfigurationKeyError
    from obstore.store import from_url

    try:
        from_url(uri, config={name: value})  # type: ignore[call-overload]
    except UnknownConfigurationKeyError:
        return False
    except BaseError:
        return True  # it needs others
    return True


@contextmanager
def _as_of_files() -> Iterator[None]:
    """Errors of `obstore` as those of files."""
    from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError

    try:
        yield
    except NotFoundError as error:
        raise FileNotFoundError(_first_line(error)) from None
    except (AlreadyExistsError, PreconditionError) as error:
        raise FileExistsError(_first_line(error)) from None
    except BaseError as error:
        text = _first_line(error)
        if _NO_REQUEST in text and " http://" in text:
            text += "; to reach an endpoint of http://, set the option allow_http=true"
        raise OSError(text) from None


def _first_line(error: Exception) -> str:
    """Return the message of an error without the library's debugging."""
    return str(error).partition("\n\nDebug source:")[0]
