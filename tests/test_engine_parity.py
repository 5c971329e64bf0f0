"""What sessions of the engine hear is what the official package said, however they share it."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.golden import read
from tests.golden.load import Model
from tests.golden.read import Row

from vivace.config import EngineConfig
from vivace.engine import Engine
from vivace.session import Session
from vivace.types import FinishReason, Sampling, SpeechRequest

CLOSE = 1e-4


@pytest.fixture(scope="module", params=read.CHECKPOINTS)
def engine(request: pytest.FixtureRequest, model: Callable[[str], Model]) -> Iterator[Engine]:
    config = EngineConfig(device="cpu", max_sessions=9, max_context=256, threads=1, trim=False)
    with Engine(model(request.param).path, config=config, offline=True) as engine:
        yield engine


def rows_of(engine: Engine) -> list[tuple[str, Row]]:
    spec = engine.spec
    checkpoint = f"{spec.kind}_{spec.size}" if spec.size == "0b6" else spec.kind
    cases = [read.case(checkpoint, name) for name in read.names(checkpoint)]
    return [(f"{case.name}[{i}]", row) for case in cases for i, row in enumerate(case.rows)]


def assert_speaks(session: Session, row: Row, name: str) -> None:
    chunks = list(session)
    codes = np.concatenate([chunk.codes for chunk in chunks])
    pcm = np.concatenate([chunk.pcm for chunk in chunks])
    np.testing.assert_array_equal(codes, row.codes, err_msg=name)
    np.testing.assert_allclose(pcm, row.pcm, rtol=0, atol=CLOSE, err_msg=name)
    assert session.done is not None
    assert session.done.reason is (FinishReason.STOP if row.stopped else FinishReason.LENGTH), name
    assert session.done.frames == len(row.codes), name


def test_engine_alone(engine: Engine) -> None:
    for name, row in rows_of(engine):
        assert_speaks(engine.say(row.text, row.request), row, name)


def test_engine_all_at_once(engine: Engine) -> None:
    rows = rows_of(engine)
    sessions = [engine.say(row.text, row.request) for _, row in rows]
    for session, (name, row) in zip(sessions, rows, strict=True):
        assert_speaks(session, row, name)


def test_engine_token_by_token(engine: Engine) -> None:
    """Text that comes one character at a time, all sessions in turn, makes the same speech."""
    rows = rows_of(engine)
    sessions = [engine.open(row.request) for _, row in rows]
    for i in range(max(len(row.text) for _, row in rows)):
        for session, (_, row) in zip(sessions, rows, strict=True):
            session.append(row.text[i : i + 1])
    for session in sessions:
        session.end()
    for session, (name, row) in zip(sessions, rows, strict=True):
        assert_speaks(session, row, name)


def test_same_seed_same_codes_alone_or_among_seven_others(engine: Engine) -> None:
    _, row = rows_of(engine)[0]

    def request(seed: int) -> SpeechRequest:
        sampling = Sampling(seed=seed, max_frames=read.FRAMES)
        asked = row.request
        return replace(asked, sampling=sampling, guards=True)

    def codes(session: Session) -> np.ndarray:
        return np.concatenate([chunk.codes for chunk in session])

    alone = codes(engine.say(row.text, request(1)))
    together = [engine.say(row.text, request(seed)) for seed in (5, 6, 7, 1, 2, 3, 4, 1)]
    made = [codes(session) for session in together]
    assert np.array_equal(made[3], alone) and np.array_equal(made[7], alone)
    assert len({codes.tobytes() for codes in made}) == 7


@pytest.mark.parametrize("engine", ["base"], indirect=True)
def test_long_speech_is_the_whole_decode_of_its_codes(
    engine: Engine, model: Callable[[str], Model]
) -> None:
    """Past every ring, page and window on the way from the talker to the listener."""
    _, row = rows_of(engine)[0]
    sampling = Sampling(seed=1, min_frames=150, max_frames=150)
    chunks = list(engine.say(row.text, replace(row.request, sampling=sampling)))
    codes = torch.from_numpy(np.concatenate([chunk.codes for chunk in chunks]))
    assert codes.shape == (150, 16)
    assert row.request.clone is not None and row.request.clone.ref_codes is not None
    codes = torch.cat((torch.from_numpy(row.request.clone.ref_codes), codes))
    codec = model("base").codec
    with torch.inference_mode():
        whole, _ = codec(codes[None], codec.fresh(1))
    pcm = np.concatenate([chunk.pcm for chunk in chunks])
    np.testing.assert_allclose(pcm, whole[0, -len(pcm) :], rtol=0, atol=1e-5)
