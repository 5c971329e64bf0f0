"""Sessions and pages are what the device holds, whatever models share it."""

import json
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path

import pytest
import torch
from tests.runners import SPEC

from vivace import parts
from vivace.checkpoint import load, unfilled, unfilled_codec
from vivace.checkpoint.embedded import embedded
from vivace.checkpoint.presets import config_files
from vivace.checkpoint.read import read_spec
from vivace.checkpoint.vocabulary import vocabulary
from vivace.config import EngineConfig
from vivace.errors import CheckpointError
from vivace.model.quant import KINDS, Narrow, replace_products
from vivace.model.spec import ModelSpec
from vivace.runtime.memory import (
    GB,
    GRAPHS,
    PAGE,
    SPARE,
    Load,
    Memory,
    plan_memory,
    position_bytes,
    slot_bytes,
    sound_bytes,
    weigh,
)

SOUND = ((4, 8), (16,))
CONFIG = EngineConfig(max_sessions=8, session_context=256, max_context=512, prefix_mb=1)
ONE = Load("one", SPEC, 1000)
WIDE = replace(SPEC, talker=replace(SPEC.talker, layers=3))


def plan(loads: list[Load], free: int | None = None, config: EngineConfig = CONFIG) -> Memory:
    return plan_memory(config, loads, 50, SOUND, 4, free)


def test_without_a_limit_everybody_gets_their_context() -> None:
    memory = plan([ONE])
    assert (memory.sessions, memory.pages) == (8, 8 * 256 // 64)
    positions = 8 * 256 * position_bytes(SPEC, 4)
    states = 8 * (slot_bytes(SPEC, 4) + sound_bytes(SPEC, SOUND))
    assert memory.bytes == 1050 + positions + states + (1 << 20)


def test_models_share_pages_that_are_alike_and_have_states_of_their_own() -> None:
    one, two = plan([ONE]), plan([ONE, Load("two", SPEC, 500)])
    assert two.bytes - one.bytes == 500 + 8 * slot_bytes(SPEC, 4) + (1 << 20)
    other = plan([ONE, Load("wide", WIDE, 500)])
    assert other.bytes - two.bytes == 8 * 256 * position_bytes(WIDE, 4)


def test_a_smaller_card_gets_fewer_sessions() -> None:
    """As many as fit, not one more and not one less."""
    loads = [ONE, Load("two", SPEC, 500)]
    whole = plan(loads).bytes + SPARE + GRAPHS
    assert plan(loads, whole).sessions == 8
    fewer = plan(loads, whole - 1)
    assert fewer.sessions == 7 and fewer.bytes < whole


def test_one_session_always_reaches_the_end_of_its_context() -> None:
    one = plan([ONE], config=EngineConfig(max_sessions=1, session_context=64))
    assert one.positions >= 8192


def test_too_small_a_card_is_told_in_figures_and_what_to_lower() -> None:
    with pytest.raises(CheckpointError) as refusal:
        plan([replace(ONE, bytes=3 * 10**9)], free=5 * 10**9)
    said = refusal.value.message
    assert "3.00 GB  weights of one" in said and "512 positions" in said
    assert "5.15 GB  in all of 5.00 GB that are free" in said and "Lower max_context" in said


def published(folder: Path, size: str, kind: str) -> ModelSpec:
    for name, config in config_files(size, kind, vocabulary(published=True)).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(config))
    return read_spec(folder)


@pytest.mark.parametrize(("sessions", "most_gb"), [(16, 13.5), (64, 17.0), (128, 22.0)])
def test_two_large_checkpoints_fit_a_card_of_24_gb(
    tmp_path: Path, sessions: int, most_gb: float
) -> None:
    loads = []
    for kind in ("custom_voice", "voice_design"):
        spec = published(tmp_path / kind, "1.7b", kind)
        bytes_ = weigh(*unfilled(spec, "meta", torch.bfloat16)[:2])
        assert bytes_ / GB == pytest.approx(3.9, abs=0.05), "3.83 in its file, and a table"
        loads.append(Load(kind, spec, bytes_))
    codec = unfilled_codec(loads[0].spec, "meta")
    free = int(23.5 * GB)
    config = EngineConfig(max_sessions=sessions)
    memory = plan_memory(config, loads, weigh(codec) * 3 // 2, codec.shapes, 2, free)
    assert memory.sessions == sessions and memory.bytes < most_gb * GB
    assert memory.positions == max(8192, sessions * 512)


def test_what_is_reckoned_is_what_is_loaded() -> None:
    model = load(embedded(), "cpu", torch.bfloat16)
    reckoned = weigh(*unfilled(model.spec, "meta", torch.bfloat16)[:2])
    assert reckoned == weigh(model.talker, model.predictor) > 10**6
    codec = unfilled_codec(model.spec, "meta")
    assert weigh(codec) == weigh(model.codec)
    assert prod(codec.shapes[0]) > 0 and PAGE == 64


@pytest.mark.parametrize("kind", list(KINDS))
def test_weights_in_8_bits_are_reckoned_as_they_are_laid_down(kind: str) -> None:
    model = load(embedded(), "cpu", torch.bfloat16)
    replace_products(model.talker, model.predictor, partial(Narrow.of, kind=KINDS[kind]))
    reckoned = parts._weight(model.spec, torch.bfloat16, kind)
    assert reckoned == weigh(model.talker, model.predictor)
    assert reckoned < 0.7 * parts._weight(model.spec, torch.bfloat16, "none")
