"""What crosses between the edge and the loop's process: typed records, msgpack on the wire.

Arrays cross as raw bytes and come out read-only. Errors cross as class, message and fields, and
come out as members of the same tree.
"""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from vivace.errors import EngineFailure, VivaceError, as_it_was
from vivace.host import Pulse, Readings
from vivace.types import Chunk, Clip, Clone, Done, Sampling, SpeechRequest


class Open(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A new session; its request is resolved."""

    id: str
    request: SpeechRequest
    sampling: Sampling
    seed: int
    arrived_s: float
    most_in_all: float
    model: int = 0


class More(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """More tokens for a session: see `Desk.text`."""

    id: str
    ids: list[int]
    most_frames: int | None
    last: bool


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Nobody listens to this session any more."""

    id: str
    at_s: float | None = None  # when that was said


class Taken(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """How many frames in all its reader has taken: room for as many more."""

    id: str
    frames: int


class Encode(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Take a voice from a clip; `id` is of the request and no session's."""

    id: int
    clip: Clip
    model: int = 0


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """End what is open, then the process."""


class Started(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The loop is ready. `known` is a pickled `Known`: it comes once, from our own child."""

    known: bytes
    pulse: Pulse
    readings: Readings


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The loop could not be started, or has ended by itself."""

    error: VivaceError


class Sound(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A session's next chunk."""

    id: str
    chunk: Chunk


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A session's terminal event; `drop` throws away what its reader has not taken."""

    id: str
    done: Done
    drop: bool


class Encoded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The voice of a clip, or why there is none."""

    id: int
    clone: Clone | None
    error: VivaceError | None


class Batch(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What one step of the loop has to tell; its readings once a second."""

    pulse: Pulse
    events: list[Sound | Ended]
    readings: Readings | None = None


ToLoop = Open | More | Cancel | Taken | Encode | Stop
FromLoop = Started | Failed | Batch | Encoded


def _pack(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, VivaceError):
        return type(value).__name__, vars(value)
    raise NotImplementedError(f"{type(value).__name__} does not cross")


def _unpack(kind: type, value: Any) -> npt.NDArray[Any] | VivaceError:
    if kind is VivaceError:
        return _error(*value)
    dtype, shape, data = value
    return np.frombuffer(data, dtype).reshape(shape)


def _error(name: str, fields: dict[str, Any]) -> VivaceError:
    return as_it_was(_kinds(VivaceError).get(name, EngineFailure), fields)


def _kinds(kind: type[VivaceError]) -> dict[str, type[VivaceError]]:
    found = {kind.__name__: kind}
    for below in kind.__subclasses__():
        found |= _kinds(below)
    return found


encode = msgspec.msgpack.Encoder(enc_hook=_pack).encode
decode_to_loop = msgspec.msgpack.Decoder[ToLoop](ToLoop, dec_hook=_unpack).decode
decode_from_loop = msgspec.msgpack.Decoder[FromLoop](FromLoop, dec_hook=_unpack).decode
