"""Voices from clips, through the engine: as the official package takes them, or eight at once."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.golden import read
from tests.golden.clips import hum
from tests.golden.load import Model
from tests.remote.hosts import BOTH, HOSTS

from vivace.config import EngineConfig, Limits
from vivace.engine import Engine
from vivace.errors import EngineFailure, Overloaded, Unavailable, Unprocessable
from vivace.remote.near import LoopProcess
from vivace.runtime import cloner
from vivace.runtime.cloner import Cloner, with_silence
from vivace.types import SAMPLES_PER_FRAME, Clip, Clone, Pcm, Sampling, SpeechRequest

CONFIG = EngineConfig(device="cpu", max_sessions=9, max_context=256, threads=1, trim=False)


def clip_of(samples: int, words: str = "A reference sentence.", silence_ms: int = 0) -> Clip:
    return Clip(hum(samples).astype(np.float32) / 32768, words, silence_ms)


@pytest.fixture(scope="module", params=BOTH)
def engine(request: pytest.FixtureRequest, model: Callable[[str], Model]) -> Iterator[Engine]:
    host = BOTH[request.param]
    with Engine(model("base").path, config=CONFIG, offline=True, host=host) as engine:
        yield engine


def test_a_voice_is_the_official_one(engine: Engine) -> None:
    for pcm, codes, x_vector in read.clips():
        clone = engine.clone(Clip(pcm, "A reference sentence.", silence_ms=0))
        assert clone.ref_codes is not None
        np.testing.assert_array_equal(clone.ref_codes, codes)
        np.testing.assert_allclose(clone.x_vector, x_vector, rtol=0, atol=1e-3)
        alone = engine.clone(Clip(pcm))
        assert alone.ref_codes is None and alone.ref_text == ""
        np.testing.assert_array_equal(alone.x_vector, clone.x_vector)


def test_from_a_clip_to_the_official_speech(engine: Engine) -> None:
    """The whole way: clip, voice, prompt, codes."""
    for name, words in (("icl_streaming", "A reference sentence."), ("x_vector", "")):
        row = read.case("base", name).rows[0]
        clone = engine.clone(clip_of(31_000, words))
        asked = row.request
        request = SpeechRequest(
            language=asked.language, sampling=asked.sampling, clone=clone, guards=False
        )
        chunks = list(engine.say(row.text, request))
        np.testing.assert_array_equal(np.concatenate([c.codes for c in chunks]), row.codes)


def test_eight_at_once_are_what_each_is_alone(engine: Engine) -> None:
    """16: voices and speech of eight clips, none of which hears another."""
    clips = [clip_of(24_000 + 3_001 * i, f"Sentence {i}.") for i in range(8)]

    def speech(clone: Clone) -> np.ndarray:
        sampling = Sampling(temperature=0.0, subtalker_temperature=0.0, max_frames=6)
        request = SpeechRequest(clone=clone, sampling=sampling, guards=False, patient=True)
        return np.concatenate([chunk.codes for chunk in engine.say("Hello world.", request)])

    alone = [engine.clone(clip) for clip in clips]
    said = [speech(clone) for clone in alone]
    together = threading.Barrier(len(clips))

    def run(clip: Clip) -> tuple[Clone, np.ndarray]:
        together.wait()
        clone = engine.clone(clip)
        return clone, speech(clone)

    with ThreadPoolExecutor(len(clips)) as pool:
        for (clone, codes), before, heard in zip(pool.map(run, clips), alone, said, strict=True):
            assert clone.ref_codes is not None and before.ref_codes is not None
            np.testing.assert_array_equal(clone.ref_codes, before.ref_codes)
            np.testing.assert_array_equal(clone.x_vector, before.x_vector)
            np.testing.assert_array_equal(codes, heard)
    assert len({codes.tobytes() for codes in said}) == len(clips)


@pytest.mark.parametrize("silence_ms", [1, 80, 500])
def test_27_silence_follows_the_clip_to_a_whole_frame(engine: Engine, silence_ms: int) -> None:
    """The codes end in silence, and the x-vector is that of the clip without it."""
    clip = clip_of(31_000, silence_ms=silence_ms)
    sound = with_silence(clip)
    assert len(sound) % SAMPLES_PER_FRAME == 0
    assert 0 <= len(sound) - 31_000 - 24 * silence_ms < SAMPLES_PER_FRAME
    assert not sound[31_000:].any()
    with_it, without = engine.clone(clip), engine.clone(clip_of(31_000))
    assert with_it.ref_codes is not None and without.ref_codes is not None
    assert len(with_it.ref_codes) == len(sound) // SAMPLES_PER_FRAME
    np.testing.assert_array_equal(with_it.ref_codes[:16], without.ref_codes[:16])
    np.testing.assert_array_equal(with_it.x_vector, without.x_vector)


def test_29_the_key_is_what_is_heard_and_not_a_name() -> None:
    clip = clip_of(24_000)
    assert clip.key == clip_of(24_000).key
    others = [
        clip_of(24_001),
        clip_of(24_000, "Another sentence."),
        clip_of(24_000, ""),
        clip_of(24_000, silence_ms=500),
        Clip(-clip.pcm, clip.ref_text, 0),
    ]
    assert len({clip.key, *(other.key for other in others)}) == 6
    quiet, silent = (clip_of(24_000, "", silence_ms=ms) for ms in (0, 500))
    assert quiet.key == silent.key, "an x-vector has no silence behind it"


@pytest.mark.parametrize(
    ("clip", "param"),
    [
        (clip_of(100), "ref_audio"),
        (clip_of(24_000 * 31), "ref_audio"),
        (Clip(np.zeros((24_000, 2), np.float32)), "ref_audio"),
        (Clip(np.full(24_000, np.nan, np.float32)), "ref_audio"),
        (clip_of(24_000, "word " * 1_000), "ref_text"),
        (clip_of(24_000, silence_ms=-1), "ref_silence_ms"),
        (clip_of(24_000, silence_ms=60_000), "ref_silence_ms"),
    ],
)
def test_a_clip_that_is_none(engine: Engine, clip: Clip, param: str) -> None:
    with pytest.raises(Unprocessable) as caught:
        engine.clone(clip)
    assert caught.value.param == param


def test_another_kind_takes_no_voices(model: Callable[[str], Model]) -> None:
    with Engine(model("custom_voice").path, config=CONFIG, offline=True) as engine:
        with pytest.raises(Unprocessable, match="does not clone") as caught:
            engine.clone(clip_of(24_000))
        assert caught.value.param == "ref_audio"


class Stuck(Cloner):
    """Waits with each clip until it may go on."""

    def __init__(self, inner: Cloner) -> None:
        super().__init__(inner._speaker, inner._codec)
        self.begun, self.go = threading.Event(), threading.Event()

    def _encode(self, clip: Clip) -> Clone:
        self.begun.set()
        assert self.go.wait(60)
        if clip.ref_text == "fault":
            raise RuntimeError("a bug")
        return Clone(np.zeros(24, np.float32))


@pytest.fixture(params=HOSTS)
def stuck(
    request: pytest.FixtureRequest, model: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Engine, Stuck]]:
    made: list[Stuck] = []

    def build(speaker: object, codec: object) -> Cloner:
        made.append(Stuck(Cloner(speaker, codec)))  # type: ignore[arg-type]
        made[0].go.set()  # for the warm-up
        return made[0]

    monkeypatch.setattr("vivace.parts.Cloner", build)
    host = HOSTS[request.param]
    with Engine(model("base").path, config=CONFIG, offline=True, host=host) as engine:
        made[0].begun.clear(), made[0].go.clear()
        yield engine, made[0]
        made[0].go.set()


def test_streams_go_on_while_a_clip_is_encoded(stuck: tuple[Engine, Stuck]) -> None:
    engine, far = stuck
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(engine.clone, clip_of(24_000))
        assert far.begun.wait(60)
        clone = read.clone(x_vector_only=True)
        sampling = Sampling(seed=1, max_frames=4, min_frames=4)
        list(engine.say("Hello.", SpeechRequest(clone=clone, sampling=sampling)))
        assert not waiting.done()
        far.go.set()
        waiting.result(60)


def test_the_queue_is_bounded(stuck: tuple[Engine, Stuck], monkeypatch: pytest.MonkeyPatch) -> None:
    engine, far = stuck
    far._places = threading.Semaphore(3)
    monkeypatch.setattr(cloner, "MOST_WAITING", 3)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(engine.clone, clip_of(24_000)) for _ in range(4)]
        refused = next(f for f in iter_done(waiting))
        assert isinstance(refused.exception(), Overloaded)
        far.go.set()
        kept = [future for future in waiting if future is not refused]
        assert [len(future.result(60).x_vector) for future in kept] == [24] * 3
    assert len(engine.clone(clip_of(24_000)).x_vector) == 24, "the places are given back"


def iter_done(futures: list) -> Iterator:
    from concurrent.futures import as_completed

    return as_completed(futures, timeout=60)


def test_our_own_fault_ends_one_clip_and_no_more(stuck: tuple[Engine, Stuck]) -> None:
    engine, far = stuck
    far.go.set()
    with pytest.raises((RuntimeError, EngineFailure)):
        engine.clone(clip_of(24_000, "fault"))
    assert len(engine.clone(clip_of(24_000)).x_vector) == 24


def test_closing_ends_the_wait(stuck: tuple[Engine, Stuck]) -> None:
    engine, far = stuck
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(engine.clone, clip_of(24_000))
        assert far.begun.wait(60)
        second = pool.submit(engine.clone, clip_of(24_001))
        while far._places._value > cloner.MOST_WAITING - 2:
            pass  # until it is there
        threading.Timer(0.1, far.go.set).start()
        engine.close()
        assert isinstance(second.exception(60), Unavailable)
        assert first.exception(60) is None or isinstance(first.exception(), Unavailable)
    with pytest.raises(Unavailable):
        engine.clone(clip_of(24_000))


def test_a_process_that_dies_leaves_nobody_waiting(model: Callable[[str], Model]) -> None:
    with Engine(model("base").path, config=CONFIG, offline=True, host=BOTH["process"]) as engine:
        host = engine._host
        assert isinstance(host, LoopProcess)
        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(engine.clone, clip_of(24_000 * 29 + i)) for i in range(4)]
            while not host._clips:
                assert not waiting[0].done()
            host._worker.kill()
            ends = [future.exception(60) for future in waiting]
        assert all(isinstance(end, EngineFailure | Unavailable) for end in ends[1:])
        with pytest.raises(Unavailable):
            engine.clone(clip_of(24_000))


def pcm_of(samples: int) -> Pcm:
    return hum(samples).astype(np.float32) / 32768


def test_limits_are_the_engines_own(model: Callable[[str], Model]) -> None:
    limits = Limits(clip_max_s=1.0)
    config = EngineConfig(device="cpu", max_sessions=1, max_context=256, threads=1, limits=limits)
    with Engine(model("base").path, config=config, offline=True) as engine:
        engine.clone(Clip(pcm_of(24_000)))
        with pytest.raises(Unprocessable, match=r"0\.5 to 1 s"):
            engine.clone(Clip(pcm_of(24_001)))
