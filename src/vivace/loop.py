"""The engine's loop: takes words from other threads, plans a step, runs it, publishes what it made.

Owner of slots and turns. Everything here runs on one thread; the only ways in are `tell` and the
sessions' outboxes are the only ways out.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from vivace.config import EngineConfig
from vivace.errors import EngineFailure, Unavailable, VivaceError
from vivace.schedule.policy import plan
from vivace.schedule.track import Track
from vivace.session import Session
from vivace.text.prompt import Prompt, Script
from vivace.types import Chunk, Codes, Done, FinishReason, Frames, Pcm, Row, Sampling

log = logging.getLogger("vivace")

NO_MEMORY = "no memory is left for this session; try again later, or lower --max-sessions"
IDLE_S = 0.5  # longest sleep of an idle loop: the heartbeat of an idle engine


class Steps(Protocol):
    """What the loop asks of a runner; tests give it a fake one."""

    def open(self, slot: int, sampling: Sampling, seed: int) -> None:
        """Make the slot a fresh one."""
        ...

    def close(self, slot: int) -> None:
        """Take back what the slot holds."""
        ...

    def room(self, slot: int, positions: int) -> bool:
        """Make room for that many positions in all, if there is any."""
        ...

    def begin(self, slot: int, prompt: Prompt) -> None:
        """Take a prompt, to be laid down by `prefill`."""
        ...

    def prefill(self, slot: int, rows: int) -> bool:
        """Lay down its next rows; true once all but the last are there."""
        ...

    def frame(self, rows: Sequence[Row]) -> Frames:
        """Make the next frame of every row."""
        ...

    def voice(self, slots: Sequence[int], frames: int) -> "Future[Pcm]":
        """Decode the next frames of every slot beside other steps: samples [B, frames * 1920]."""
        ...


@dataclass(slots=True, eq=False)
class Turn:
    """The loop's side of one session."""

    session: Session
    script: Script
    sampling: Sampling
    seed: int
    track: Track
    first_text: int | None = None  # the text id under the first frame, from the prompt
    positions: int = 0  # of its context in use
    reason: FinishReason = FinishReason.STOP
    codes: list[Codes] = field(default_factory=list)  # made and not yet decoded, [16] each
    stalled_s: float | None = None  # since when its reader has let a full buffer stand

    def next_text(self) -> int:
        """The text id under the next frame."""
        if self.first_text is None:
            return self.script.next_text()
        text, self.first_text = self.first_text, None
        return text

    @property
    def most_frames(self) -> int:
        """Frames after which the loop ends it: the request's own cap, and the text's."""
        if not (self.session.request.guards and self.script.ended):
            return self.sampling.max_frames
        return min(self.sampling.max_frames, self.session.cap.frames)


@dataclass(frozen=True, slots=True)
class More:
    """More tokens for a session, and whether they were the last."""

    session: Session
    ids: list[int]
    end: bool


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody listens to this session any more."""

    session: Session


Word = Turn | More | Cancel


@dataclass(frozen=True, slots=True)
class Speaking:
    """A codec step that runs: whose chunk it decodes, and where the samples will be."""

    turns: list[Turn]
    frames: int
    sound: "Future[Pcm]"


class Loop:
    """Serves sessions with one runner until told to stop."""

    def __init__(
        self,
        runner: Steps,
        config: EngineConfig,
        clock: Callable[[], float],
        on_done: Callable[[Session], None],
    ) -> None:
        self.runner, self.config, self.clock, self.on_done = runner, config, clock, on_done
        self.turns: dict[Session, Turn] = {}  # in the order of their arrival
        self.free = list(range(config.max_sessions - 1, -1, -1))
        self.speaking: Speaking | None = None
        self.left: list[int] = []  # slots given up while the codec is at them
        self.steps = 0
        self.beat_s = clock()
        self.stopping = False
        self._words: queue.SimpleQueue[Word] = queue.SimpleQueue()
        self._wake = threading.Event()

    def tell(self, word: Word) -> None:
        """Leave word, from any thread."""
        self._words.put(word)
        self._wake.set()

    def wake(self) -> None:
        """Something outside has changed: look again."""
        self._wake.set()

    def run(self) -> None:
        """Step until stopped, sleeping where nothing can run; the body of the engine's thread."""
        while not self.stopping:
            try:
                busy = self.step()
            except Exception:  # our own bug: end what is open, go on serving
                log.exception("a step failed")
                self._end(self.turns.values(), EngineFailure("the engine failed; see its log"))
                busy = False
            if not busy:
                self._wake.wait(IDLE_S)
            self._wake.clear()
        self._listen()
        self._collect(wait=True)
        self._end(self.turns.values(), Unavailable("the engine was closed"))

    def step(self) -> bool:
        """Take words, seat who waits, plan, run, publish. False if nothing could run."""
        self._collect()
        now = self.beat_s = self.clock()
        self._listen()
        self._seat()
        turns = self._seated(now)
        todo = plan(turns, now, self.config.profile)
        self._voice([turns[track] for track in todo.voice], todo.voice_frames)
        for track in todo.prefill:
            self._prefill(turns[track])
        self._frame([turns[track] for track in todo.frame])
        busy = bool(todo) or self.speaking is not None
        if not (todo.prefill or todo.frame):
            self._collect(wait=True)
        self.steps += busy
        return busy

    def _listen(self) -> None:
        while not self._words.empty():
            word = self._words.get()
            if isinstance(word, Turn):
                self.turns[word.session] = word
            elif (turn := self.turns.get(word.session)) is not None:
                if isinstance(word, Cancel):
                    self._finish(turn, FinishReason.CANCELLED, drop=True)
                else:
                    self._more(turn, word)

    def _more(self, turn: Turn, more: More) -> None:
        turn.script.append(more.ids)
        if more.end:
            turn.script.end()
            if not turn.session.speakable:
                self._finish(turn, FinishReason.NO_AUDIO)

    def _seat(self) -> None:
        """Give free slots to those who wait and whose prompt has its text, oldest first."""
        for turn in list(self.turns.values()):
            if not self.free:
                return
            if not turn.track.seated and turn.script.prompt_ready:
                turn.track.slot = self.free.pop()
                with self._blame([turn]):
                    self.runner.open(turn.track.slot, turn.sampling, turn.seed)

    def _seated(self, now: float) -> dict[Track, Turn]:
        """Turns that hold a slot, their tracks brought up to date."""
        for turn in [t for t in self.turns.values() if t.track.seated]:
            self._look(turn, now)
        return {t.track: t for t in self.turns.values() if t.track.seated}

    def _look(self, turn: Turn, now: float) -> None:
        """Bring a track up to date; cut off a reader who has stalled."""
        track, taken = turn.track, turn.session.outbox.taken_frames
        full = track.buffered_s >= self.config.profile.ahead_s
        if not full or taken > track.taken:
            turn.stalled_s = None
        elif turn.stalled_s is None:
            turn.stalled_s = now
        track.taken = taken
        track.text_ready = turn.first_text is not None or turn.script.rows_ready
        if turn.stalled_s is not None and now - turn.stalled_s > self.config.stall_s:
            log.warning("%s: its reader took nothing for too long", turn.session.id)
            self._finish(turn, FinishReason.CANCELLED, drop=True)

    def _prefill(self, turn: Turn) -> None:
        slot = turn.track.slot
        with self._blame([turn]):
            if turn.first_text is None:
                prompt = turn.script.prompt()
                if not self.runner.room(slot, len(prompt.text)):
                    raise Unavailable(NO_MEMORY)
                self.runner.begin(slot, prompt)
                turn.first_text = prompt.text[-1]
                turn.positions = len(prompt.text) - 1
            turn.track.prefilled = self.runner.prefill(slot, self.config.profile.prefill_rows)

    def _frame(self, turns: list[Turn]) -> None:
        turns = [t for t in turns if t.session in self.turns and self._has_room(t)]
        if not turns:
            return
        rows = [Row(turn.track.slot, turn.next_text()) for turn in turns]
        with self._blame(turns):
            out = self.runner.frame(rows)
            for turn, codes, ended in zip(turns, out.codes, out.ended, strict=True):
                self._made(turn, codes, bool(ended))

    def _has_room(self, turn: Turn) -> bool:
        """Room for one more position, or the turn ends here."""
        turn.positions += 1
        if turn.positions > self.config.max_context:
            self._last_frame(turn, FinishReason.LENGTH)
        elif not self.runner.room(turn.track.slot, turn.positions):
            self._end([turn], Unavailable(NO_MEMORY))
        else:
            return True
        return False

    def _made(self, turn: Turn, codes: Codes, ended: bool) -> None:
        track = turn.track
        if ended:
            self._last_frame(turn, FinishReason.STOP)
            return
        turn.codes.append(codes)
        track.made += 1
        if track.made >= turn.most_frames:
            self._last_frame(turn, FinishReason.LENGTH)

    def _last_frame(self, turn: Turn, reason: FinishReason) -> None:
        """The talker makes no more; the turn ends when the codec has caught up."""
        track = turn.track
        track.finished = True
        turn.reason = reason if track.made else FinishReason.NO_AUDIO
        self._finish_if_said(turn)

    def _finish_if_said(self, turn: Turn) -> None:
        track = turn.track
        if track.finished and track.voiced == track.made:
            self._finish(turn, turn.reason)

    def _voice(self, turns: list[Turn], frames: int) -> None:
        """Start the codec, if it is free; a listener who has heard nothing waits for no frame."""
        if not turns or self.speaking is not None:
            return
        for turn in turns:
            turn.track.voicing = frames
        sound = self.runner.voice([turn.track.slot for turn in turns], frames)
        self.speaking = Speaking(turns, frames, sound)
        if any(turn.track.deadline_s is None for turn in turns):
            self._collect(wait=True)

    def _collect(self, *, wait: bool = False) -> None:
        """Send what the codec has decoded, if it is done, and free the slots it was at."""
        speaking = self.speaking
        if speaking is None or not (wait or speaking.sound.done()):
            return
        self.speaking = None
        with self._blame(speaking.turns):
            pcm, now = speaking.sound.result(), self.clock()
            for turn, samples in zip(speaking.turns, pcm, strict=True):
                self._send(turn, samples, speaking.frames, now)
        for turn in speaking.turns:
            turn.track.voicing = 0
        self.free += self.left
        self.left.clear()

    def _send(self, turn: Turn, pcm: Pcm, frames: int, now: float) -> None:
        codes, turn.codes = np.stack(turn.codes[:frames]), turn.codes[frames:]
        turn.track.sent(frames, now)
        turn.session.outbox.put(Chunk(pcm.copy(), codes))
        self._finish_if_said(turn)

    @contextmanager
    def _blame(self, turns: list[Turn]) -> Iterator[None]:
        """Turn a fault in a batch into the end of the sessions in it, and of no others."""
        try:
            yield
        except VivaceError as error:
            self._end(turns, error)
        except Exception:
            log.exception("a step of %d sessions failed", len(turns))
            self._end(turns, EngineFailure("the engine failed at this request; see its log"))

    def _finish(
        self,
        turn: Turn,
        reason: FinishReason,
        *,
        error: VivaceError | None = None,
        drop: bool = False,
    ) -> None:
        """The one way out: terminal event, slot and pages back."""
        if self.turns.pop(turn.session, None) is None:
            return
        if turn.track.seated:
            self.runner.close(turn.track.slot)
            (self.left if turn.track.voicing else self.free).append(turn.track.slot)
        self.on_done(turn.session)
        tokens = len(turn.session.prompt_ids)
        done = Done(reason, turn.track.voiced, tokens, turn.seed, error)
        turn.session.outbox.finish(done, drop=drop)

    def _end(self, turns: Iterable[Turn], error: VivaceError) -> None:
        for turn in list(turns):
            self._finish(turn, FinishReason.ERROR, error=error)
