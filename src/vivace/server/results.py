"""Speech that was made before, on disk: the least recently used goes when there is no room.

Entries are safetensors, written beside and renamed; nothing in them can run. A disk that fails only
costs the time it would have saved. One server to a folder: each counts the bytes for itself.
"""

import hashlib
import json
import logging
import os
import secrets
import threading
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from vivace.audio.wav import Samples
from vivace.errors import InvalidRequest, Unavailable
from vivace.text.clean import Cleaner
from vivace.types import Clone, SpeechRequest
from vivace.voices.folder import pack, unpack
from vivace.voices.kept import content_of
from vivace.watch import Watch

if TYPE_CHECKING:
    from vivace.engine import Engine
    from vivace.roster import Offer

log = logging.getLogger(__name__)

_VERSION: Final = version("vivace")
_KIND: Final = "vivace.result"
_SUFFIX: Final = ".safetensors"
_UNFINISHED: Final = ".unfinished-"
LARGEST: Final = 1 / 8  # of all the room, one entry may take
# What of the engine's config leaves the sound of one request as it is.
NEUTRAL: Final = frozenset(
    (
        *("max_sessions", "max_queue", "slo_ttfa_s", "session_context", "prefix_mb", "stall_s"),
        *("threads", "trace", "costs_dir", "profile", "limits"),
    )
)


class About(msgspec.Struct, frozen=True):
    """How the speech ended, and a sum over its samples that shows whether they are still whole."""

    frames: int
    text_tokens: int
    seed: int
    skipped: list[str]
    crc: int


@dataclass(frozen=True, slots=True)
class Result:
    """Speech to its end: samples [n] at 24 kHz, before pace, rate and format."""

    pcm: Samples
    frames: int
    text_tokens: int
    seed: int
    skipped: tuple[str, ...] = ()


@dataclass(slots=True)
class Counts:
    """What has happened since the start."""

    hits: int = 0
    misses: int = 0
    kept: int = 0
    dropped: int = 0  # for want of room
    spoilt: int = 0  # entries that were not whole
    failed: int = 0  # writes that the disk did not take


class Results:
    """The entries of one folder, at most `most_bytes` of them. Safe from any thread."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.most_bytes, self.counts = most_bytes, Counts()
        self._folder = folder
        self._one = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # by key, least recently used first
        self.bytes = 0
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._find()
        except OSError as error:
            raise Unavailable(f"{folder} cannot be used: {error.strerror or error}.") from None
        self._make_room(0)

    @property
    def largest(self) -> int:
        """Bytes that one entry may have."""
        return int(self.most_bytes * LARGEST)

    def get(self, key: str) -> Result | None:
        """The speech under that key, counted as a hit or a miss."""
        result = self._read(key)
        with self._one:
            if result is None:
                self.counts.misses += 1
                return None
            self.counts.hits += 1
            if key in self._sizes:
                self._sizes.move_to_end(key)
        with suppress(OSError):
            os.utime(self._path(key))  # so that the next start knows the order
        return result

    def put(self, key: str, result: Result) -> None:
        """Keep speech, if it is not too long and the disk takes it. Never raises."""
        try:
            self._put(key, _packed(result))
        except OSError as error:
            with self._one:
                self.counts.failed += 1
            log.warning("a result is not kept: %s", error)

    def _put(self, key: str, data: bytes) -> None:
        if len(data) > self.largest:
            return
        self._make_room(len(data))
        unfinished = self._folder / f"{_UNFINISHED}{secrets.token_hex(8)}"
        try:
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.write(data)  # not forced to the disk: what is lost is made again
            os.replace(unfinished, self._path(key))
        finally:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
        with self._one:
            self.bytes += len(data) - self._sizes.pop(key, 0)
            self._sizes[key] = len(data)
            self.counts.kept += 1

    def _read(self, key: str) -> Result | None:
        try:
            raw, arrays = unpack(self._path(key), _KIND, "pcm")
            return _unpacked(raw, arrays.get("pcm"))
        except OSError:
            self._forget(key)  # most often it was never there
        except (InvalidRequest, msgspec.MsgspecError, ValueError) as error:
            log.warning("%s is dropped: %s", self._path(key), error)
            self._forget(key)
            with self._one:
                self.counts.spoilt += 1
            with suppress(OSError):
                self._path(key).unlink(missing_ok=True)
        return None

    def _make_room(self, size: int) -> None:
        """Drop the least recently used until `size` more bytes fit."""
        while True:
            with self._one:
                if self.bytes + size <= self.most_bytes or not self._sizes:
                    return
                key, gone = self._sizes.popitem(last=False)
                self.bytes -= gone
                self.counts.dropped += 1
            with suppress(OSError):
                self._path(key).unlink(missing_ok=True)

    def _forget(self, key: str) -> None:
        with self._one:
            self.bytes -= self._sizes.pop(key, 0)

    def _find(self) -> None:
        """What earlier runs have kept; what they have not finished goes."""
        for path in self._folder.glob(f"{_UNFINISHED}*"):
            path.unlink(missing_ok=True)
        found = [(path, path.stat()) for path in self._folder.glob(f"*{_SUFFIX}")]
        for path, stat in sorted(found, key=lambda each: each[1].st_mtime_ns):
            self._sizes[path.stem] = stat.st_size
            self.bytes += stat.st_size

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{_SUFFIX}"


def key_of(engine: "Engine", text: str, request: SpeechRequest) -> str:
    """What stands for the sound of a whole text: all that shapes it, and nothing else.

    A request without a seed stands for any one take of it. Raises InvalidRequest for half of a
    surrogate pair.
    """
    cleaner, model = Cleaner(), engine.model_of(request)
    settings = {f.name: getattr(engine.config, f.name) for f in fields(engine.config)}
    said = {
        "vivace": _VERSION,
        "model": model.spec.prints.model or model.model_id,
        "engine": {name: value for name, value in settings.items() if name not in NEUTRAL},
        "held": _held(engine, model, request),
        "text": cleaner.feed(text) + cleaner.finish(),
        "request": _said(request),
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()


def _held(engine: "Engine", model: "Offer", request: SpeechRequest) -> int:
    """Frames that are held back: only a patient request's may be drawn again by the guards."""
    return Watch.over(request, request.sampling or model.defaults, engine.config).held


def _said(request: SpeechRequest) -> Mapping[str, object]:
    """Its fields, a cloned voice as its content; not how long it may wait, nor the model's name."""
    names = {f.name for f in fields(request)} - {"patient", "model"}
    values = {name: getattr(request, name) for name in names}
    if isinstance(clone := values["clone"], Clone):
        values["clone"] = content_of(clone)
    sampling = request.sampling
    return values | {"sampling": None if sampling is None else asdict(sampling)}


def _packed(result: Result) -> bytes:
    pcm = np.ascontiguousarray(result.pcm, "<i2")
    about = About(
        result.frames,
        result.text_tokens,
        result.seed,
        list(result.skipped),
        zlib.crc32(pcm.tobytes()),
    )
    return pack(_KIND, msgspec.json.encode(about), {"pcm": pcm})


def _unpacked(raw: bytes, pcm: object) -> Result:
    about = msgspec.json.decode(raw, type=About)
    if not isinstance(pcm, np.ndarray) or pcm.dtype != np.int16 or pcm.ndim != 1 or not len(pcm):
        raise ValueError("it holds no samples")
    if zlib.crc32(pcm.tobytes()) != about.crc:
        raise ValueError("its samples are not those that were kept")
    return Result(pcm, about.frames, about.text_tokens, about.seed, tuple(about.skipped))
