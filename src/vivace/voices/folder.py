"""Records in a folder, a file each: written whole or not at all, also when the process is killed.

A file is safetensors: arrays, and what is known of them as JSON in its metadata. Nothing in it can
run. Other processes may use the folder at the same time; what they change is seen.
"""

import fcntl
import logging
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from vivace.errors import InvalidRequest, NotFound, Unavailable

log = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[np.generic]]
R = TypeVar("R")
T = TypeVar("T")
Stamp = tuple[int, int, int]

_SUFFIX: Final = ".safetensors"
_UNFINISHED: Final = ".unfinished-"
_ABANDONED_S: Final = 3600.0  # an unfinished file this old has no writer
LOCK_S: Final = 5.0  # a change waits so long for other changes, of this process or another
_TRY_S: Final = 0.02  # between two tries at another process's lock
_TICK_NS: Final = 100_000_000  # changes this close to a look at the folder may have been missed


class Folder(Generic[R]):
    """The records of one folder by id. `read` makes one of a file, or raises InvalidRequest.

    Who reads never waits for who changes: what is known is replaced as a whole, never changed.
    """

    def __init__(self, path: Path, read: Callable[[Path], R], id_of: Callable[[R], str]) -> None:
        self._path, self._reader, self._id_of = path, read, id_of
        self._found: Mapping[str, tuple[Stamp, R | None]] = {}
        self._seen_ns = -1  # the folder's time when it was last looked through
        self._failed = False  # the last look, which is told once
        self._looking, self._writing = threading.Lock(), threading.Lock()
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._sweep()
            self._look()
        except OSError as error:
            why = error.strerror or error
            raise Unavailable(f"{path} cannot be used: {why}.", code="storage") from None

    def records(self) -> dict[str, R]:
        """All that can be read, by id. What cannot is left where it is, and told in the log.

        While the folder itself cannot be read, those that were there before.
        """
        if self._looking.acquire(blocking=False):  # or somebody looks just now
            try:
                self._look()
                self._failed = False
            except OSError as error:
                if not self._failed:
                    log.error("%s cannot be read: %s", self._path, error)
                self._failed = True
            finally:
                self._looking.release()
        return {id: record for id, (_, record) in self._found.items() if record is not None}

    def path(self, id: str) -> Path:
        """Where the record of that id lies."""
        return self._path / f"{id}{_SUFFIX}"

    def read(self, id: str, read: Callable[[Path], T]) -> T:
        """What `read` makes of a record's file.

        Raises NotFound if that is gone, whoever has removed it, and Unavailable if it is not to be
        read.
        """
        try:
            return read(self.path(id))
        except FileNotFoundError:
            raise NotFound(f"{id} is here no more.", code="gone") from None
        except OSError as error:
            raise _unusable(self._path, error) from None

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Nobody else changes the folder meanwhile, in this process or another.

        Waits, so not for the event loop. Raises Unavailable after `LOCK_S`.
        """
        until_s = time.monotonic() + LOCK_S
        if not self._writing.acquire(timeout=LOCK_S):
            raise _busy()
        try:
            with self._locked(until_s):
                self._look_again()
                yield
        finally:
            self._writing.release()

    @contextmanager
    def _locked(self, until_s: float) -> Iterator[None]:
        """Other processes change nothing meanwhile."""
        try:
            lock = os.open(self._path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(self._path, error) from None
        try:
            while not _taken(lock):
                if time.monotonic() >= until_s:
                    raise _busy()
                time.sleep(_TRY_S)
            yield
        finally:
            os.close(lock)  # gives it back, as the end of the process would

    def _look_again(self) -> None:
        """Know all that others have changed."""
        try:
            with self._looking:
                self._look()
        except OSError as error:
            raise _unusable(self._path, error) from None

    def put(self, id: str, data: bytes) -> R:
        """Write a record, or another in its place, and read it back.

        Raises InvalidRequest if `data` is no such record, Unavailable if the disk does not take it;
        then all is as it was.
        """
        with self._unfinished(data) as unfinished:
            record, stamp = self._reader(unfinished), _stamp(unfinished.stat())
            os.replace(unfinished, self.path(id))
            _flush(self._path)  # the name too is on the disk before anybody is told
        with self._looking:
            self._found = {**self._found, id: (stamp, record)}
        return record

    def staged(self, data: bytes, read: Callable[[Path], T]) -> T:
        """What `read` makes of a file with these bytes that is no record yet. Raises as `put`."""
        with self._unfinished(data) as unfinished:
            return read(unfinished)

    @contextmanager
    def _unfinished(self, data: bytes) -> Iterator[Path]:
        """A file that no look at the folder finds, for a moment."""
        path = self._path / f"{_UNFINISHED}{secrets.token_hex(8)}"
        try:
            _write(path, data)
            yield path
        except OSError as error:
            raise _unusable(self._path, error) from None
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def remove(self, id: str) -> None:
        """Forget a record; it may be gone already."""
        try:
            self.path(id).unlink(missing_ok=True)
            _flush(self._path)
        except OSError as error:
            raise _unusable(self._path, error) from None
        with self._looking:
            self._found = {key: found for key, found in self._found.items() if key != id}

    def _look(self) -> None:
        """Read what is new, if the folder has changed since the last look. Raises OSError."""
        changed_ns = self._path.stat().st_mtime_ns
        if changed_ns == self._seen_ns:
            return
        found: dict[str, tuple[Stamp, R | None]] = {}
        for id, stamp in self._files():
            same = self._found.get(id, (None, None))
            found[id] = (stamp, same[1] if same[0] == stamp else self._try(id))
        self._found = found
        self._seen_ns = changed_ns if time.time_ns() - changed_ns > _TICK_NS else -1

    def _files(self) -> list[tuple[str, Stamp]]:
        """The regular files by id: to open another kind may wait for ever."""
        found = []
        with os.scandir(self._path) as entries:
            for entry in entries:
                if not entry.name.endswith(_SUFFIX):
                    continue
                with suppress(OSError):  # removed since, or a link to nothing
                    if stat.S_ISREG((about := entry.stat()).st_mode):
                        found.append((entry.name.removesuffix(_SUFFIX), _stamp(about)))
        return sorted(found)

    def _try(self, id: str) -> R | None:
        try:
            record = self._reader(self.path(id))
        except FileNotFoundError:
            return None  # removed since
        except (InvalidRequest, OSError) as error:
            log.warning("%s is left out: %s", self.path(id), error)
            return None
        if self._id_of(record) != id:
            log.warning("%s is left out: it holds %s", self.path(id), self._id_of(record))
            return None
        return record

    def _sweep(self) -> None:
        """Remove what writers who were killed have left."""
        now_s = time.time()
        for path in self._path.glob(f"{_UNFINISHED}*"):
            with suppress(FileNotFoundError):
                if now_s - path.stat().st_mtime > _ABANDONED_S:
                    path.unlink()


def pack(kind: str, card: bytes, arrays: Mapping[str, npt.NDArray[np.generic]]) -> bytes:
    """A file's bytes: arrays, and a card in JSON under the name of its kind."""
    return save(dict(arrays), metadata={kind: card.decode()})


def unpack(path: Path, kind: str, *names: str) -> tuple[bytes, Arrays]:
    """The card of that kind, and those of the named arrays that are there; others are not read.

    Raises InvalidRequest for another file, OSError if it cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise InvalidRequest("not a file that can be read")
    try:
        with safe_open(path, framework="numpy") as file:
            card = (file.metadata() or {}).get(kind)
            arrays = {name: file.get_tensor(name) for name in file.keys() if name in names}  # noqa: SIM118
    except (SafetensorError, ValueError, TypeError) as error:
        raise InvalidRequest(f"not a safetensors file that can be read: {error}") from None
    if card is None:
        raise InvalidRequest(f"a safetensors file, but not of a {kind}")
    return card.encode(), arrays


def _stamp(about: os.stat_result) -> Stamp:
    """What another file in the same place would have otherwise."""
    return about.st_mtime_ns, about.st_size, about.st_ino


def _write(path: Path, data: bytes) -> None:
    """All of it, on the disk; for its owner only, since voices are personal data."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _taken(lock: int) -> bool:
    """Take another process's lock, if it is free."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _busy() -> Unavailable:
    return Unavailable(
        "Somebody else is changing what is kept; try again.", code="storage_busy", retry_after_s=1
    )


def _unusable(path: Path, error: OSError) -> Unavailable:
    """For a client, who is not told where things lie; the log is."""
    log.error("%s cannot be used: %s", path, error)
    why = error.strerror or "it cannot be read or written"
    return Unavailable(f"What is kept cannot be used: {why}.", code="storage")
