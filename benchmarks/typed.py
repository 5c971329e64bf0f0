"""Texts typed word by word: what a first sound needs, how soon it comes, whose the silences are.

A frame of 80 ms stands on a token of the text, so a sound cannot come before the tokens up to its
frame are certain. Which those are is counted without a clock: the checkpoint speaks each text once
in this process, and the engine's own intake reads its words one by one. Against that the times
that a client meets are held: a silence is the text's fault until `BUDGET_S` after the word that
the next frame stands on, and from then on the engine's.
"""

import asyncio
import math
import statistics
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from talk import Figures, Talk, link, percentiles

from vivace import Engine, SpeechRequest
from vivace.audio.onset import Onset
from vivace.checkpoint.embedded import embedded
from vivace.checkpoint.synth import write_synthetic
from vivace.config import EngineConfig
from vivace.session import Session
from vivace.text.intake import Intake
from vivace.text.tokenize import Tokenizer
from vivace.types import SAMPLE_RATE, SAMPLES_PER_FRAME

TEXTS = (
    "Hello there, how are you today?",
    "The train to the coast leaves at nine.",
    "I have found three places near you.",
    "Please hold the line for a moment.",
    "That is a very good question.",
    "Your order will be there tomorrow.",
)
# By name: is it the embedded voice, and how many tokens stand before the first frame?
SETUPS = {
    "embedded voice": (True, 0),
    "embedded voice, text_lead 1": (True, 1),
    "random weights that sound at once": (False, 0),
}
WORD_S, TURNS = 0.2, 60
TURN_S = 60.0  # a turn that takes longer hangs
QUIET_S = 0.25
BUDGET_S = 0.06  # from a word to the sound of the frame that waited for it
SEED = 1


@dataclass(frozen=True, slots=True)
class Need:
    """What a checkpoint needs of one text."""

    frames: int  # up to the first audible one
    after: tuple[int, ...]  # tokens that are certain after each word
    ahead: int = 0  # tokens before the first frame

    @property
    def words(self) -> int:
        """How many must be there before there can be a sound."""
        return self.word_of(self.frames - 1) + 1

    def word_of(self, frame: int) -> int:
        """The word that a frame waits for; one more than there are is the end of the text."""
        return bisect_left(self.after, frame + self.ahead + 1)


def needs(
    folder: Path, ahead: int = 0, texts: Sequence[str] = TEXTS
) -> tuple[dict[str, Need], list[float]]:
    """Counted by the engine itself, and the processor's seconds from a last word to its sound."""
    tokenizer = Tokenizer.from_dir(folder)
    found, took_s = dict[str, Need](), list[float]()
    with Engine(folder, config=EngineConfig(text_lead=ahead)) as engine:
        sampling = replace(engine.defaults, seed=SEED)
        for text in texts:
            session = engine.say(text, SpeechRequest(trim=False, sampling=sampling))
            pcm = np.concatenate([chunk.pcm for chunk in session])
            after = certain(text, tokenizer, engine.spec.piece_s)
            found[text] = Need(silent_frames(pcm) + 1, after, ahead)
            request = SpeechRequest(sampling=sampling)
            took_s += [
                work_s(engine.open(request), text.split()[: found[text].words]) for _ in range(3)
            ]
    return found, took_s


def work_s(session: Session, words: list[str]) -> float:
    """What both lanes do for a first sound once the word that it waited for is there.

    Time of processors, which other programs do not lengthen much; on an idle machine with two
    cores the time that passes is less, for the codec works beside the talker.
    """
    *early, last = words
    for word in early:
        session.append(f"{word} ")
    idle_s = time.process_time()
    time.sleep(QUIET_S)
    while time.process_time() - idle_s > QUIET_S / 20:
        idle_s = time.process_time()
        time.sleep(QUIET_S)
    begun_s = time.process_time()
    session.append(f"{last} ")
    session.outbox.wait()
    took_s = time.process_time() - begun_s
    session.cancel()
    return took_s


def silent_frames(pcm: np.ndarray) -> int:
    """Frames that are over before the onset is known, the last of them apart."""
    onset = Onset()
    frames = range(0, len(pcm), SAMPLES_PER_FRAME)
    heard = (len(onset.feed(pcm[at : at + SAMPLES_PER_FRAME])) for at in frames)
    return next(number for number, samples in enumerate(heard) if samples)


def certain(text: str, tokenizer: Tokenizer, piece_s: float) -> tuple[int, ...]:
    """How many tokens the engine has after each word."""
    intake = Intake(tokenizer.stream(), "auto", piece_s=piece_s, most_tokens=8192, normalize=True)
    after = []
    for word in text.split():
        intake.feed(f"{word} ")
        after.append(len(intake.ids))
    return tuple(after)


@dataclass(slots=True)
class Heard:
    """One turn: when its words went out, and when how many samples came back."""

    need: Need
    sent_s: list[float] = field(default_factory=list)  # each word, then the end of the text
    pieces: list[tuple[float, int]] = field(default_factory=list)

    @property
    def words_needed(self) -> int:
        """Words that had gone out when the first sound came."""
        return bisect_left(self.sent_s[:-1], self.pieces[0][0])

    @property
    def first_s(self) -> float:
        """From the word that the first sound stands on to that sound."""
        return self.pieces[0][0] - self.sent_s[self.need.words - 1]

    def silences(self) -> Iterator[tuple[float, float]]:
        """Each time the listener runs dry: how long for want of text, how long for the engine."""
        samples, dry_s = 0, self.pieces[0][0]
        for at_s, count in self.pieces:
            if samples and at_s > dry_s:
                frames = self.need.frames - 1 + math.ceil(samples / SAMPLES_PER_FRAME)
                text_s = self.sent_s[min(self.need.word_of(frames), len(self.sent_s) - 1)]
                due_s = max(dry_s, text_s + BUDGET_S)
                yield min(at_s, due_s) - dry_s, max(0.0, at_s - due_s)
            samples += count
            dry_s = max(dry_s, at_s) + count / SAMPLE_RATE


async def words(url: str, needs: dict[str, Need], turns: int = TURNS) -> Figures:
    """A word every 200 ms, over one connection."""
    heard = []
    async with link(url) as socket:
        talk = Talk(socket)
        await talk.say("session.update", seed=SEED)
        for turn in range(turns):
            text = TEXTS[turn % len(TEXTS)]
            async with asyncio.timeout(TURN_S):
                heard.append(await _turn(talk, text, Heard(needs[text])))
    silences = [silence for turn in heard for silence in turn.silences()]
    needed = [turn.words_needed for turn in heard]
    by_count = [turn.need.words for turn in heard]
    return {
        "turns": len(heard),
        "words_per_s": 1 / WORD_S,
        "tokens_to_first_sound": _counted([turn.need.frames + turn.need.ahead for turn in heard]),
        "words_to_first_sound": _counted(by_count),
        "words_sent_at_first_sound": _counted(needed),
        "mean_words_to_first_sound": round(statistics.mean(by_count), 2),
        "first_sound_after_its_word_ms": percentiles([turn.first_s for turn in heard]),
        "silences": len(silences),
        "silence_for_want_of_text_s": round(sum(text_s for text_s, _ in silences), 2),
        "silences_of_the_engine": sum(engine_s > 0.0 for _, engine_s in silences),
        "silence_of_the_engine_s": round(sum(engine_s for _, engine_s in silences), 3),
    }


def _counted(numbers: Sequence[int]) -> dict[str, int]:
    return {str(n): numbers.count(n) for n in sorted(set(numbers))}


async def _turn(talk: Talk, text: str, heard: Heard) -> Heard:
    listening = asyncio.create_task(_listen(talk, heard))
    for word in text.split():
        heard.sent_s.append(await talk.say("input_text.append", text=f"{word} "))
        await asyncio.sleep(WORD_S)
    heard.sent_s.append(await talk.say("input_text.end"))
    await listening
    return heard


async def _listen(talk: Talk, heard: Heard) -> None:
    while (told := await talk.hear())["type"] != "speech.audio.done":
        if told["type"] == "sound":
            heard.pieces.append((told["at_s"], told["samples"]))


@contextmanager
def checkpoint(*, voice: bool) -> Iterator[Path]:
    """The embedded voice, or one of random weights that sounds from its first frame on."""
    if voice:
        yield embedded()
        return
    with TemporaryDirectory() as folder:
        out = Path(folder) / "sounds-at-once"
        write_synthetic(out, until_text=True)
        yield out
