"""Every number that shapes how vivace runs, in one place.

What stands behind a field, or above it, is its documentation: `settings.py` makes a flag of each
field, a VIVACE_* variable and a line of the config file, and docs/configuration.md is made of it.
`metadata` says where the outside differs: `name` (there), `flag` (of a list: one of its items),
`scale` (from the unit outside to that of the field), `fixed` (nobody may set it).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from vivace.errors import NotFound, Unprocessable

LEAST_WAIT_S = 0.1  # below this a time to wait for others gives up some of them at random
MOST_CHUNK = 32  # frames: the ring between talker and codec holds a multiple
_PORTS = {"http": 80, "https": 443}


def _check(config: object, least: float, *names: str) -> None:
    """Refuse numbers below `least`, and what is none; without names, all numbers of the record."""
    for f in fields(config):  # type: ignore[arg-type]
        value = getattr(config, f.name)
        if (names and f.name not in names) or not isinstance(value, int | float):
            continue
        if not least <= value < math.inf:
            raise Unprocessable(f"{f.name} must be {least:g} or more; got {value}", param=f.name)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may ask for. Each refusal names the number."""

    body_bytes: int = 1 << 20  # of a request, and of a message on a socket
    text_chars: int = 64 * 1024  # characters of one text, or of all in a batch
    instruct_chars: int = 4096  # characters of instructions
    temperature_max: float = 2.0  # highest temperature
    repetition_penalty_max: float = 2.0  # highest repetition penalty
    seed_max: int = field(default=2**63 - 1, metadata={"fixed": True})  # what counters hold
    frames_max: int = field(default=2**31 - 1, metadata={"fixed": True})  # what they hold
    batch_items: int = 32  # requests in one batch
    clip_bytes: int = 10 << 20  # of a reference's file
    clip_min_s: float = 0.5  # of what is left of a reference without the silence at its ends
    clip_max_s: float = 30.0  # of a reference
    clip_decode_s: float = 10.0  # time to fetch a reference, and to decode it
    clip_silence_ms: int = 5_000  # that may be asked for behind a reference
    ref_text_chars: int = 1_000  # characters of what a reference says

    def __post_init__(self) -> None:
        _check(self, 1, "body_bytes", "text_chars", "batch_items")
        _check(self, LEAST_WAIT_S, "clip_decode_s")
        _check(self, 0)


@dataclass(frozen=True, slots=True)
class Profile:
    """How the scheduler trades first sound against throughput. docs/scheduling.md says how."""

    first_frames: int = 1  # fewest frames in a first chunk
    chunk_frames: int = 8  # most frames of one stream in one codec step
    guard_s: float = 0.025  # slack to keep beyond what the costs and their errors say
    margin: float = 1.5  # on what the costs say
    lead_s: float = 2.0  # how far ahead of the listener a stream may run while others wait
    ahead_s: float = 30.0  # sound made and not yet taken by the reader: then the stream is paused
    step_s: float = 0.008  # longest codec step, while the load allows such short ones
    fill: float = 0.25  # longer talker steps by so much, so that streams far ahead can join
    full: float = 0.9  # share of a lane's time that admitted streams may need
    frame_rows: int = 128  # most sessions in one talker step
    codec_rows: int = 32  # most sessions in one codec step
    prefills: int = 16  # most prompts laid down between two talker steps
    prefill_rows: int = 256  # most rows of one prompt in one go
    prompt_rows: int = 16  # rows of an ordinary prompt, to reckon with

    def __post_init__(self) -> None:
        counts = ("first_frames", "chunk_frames", "frame_rows", "codec_rows", "prefills")
        _check(self, 1, *counts, "prefill_rows", "prompt_rows", "margin")
        _check(self, 0, "guard_s", "lead_s", "step_s", "fill")
        _check(self, 0.08, "ahead_s")
        _check(self, 0.1, "full")
        if not self.first_frames <= self.chunk_frames <= MOST_CHUNK:
            raise Unprocessable(
                f"chunk_frames must be from first_frames ({self.first_frames}) to {MOST_CHUNK}; "
                f"got {self.chunk_frames}",
                param="chunk_frames",
            )

    @property
    def ahead_frames(self) -> int:
        """`ahead_s` in frames of 80 ms."""
        return int(self.ahead_s / 0.08)


PROFILES = {
    "ttfa": Profile(step_s=0.004, fill=0.1),
    "balanced": Profile(),
    "throughput": Profile(step_s=0.05, fill=8.0, chunk_frames=24),
}


def profile_of(name: str) -> Profile:
    """The profile of that name. Raises NotFound, which lists them."""
    if name not in PROFILES:
        raise NotFound(f"no profile {name!r}; there are {', '.join(PROFILES)}", param="profile")
    return PROFILES[name]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine: device, capacity and policy."""

    device: str = "auto"  # auto, cpu, cuda, cuda:1
    dtype: str = "auto"  # auto: bfloat16 on CUDA, float32 on the CPU
    quantize: str = "none"  # int8, or on a card fp8: weights of talker and code predictor
    max_sessions: int = 16  # streams made at the same time
    max_queue: int = 64  # requests that may wait for a place among them
    # A request that would wait longer for its first sound is refused.
    slo_ttfa_s: float = field(default=3.0, metadata={"name": "slo_ttfa_ms", "scale": 1e-3})
    max_context: int = 8192  # positions one session may fill: prompt rows and frames
    session_context: int = 512  # positions a session fills as a rule; sizes the shared pool
    # Memory for models' weights: those that do not fit are loaded at first use, in the place of
    # the one unused for longest. 0: all of them are there from the start.
    model_memory_mb: int = 0
    load_wait_s: float = 60.0  # a request that waits longer for its model to be loaded is refused
    prefix_mb: int = 256  # keys and values kept of what stands before the text; 0 keeps none
    graphs: bool = True  # replay captured graphs on a card
    kernels: bool = True  # use our own kernels on a card
    normalize: bool = True  # take markdown, emoji and tags out of texts, unless a request says no
    text_lead: int = 0  # tokens laid down before the first frame; the models learnt 0 or all
    piece_s: float = 0.0  # speech from one prompt, about; 0 is what the checkpoint is good for
    threads: int = 0  # torch threads on the CPU; 0 is one for a small model, else every core
    stall_s: float = 120.0  # a reader that takes nothing for this long is cut off
    hang_s: float = 20.0  # a loop that does not come round for this long is replaced
    restarts: int = 3  # of its process within `restarts_s`; at one more end the server ends too
    restarts_s: float = 300.0  # the time in which they are counted
    trim: bool = True  # drop the silence before the speech where a request does not say
    guards: bool = True  # end speech that runs away, unless a request says no: docs/guards.md
    guard_silence_s: float = 2.0  # silence after the text that ends it; 0 is any
    guard_loop_s: float = 4.0  # of the same frames over and over that end it; 0 is any
    redraws: int = 1  # how often to draw speech again that went wrong unheard
    trace: Path | None = None  # a file that every decision is appended to
    costs_dir: Path | None = None  # where step times are kept from one start to the next
    limits: Limits = field(default_factory=Limits)
    profile: Profile = field(default_factory=Profile)

    def __post_init__(self) -> None:
        _check(self, 1, "max_sessions", "session_context")
        _check(self, 64, "max_context")
        counts = (
            "max_queue",
            "model_memory_mb",
            "load_wait_s",
            "prefix_mb",
            "text_lead",
            "piece_s",
            "threads",
            "restarts",
        )
        _check(self, 0, *counts, "slo_ttfa_s", "restarts_s")
        _check(self, LEAST_WAIT_S, "stall_s")
        _check(self, 0, "guard_silence_s", "guard_loop_s", "redraws")
        _check(self, 0.5, "hang_s")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The HTTP edge. Its limits are the engine's: both check, since they may be far apart."""

    heartbeat_s: float = 10.0  # an engine loop older than this counts as stuck
    stall_s: float = 120.0  # a client that reads nothing for this long is given up
    ping_s: float = 20.0  # between two pings on a socket; one unanswered for `stall_s` ends it
    idle_s: float = 180.0  # a socket without a message either way for this long is closed
    drain_s: int = 30  # how long streams may go on after SIGTERM
    body_s: float = 10.0  # how long a client may take to send its request
    # Threads for encoding and long texts; 0 is as many as there are cores, up to 16.
    encoder_threads: int = 0
    ref_urls: bool = False  # fetch reference clips from https URLs on public addresses
    batch_at_once: int = 8  # items of one batch that speak at a time
    # More names for models: NAME=MODEL, or a name alone for whichever fits the request.
    model_aliases: tuple[str, ...] = field(default=(), metadata={"flag": "model-alias"})
    # More names for its voices, each with the voice it stands for.
    voice_aliases: Mapping[str, str] = field(default_factory=dict, metadata={"flag": "voice-alias"})
    voices_dir: Path | None = None  # where voices are kept; without it, the user's data folder
    voices_max: int = 1000  # voices that may be kept
    styles: Path | None = None  # a YAML file of ways of speaking, beside the built-in ones
    cache: bool = False  # answer requests that do not say from speech that was made before
    cache_dir: Path | None = None  # where that is kept; without it, nowhere
    cache_mb: int = 1024  # how much of it; 0 keeps none
    # Names and keys of those who may use the server; without any, everybody may.
    api_keys: Mapping[str, str] = field(default_factory=dict, metadata={"secret": True})
    api_keys_file: Path | None = None  # more of them, a name=key in each line
    key_sessions: int = 0  # requests of one key that may speak at a time; 0: no limit
    key_per_minute: int = 0  # requests of one key in a minute; 0: no limit
    # Sites whose pages may use the server from a browser, such as https://example.com.
    cors_origins: tuple[str, ...] = field(default=(), metadata={"flag": "cors-origin"})
    log_text: bool = False  # write the texts of requests into the log
    tls_cert: Path | None = None  # serve https and wss with this certificate
    tls_key: Path | None = None  # its private key, unless the same file holds it
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        _check(self, 1, "batch_at_once")
        _check(self, LEAST_WAIT_S, "heartbeat_s", "stall_s", "ping_s", "idle_s", "body_s")
        _check(self, 0)
        for origin in self.cors_origins:
            _check_origin(origin)


def _check_origin(origin: str) -> None:
    """Refuse what no browser sends as an Origin: nothing would ever match it."""
    if origin in ("*", "null"):
        return
    try:
        parts = urlsplit(origin)
        port = None if parts.port == _PORTS.get(parts.scheme) else parts.port
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        sent = f"{parts.scheme}://{host}" + (f":{port}" if port else "")
    except ValueError:  # of a port or an IPv6 address
        host = None
    if not (host and parts.scheme and origin.isascii()) or set(" *") & set(origin):
        raise Unprocessable(
            f"cors_origins must be * or such as https://example.com; got {origin!r}",
            param="cors_origins",
        )
    if sent != origin:
        raise Unprocessable(
            f"cors_origins: browsers send {sent}, and never {origin}", param="cors_origins"
        )


@dataclass(frozen=True, slots=True)
class Start:
    """What the command needs beside the engine and the edge."""

    # Folder or hub id of a checkpoint; without one, the embedded voice. The first is the default.
    models: tuple[str, ...] = field(default=(), metadata={"name": "model"})
    revision: str | None = None  # branch, tag or commit of the hub id
    offline: bool = False  # use what is in the hub's cache only
    host: str = "127.0.0.1"  # address to listen on
    port: int = 8000  # port to listen on; 0 is a free one
    log_format: Literal["text", "json"] = "text"  # how log lines look
    in_process: bool = False  # engine and HTTP in one process
    profile: str = "balanced"  # what the scheduler favours: ttfa, balanced or throughput

    def __post_init__(self) -> None:
        _check(self, 0)
        if self.port > 65535:
            raise Unprocessable(f"port must be 0 to 65535; got {self.port}", param="port")
        profile_of(self.profile)
