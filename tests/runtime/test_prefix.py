"""Heads of prompts are laid down once, and copied after that."""

from collections.abc import Callable

import numpy as np
import torch
from tests.golden.load import Model
from tests.runtime.rig import begin, prompt_of, runner_of

from vivace.runtime.prefix import Prefix, PrefixCache, key_of
from vivace.text.prompt import X_VECTOR, Prompt
from vivace.types import Row, Sampling


def prefix(rows: int) -> Prefix:
    return Prefix(torch.zeros(1, rows, 1, 1), torch.zeros(1, rows, 1, 1))


def test_the_least_recently_used_goes_when_the_bytes_are_full() -> None:
    cache = PrefixCache[Prefix](80)  # ten rows
    for name in "ab":
        cache.put(name, prefix(4))
    assert cache.get("a") is not None
    cache.put("c", prefix(4))
    assert cache.get("b") is None and cache.get("a") is not None and cache.get("c") is not None
    assert (cache.bytes, len(cache), cache.hits, cache.misses) == (64, 2, 3, 1)
    cache.put("d", prefix(11))
    assert cache.get("d") is None and cache.bytes == 64


def test_the_key_is_what_the_head_is_made_of() -> None:
    vector = np.ones(4, dtype=np.float32)
    clone = Prompt([1, 2, 3], [X_VECTOR, 5, 6], vector, head=2)
    assert key_of(clone) == key_of(Prompt([1, 2, 9], [X_VECTOR, 5, 9], vector.copy(), head=2))
    for other in (
        Prompt([1, 3, 3], [X_VECTOR, 5, 6], vector, head=2),
        Prompt([1, 2, 3], [X_VECTOR, 6, 6], vector, head=2),
        Prompt([1, 2, 3], [X_VECTOR, 5, 6], 2 * vector, head=2),
        Prompt([1, 2, 3], [X_VECTOR, 5, 6], vector, head=3),
    ):
        assert key_of(clone) != key_of(other)


def test_the_key_holds_the_frames_of_a_clip_that_lie_in_the_head() -> None:
    codes = np.arange(48).reshape(3, 16)
    other = codes.copy()
    other[1] = 0

    def key(codes: np.ndarray, head: int) -> object:
        return key_of(Prompt([1] * 6, [X_VECTOR, 5, 6, -1, -1, -1], None, codes, head=head))

    assert key(codes, 4) == key(other, 4), "the first frame alone"
    assert key(codes, 5) != key(other, 5)
    assert key(codes, 2) == key(other, 2)


def test_a_known_head_is_not_laid_down_again_and_speech_is_the_same(
    model: Callable[[str], Model],
) -> None:
    """Over more than a page, with rows behind the head, and none."""
    m = model("custom_voice")
    runner = runner_of(m, slots=2)
    for rows in (70, 71):
        prompt = prompt_of(m, rows, head=69)
        made = []
        for slot in (0, 1):
            begin(runner, slot, prompt, Sampling(), seed=5)
            row = [Row(slot, m.spec.text_ids.tts_pad)]
            made.append([runner.frame(row).result().codes for _ in range(4)])
        assert np.array_equal(*made)
        for slot in (0, 1):
            runner.close(slot)
    assert (runner.prefixes.misses, runner.prefixes.hits) == (1, 3)


def test_a_prompt_is_known_if_nothing_but_its_last_row_stands_behind_a_known_head(
    model: Callable[[str], Model],
) -> None:
    m = model("custom_voice")
    runner = runner_of(m, slots=1)
    known = []
    for rows, head in ((6, 5), (6, 5), (8, 5), (6, 0)):
        prompt = prompt_of(m, rows, head=head)
        assert runner.room(0, rows)
        known.append(runner.begin(0, prompt))
        while not runner.prefill(0, 64).result():
            pass
        runner.tokens.do(lambda: None).result()  # behind the keeping of the head
        runner.close(0)
    assert known == [False, True, False, False]


def test_no_bytes_keep_nothing(model: Callable[[str], Model]) -> None:
    m = model("custom_voice")
    runner = runner_of(m, slots=1, prefix_bytes=0)
    for _ in range(2):
        begin(runner, 0, prompt_of(m, 6, head=5), Sampling(), seed=1)
        runner.close(0)
    assert (runner.prefixes.misses, len(runner.prefixes)) == (2, 0)
