"""One request's line in the results: what a listener met, from what came back."""

from dataclasses import asdict, dataclass, field

from vivace.bench.answer import Answer
from vivace.bench.listener import gaps_s, heard_at, longest_silence_s, loud, onset, play
from vivace.bench.sound import BadSound, Sound, unpack
from vivace.bench.texts import Text

STEADY_BUFFER_S = 0.1  # the second clock of underruns
_GOOD_ENDS = {None, "stop", "eos"}


@dataclass(slots=True)
class Record:
    """Times in milliseconds after the first body byte was sent, None where nothing came."""

    index: int
    text: str
    characters: int
    due_s: float  # after the start of the run
    warmup: bool
    client: str = "plain"  # slow, leaving
    kind: str = "ok"
    detail: str = ""
    status: int | None = None
    finish: str | None = None
    lag_ms: float = 0.0  # sent this much later than it was due, through our own fault
    setup_ms: float = 0.0
    ttfb_ms: float | None = None
    playable_ms: float | None = None
    audible_ms: float | None = None
    leading_silence_ms: float | None = None
    e2e_ms: float | None = None
    audio_s: float = 0.0
    window_audio_s: float = 0.0  # of it, what arrived in the measured window
    rtf: float | None = None
    stalls_ms: list[float] = field(default_factory=list)  # without a buffer
    stalls_100_ms: list[float] = field(default_factory=list)  # with one of 100 ms
    chunks: int = 0
    median_gap_ms: float | None = None
    max_gap_ms: float | None = None
    silence_s: float = 0.0  # the longest inside the speech
    runaway: bool = False  # far longer than its text can take

    def row(self) -> dict[str, object]:
        """For JSON; what is empty or false is left out."""
        kept = {"index", "text", "characters", "due_s", "warmup", "kind", "lag_ms", "audio_s"}
        return {
            name: round(value, 6 if name == "due_s" else 3) if isinstance(value, float) else value
            for name, value in asdict(self).items()
            if value or name in kept
        }


def judge(
    record: Record, answer: Answer, text: Text, window_s: tuple[float, float]
) -> Sound | None:
    """Fill in the record; the sound, if it is one.

    `window_s` is the measured part of the run on the answer's clock.
    """
    try:
        sound = unpack(answer.arrivals, answer.rate) if answer.arrivals else None
    except BadSound as bad:
        sound = None
        answer.fail(bad.kind, bad)
    if sound is None:
        answer.fail("no_audio", "an empty body")
    elif answer.finish not in _GOOD_ENDS:
        answer.fail("length" if answer.finish in {"length", "max_tokens"} else "bad_end")
    record.kind, record.detail, record.status = answer.kind, answer.detail, answer.status
    record.finish = answer.finish
    record.setup_ms = answer.setup_s * 1e3
    if answer.arrivals:
        record.ttfb_ms = (answer.arrivals[0][0] - answer.sent_s) * 1e3
    if answer.kind == "ok":
        record.e2e_ms = (answer.ended_s - answer.sent_s) * 1e3
    if sound and answer.kind in {"ok", "left", "truncated", "timeout", "length", "bad_end"}:
        _listen(record, sound, answer.sent_s, window_s)
        record.runaway = record.audio_s > longest_speech_s(text)
        return sound
    return None


def _listen(record: Record, sound: Sound, sent_s: float, window_s: tuple[float, float]) -> None:
    pieces, rate = sound.pieces, sound.rate
    playback = play(pieces, rate)
    windows = loud(sound.samples, rate)
    first = onset(windows, rate)
    record.playable_ms = (pieces[0][0] - sent_s) * 1e3
    if first is not None:
        record.audible_ms = (heard_at(first, pieces, playback, rate) - sent_s) * 1e3
        record.leading_silence_ms = first / rate * 1e3
    record.audio_s = sound.seconds
    record.window_audio_s = sum(n for at, n in pieces if window_s[0] <= at < window_s[1]) / rate
    if record.e2e_ms is not None:
        record.rtf = record.e2e_ms / 1e3 / sound.seconds
    record.stalls_ms = [round(s * 1e3, 3) for s in playback.stalls_s]
    steady = play(pieces, rate, STEADY_BUFFER_S)
    record.stalls_100_ms = [round(s * 1e3, 3) for s in steady.stalls_s]
    record.chunks, gaps = len(pieces), sorted(gaps_s(pieces))
    if gaps:
        record.median_gap_ms, record.max_gap_ms = gaps[len(gaps) // 2] * 1e3, gaps[-1] * 1e3
    record.silence_s = longest_silence_s(windows)


def longest_speech_s(text: Text) -> float:
    """Three times what a slow speaker takes, and two seconds: longer is a runaway."""
    a_second = 3.0 if text.chinese else 10.0  # characters
    return 2.0 + 3.0 * len(text.text) / a_second
