"""Which text and which codec id stand at each position, with some text before the first frame."""

import numpy as np
import pytest
from tests.runners import SPEC, Bytes

from vivace.runtime.prefix import key_of
from vivace.text.prompt import Script
from vivace.types import Clone, SpeechRequest, TextMode

EOS, PAD, BOS = SPEC.text_ids.tts_eos, SPEC.codec_ids.pad, SPEC.codec_ids.bos


def script(ahead: int, **fields: object) -> Script:
    return Script(SPEC, SpeechRequest(**{"voice": "ryan", **fields}), Bytes(), ahead=ahead)  # type: ignore[arg-type]


def rows(script: Script) -> list[tuple[int, int]]:
    """Those of the prompt after its head, which stays the same for every text."""
    prompt = script.prompt()
    assert prompt.head >= len(script.head)
    return list(zip(prompt.text, prompt.codec, strict=True))[len(script.head) :]


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [
        (0, [(1, BOS)]),
        (1, [(1, PAD), (2, BOS)]),
        (2, [(1, PAD), (2, PAD), (3, BOS)]),
        (9, [(1, PAD), (2, PAD), (3, PAD), (EOS, BOS)]),
    ],
)
def test_tokens_before_the_first_frame(ahead: int, expected: list[tuple[int, int]]) -> None:
    lanes = script(ahead)
    lanes.append([1, 2, 3], 10)
    assert rows(lanes) == expected
    rest = [1, 2, 3, EOS][len(expected) :]
    assert [lanes.next_text() for _ in range(len(rest) + 1)] == [*rest, SPEC.text_ids.tts_pad]


def test_the_first_frame_waits_for_them_or_for_the_end() -> None:
    lanes, ready = script(2), list[bool]()
    for ids in ([1], [2], [3]):
        lanes.append(ids)
        ready.append(lanes.prompt_ready)
    assert ready == [False, False, True]
    short = script(2)
    short.append([1])
    assert not short.prompt_ready
    short.append([], 5)
    assert short.prompt_ready and rows(short) == [(1, PAD), (EOS, BOS)]


def test_later_pieces_go_on_as_they_were_learnt() -> None:
    lanes = script(1)
    lanes.append([1, 2], 10)
    lanes.append([3])
    assert rows(lanes) == [(1, PAD), (2, BOS)]
    lanes.next_piece()
    assert lanes.prompt_ready and rows(lanes) == [(3, BOS)]


def test_whole_text_and_the_text_of_a_reference_stand_where_they_stood() -> None:
    clone = Clone(np.zeros(8, np.float32), np.zeros((2, SPEC.codebooks), np.int64), "ab")
    for fields in ({"text_mode": TextMode.WHOLE}, {"voice": None, "clone": clone}):
        said = []
        for ahead in (0, 3):
            lanes = script(ahead, **fields)
            lanes.append([1, 2, 3, 4], 10)
            said.append(rows(lanes))
        assert said[0] == said[1]


@pytest.mark.parametrize(("frames", "shared"), [(2, 2), (3, 3), (9, 4)])
def test_rows_of_a_clip_and_its_words_are_the_same_for_every_text(frames: int, shared: int) -> None:
    """As far as they hold nothing of the text: that is up to the end of the clip's words."""
    codes = np.arange(frames * SPEC.codebooks).reshape(frames, -1)
    clone = Clone(np.zeros(8, np.float32), codes, "abcd")
    for mode, count in ((TextMode.STREAMING, shared), (TextMode.WHOLE, 4)):
        prompts = []
        for ids in ([1], [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]):
            lanes = script(0, voice=None, clone=clone, text_mode=mode)
            lanes.append(ids, 10)
            prompts.append(lanes.prompt())
            assert prompts[-1].head == len(lanes.head) + count < len(prompts[-1].text)
        head = prompts[0].head
        assert prompts[0].text[:head] == prompts[1].text[:head]
        assert prompts[0].codec[:head] == prompts[1].codec[:head]
        assert key_of(prompts[0]) == key_of(prompts[1])


def test_a_vector_alone_shares_what_stands_before_the_text() -> None:
    lanes = script(0, voice=None, clone=Clone(np.zeros(8, np.float32)))
    lanes.append([1, 2], 10)
    assert lanes.prompt().head == len(lanes.head)
