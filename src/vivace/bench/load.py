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
class Share:
    """What one process has to do."""

    ask: Ask
    address: str  # of its host
    jobs: tuple[Job, ...]
    start_s: float  # on the monotonic clock, which all processes share
    window_s: tuple[float, float]  # the measured part, after the start
    pace_s: float
    timeout_s: float
    audio: Path | None


def work(share: Share, pipe: Connection) -> None:
    """Run a share; records go down the pipe as they are made, the loop's lateness at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.collect()
    gc.freeze()
    asyncio.run(_run(share, pipe))


async def _run(share: Share, pipe: Connection) -> None:
    parts, tls = share.ask.parts, ssl.create_default_context() if share.ask.tls else None
    peer = Peer(share.address, port(share.ask), parts.hostname or "", tls)
    late = list[float]()
    ticker = asyncio.create_task(_tick(late))
    async with asyncio.TaskGroup() as tasks:
        for job in share.jobs:
            wait_s = share.start_s + job.due_s - AHEAD_S - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            tasks.create_task(_one(share, peer, job, pipe))
    ticker.cancel()
    pipe.send(late)


def port(ask: Ask) -> int:
    """The URL's port, or that of its scheme."""
    return ask.parts.port or (443 if ask.tls else 80)


async def _tick(late: list[float]) -> None:
    """How late this process's loop turns: then it reads late too."""
    while True:
        due_s = time.monotonic() + _TICK_S
        await asyncio.sleep(_TICK_S)
        late.append((time.monotonic() - due_s) * 1e3)


async def _one(share: Share, peer: Peer, job: Job, pipe: Connection) -> None:
    due_s = share.start_s + job.due_s
    manners, timeout_s, text = job.manners, share.timeout_s, job.text.text
    if share.ask.socket:
        pieces = words(text) if share.pace_s else [text]
        chat = socket_talk(share.ask, job.index)
        answer = await talk(peer, chat, pieces, due_s, share.pace_s, manners, timeout_s)
    else:
        answer = await ask(peer, http_request(share.ask, text), due_s, manners, timeout_s)
    record = Record(job.index, job.text.id, len(text), job.due_s, job.warmup, job.client)
    record.lag_ms = max(0.0, answer.sent_s - _earliest_s(answer, due_s)) * 1e3
    start_s, (begin_s, end_s) = share.start_s, share.window_s
    sound = judge(record, answer, job.text, (start_s + begin_s, start_s + end_s))
    if sound and job.keep and share.audio and answer.kind == "ok":
        _write(sound, share.audio / f"{job.index:05}.wav")
    pipe.send(record)


def _earliest_s(answer: Answer, due_s: float) -> float:
    """When it could have been sent at best: a server that connects slowly is not our lateness."""
    if answer.kind == "unreachable":
        return answer.sent_s
    return max(due_s, due_s - AHEAD_S + answer.setup_s)


def _write(sound: Sound, path: Path) -> None:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, sound.rate, 0, "NONE", ""))
        file.writeframes(sound.samples.tobytes())
