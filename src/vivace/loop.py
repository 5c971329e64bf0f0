"""The engine's loop: takes words from other threads, plans steps, starts them, publishes results.

Owner of slots and turns. Everything here runs on one thread and nothing here blocks: a step is
started on one of the runner's two lanes and collected when it is done. The only way in is `tell`,
and the sessions' outboxes are the only ways out.
"""

import logging
import math
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from vivace.audio.guards import powers
from vivace.config import EngineConfig
from vivace.errors import DeviceLost, EngineFailure, Overloaded, Unavailable, VivaceError
from vivace.meters import CANCEL_S, MARGIN_S, WAIT_S, Counts, Meters
from vivace.schedule.admission import Admission
from vivace.schedule.costs import Costs
from vivace.schedule.policy import Plans, Policy
from vivace.schedule.track import Track
from vivace.steps import Speaking, Steps, Talking
from vivace.trace import Trace, Untraced
from vivace.turns import Cancel, Listener, More, Turn, Word
from vivace.types import (
    SAMPLE_RATE,
    SAMPLES_PER_FRAME,
    Chunk,
    Codes,
    Cut,
    Done,
    FinishReason,
    Frames,
    Pcm,
    Pending,
    Row,
)
from vivace.watch import Watch, sub_seed

log = logging.getLogger("vivace")

NOT_NUMBERS = "the model's numbers broke down at this request; another seed may not"
NO_MEMORY = "no memory is left for this session; try again later, or lower --max-sessions"
EARLY_S = 0.001  # a step is started so long before the one before it should be over
IDLE_S = 0.5  # longest sleep of an idle loop: the heartbeat of an idle engine
MOST_FAULTS = 3  # batches that fail without a chunk of sound between them: then it is the engine
PAUSE_S = 2.0  # a loop that came round so late was stopped: it sleeps `IDLE_S` at the most
HANGS = 10  # times what a step should take, and `hang_s` more: then it never ends


class Loop:
    """Serves sessions with one runner until told to stop."""

    def __init__(
        self,
        runner: Steps,
        config: EngineConfig,
        clock: Callable[[], float],
        on_done: Callable[[Listener], None],
        costs: Costs,
        policy: Plans | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.runner, self.config, self.clock, self.on_done = runner, config, clock, on_done
        self.costs, self.note, self.counts = costs, trace or Untraced(), Counts()
        self.meters = Meters()
        clockwise = Policy(config.profile, costs, config.max_sessions)
        self.policy = policy or clockwise
        self.admission = Admission(
            clockwise.pacer, config.max_sessions, config.max_queue, config.slo_ttfa_s
        )
        self.turns: dict[Listener, Turn] = {}  # all of them
        self.parked: dict[Listener, Turn] = {}  # those whose model is yet to be looked for
        self.waiting: dict[Listener, Turn] = {}  # those with something to say and no slot
        self.seats: dict[Track, Turn] = {}  # those with a slot, in the order they got it
        self.using = Counter[int]()  # how many of both there are of each model
        self.free = list(range(config.max_sessions - 1, -1, -1))
        self.talking: deque[Talking] = deque()  # token steps that run, oldest first
        self.speaking: Speaking | None = None  # the codec step that runs
        self.left: list[int] = []  # slots given up while the codec is at them
        self.tokens_free_s = 0.0  # when the last token step was collected
        self.tokens_end_s = 0.0  # when the last token step should be over
        self.beat_s = self.woke_s = clock()
        self.stopping = False
        self.broken: VivaceError | None = None  # what ended it, if nobody told it to stop
        self._faults = 0  # of batches, since the last chunk of sound
        self._words: queue.SimpleQueue[Word] = queue.SimpleQueue()
        self._wake = threading.Event()
        runner.watch(self.wake)

    def tell(self, word: Word) -> None:
        """Leave word, from any thread."""
        self._words.put(word)
        self._wake.set()

    def wake(self) -> None:
        """Something outside has changed: look again."""
        self._wake.set()

    def run(self) -> None:
        """Step until stopped, sleeping where nothing can run; the body of the engine's thread.

        A fault that is no request's own ends it: nobody knows what state it has left. Then
        `broken` says which, every session has ended with it, and the runner is asked no more.
        """
        try:
            while not self.stopping:
                if not self.step():
                    self._rest()
                self._wake.clear()
            self._listen()
            self._collect(wait=True)
        except VivaceError as error:
            log.exception("the engine gives up")
            self.broken = error
        except Exception:
            log.exception("a step failed")
            self.broken = EngineFailure("the engine failed; see its log")
        self.dismiss()
        self.note.close()

    def dismiss(self) -> None:
        """End every session, also one whose word has not been heard yet. For after `run`."""
        while not self._words.empty():
            if isinstance(word := self._words.get(), Turn):
                self._take_in(word)
        if self.broken is None:
            self._end(self.turns.values(), Unavailable("the engine was closed"))
            return
        turns, self.turns = list(self.turns.values()), {}
        for turn in turns:
            self._tell_end(turn, FinishReason.ERROR, self.broken)

    def _rest(self) -> None:
        """Sleep until word comes, a step is done, or it is time to plan again.

        Between two looks at the lanes nothing is planned: the words' thread needs the interpreter.
        """
        until_s = self._until_s(self.clock())
        poll_s = self.runner.poll_s if self.talking or self.speaking else IDLE_S
        while (rest_s := until_s - self.clock()) > 0.0:
            if self._wake.wait(min(rest_s, poll_s)) or self._ripe():
                return

    def _until_s(self, now: float) -> float:
        """When to plan again, even if nothing happens until then."""
        times = [now + IDLE_S, self.policy.due_s]
        if 0 < len(self.talking) < self.runner.depth:
            times.append(self.tokens_end_s - EARLY_S)
        return min(t for t in times if t > now)

    def _ripe(self) -> bool:
        """Is a step done?"""
        sound = self.speaking is not None and self.speaking.sound.done()
        return sound or (bool(self.talking) and self.talking[0].done())

    def step(self) -> bool:
        """Publish what is done, take words, seat who waits, plan, start. False if nothing moved."""
        moved = self._collect()
        now = self.clock()
        if now - self.beat_s > PAUSE_S:
            self.woke_s = now
        self.beat_s = now
        self._check_hung(now)
        self._listen()
        if self.parked:
            self._fetch(now)
        self._seat(now)
        talk, speak = self._free(now)
        if not (talk or speak):
            return moved
        self._look(now)
        todo = self.policy.plan(list(self.seats), now, talk=talk, speak=speak)
        cold, warm = ([self.seats[t] for t in part] for part in (todo.prefill, todo.frame))
        started = self._speak([self.seats[t] for t in todo.voice], todo.voice_frames, now)
        started |= self._talk(cold, warm, now)
        self.counts.steps += started
        self.counts.starved += todo.starved
        return moved or started

    def _check_hung(self, now: float) -> None:
        """A step that never ends would hold its sessions for ever. Raises EngineFailure.

        The time counts from when this loop last came back from a long pause: then the whole process
        was stopped, and its steps with it.
        """
        since_s, most_s = max(now - self.config.hang_s, self.woke_s), self.config.hang_s
        if (sound := self.speaking) is not None and sound.since_s < since_s:
            most_s += HANGS * self.costs.voice_s(len(sound.turns), sound.frames)
            if now - max(sound.since_s, self.woke_s) > most_s:
                raise EngineFailure("a step of the codec does not end")
        if self.talking and (step := self.talking[0]).since_s < since_s:
            laid = [turn for turn, _ in step.laid]
            most_s = self.config.hang_s + HANGS * self._takes_s(laid, step.turns)
            if now - max(step.since_s, self.woke_s) > most_s:
                raise EngineFailure("a step of the talker does not end")

    def _free(self, now: float) -> tuple[bool, bool]:
        """May a token step be started, and a codec step?

        A second token step only when the first is about to be over: who comes until then is in it.
        """
        early = not self.talking or now >= self.tokens_end_s - EARLY_S
        return early and len(self.talking) < self.runner.depth, self.speaking is None

    def _listen(self) -> None:
        while not self._words.empty():
            word = self._words.get()
            if isinstance(word, Turn):
                self._take_in(word)
            elif (turn := self.turns.get(word.session)) is not None:
                if isinstance(word, Cancel):
                    self._finish(turn, FinishReason.CANCELLED, drop=True)
                    if word.at_s is not None:
                        self.meters.cancel.add(CANCEL_S, self.clock() - word.at_s)
                else:
                    self._more(turn, word)

    def _take_in(self, turn: Turn) -> None:
        turn.watch = Watch.over(turn.session.request, turn.sampling, self.config)
        self.turns[turn.session] = turn

    def _more(self, turn: Turn, more: More) -> None:
        turn.script.append(more.ids, more.most_frames, last=more.last)
        turn.bound()
        if turn.script.over:
            self._said_all(turn)
        elif turn.track.seated:
            self._look_at_text(turn, self.clock())
        elif turn.session in self.waiting or turn.session in self.parked:
            return
        elif turn.script.prompt_ready:
            turn.track.arrived_s = self.clock()
            self.parked[turn.session] = turn

    def _fetch(self, now: float) -> None:
        """Admit those whose model is in memory; the others wait for it, for a while."""
        for model in {turn.track.model for turn in self.parked.values()}:
            turns = [turn for turn in self.parked.values() if turn.track.model == model]
            there = False
            with self._blame(turns):
                there = self.runner.fetch(model, self._busy(), self.costs)
            for turn in turns:
                if there:
                    del self.parked[turn.session]
                    self._admit(turn)
                elif now - turn.track.arrived_s > self.config.load_wait_s:
                    text = "its model is not in memory, and others are in use"
                    again_s = max(1.0, self.config.load_wait_s)
                    self._end([turn], Overloaded(text, retry_after_s=again_s))

    def _busy(self) -> set[int]:
        """Models with sessions, or with steps under way."""
        flying = (turn for step in self.talking for turn in (*step.turns, *dict(step.laid)))
        return {
            *(turn.track.model for turn in flying),
            *(model for model, turns in self.using.items() if turns),
        }

    def _admit(self, turn: Turn) -> None:
        """Let a newcomer with something to say wait for a slot, or send it away with a time."""
        self._reckon(turn, 1)
        forecast = self.admission.forecast(self.seated, len(self.waiting))
        now = turn.track.arrived_s = self.beat_s  # the step's: nobody is seated before it
        self.waiting[turn.session] = turn
        self.note(now, "ready", turn.session.id, forecast_s=forecast.first_audio_s)
        if forecast.refused and not turn.session.request.patient:
            self._refuse(turn, forecast.retry_after_s)

    def _reckon(self, turn: Turn, more: int) -> None:
        """Reckon with the costs of the models that are spoken with or waited for."""
        self.using[turn.track.model] += more
        self.costs.use([model for model, turns in self.using.items() if turns])

    def _refuse(self, turn: Turn, retry_after_s: float) -> None:
        self.counts.refused += 1
        self.note(self.clock(), "refused", turn.session.id, retry_after_s=retry_after_s)
        most, slots = self.admission.most, self.config.max_sessions
        text = f"no room: {most} of {slots} sessions can be served at a time now"
        self._end([turn], Overloaded(text, retry_after_s=retry_after_s))

    @property
    def seated(self) -> int:
        """Sessions with a slot; a slot that the codec is still at for one gone is not one."""
        return len(self.seats)

    def _seat(self, now: float) -> None:
        """Give slots to those who wait, oldest first; nobody waits longer than is bearable."""
        new = 0  # that the policy has not seen
        for turn in list(self.waiting.values()):
            if self.free and self.admission.room(
                self.seated, self.policy.young + new, pressed=self.policy.pressed
            ):
                new += 1
                del self.waiting[turn.session]
                self.seats[turn.track] = turn
                turn.track.slot, turn.seated_s = self.free.pop(), now
                self.meters.wait.add(WAIT_S, now - turn.track.arrived_s)
                self.note(now, "seated", turn.session.id, slot=turn.track.slot, seated=self.seated)
                with self._blame([turn]):
                    self._open_slot(turn)
            elif turn.session.request.patient:
                continue
            elif self.admission.tired(now - turn.track.arrived_s):
                self._refuse(turn, self.admission.again_s(self.seated))

    def _open_slot(self, turn: Turn) -> None:
        """Make its slot a fresh one, for this attempt."""
        seed = sub_seed(turn.seed, turn.watch.attempt)
        self.runner.open(turn.track.slot, turn.sampling, seed, turn.track.model)

    def _look(self, now: float) -> None:
        """Bring tracks up to date, where something outside can have changed them."""
        full, new = self.config.profile.ahead_frames, list[Turn]()
        for turn in list(self.seats.values()):
            track = turn.track
            if not (turn.script.ended and track.prefilled):
                self._look_at_text(turn, now)
                if track.text_ready and not track.prefilled and turn.first_text is None:
                    new.append(turn)
            if track.voiced - track.held - track.taken >= full:
                self._look_at_reader(turn, now)
        for turn in new[: self.config.profile.prefills]:  # the others wait for the policy
            with self._blame([turn]):
                self._take_prompt(turn)

    def _look_at_text(self, turn: Turn, now: float) -> None:
        """Is there text for the next frame? Sound that waited for it is not late for a while."""
        ready = turn.text_ready
        if ready and not turn.track.text_ready:
            turn.excused_s = now + self.admission.first_s(self.seated)
        turn.track.text_ready = ready

    def _take_prompt(self, turn: Turn) -> None:
        """Take the piece's prompt; if it has been laid down before, the next step has a frame."""
        slot, prompt = turn.track.slot, turn.script.prompt(turn.track.made)
        if not self.runner.room(slot, len(prompt.text)):
            raise Unavailable(NO_MEMORY)
        turn.track.prefilled = self.runner.begin(slot, prompt)
        self.costs.met(known=turn.track.prefilled)
        turn.first_text = prompt.text[-1]
        turn.positions = len(prompt.text) - 1

    def _look_at_reader(self, turn: Turn, now: float) -> None:
        """Has a reader with a full buffer taken something? If not for too long, cut it off."""
        taken = turn.session.outbox.taken_frames
        if turn.stalled_s is None or taken > turn.track.taken:
            turn.stalled_s = now
        turn.track.taken = taken
        if now - turn.stalled_s > self.config.stall_s:
            log.warning("%s: its reader took nothing for too long", turn.session.id)
            self._finish(turn, FinishReason.CANCELLED, drop=True)

    def _talk(self, cold: list[Turn], warm: list[Turn], now: float) -> bool:
        """Start a token step, of those whom the codec's step has not ended."""
        cold = [t for t in cold if t.session in self.turns]
        laid = [(turn, part) for turn in cold if (part := self._prefill(turn)) is not None]
        warm = [t for t in warm if t.session in self.turns and self._has_room(t)]
        frames = self._frame(warm) if warm else None
        if not (laid or frames):
            return False
        self.talking.append(Talking(now, laid, warm, frames))
        cold = [turn for turn, _ in laid]
        self.tokens_end_s = max(self.tokens_end_s, now) + self._takes_s(cold, warm)
        return True

    def _prefill(self, turn: Turn) -> Pending[bool] | None:
        part = None
        with self._blame([turn]):
            if turn.first_text is None:
                self._take_prompt(turn)
            part = self.runner.prefill(turn.track.slot, self.config.profile.prefill_rows)
            turn.track.laying = True
        return part

    def _frame(self, turns: list[Turn]) -> Pending[Frames] | None:
        rows, frames = [Row(turn.track.slot, turn.next_text()) for turn in turns], None
        with self._blame(turns, batch=True):
            frames = self.runner.frame(rows)
            for turn in turns:
                turn.track.flying += 1
        return frames

    def _has_room(self, turn: Turn) -> bool:
        """Room for one more position, or the piece ends here, once its frames under way are in."""
        track = turn.track
        full = turn.positions == self.config.max_context
        if full or track.made + track.flying >= turn.most_frames:
            if not track.flying:
                self._cut_short(turn)
            return False
        if not self.runner.room(track.slot, turn.positions + 1):
            self._end([turn], Unavailable(NO_MEMORY))
            return False
        turn.positions += 1
        return True

    def _made(self, turn: Turn, codes: Codes, ended: bool) -> None:
        track = turn.track
        track.flying -= 1
        if track.finished or not track.prefilled:  # started before its end of speech was known
            return
        if ended:
            self._piece_over(turn)
            return
        turn.codes.append(codes)
        track.made += 1
        if turn.watch.echo.feed(int(codes[0])):
            self._cut(turn, Cut.LOOP, track.made)
        elif track.made >= turn.most_frames:
            self._cut_short(turn)

    def _cut_short(self, turn: Turn) -> None:
        """The piece ends at a limit: that of its text, which is a guard, or another."""
        turn.reason, made = FinishReason.LENGTH, turn.track.made
        if turn.capped and made < turn.most_in_all and turn.positions < self.config.max_context:
            self._cut(turn, Cut.CAP, made)
        else:
            self._piece_over(turn)

    def _cut(self, turn: Turn, cut: Cut, frame: int) -> None:
        """A guard ends the piece at that frame; what nobody has heard is drawn again, all of it."""
        watch, turn.reason = turn.watch, FinishReason.LENGTH
        self.counts.cuts[cut] += 1
        self.note(self.clock(), "cut", turn.session.id, cut=cut.value, frame=frame)
        watch.cut, watch.again = cut, watch.can_redraw(frame)
        if watch.again:
            self._said_all(turn)
        elif not turn.track.finished:
            self._piece_over(turn)

    def _piece_over(self, turn: Turn) -> None:
        """Go on with the next piece in the same slot: a new prompt, the same sound."""
        track = turn.track
        turn.script.next_piece()
        track.prefilled, turn.first_text = False, None
        turn.positions, turn.from_frame = 0, track.made
        turn.bound()
        if turn.script.over or track.made >= turn.most_in_all:
            self._said_all(turn)
        else:
            turn.watch.next_piece()

    def _said_all(self, turn: Turn) -> None:
        """The talker makes no more; the turn ends when the codec has caught up."""
        turn.track.finished = True
        self._finish_if_said(turn)

    def _finish_if_said(self, turn: Turn) -> None:
        track = turn.track
        if not track.finished or track.voiced != track.made:
            return
        if turn.watch.again or self._unheard(turn):
            self._start_over(turn)
            return
        rest = [*turn.early, *([] if turn.onset is None else [turn.onset.finish()])]
        if rest:
            turn.early.clear()
            self._publish(turn, 0, np.concatenate(rest), self.clock())
        for chunk in turn.watch.rest():
            turn.session.outbox.put(chunk)
        self._finish(turn, turn.reason if track.made else FinishReason.NO_AUDIO)

    def _unheard(self, turn: Turn) -> bool:
        """Did nothing that can be heard come of all its text, and may it be drawn again?"""
        silent = not turn.track.made or (turn.onset is not None and turn.onset.silent)
        return silent and turn.track.seated and turn.watch.can_redraw(0)

    def _start_over(self, turn: Turn) -> None:
        """Draw it again, with another seed; nobody has heard any of it."""
        turn.start_over()
        self.counts.redraws += 1
        self.note(self.clock(), "redraw", turn.session.id, attempt=turn.watch.attempt)
        with self._blame([turn]):
            self.runner.close(turn.track.slot)
            self._open_slot(turn)

    def _speak(self, turns: list[Turn], frames: int, now: float) -> bool:
        """Start the codec."""
        if not turns:
            return False
        with self._blame(turns, batch=True):
            sound = self.runner.voice([turn.track.slot for turn in turns], frames)
            for turn in turns:
                turn.track.voicing = min(frames, turn.track.pending)
            self.speaking = Speaking(now, turns, frames, sound)
        return self.speaking is not None

    def _collect(self, *, wait: bool = False) -> bool:
        """Publish the steps that are done, sound first."""
        moved = False
        if (speaking := self.speaking) is not None and (wait or speaking.sound.done()):
            self._spoken(speaking)
            moved = True
        while self.talking and (wait or self.talking[0].done()):
            self._talked(self.talking.popleft())
            moved = True
        return moved

    def _spoken(self, speaking: Speaking) -> None:
        """Send what the codec has decoded, and free the slots it was at."""
        self.speaking = None
        with self._blame(speaking.turns, batch=True):
            pcm, now = speaking.sound.result(), self.clock()
            self._learn_sound(speaking, now)
            for turn, samples, power in zip(speaking.turns, pcm, powers(pcm), strict=True):
                self._send(turn, samples, power[: turn.track.voicing].tolist(), now)
        for turn in speaking.turns:
            turn.track.voicing = 0
        self.free += self.left
        self.left.clear()

    def _talked(self, talking: Talking) -> None:
        """Take in what a token step has made."""
        self._learn_tokens(talking)
        for turn, part in talking.laid:
            with self._blame([turn]):
                turn.track.prefilled = part.result()
            turn.track.laying = False
        if talking.frames is None:
            return
        with self._blame(talking.turns, batch=True):
            out = talking.frames.result()
            if out.spoilt is not None:
                self._spoilt([t for t, bad in zip(talking.turns, out.spoilt, strict=True) if bad])
            for turn, codes, ended in zip(talking.turns, out.codes, out.ended, strict=True):
                self._made(turn, codes, bool(ended))

    def _takes_s(self, cold: Sequence[Turn], warm: Sequence[Turn]) -> float:
        """What a token step should take."""
        prompts_s = sum(self.costs.tokens[turn.track.model].prompt_s for turn in cold)
        frame_s = self.costs.frame_s(len(warm), warm[0].track.model) if warm else 0.0
        return prompts_s + frame_s

    def _learn_tokens(self, talking: Talking) -> None:
        """Correct the costs by a step."""
        cold, warm = [turn for turn, _ in talking.laid], talking.turns
        now, said_s = self.clock(), self._takes_s(cold, warm)
        took_s = now - max(talking.since_s, self.tokens_free_s)
        self.tokens_free_s = now
        rows, prompts, profile = len(warm), len(cold), self.config.profile
        if not cold:
            self.costs.learn("frame", said_s, took_s, warm[0].track.model)
            self.meters.stepped("frame", rows, self._room(profile.frame_rows), took_s)
        else:  # what is beyond a frame alone is the prompts'
            frame_s = self._takes_s((), warm)
            for model in {turn.track.model for turn in cold}:
                self.costs.learn("prefill", said_s - frame_s, took_s - frame_s, model)
            self.meters.stepped("prompt", prompts, self._room(profile.prefills), took_s)
        self.note(
            now, "step", lane="tokens", rows=rows, prompts=prompts, took_s=took_s, said_s=said_s
        )

    def _learn_sound(self, speaking: Speaking, now: float) -> None:
        rows, frames, took_s = len(speaking.turns), speaking.frames, now - speaking.since_s
        said_s = self.costs.voice_s(rows, frames)
        self.costs.learn("voice", said_s, took_s)
        self.meters.stepped("codec", rows, self._room(self.config.profile.codec_rows), took_s)
        self.note(now, "step", lane="sound", rows=rows, frames=frames, took_s=took_s, said_s=said_s)

    def _room(self, most: int) -> int:
        """Rows that a step could have: what the profile allows, of the sessions there may be."""
        return min(most, self.config.max_sessions)

    def _spoilt(self, turns: list[Turn]) -> None:
        """What they make is no sound."""
        self.counts.spoilt += len(turns)
        self._end(turns, EngineFailure(NOT_NUMBERS, code="not_numbers"))

    def _send(self, turn: Turn, pcm: Pcm, power: list[float], now: float) -> None:
        """Pass on decoded sound, with the mean power of each of its frames."""
        if turn.session not in self.turns:  # it has ended meanwhile
            return
        self._faults, track = 0, turn.track
        if not math.isfinite(sum(power)):
            self._spoilt([turn])
            return
        if (end := turn.watch.silent(track.voiced, power)) is not None:
            self._cut_silence(turn, end)
        frames = track.voicing
        codes, turn.codes = np.array(turn.codes[:frames]), turn.codes[frames:]
        late = track.deadline_s is not None and now > max(track.deadline_s, turn.excused_s)
        self.counts.late += late
        slack_s = None if track.deadline_s is None else track.deadline_s - now
        if slack_s is not None and (late or slack_s >= 0):  # else it was for want of text
            self.meters.margin.add(MARGIN_S, slack_s)
        self.note(now, "chunk", turn.session.id, frames=frames, slack_s=slack_s, late=late)
        turn.unheard.append(codes)
        pcm = pcm[: frames * SAMPLES_PER_FRAME]
        sound = pcm if turn.onset is None else turn.onset.feed(pcm)
        if len(sound) and self._unheard(turn):  # the onset has given up
            self._stop_here(turn, 0)
            self._finish_if_said(turn)
            return
        if track.deadline_s is None:
            sound = self._begin(turn, sound)
        self._publish(turn, frames, sound.copy(), now)
        self._finish_if_said(turn)

    def _cut_silence(self, turn: Turn, end: int) -> None:
        """After `end` of the frames that are decoded there has been silence for too long."""
        self._cut(turn, Cut.SILENCE, turn.track.voiced + end)
        if turn.track.finished:
            self._stop_here(turn, end)

    def _stop_here(self, turn: Turn, frames: int) -> None:
        """The turn ends with so many of the frames that are decoded."""
        track = turn.track
        track.finished, track.voicing = True, frames
        track.made = track.voiced + frames
        del turn.codes[frames:]

    def _begin(self, turn: Turn, sound: Pcm) -> Pcm:
        """What to send of the first sound: nothing, until it outlasts the making of the next.

        Unless text has run dry: who writes decides when the next is made, and waits for the first.
        """
        turn.early.append(sound)
        early = np.concatenate(turn.early)
        more = turn.text_ready or turn.track.pending or turn.track.flying
        if more and len(early) < self.policy.lead_s * SAMPLE_RATE:
            return early[:0]
        turn.early.clear()
        return early

    def _publish(self, turn: Turn, frames: int, pcm: Pcm, now: float) -> None:
        """Send what there is to hear, with the codes of all frames since the last chunk."""
        turn.track.sent(frames, len(pcm) / SAMPLE_RATE, now)
        if len(pcm):
            new = Chunk(pcm, np.concatenate(turn.unheard))
            turn.unheard.clear()
            for chunk in turn.watch.release(new, turn.track.voiced):
                turn.session.outbox.put(chunk)

    @contextmanager
    def _blame(self, turns: list[Turn], *, batch: bool = False) -> Iterator[None]:
        """Turn a fault into the end of the sessions it was met for, and of no others.

        Batches that fail again and again are no session's fault: then it is raised, as is a fault
        of the device.
        """
        try:
            yield
        except DeviceLost:
            raise
        except VivaceError as error:
            self._end(turns, error)
        except Exception:
            log.exception("a step of %d sessions failed", len(turns))
            self._end(turns, EngineFailure("the engine failed at this request; see its log"))
            self._faults += batch
            if self._faults >= MOST_FAULTS:
                raise

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
        self.parked.pop(turn.session, None)
        waited = self.waiting.pop(turn.session, None) is not None
        seated = self.seats.pop(turn.track, None) is not None
        if waited or seated:
            self._reckon(turn, -1)
        if seated:
            if error is None and not drop:
                self.admission.left(self.clock() - turn.seated_s)
            self.runner.close(turn.track.slot)
            (self.left if turn.track.voicing else self.free).append(turn.track.slot)
        self.note(
            self.clock(), "done", turn.session.id, reason=reason.value, frames=turn.track.voiced
        )
        self._tell_end(turn, reason, error, drop=drop)

    def _tell_end(
        self, turn: Turn, reason: FinishReason, error: VivaceError | None, *, drop: bool = False
    ) -> None:
        self.on_done(turn.session)
        tokens = len(turn.session.prompt_ids)
        watch = turn.watch
        done = Done(reason, turn.track.voiced, tokens, turn.seed, error, watch.cut, watch.attempt)
        turn.session.outbox.finish(done, drop=drop)

    def _end(self, turns: Iterable[Turn], error: VivaceError) -> None:
        for turn in list(turns):
            self._finish(turn, FinishReason.ERROR, error=error)
