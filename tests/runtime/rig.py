"""Runners on the CPU that behave like those on a card: padded sizes, lanes that only start work."""

import json
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.golden.load import Model as Golden
from torch.utils._python_dispatch import TorchDispatchMode

from vivace.checkpoint import Model
from vivace.checkpoint.presets import config_files
from vivace.checkpoint.read import read_spec
from vivace.checkpoint.vocabulary import vocabulary
from vivace.model.codec import Codec
from vivace.model.predictor import Predictor
from vivace.model.talker import Talker
from vivace.runtime.lanes import Pass, Result, Vector, finished, name_of
from vivace.runtime.runner import Runner
from vivace.runtime.sizes import Sizes
from vivace.text.prompt import Prompt
from vivace.types import Pending, Row, Sampling

SIZES = Sizes(frame=(1, 2, 4, 8), prefill=(2, 4), codec_rows=(1, 3, 8), codec_frames=(1, 2, 4))
# What copies from the device to the host, or must know a count there, waits for the device.
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique")


class Waits(TorchDispatchMode):
    """Names the operations that would make the host wait for a card."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put_", "index_put") else ()
        if name in WAITING or any(i is not None and i.dtype == torch.bool for i in indices):
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


@dataclass
class Started:
    """A step on its way; `result` is where somebody waits."""

    lane: "CardLane"
    value: Any

    def done(self) -> bool:
        return False

    def result(self) -> Any:
        self.lane.waited += 1
        return self.value


@dataclass
class CardLane:
    """Computes at once, but says that it is under way; keeps what it has a graph for."""

    waits: Waits = field(default_factory=Waits)
    captured: set[tuple[Hashable, Hashable]] = field(default_factory=set)
    late: list[tuple[Hashable, Hashable]] = field(default_factory=list)
    waited: int = 0

    def do(self, work: Callable[[], object]) -> Pending[None]:
        with self.waits, torch.inference_mode():
            work()
        return finished(None)

    def rehearse(self, work: Pass, shape: Hashable, vector: Vector) -> None:
        with torch.inference_mode():
            work(shape, torch.from_numpy(vector))

    def prepare(self, work: Pass, shape: Hashable, vector: Vector) -> None:
        self.captured.add((name_of(work), shape))

    def run(
        self, work: Pass, shape: Hashable, vector: Vector, finish: Callable[[Result], Any]
    ) -> Pending[Any]:
        if (name_of(work), shape) not in self.captured:
            self.late.append((name_of(work), shape))
        with self.waits, torch.inference_mode():
            out = work(shape, torch.from_numpy(vector))
        return Started(self, finish(out.numpy()))


def runner_of(
    model: Golden | Model, *, slots: int = 8, sizes: Sizes | None = SIZES, **more: Any
) -> Runner:
    parts = (model.spec, model.talker, model.predictor, model.codec)
    return Runner(*parts, slots=slots, pages=3 * slots, context=192, sizes=sizes, **more)


def on_lanes(runner: Runner) -> tuple[CardLane, CardLane]:
    """Put lanes under the runner that behave like a card's."""
    lanes = CardLane(), CardLane()
    runner.tokens, runner.decoder.lane = lanes
    return lanes


def prompt_of(model: Golden | Model, rows: int = 7, head: int = 0) -> Prompt:
    ids = model.spec.text_ids.tts_pad, model.spec.codec_ids.pad
    return Prompt([ids[0]] * rows, [ids[1]] * rows, head=head)


def begin(runner: Runner, slot: int, prompt: Prompt, sampling: Sampling, seed: int) -> None:
    runner.open(slot, sampling, seed)
    assert runner.room(slot, len(prompt.text) + 40)
    runner.begin(slot, prompt)
    while not runner.prefill(slot, 64).result():
        pass


def speak(runner: Runner, seeds: list[int], frames: int = 6) -> np.ndarray:
    """Codes [rows, frames, 16] of sessions with these seeds, in slots 0.., which are closed."""
    pad = runner.spec.text_ids.tts_pad
    prompt = Prompt([pad] * 7, [runner.spec.codec_ids.pad] * 7)
    for slot, seed in enumerate(seeds):
        begin(runner, slot, prompt, Sampling(min_frames=frames), seed)
    rows = [Row(slot, pad) for slot in range(len(seeds))]
    made = [runner.frame(rows).result().codes for _ in range(frames)]
    for slot in range(len(seeds)):
        runner.close(slot)
    return np.stack(made, 1)


class Noise:
    """A `Take` that makes tensors up: the same ones for the same seed, on any device."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, name: str, *shape: int) -> torch.Tensor:
        noise = torch.randn(shape, generator=self.generator)
        if "cluster_usage" in name:
            return noise.abs() + 1
        if len(shape) == 1:  # norms stand near one, the rest near zero
            return 0.1 * noise + ("norm" in name)
        quiet = 0.01 if shape[0] == 1 else 1.0  # the samples themselves, which would be clipped
        return quiet * noise * math.prod(shape[1:]) ** -0.5


def random_model(folder: Path, device: str, dtype: torch.dtype) -> Model:
    """A tiny checkpoint's shapes, but for head sizes that the kernels take."""
    for name, config in config_files("tiny", "custom_voice", vocabulary(published=False)).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(config))
    spec = read_spec(folder)
    spec = replace(spec, predictor=replace(spec.predictor, head_dim=64))
    take, before = Noise(), torch.get_default_dtype()
    with torch.device(device):
        codec = Codec(spec.codec)
        torch.set_default_dtype(dtype)
        talker, predictor = Talker(spec), Predictor(spec)
        torch.set_default_dtype(before)
    for module in (talker, predictor, codec):
        module.load(take)
        module.eval().requires_grad_(False)
    return Model(spec, talker, predictor, codec)
