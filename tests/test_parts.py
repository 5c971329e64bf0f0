"""A start that cannot be, and one with less than was asked for."""

import logging
from pathlib import Path

import pytest
import torch
from tests.runners import SPEC, Bytes, FakeRunner

from vivace import parts
from vivace.checkpoint.synth import write_synthetic
from vivace.config import EngineConfig
from vivace.engine import Engine
from vivace.errors import CheckpointError
from vivace.parts import Parts, load_parts
from vivace.runtime.runner import Runner


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "m"
    write_synthetic(path, size="tiny", kind="custom_voice")
    return path


CONFIG = EngineConfig(device="cpu", max_sessions=4, session_context=128, max_context=256)


def test_out_of_memory_at_start_says_what_to_lower(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(Runner, "warm_up", full)
    with pytest.raises(CheckpointError, match=r"lower --max-sessions \(now 4\)"):
        load_parts(tiny, CONFIG, revision=None, offline=True)


def test_kernels_that_do_not_compile_in_some_size_are_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[bool] = []

    def crew(_: object, __: object, config: EngineConfig) -> str:
        tried.append(config.kernels)
        if config.kernels:
            raise RuntimeError("out of resource: shared memory\nand more of it")
        return "crew"

    monkeypatch.setattr(parts, "_crew", crew)
    monkeypatch.setattr(parts, "_settle", lambda _: None)
    card, config = torch.device("cuda"), EngineConfig()
    assert parts._start([], card, config) == ("crew", [])  # type: ignore[comparison-overlap]
    assert tried == [True, False]
    assert [r.message for r in caplog.records] == [
        "no kernels of ours, so steps are slower: out of resource: shared memory"
    ]
    with pytest.raises(RuntimeError, match="out of resource"):
        parts._start([], torch.device("cpu"), config)


def test_sizes_are_printed_and_costs_measured(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "vivace"):
        found = load_parts(tiny, CONFIG, revision=None, offline=True)
    assert "4 sessions, 512 positions between them" in caplog.text
    assert found.sessions == 4
    assert set(found.costs.frame) == {1, 4}
    assert {1, CONFIG.profile.chunk_frames} <= set(found.costs.voice)
    assert found.costs.frame[1] > 0


def test_an_engine_seats_no_more_than_the_device_holds() -> None:
    held = Parts("fake", SPEC, Bytes(), FakeRunner(), sessions=3)  # type: ignore[arg-type]
    with Engine(config=EngineConfig(max_sessions=8), parts=held) as engine:
        assert engine.stats().slots_total == engine.stats().slots_free == 3


def test_what_a_card_captures_covers_every_step() -> None:
    profile = CONFIG.profile
    sizes = parts._sizes(profile, 5, card=True)
    assert (sizes.frame[-1], sizes.codec_rows[-1]) == (5, 5)
    assert sizes.prefill[-1] == profile.prefill_rows
    assert sizes.codec_frames[0] == 1 and sizes.codec_frames[-1] == profile.chunk_frames
