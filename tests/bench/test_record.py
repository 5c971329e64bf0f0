"""Every measure on a scripted stream, to the stated resolution."""

from collections.abc import Callable

import pytest
from tests.bench.fake import Script, silence, tone, wav

from vivace.bench.answer import Answer
from vivace.bench.record import Record, judge, longest_speech_s
from vivace.bench.texts import Text

TEXT = Text("t", "Good morning, and welcome to the harbour.")
EVER = (0.0, 1e9)


def judged(answer: Answer, window_s: tuple[float, float] = EVER, text: Text = TEXT) -> Record:
    record = Record(0, text.id, len(text.text), 0.0, warmup=False)
    judge(record, answer, text, window_s)
    return record


Played = Callable[..., Answer]

# 120 ms to a WAV header, 60 more to 80 ms of silence, 50 to 160 ms with the tone in the middle,
# then a gap of 400 ms and half a second of tone.
SCRIPT = Script(
    [
        (0.120, wav(b"", 0xFFFFFFFF)),
        (0.060, silence(0.08)),
        (0.050, silence(0.08) + tone(0.08)),
        (0.400, tone(0.5)),
    ]
)


def test_first_byte_first_sample_first_audible_sample(played: Played) -> None:
    """The header is no sound. The tone begins at 160 ms; half of a window before it is loud."""
    record = judged(played(SCRIPT))
    assert record.ttfb_ms == pytest.approx(120, abs=2)
    assert record.playable_ms == pytest.approx(180, abs=2)
    assert record.leading_silence_ms == pytest.approx(150)
    assert record.audible_ms == pytest.approx(180 + 150, abs=2)


def test_audible_time_is_on_the_playback_clock(played: Played) -> None:
    """The tone arrives 500 ms after the silence before it has been played."""
    late = Script([(0.1, silence(0.1)), (0.6, silence(0.1) + tone(0.3))])
    record = judged(played(late))
    assert record.stalls_ms == [pytest.approx(500, abs=2)]
    assert record.audible_ms == pytest.approx(700 + 100 - 10, abs=2)


def test_stalls_against_both_clocks(played: Played) -> None:
    """240 ms are there at 230 ms and play from 180 on: dry at 420, more at 630."""
    record = judged(played(SCRIPT))
    assert record.stalls_ms == [pytest.approx(210, abs=2)]
    assert record.stalls_100_ms == [pytest.approx(110, abs=2)]
    assert judged(played(Script([(0.05, tone(1)), (0.9, tone(1))]))).stalls_ms == []


def test_end_real_time_factor_and_length(played: Played) -> None:
    record = judged(played(SCRIPT, closing_s=0.04))
    assert record.e2e_ms == pytest.approx(670, abs=2)
    assert record.audio_s == pytest.approx(0.74)
    assert record.rtf == pytest.approx(0.67 / 0.74, rel=1e-3)
    assert record.setup_ms == pytest.approx(3)


def test_gaps_between_chunks(played: Played) -> None:
    record = judged(played(SCRIPT))
    assert record.chunks == 3
    assert record.median_gap_ms == pytest.approx(400)
    assert record.max_gap_ms == pytest.approx(400)


def test_sound_counts_in_the_window_in_which_it_arrived(played: Played) -> None:
    assert judged(played(SCRIPT), (1000.2, 1000.3)).window_audio_s == pytest.approx(0.16)
    assert judged(played(SCRIPT), (1000.0, 1000.2)).window_audio_s == pytest.approx(0.08)


def test_silence_and_runaway_are_noticed(played: Played) -> None:
    record = judged(played(Script([(0.1, silence(2))])))
    assert record.kind == "ok"
    assert record.audible_ms is None
    assert record.playable_ms == pytest.approx(100)
    long = longest_speech_s(TEXT)
    assert judged(played(Script([(0.1, tone(long + 0.1))]))).runaway
    assert not judged(played(Script([(0.1, tone(long - 0.1))]))).runaway
    chinese = Text("z", "您好")
    assert longest_speech_s(chinese) == pytest.approx(4.0)
    hole = judged(played(Script([(0.1, tone(0.3) + silence(1.5) + tone(0.3))])))
    assert hole.silence_s == pytest.approx(1.5, abs=0.02)


@pytest.mark.parametrize(
    ("finish", "kind"),
    [(None, "ok"), ("stop", "ok"), ("length", "length"), ("cancelled", "bad_end")],
)
def test_only_speech_that_came_to_its_end_is_a_success(
    played: Played, finish: str | None, kind: str
) -> None:
    answer = played(SCRIPT)
    answer.finish = finish
    record = judged(answer)
    assert record.kind == kind
    assert (record.e2e_ms is not None) == (kind == "ok")


def test_what_was_not_sound_has_no_times_of_sound(played: Played) -> None:
    empty = judged(Answer(sent_s=1000.0, ended_s=1000.2))
    assert (empty.kind, empty.ttfb_ms, empty.playable_ms) == ("no_audio", None, None)
    odd = judged(played(Script([(0.1, tone(0.1) + b"x")])))
    assert (odd.kind, odd.playable_ms, odd.e2e_ms) == ("odd_bytes", None, None)
    assert odd.ttfb_ms == pytest.approx(100)


def test_a_row_leaves_out_what_is_empty(played: Played) -> None:
    row = judged(played(SCRIPT)).row()
    assert row["kind"] == "ok"
    assert {"detail", "finish", "runaway"}.isdisjoint(row)
    assert {"lag_ms", "warmup", "audio_s"} <= row.keys()
