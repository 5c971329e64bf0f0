"""Pieces rejoin to the text, are the same for every chunking, and end at sentences."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vivace.text.cap import text_ms
from vivace.text.segment import MEAN_SHARE, MOST, Segmenter

SOON_S = 1.5  # of speech: about 25 letters
SPLIT_SAFE = [  # case 17
    "It was 98.6°F in here, and 3.14 is about pi, for $3.5 or 22,1 percent of all that.",
    "There were 1,299 of them. Dr. Lee saw them at example.com or so. Mail a.b@c.de soon.",
    "See https://example.com/a?b=1!c and www.example.org/x.y?z=2 for more. It is free.",
    '<prosody ratio="1.05" pitch="high. Or low."> e.g. J. R. Smith vs. the U.S. Army.',
    "今天2次。你好，世界！圆周率是3．14，时间是12：30。好吗？是的！“走吧。”他说。",
    "Wait... really?! “Yes.” (He said so.) And then… nothing. 1. One. 2. Two; 3. Three",
    "no punctuation at all just words that go on and on without a pause or an end to them",
    "日本語の文章です。「はい。」と言った。これは長い文ですね、そうですね。",
    "سلام. این یک متن است؟ بله، همین. हिन्दी वाक्य। दूसरा वाक्य। भाषा है।",
]


def pieces_of(chunks: list[str], least_s: float = SOON_S) -> list[str]:
    segmenter = Segmenter(least_s)
    parts = [part for chunk in chunks for part in segmenter.feed(chunk)] + segmenter.finish()
    pieces = [""]
    for part in parts:
        pieces[-1] += part.text
        if part.ends:
            pieces.append("")
    assert pieces.pop() == "", "the last piece has an end"
    return pieces


@pytest.mark.parametrize("text", SPLIT_SAFE)
def test_case_17_one_character_at_a_time_and_all_cuts_in_two(text: str) -> None:
    whole = pieces_of([text])
    assert "".join(whole) == text and len(whole) > 1
    assert pieces_of(list(text)) == whole
    for cut in range(len(text)):
        assert pieces_of([text[:cut], text[cut:]]) == whole


@pytest.mark.parametrize(
    "cut",
    [
        "We had up to 98.6 out. |Yes. No.",
        "It is 3.14159 or so. |Yes. No.",
        "We all went to ask for 22,1 or so, |please.",
        "They say it is 1,299 now. |Yes. No.",
        "I went to see Dr. Lee there. |Yes.",
        "We went with Mr. and Mrs. Lee. |Yes.",
        "See the list, e.g. No. 5 of it. |Yes.",
        "We are all at example.com now. |Yes.",
        "Mail the lot to me.you@x.org now. |Yes.",
        "Is it https://x.org/a?b!c now? |Yes.",
        "He went out to say “Well then.” |Yes.",
        "“Did you all go out?” he asked. |Yes.",
        "Wait for a long while... then go. |Yes.",
        "It came from the U.S. Army then. |Yes.",
        "我们今天去公园散步。|好的。",
        "他刚才说“我们走吧。”|好的。",
        "圆周率大约3．14左右。|好的。",
        "你们今天早上都好吗?|我很好",
        "今天早上我们都去吗？！|好的。",
        "A title of some length here\n\n|then text",
    ],
)
def test_case_17_pieces_end_at_sentences(cut: str) -> None:
    assert pieces_of([cut.replace("|", "")]) == cut.split("|")


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("no stop is to be found in here, but a comma is, " * 60, ", "),
        ("words with spaces and nothing else " * 90, " "),
        ("a" * 3000, "a"),
        ("今天去公园" * 120, ""),
        ("7" * 3000, "7"),
        ("7 " * 1500, " "),
        ("ha" * 1500, ""),
        ("。" * 1500, "。"),
        ("e" + "\u0301" * 3000, ""),
        ("👩\u200d🚀" * 400, "🚀"),
        ("한국어문장" * 200, ""),
    ],
    ids=["commas", "spaces", "letters", "chinese", "digits", "spaced digits", "syllables", "stops",
         "marks", "emoji", "korean"],
)  # fmt: skip
def test_case_12_20_text_without_punctuation_is_cut_all_the_same(text: str, end: str) -> None:
    pieces = pieces_of([text], least_s=20.0)
    assert "".join(pieces) == text and len(pieces) > 1
    assert all(piece.endswith(end) for piece in pieces[:-1])
    assert pieces_of(list(text), least_s=20.0) == pieces


def test_short_text_is_one_piece() -> None:
    text = "It was a bright cold day in April. The clocks were striking thirteen, as they do. " * 3
    assert pieces_of([text], least_s=20.0) == [text]
    assert pieces_of([""]) == []


ODD = "aB7.,!?;: \n。，？”)（<>/@…-今한\u0301\u200d👩سहि।Dr"
TEXT = st.text(st.sampled_from(ODD), max_size=60) | st.sampled_from(SPLIT_SAFE)


@given(st.lists(TEXT, max_size=8))
@example(["a" * 40 + " ", " ", "b"])
@example(["今天去公园散步", "。", "”", " 好"])
def test_pieces_rejoin_and_stay_below_the_limit_for_every_chunking(chunks: list[str]) -> None:
    text = "".join(chunks)
    pieces = pieces_of(chunks)
    assert "".join(pieces) == text
    assert pieces == pieces_of([text]) == pieces_of(list(text))
    most_ms = MOST * SOON_S * 1000 * MEAN_SHARE
    assert all(text_ms(piece.rstrip(), "auto") <= most_ms + 2_400 for piece in pieces)
    assert all(pieces)


def test_text_leaves_at_once_and_only_what_may_be_a_gap_waits() -> None:
    segmenter = Segmenter(20.0)
    given_out = [
        "".join(part.text for part in segmenter.feed(text))
        for text in ["Hel", "lo", ".", " ", "So", "！", "？", "好"]
    ]
    assert given_out == ["Hel", "lo", ".", "", " So", "", "", "！？好"]
