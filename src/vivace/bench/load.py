"""One client process: sends its share of the requests when they are due and judges the answers."""

import asyncio
import contextlib
import gc
import resource
import signal
import ssl
import time
import wave
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from vivace.bench.answer import Answer, Manners
from vivace.bench.http import Peer, ask
from vivace.bench.record import Record, judge
from vivace.bench.sockets import talk
from vivace.bench.sound import Sound
from vivace.bench.targets import Ask, http_request, socket_talk
from vivace.bench.texts import Text, words
from vivace.errors import InvalidRequest

AHEAD_S = 0.5  # connections are opened this long before they are used
_TICK_S = 0.02


@dataclass(frozen=True, slots=True)
class Job:
    """One request to come."""

    index: int
    due_s: float  # after the start of the run
    text: Text
    warmup: bool
    manners: Manners
    keep: bool  # its sound, to be transcribed later

    @property
    def client(self) -> str:
        """The name of its manners in the results."""
        leaves = self.manners.leave_after_s is not None
        return "leaving" if leaves else "slow" if self.manners.bytes_s else "plain"


@dataclass(frozen=True, slots=True)
class Load:
    """The load, and how its clients behave."""

    rps: float
    duration_s: float = 30.0
    warmup_s: float = 5.0
    seed: int = 0
    arrivals: str = "poisson"
    texts: str = "mixed"
    pace_ms: float = 0.0
    slow: float = 0.0  # share of clients that read slowly
    slow_bytes_s: float = 24_000.0  # half of real time
    leaving: float = 0.0  # share of clients that go before the end
    leave_after_s: float = 0.5
    timeout_s: float = 120.0
    processes: int = 0
    lag_limit_ms: float = 10.0

    def check(self) -> None:
        """Raises InvalidRequest for numbers that make no load."""
        if self.rps <= 0 or self.duration_s <= 0 or self.warmup_s < 0 or self.timeout_s <= 0:
            raise InvalidRequest("rps, duration and timeout are above 0, warm-up is not below 0")
        if min(self.slow, self.leaving) < 0 or self.slow + self.leaving > 1:
            raise InvalidRequest("slow and leaving are shares of the clients, together up to 1")

    @property
    def window_s(self) -> tuple[float, float]:
        """The measured part."""
        return self.warmup_s, self.warmup_s + self.duration_s


@dataclass(frozen=True, slots=True)
class Share:
    """What one process has to do."""

    ask: Ask
    load: Load
    address: str  # of the host
    jobs: tuple[Job, ...]
    folder: Path  # for the sounds that are kept


def work(share: Share, pipe: Connection) -> None:
    """Say that it is up, get the start on the clock that all processes share, do the share.

    Records go down the pipe as they are made, and last how late the loop turned, in ms.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.collect()
    gc.freeze()
    pipe.send("up")
    asyncio.run(_run(share, pipe, pipe.recv()))


async def _run(share: Share, pipe: Connection, start_s: float) -> None:
    ask = share.ask
    tls = ssl.create_default_context() if ask.tls else None
    peer = Peer(share.address, ask.port, ask.parts.hostname or "", tls)
    late = list[float]()
    ticker = asyncio.create_task(_tick(late))
    async with asyncio.TaskGroup() as tasks:
        for job in share.jobs:
            wait_s = start_s + job.due_s - AHEAD_S - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            tasks.create_task(_one(share, peer, job, start_s, pipe))
    ticker.cancel()
    pipe.send(late)


async def _tick(late: list[float]) -> None:
    """How late this process's loop turns: then it reads late too."""
    while True:
        due_s = time.monotonic() + _TICK_S
        await asyncio.sleep(_TICK_S)
        late.append((time.monotonic() - due_s) * 1e3)


async def _one(share: Share, peer: Peer, job: Job, start_s: float, pipe: Connection) -> None:
    """One request and its record, whatever happens: an error of ours must not end the run."""
    due_s, text = start_s + job.due_s, job.text
    record = Record(job.index, text.id, len(text.text), job.due_s, job.warmup, job.client)
    try:
        answer = await _exchange(share, peer, job, due_s)
        record.lag_ms = max(0.0, answer.sent_s - _earliest_s(answer, due_s)) * 1e3
        begin_s, end_s = share.load.window_s
        sound = judge(record, answer, text, (start_s + begin_s, start_s + end_s))
        if sound and job.keep and answer.kind == "ok":
            _write(sound, share.folder / f"{job.index:05}.wav")
    except Exception as error:
        record.kind, record.detail = "client_error", repr(error)
    pipe.send(record)


async def _exchange(share: Share, peer: Peer, job: Job, due_s: float) -> Answer:
    load, text, pace_s = share.load, job.text.text, share.load.pace_ms / 1e3
    if share.ask.socket:
        pieces, chat = words(text) if pace_s else [text], socket_talk(share.ask, job.index)
        return await talk(peer, chat, pieces, due_s, pace_s, job.manners, load.timeout_s)
    return await ask(peer, http_request(share.ask, text), due_s, job.manners, load.timeout_s)


def _earliest_s(answer: Answer, due_s: float) -> float:
    """When it could have been sent at best: a server that connects slowly is not our lateness."""
    if answer.kind == "unreachable":
        return answer.sent_s
    return max(due_s, due_s - AHEAD_S + answer.setup_s)


def _write(sound: Sound, path: Path) -> None:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, sound.rate, 0, "NONE", ""))
        file.writeframes(sound.samples.tobytes())
