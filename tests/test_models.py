"""Several checkpoints in one engine: each speaks as it does alone, whoever speaks beside it."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.remote.hosts import BOTH

from vivace.checkpoint import unfilled
from vivace.checkpoint.read import read_spec
from vivace.checkpoint.synth import write_synthetic
from vivace.config import EngineConfig
from vivace.engine import Engine
from vivace.errors import CheckpointError, NotFound, Unprocessable
from vivace.host import LoopThread
from vivace.parts import Parts, load_parts
from vivace.runtime.crew import Crew
from vivace.runtime.memory import weigh
from vivace.session import Session
from vivace.types import Clone, Codes, Sampling, SpeechRequest

KINDS = ("custom_voice", "voice_design", "base")
CONFIG = EngineConfig(
    device="cpu", max_sessions=16, max_context=256, threads=1, trim=False, slo_ttfa_s=600.0
)
TEXTS = ("Hello there.", "How are you today?", "One, two, three, four.", "It is late.")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny checkpoint of each kind, with weights of its own and the speech tokenizer of all."""
    root = tmp_path_factory.mktemp("resident")
    for seed, kind in enumerate(KINDS):
        write_synthetic(root / kind, kind=kind, until_text=True, seed=seed)
        if seed:
            shared = root / KINDS[0] / "speech_tokenizer"
            shutil.copytree(shared, root / kind / "speech_tokenizer", dirs_exist_ok=True)
    return {kind: root / kind for kind in KINDS}


def clone(seed: int) -> Clone:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (5, 16)) if seed % 2 else None
    return Clone(rng.normal(size=256).astype(np.float32), codes, "A reference." if seed % 2 else "")


def requests() -> list[tuple[str, str, SpeechRequest]]:
    """Sixteen of them: the kind that is meant, the text, the request, which does not name it."""
    voices = ("ryan", "serena", "sohee")
    made = []
    for i in range(16):
        text, sampling = TEXTS[i % len(TEXTS)], Sampling(seed=i, max_frames=30)
        if i % 3 == 0:
            request = SpeechRequest(voice=voices[i // 3 % 3], sampling=sampling)
        elif i % 3 == 1:
            request = SpeechRequest(instruct=f"An old voice, number {i}.", sampling=sampling)
        else:
            request = SpeechRequest(clone=clone(i), sampling=sampling)
        made.append((KINDS[i % 3], text, request))
    return made


def codes(session: Session) -> Codes:
    chunks = list(session)
    return np.concatenate([chunk.codes for chunk in chunks])


@pytest.fixture(scope="module")
def alone(folders: dict[str, Path]) -> list[Codes]:
    """What engines of one model make of each request, one request at a time."""
    found: dict[int, Codes] = {}
    for kind in KINDS:
        with Engine(folders[kind], config=CONFIG) as engine:
            for i, (meant, text, request) in enumerate(requests()):
                if meant == kind:
                    found[i] = codes(engine.say(text, request))
    return [found[i] for i in range(len(found))]


@pytest.fixture(scope="module", params=BOTH)
def engine(folders: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[Engine]:
    with Engine(list(folders.values()), config=CONFIG, host=BOTH[request.param]) as engine:
        yield engine


def test_sixteen_mixed_requests_at_once_say_what_each_says_alone(
    engine: Engine, alone: list[Codes]
) -> None:
    sessions = [engine.say(text, request) for _, text, request in requests()]
    for i, (session, expected) in enumerate(zip(sessions, alone, strict=True)):
        np.testing.assert_array_equal(codes(session), expected, err_msg=str(i))
    assert len({made.tobytes() for made in alone}) == 16, "no two of them are alike"
    assert engine.stats().slots_free == 16


def test_a_slot_that_changes_its_model_carries_nothing_over(
    folders: dict[str, Path], alone: list[Codes]
) -> None:
    """One slot, which every request has to itself in turn, right behind one of another model."""
    config = replace(CONFIG, max_sessions=1)
    with Engine(list(folders.values()), config=config) as engine:
        sessions = [engine.say(text, request) for _, text, request in requests()]
        for session, expected in zip(sessions, alone, strict=True):
            np.testing.assert_array_equal(codes(session), expected)


def test_the_first_listed_is_the_default_and_any_may_be_named(
    engine: Engine, folders: dict[str, Path], alone: list[Codes]
) -> None:
    ids = [str(folder) for folder in folders.values()]
    assert [model.model_id for model in engine.models] == ids
    assert engine.model_id == ids[0] and engine.spec.kind == "custom_voice"
    assert engine.open().request.model == ids[0]
    with pytest.raises(NotFound, match="no model 'gpt-5'; there are ") as refusal:
        engine.open(SpeechRequest(model="gpt-5"))
    assert refusal.value.param == "model"
    with pytest.raises(Unprocessable, match="reference clip"):
        engine.open(SpeechRequest(model=ids[2]))
    _, text, request = requests()[0]
    named = engine.say(text, replace(request, model=ids[0]))
    np.testing.assert_array_equal(codes(named), alone[0])


def test_what_a_crew_has_in_common_is_there_once(folders: dict[str, Path]) -> None:
    parts = load_parts(list(folders.values()), CONFIG, revision=None, offline=True)
    assert isinstance(parts.runner, Crew)
    first, *others = parts.runner.runners.values()
    for runner in others:
        assert runner.codec is first.codec and runner.decoder is first.decoder
        assert runner.tokens is first.tokens and runner.kv is first.kv
        assert runner.pages is first.pages and runner.state is not first.state
    costs = [beside.costs for beside in parts.beside]
    assert len(costs) == 2 and all(table is not None and table.frame[1] > 0 for table in costs)


def test_another_speech_tokenizer_is_refused_by_name(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    write_synthetic(tmp_path / "other", seed=1)
    with pytest.raises(CheckpointError, match=r"other and .* have different speech tokenizers"):
        Engine([folders["base"], tmp_path / "other"], config=CONFIG)
    with pytest.raises(CheckpointError, match="listed twice"):
        Engine([folders["base"], folders["base"]], config=CONFIG)


def test_nothing_is_loaded_where_not_all_of_it_fits(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vivace import parts

    def never(*_: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(parts, "load_talker", never)
    monkeypatch.setattr(parts, "plan_memory", partial(_on_a_small_card, parts.plan_memory))
    with pytest.raises(CheckpointError, match=r"GB  weights of .*voice_design") as refusal:
        Engine(list(folders.values()), config=CONFIG)
    assert refusal.value.code == "memory"


def _on_a_small_card(plan, *args):  # type: ignore[no-untyped-def]
    return plan(*args[:-2], 10**9, args[-1])


def lazily(folders: dict[str, Path], **more: object) -> EngineConfig:
    """With memory for two of the three models."""
    sizes = [
        weigh(*unfilled(read_spec(folder), "meta", torch.float32)) for folder in folders.values()
    ]
    return replace(CONFIG, model_memory_mb=(2 * max(sizes) >> 20) + 1, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", BOTH)
def test_models_beyond_the_budget_come_at_first_use_and_all_say_what_they_say_alone(
    folders: dict[str, Path], alone: list[Codes], host: str
) -> None:
    """Kind after kind and back, beside a stream that goes on all the while."""
    with Engine(list(folders.values()), config=lazily(folders), host=BOTH[host]) as engine:
        every = list(enumerate(requests()))
        for _, kind in enumerate([*KINDS, *reversed(KINDS), KINDS[2], KINDS[0]]):
            several = [(i, made) for i, made in every if made[0] == kind][:3]
            sessions = [(i, engine.say(text, request)) for i, (_, text, request) in several]
            for i, session in sessions:
                np.testing.assert_array_equal(codes(session), alone[i], err_msg=f"{kind} {i}")
        assert engine.stats().slots_free == 16


def test_mixed_requests_that_do_not_fit_at_once_take_turns(
    folders: dict[str, Path], alone: list[Codes]
) -> None:
    with Engine(list(folders.values()), config=lazily(folders, load_wait_s=600.0)) as engine:
        sessions = [engine.say(text, request) for _, text, request in requests()]
        for session, expected in zip(sessions, alone, strict=True):
            np.testing.assert_array_equal(codes(session), expected)


def test_a_model_that_cannot_be_loaded_ends_its_requests_alone(
    folders: dict[str, Path], tmp_path: Path, alone: list[Codes]
) -> None:
    copies = {kind: tmp_path / kind for kind in KINDS}
    for kind in KINDS:
        shutil.copytree(folders[kind], copies[kind])
    with Engine(list(copies.values()), config=lazily(copies)) as engine:
        weights = copies["base"] / "model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[:-100])
        every = requests()
        _, text, request = every[2]
        broken = [engine.say(text, request) for _ in range(2)]
        beside = engine.say(*every[0][1:])
        for session in broken:
            with pytest.raises(CheckpointError, match="cut off or damaged"):
                list(session)
        np.testing.assert_array_equal(codes(beside), alone[0])
        weights.write_bytes(whole)
        np.testing.assert_array_equal(codes(engine.say(text, request)), alone[2])


def test_a_budget_too_small_for_one_is_refused_with_both_figures(folders: dict[str, Path]) -> None:
    with pytest.raises(CheckpointError, match=r"takes \d+ MiB, and --model-memory-mb is 1:"):
        Engine(list(folders.values()), config=replace(CONFIG, model_memory_mb=1))


def test_a_fine_tuned_checkpoint_brings_its_own_speakers(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """And one of a name that another has too: the first listed speaks, unless one is named."""
    tuned = tmp_path / "tuned"
    write_synthetic(tuned, until_text=True)
    config = json.loads((tuned / "config.json").read_text())
    talker = config["talker_config"]
    ryan = talker["spk_id"]["ryan"]
    talker["spk_id"] = {"Greta": ryan + 1, "Ryan": ryan}
    talker["spk_is_dialect"] = {"greta": False, "ryan": False}
    (tuned / "config.json").write_text(json.dumps(config))
    with Engine([folders["custom_voice"], tuned], config=CONFIG) as engine:
        first, second = engine.models
        assert [voice.id for voice in second.voices] == ["greta", "ryan"]
        assert "greta" in {voice.id for voice in engine.voices}
        ids = [voice.id for voice in engine.voices]
        assert len(ids) == len(set(ids)) and ids[0] == first.voices[0].id
        assert engine.open(SpeechRequest(voice="Greta")).request.model == str(tuned)
        assert engine.open(SpeechRequest(voice="ryan")).request.model == first.model_id
        named = engine.open(SpeechRequest(voice="ryan", model=str(tuned)))
        assert named.request.model == str(tuned)
        with pytest.raises(NotFound, match="greta, ryan"):
            engine.open(SpeechRequest(voice="serena", model=str(tuned)))


def test_costs_are_kept_of_each_model(folders: dict[str, Path], tmp_path: Path) -> None:
    config = replace(CONFIG, costs_dir=tmp_path)
    with Engine([folders["custom_voice"], folders["voice_design"]], config=config) as engine:
        assert len(codes(engine.say("Hello.", SpeechRequest(instruct="Old.")))) > 0
    kept = [json.loads(file.read_text()) for file in tmp_path.glob("*.json")]
    assert {about["model"] for about in kept} == {
        str(folders["custom_voice"]),
        str(folders["voice_design"]),
    }


def test_a_list_of_one_is_that_one(folders: dict[str, Path]) -> None:
    with Engine([folders["base"]], config=CONFIG, host=LoopThread) as engine:
        assert engine.model_id == str(folders["base"]) and len(engine.models) == 1
    assert Parts.__dataclass_fields__["beside"].default == ()
