"""What the modules and the runner compute is what the official package computed (tests/golden)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from tests.golden import read
from tests.golden.load import Model
from tests.golden.read import Case
from torch import Tensor

from vivace.config import Limits
from vivace.model.sampling import Rows
from vivace.resolve import resolve
from vivace.runtime.runner import Runner
from vivace.runtime.state import PAGE
from vivace.text.prompt import Script
from vivace.types import Codes, Pcm, Row

GREEDY = [(c, n) for c in read.CHECKPOINTS for n in read.names(c)]
SAMPLED = [(c, n) for c in read.CHECKPOINTS for n in read.names(c, sampled=True)]
CLOSE = 1e-4


@dataclass
class Heard:
    """What went through the modules of one session."""

    rows: list[Tensor] = field(default_factory=list)  # [hidden] into the talker, one a position
    first: list[Tensor] = field(default_factory=list)  # [vocab] logits of code 0, one a frame
    later: list[Tensor] = field(default_factory=list)  # [entries] logits of codes 1.., 15 a frame

    @contextmanager
    def listen(self, model: Model) -> Iterator[None]:
        """Keep what the talker takes, and what both stacks put out."""
        logits = model.talker.logits

        def take(_: object, args: tuple[Any, ...]) -> None:
            self.rows += args[0].reshape(-1, args[0].shape[-1]).clone()

        def keep_first(hidden: Tensor) -> Tensor:
            self.first += (out := logits(hidden)).clone()
            return out

        def keep_later(_: object, args: tuple[Any, ...]) -> tuple[Any, ...]:
            def pick(book: int, out: Tensor) -> Tensor:
                self.later += out.clone()
                return args[2](book, out)

            return *args[:2], pick

        hooks = (
            model.talker.register_forward_pre_hook(take),
            model.predictor.register_forward_pre_hook(keep_later),
        )
        model.talker.logits = keep_first
        yield
        del model.talker.logits
        for hook in hooks:
            hook.remove()


@dataclass
class Speech:
    """What the runner makes of one golden row."""

    heard: Heard
    prompt_rows: int
    text: list[int]  # ids under frames 1.., and under the one after the last
    codes: Codes  # [T, 16]
    pcm: Pcm  # [T * 1920]
    stopped: bool


def speak(model: Model, row: read.Row) -> Speech:
    script = Script(model.spec, resolve(model.spec, row.request, Limits()), model.tokenizer)
    script.append(model.tokenizer.encode(row.text), most_frames=read.FRAMES, last=True)
    prompt = script.prompt()
    runner = Runner(model.spec, model.talker, model.predictor, model.codec, slots=1, pages=2)
    runner.open(0, row.request.sampling, seed=0)
    assert runner.room(0, len(prompt.text) + read.FRAMES)
    heard, frames, text, ended = Heard(), [], [prompt.text[-1]], False
    with heard.listen(model):
        runner.begin(0, prompt)
        while not runner.prefill(0, 7).result():
            pass
        while not ended and len(frames) < read.FRAMES:
            out = runner.frame([Row(0, text[-1])]).result()
            ended = bool(out.ended[0])
            if not ended:
                frames.append(out.codes[0])
                text.append(script.next_text())
    pcm = runner.voice([0], len(frames)).result()[0]
    return Speech(heard, len(prompt.text), text[1:], np.stack(frames), pcm, ended)


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    checkpoint, name = request.param
    return read.case(checkpoint, name)


greedy = pytest.mark.parametrize("case", GREEDY, indirect=True, ids=".".join)
sampled = pytest.mark.parametrize("case", SAMPLED, indirect=True, ids=".".join)


def test_goldens_cover_what_they_should() -> None:
    """Speech that ends by itself, text that runs out, a penalty that bites, batches, new pages."""
    cases = [read.case(c, n) for c, n in GREEDY]
    rows = [row for case in cases for row in case.rows]
    assert len(cases) == 21
    assert any(row.stopped for row in rows) and not all(row.stopped for row in rows)
    assert any(1 < len(row.trailing) < len(row.codes) for row in rows)
    assert sum(len(case.rows) > 1 for case in cases) == 2
    assert any(len(row.prompt) > PAGE for row in rows)
    assert any(PAGE - len(row.codes) < len(row.prompt) < PAGE for row in rows)
    free, pushed = (read.case("custom_voice", n).rows[0] for n in ("no_penalty", "strong_penalty"))
    assert not np.array_equal(free.codes, pushed.codes)


@greedy
def test_rows_into_the_talker(case: Case, model: Callable[[str], Model]) -> None:
    m = model(case.checkpoint)
    for row in case.rows:
        ours = speak(m, row)
        assert ours.prompt_rows == len(row.prompt)
        prompt = torch.stack(ours.heard.rows[: ours.prompt_rows])
        np.testing.assert_allclose(prompt, row.prompt, rtol=0, atol=1e-5)
        with torch.inference_mode():
            texts = m.talker.text(torch.tensor(ours.text))
        padding = [case.tts_pad] * max(0, len(texts) - len(row.trailing))
        trailing = np.concatenate((row.trailing, *[p[None] for p in padding]))[: len(texts)]
        np.testing.assert_allclose(texts, trailing, rtol=0, atol=1e-5)


@greedy
def test_logits(case: Case, model: Callable[[str], Model]) -> None:
    for row in case.rows:
        ours = speak(model(case.checkpoint), row)
        steps = min(len(row.talker_logits), len(ours.heard.first))
        first = torch.stack(ours.heard.first[:steps])[:, : row.talker_logits.shape[1]]
        np.testing.assert_allclose(first, row.talker_logits[:steps], rtol=0, atol=CLOSE)
        later = torch.stack(ours.heard.later[: len(row.predictor_logits)])
        np.testing.assert_allclose(later, row.predictor_logits, rtol=0, atol=CLOSE)


@greedy
def test_codes_and_sound(case: Case, model: Callable[[str], Model]) -> None:
    for row in case.rows:
        ours = speak(model(case.checkpoint), row)
        np.testing.assert_array_equal(ours.codes, row.codes)
        assert ours.stopped == row.stopped
        np.testing.assert_allclose(ours.pcm, row.pcm, rtol=0, atol=CLOSE)


@sampled
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch draws other numbers")
def test_draws_with_the_official_noise(
    case: Case, model: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With torch's generator for noise, in the official order, ours draws the official codes."""

    def noise(_rows: Rows, _first: int, books: int, vocab: int) -> Tensor:
        """What torch.multinomial takes for `books` draws, one after the other."""
        return -torch.stack([torch.empty(vocab).exponential_() for _ in range(books)]).log()[None]

    monkeypatch.setattr(Rows, "noise", noise)
    assert case.seed is not None
    torch.manual_seed(case.seed)
    ours = speak(model(case.checkpoint), case.rows[0])
    np.testing.assert_array_equal(ours.codes, case.rows[0].codes)
    assert ours.stopped == case.rows[0].stopped
