"""The loop's own process: words come in from the edge, what a step made goes back in one batch."""

import contextlib
import gc
import logging
import os
import pickle
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache, partial
from multiprocessing import parent_process
from typing import TYPE_CHECKING

import zmq

from vivace import loop, turns
from vivace.config import EngineConfig
from vivace.errors import EngineFailure, VivaceError
from vivace.host import (
    Build,
    cloners_of,
    costs_of,
    fitted,
    keep_costs,
    known_of,
    offers_of,
    pulse_of,
    readings_of,
    trace_of,
)
from vivace.logs import log_to_stderr
from vivace.remote.messages import (
    Batch,
    Cancel,
    Encode,
    Encoded,
    Ended,
    Failed,
    FromLoop,
    More,
    Open,
    Sound,
    Started,
    Stop,
    Taken,
    ToLoop,
    decode_to_loop,
    encode,
)
from vivace.roster import Offer
from vivace.schedule.track import Track
from vivace.text.prompt import Script
from vivace.types import Chunk, Clone, Done, SpeechRequest

if TYPE_CHECKING:
    from vivace.parts import Parts

log = logging.getLogger("vivace")

BEAT_S = 0.1  # the longest that a running loop keeps its pulse to itself
READ_S = 1.0  # how often it tells what it has measured
LAST_WORDS_MS = 1_000  # how long the last batch may take to leave
ENCODINGS = 1_024  # instructions and reference texts whose ids are kept


class Link:
    """The loop's end: two one-way queues in a private folder, each bound by who reads it.

    Neither has a limit of its own. What is on its way is bounded by what sessions may hold: text by
    the limits that the edge checks, sound by the frames that readers may leave untaken.
    """

    def __init__(self, folder: str) -> None:
        self._context = zmq.Context()
        self._words = self._context.socket(zmq.PULL)
        self._sounds = self._context.socket(zmq.PUSH)
        for socket in (self._words, self._sounds):
            socket.set_hwm(0)
            socket.linger = LAST_WORDS_MS
        self._words.bind(f"ipc://{folder}/words")
        self._sounds.connect(f"ipc://{folder}/sounds")

    def send(self, message: FromLoop) -> None:
        """Send; never waits. For the loop's thread."""
        self._sounds.send(encode(message))

    def receive(self) -> ToLoop:
        """The next word; waits for it. For one other thread."""
        return decode_to_loop(self._words.recv())

    def close(self) -> None:
        """Close, once the last batch has left."""
        self._context.destroy()


@dataclass(slots=True)
class Outlet:
    """Where a turn's chunks go: onto the link, for the outbox at the edge."""

    id: str
    events: "deque[Sound | Ended]"
    taken_frames: int = 0

    def put(self, chunk: Chunk) -> None:
        """Add a chunk to the batch."""
        self.events.append(Sound(self.id, chunk))

    def finish(self, done: Done, *, drop: bool = False) -> None:
        """Add the terminal event to the batch."""
        self.events.append(Ended(self.id, done, drop))


@dataclass(slots=True, eq=False)
class Listener:
    """Stands in for a session at the edge."""

    id: str
    request: SpeechRequest
    outbox: Outlet
    prompt_ids: list[int] = field(default_factory=list)


class Encoder:
    """Texts of a prompt's head to ids, each once: the loop must not wait for the same twice."""

    def __init__(self, offer: Offer) -> None:
        self.spec, self.encode = offer.spec, lru_cache(ENCODINGS)(offer.tokenizer.encode)


class FarLoop(loop.Loop):
    """A loop whose sessions are in another process."""

    def __init__(
        self, parts: "Parts", config: EngineConfig, clock: Callable[[], float], link: Link
    ) -> None:
        costs, trace = costs_of(parts, config), trace_of(config)
        super().__init__(parts.runner, config, clock, self._forget, costs, trace=trace)
        self._encoders = [Encoder(offer) for offer in offers_of(parts)]
        self._link = link
        self._listeners: dict[str, Listener] = {}
        self._events: deque[Sound | Ended] = deque()
        self._cloners = cloners_of(parts)
        self._voices: deque[Encoded] = deque()  # from the cloner's thread
        self._sent = pulse_of(self)
        self._read_s = 0.0  # when the readings were last told

    def run(self) -> None:
        """Step until the edge says stop."""
        ears = threading.Thread(target=self._hear, name="vivace-words", daemon=True)
        ears.start()
        super().run()
        self._flush()
        if self.broken is None:
            for cloner in filter(None, self._cloners):
                cloner.close()
        else:
            self._link.send(Failed(self.broken))
        ears.join()  # the edge answers with Stop; until then the link cannot be closed

    def step(self) -> bool:
        """A step, and word of it."""
        try:
            return super().step()
        finally:
            self._flush()

    def _collect(self, *, wait: bool = False) -> bool:
        """What is done goes out before the next steps are planned: a listener waits for it."""
        moved = super()._collect(wait=wait)
        if self._events:
            self._flush()
        return moved

    def _flush(self) -> None:
        """Send what there is to tell, in one message."""
        while self._voices:
            self._link.send(self._voices.popleft())
        pulse = pulse_of(self)
        events = [self._events.popleft() for _ in range(len(self._events))]
        late = pulse.beat_s - self._sent.beat_s >= BEAT_S
        if events or late or pulse.free != self._sent.free:
            readings = None
            if pulse.beat_s - self._read_s >= READ_S:
                readings, self._read_s = readings_of(self), pulse.beat_s
            self._link.send(Batch(pulse, events, readings))
            self._sent = pulse

    def _forget(self, listener: turns.Listener) -> None:
        self._listeners.pop(listener.id, None)

    def _hear(self) -> None:
        """Take words until the last; a loop that hears nothing more must stop."""
        try:
            while not isinstance(word := self._link.receive(), Stop):
                self._take(word)
        finally:
            self.stopping = True
            self.wake()

    def _take(self, word: Open | More | Cancel | Taken | Encode) -> None:
        if isinstance(word, Open):
            self._open(word)
        elif isinstance(word, Encode):
            self._encode(word)
        elif (listener := self._listeners.get(word.id)) is None:
            return  # it has ended meanwhile
        elif isinstance(word, More):
            listener.prompt_ids += word.ids
            self.tell(turns.More(listener, word.ids, word.most_frames, word.last))
        elif isinstance(word, Cancel):
            self.tell(turns.Cancel(listener, word.at_s))
        else:
            listener.outbox.taken_frames = word.frames
            self.wake()

    def _open(self, word: Open) -> None:
        request, outlet = word.request, Outlet(word.id, self._events)
        listener = Listener(word.id, request, outlet)
        self._listeners[word.id] = listener
        encoder = self._encoders[word.model]
        script = Script(encoder.spec, request, encoder, ahead=self.config.text_lead)
        track = Track(word.arrived_s, model=word.model)
        turn = turns.Turn(listener, script, word.sampling, word.seed, track, word.most_in_all)
        self.tell(turn)

    def _encode(self, word: Encode) -> None:
        """Take a voice from a clip, and let the loop's thread send it."""

        def done(future: "Future[Clone]") -> None:
            self._answer(word.id, future)

        cloner = self._cloners[word.model]
        assert cloner is not None
        try:
            cloner.submit(word.clip).add_done_callback(done)
        except VivaceError as error:
            self._put(Encoded(word.id, None, error))

    def _answer(self, id: int, future: "Future[Clone]") -> None:
        if future.cancelled():
            return  # the process ends, of which the edge hears
        error = future.exception()
        if error is None:
            self._put(Encoded(id, future.result(), None))
            return
        if not isinstance(error, VivaceError):
            log.error("a clip could not be encoded", exc_info=error)
            error = EngineFailure("the engine failed; see its log")
        self._put(Encoded(id, None, error))

    def _put(self, voice: Encoded) -> None:
        self._voices.append(voice)
        self.wake()


def serve(
    folder: str,
    build: Build,
    config: EngineConfig,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Load, tell the edge, run the loop to its end."""
    link = Link(folder)
    with contextlib.closing(link):
        try:
            parts = build()
            config = fitted(config, parts)
            far = FarLoop(parts, config, clock, link)
        except VivaceError as error:
            link.send(Failed(error))
        except Exception as error:
            log.exception("the engine did not start")
            link.send(Failed(EngineFailure(f"{type(error).__name__}: {error}")))
        else:
            known = pickle.dumps(known_of(parts, config))
            link.send(Started(known, pulse_of(far), readings_of(far)))
            far.run()
            if far.broken is None:
                keep_costs(parts, config, far.costs)


def main(folder: str, build: Build, config: EngineConfig, log_level: int, form: str) -> None:
    """The body of the process. It lives as long as the edge wants it, or is there."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach the edge too, which drains first
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_edge, args=[folder], daemon=True).start()
    log_to_stderr(log_level, form)
    serve(folder, partial(_settled, build), config)
    os._exit(0)  # a step that hangs on its thread would be waited for


def _end_with_the_edge(folder: str) -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(folder, ignore_errors=True)  # if it ended before we were ready
    os._exit(1)


def _settled(build: Build) -> "Parts":
    """Built, and out of the garbage collector's sight: it need not look at a model again."""
    parts = build()
    gc.collect()
    gc.freeze()
    return parts
