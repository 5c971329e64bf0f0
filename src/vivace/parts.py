"""From a checkpoint's name to the parts of an engine, on a device and warm."""

import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from vivace.checkpoint import load
from vivace.checkpoint.embedded import embedded
from vivace.checkpoint.locate import locate
from vivace.config import EngineConfig
from vivace.errors import CheckpointError
from vivace.loop import Steps
from vivace.model.spec import ModelSpec
from vivace.runtime.runner import PAGE, Runner
from vivace.schedule.costs import FREE, CostTable
from vivace.text.prompt import Prompt
from vivace.text.tokenize import Tokenizer
from vivace.types import Row, Sampling

SMALL_HIDDEN = 512

log = logging.getLogger("vivace")


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine is made of, loaded; tests put fakes in their places."""

    model_id: str
    spec: ModelSpec
    tokenizer: Tokenizer
    runner: Steps
    costs: CostTable = FREE


def load_parts(
    model: str | Path | None, config: EngineConfig, *, revision: str | None, offline: bool
) -> Parts:
    """Find, read and warm up a checkpoint; None is the embedded one.

    Raises CheckpointError that says what to do.
    """
    started = time.monotonic()
    path = embedded() if model is None else locate(str(model), revision=revision, offline=offline)
    device = _device(config.device)
    tokens = ThreadPoolExecutor(1, "vivace-tokens")
    parts = tokens.submit(load, path, device, _dtype(config.dtype, device)).result()
    threads = _threads(config.threads, parts.spec)
    tokens.submit(torch.set_num_threads, max(1, threads - threads // 2)).result()
    pages = config.max_sessions * config.session_context // PAGE
    runner = Runner(
        parts.spec,
        parts.talker,
        parts.predictor,
        parts.codec,
        slots=config.max_sessions,
        pages=max(pages, config.max_context // PAGE),
        threads=max(1, threads // 2),  # of the codec's lane; the talker has the others
        tokens=tokens,
    )
    warm_up(runner, config)
    name = "vivace-embedded" if model is None else str(model)
    log.info("%s is ready on %s after %.1f s", name, device, time.monotonic() - started)
    return Parts(name, parts.spec, Tokenizer.from_dir(path), runner)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError("vivace runs on cpu and cuda")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise CheckpointError(f"cannot use device {name!r}: {error}. Try --device cpu.") from error
    return device


def _threads(asked: int, spec: ModelSpec) -> int:
    """Cores for one operation; a small model's are over before a second core has woken up.

    On two cores of which others want one, two threads of the embedded voice wait for each other
    so long that speech takes 15 times as long; alone they gain a tenth.
    """
    cores = os.cpu_count() or 1
    if asked:
        return min(asked, cores)
    return 1 if spec.talker.hidden < SMALL_HIDDEN else cores


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtypes = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
    if name not in dtypes:
        raise CheckpointError(f"no dtype {name!r}; there are auto, {', '.join(dtypes)}")
    return dtypes[name]


def warm_up(runner: Runner, config: EngineConfig) -> None:
    """Run every batch size and chunk once, so that the first request waits for no set-up."""
    ids, codec = runner.spec.text_ids, runner.spec.codec_ids
    prompt = Prompt([ids.tts_pad] * 12, [codec.pad] * 12)
    slots = list(range(config.max_sessions))
    endless = Sampling(min_frames=config.max_context)
    for slot in slots:
        runner.open(slot, endless, seed=slot)
        runner.room(slot, len(prompt.text) + config.profile.chunk_frames + config.max_sessions)
    runner.begin(0, prompt)
    runner.prefill(0, config.profile.prefill_rows).result()
    rows = [Row(slot, ids.tts_pad) for slot in slots]
    for _ in range(config.profile.chunk_frames):
        runner.frame(rows[: config.profile.frame_rows]).result()
    for frames in range(1, config.profile.chunk_frames + 1):
        runner.voice(slots[:1], frames).result()
    for slot in slots:
        runner.close(slot)
