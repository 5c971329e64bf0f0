"""From a checkpoint's name to the parts of an engine, on a device and warm."""

import gc
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import torch

from vivace.checkpoint import Model, load
from vivace.checkpoint.embedded import embedded
from vivace.checkpoint.locate import locate
from vivace.config import EngineConfig, Profile
from vivace.errors import CheckpointError
from vivace.loop import Steps
from vivace.model.codec import Codec
from vivace.model.fused import use_kernels
from vivace.model.quant import quantize, rounds
from vivace.model.spec import ModelSpec
from vivace.runtime.cloner import Cloner
from vivace.runtime.memory import plan_memory
from vivace.runtime.passes import FrameShape, any_frame
from vivace.runtime.runner import Runner
from vivace.runtime.sizes import Sizes, upto
from vivace.runtime.sound import Sound
from vivace.runtime.state import PAGE, Filter
from vivace.schedule.costs import FREE, CostTable
from vivace.text.prompt import Script
from vivace.text.tokenize import Tokenizer
from vivace.types import Sampling, SpeechRequest

SMALL_HIDDEN = 512

log = logging.getLogger("vivace")


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine is made of, loaded; tests put fakes in their places."""

    model_id: str
    spec: ModelSpec
    tokenizer: Tokenizer
    runner: Steps
    sessions: int | None = None  # that the device holds, where that is known
    costs: CostTable = FREE
    device: str = "none"
    cloner: Cloner | None = None  # of a base checkpoint


def load_parts(
    model: str | Path | None, config: EngineConfig, *, revision: str | None, offline: bool
) -> Parts:
    """Find, read and warm up a checkpoint; None is the embedded one.

    Raises CheckpointError that says what to do.
    """
    started = time.monotonic()
    path = embedded() if model is None else locate(str(model), revision=revision, offline=offline)
    device, tokenizer = _device(config.device), Tokenizer.from_dir(path)
    try:
        (runner, cloner), costs = _start(path, device, tokenizer, config)
    except torch.cuda.OutOfMemoryError as error:
        raise CheckpointError(
            f"{device} ran out of memory at start; lower --max-sessions (now "
            f"{config.max_sessions}), session_context or prefix_mb, or end other programs on it"
        ) from error
    name = "vivace-embedded" if model is None else str(model)
    log.info("%s is ready on %s after %.1f s", name, device, time.monotonic() - started)
    label = _label(device, runner, config.quantize)
    return Parts(name, runner.spec, tokenizer, runner, runner.state.slots, costs, label, cloner)


def _label(device: torch.device, runner: Runner, quantize: str) -> str:
    """What step times depend on, besides the model."""
    dtype = str(runner.state.next_input.dtype).removeprefix("torch.")
    if quantize != "none":
        dtype = f"{dtype}, {quantize}"
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {dtype}"
    return f"CPU, {os.cpu_count()} cores, {dtype}"


def _start(
    path: Path, device: torch.device, tokenizer: Tokenizer, config: EngineConfig
) -> tuple[tuple[Runner, Cloner | None], CostTable]:
    """A warm runner and cloner; one without our kernels where a size of them does not compile."""
    try:
        runner, cloner = _runner(path, device, config)
        if cloner is not None:
            cloner.warm_up()
        return (runner, cloner), _warm_up(runner, tokenizer, config)
    except (CheckpointError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        if device.type != "cuda" or not config.kernels:
            raise
        log.warning("no kernels of ours, so steps are slower: %s", _cause(error))
    return _start(path, device, tokenizer, replace(config, kernels=False))


def _cause(error: Exception) -> str:
    """The first line of what it says."""
    return str(error).strip().split("\n")[0]


def _runner(path: Path, device: torch.device, config: EngineConfig) -> tuple[Runner, Cloner | None]:
    """Load the weights, and make room for sessions beside them."""
    tokens = ThreadPoolExecutor(1, "vivace-tokens")
    dtype = _dtype(config.dtype, device)
    rounded = rounds(config.quantize, device, dtype)
    parts = tokens.submit(load, path, device, dtype).result()
    if rounded:
        tokens.submit(quantize, parts.talker, parts.predictor).result()
    threads = _threads(config.threads, parts.spec)
    tokens.submit(torch.set_num_threads, max(1, threads - threads // 2)).result()
    card = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if card else None
    memory = plan_memory(config, parts.spec, parts.codec.shapes, dtype.itemsize, free)
    log.info("%s", memory)
    if memory.sessions < config.max_sessions:
        log.warning("%s holds %d of %d sessions", device, memory.sessions, config.max_sessions)
    sizes = _sizes(config.profile, memory.sessions, card)
    fused, sound = (
        _kernels(parts, memory.sessions, sizes) if card and config.kernels else (False, None)
    )
    encoders = parts.encoders
    cloner = None if encoders is None else Cloner(encoders.speaker, encoders.codec)
    runner = Runner(
        parts.spec,
        parts.talker,
        parts.predictor,
        parts.codec,
        slots=memory.sessions,
        pages=memory.pages,
        context=config.max_context,
        sizes=sizes if card else None,
        common=_common(parts.spec, config, fused) if card else None,
        sound=sound,
        graphs=config.graphs,
        prefix_bytes=config.prefix_mb << 20,
        threads=max(1, threads // 2),  # of the codec's lane; the talker has the others
        thread=tokens,
    )
    return runner, cloner


def _kernels(parts: Model, slots: int, sizes: Sizes) -> tuple[bool, Sound | None]:
    """Put the modules on their kernels where those work: is the talker, and the codec if it is."""
    device = parts.codec.codebooks.device
    with ThreadPoolExecutor(2, initializer=torch.cuda.set_device, initargs=(device,)) as pool:
        fused = pool.submit(use_kernels, parts.talker, parts.predictor)
        sound = pool.submit(_sound, parts.codec, slots + 1, sizes)
        return fused.result(), sound.result()  # two at a time, as compiling takes longest


def _sound(codec: Codec, slots: int, sizes: Sizes) -> Sound | None:
    """The codec on its kernels, if they work here; a frame is decoded to find out."""
    try:
        from vivace.model.codec_fused import FusedCodec, fits  # noqa: PLC0415 - brings Triton

        if not fits(codec.spec):
            return None
        sound = FusedCodec(codec, slots)
        sound.compile(product(sizes.codec_rows, sizes.codec_frames))
        none = torch.zeros(1, dtype=torch.int64, device=codec.codebooks.device)
        sound(none.repeat(1, 1, codec.spec.quantizers), none + slots - 1)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        log.warning("no fused codec, so sound takes longer: %s", _cause(error))
        return None
    return sound


def _common(spec: ModelSpec, config: EngineConfig, kernels: bool) -> FrameShape:
    """What frames are captured for: anything with kernels, else what is usual."""
    if kernels:
        return any_frame(spec, -(-config.max_context // PAGE))
    usual = Filter(64, nucleus=False)
    return FrameShape(0, -(-config.session_context // PAGE), usual, usual)


def _sizes(p: Profile, sessions: int, card: bool) -> Sizes:
    """What to capture on a card; on the CPU, what to run once and time."""
    rows, codec_rows = min(sessions, p.frame_rows), min(sessions, p.codec_rows)
    if card:
        return Sizes.upto(rows, codec_rows, p.chunk_frames, p.prefill_rows)
    return Sizes(
        frame=upto((1, 4), min(rows, 16)),
        prefill=(min(16, p.prefill_rows),),
        codec_rows=upto((1,), min(codec_rows, 4)),
        codec_frames=upto((1, 2, 4, 8), p.chunk_frames),
    )


def _warm_up(runner: Runner, tokenizer: Tokenizer, config: EngineConfig) -> CostTable:
    """Run everything once, so that the first request waits for no set-up."""
    card, p = runner.device.type == "cuda", config.profile
    costs = runner.warm_up(runner.sizes or _sizes(p, runner.state.slots, card))
    if card:
        _lay_voices(runner, tokenizer, p.prefill_rows)
        torch.cuda.empty_cache()
        gc.collect()
        gc.freeze()  # what lives now lives as long as the process; collections need not look at it
    return costs


def _lay_voices(runner: Runner, tokenizer: Tokenizer, rows: int) -> None:
    """Lay down what stands before the text for every named voice in every language."""
    spec, slot = runner.spec, 0
    languages = ["auto", *(set(spec.languages) - set(spec.dialects.values()))]
    for voice, language in product(spec.speakers, languages):
        script = Script(spec, SpeechRequest(voice=voice, language=language), tokenizer)
        script.append([], 1, last=True)
        prompt = script.prompt()
        runner.open(slot, Sampling(), seed=0)
        assert runner.room(slot, len(prompt.text))
        runner.begin(slot, prompt)
        while not runner.prefill(slot, rows).result():
            pass
        runner.close(slot)
    runner.prefixes.hits = runner.prefixes.misses = 0


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
