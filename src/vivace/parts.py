"""From checkpoints' names to the parts of an engine, on a device and warm."""

import gc
import logging
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import torch

from vivace.checkpoint import (
    Model,
    load_encoders,
    load_talker,
    look,
    unfilled,
    unfilled_codec,
    unfilled_encoders,
)
from vivace.checkpoint.locate import EMBEDDED, locate
from vivace.config import EngineConfig, Profile
from vivace.errors import CheckpointError
from vivace.model.codec import Codec
from vivace.model.fused import use_kernels
from vivace.model.quant import check, quantize
from vivace.model.spec import ModelSpec
from vivace.roster import Models, Offer, several
from vivace.runtime.cloner import Cloner
from vivace.runtime.crew import Crew, Warm
from vivace.runtime.lanes import finished
from vivace.runtime.memory import Load, Memory, plan_memory, weigh
from vivace.runtime.passes import FrameShape, any_frame
from vivace.runtime.runner import Runner, Shared
from vivace.runtime.shelf import Shelf
from vivace.runtime.sizes import Sizes, upto
from vivace.runtime.sound import Sound
from vivace.runtime.state import PAGE, Filter
from vivace.schedule.costs import FREE, CostTable
from vivace.steps import Steps
from vivace.text.prompt import Script
from vivace.text.tokenize import Tokenizer
from vivace.types import Sampling, SpeechRequest

SMALL_HIDDEN = 512

log = logging.getLogger("vivace")


@dataclass(frozen=True, slots=True)
class Beside:
    """A further model of an engine, what its steps take, and its cloner if it is a base one."""

    offer: Offer
    costs: CostTable | None = None  # None while it is not in memory
    cloner: Cloner | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine is made of, loaded; tests put fakes in their places.

    The first model, and those `beside` it.
    """

    model_id: str
    spec: ModelSpec
    tokenizer: Tokenizer
    runner: Steps
    sessions: int | None = None  # that the device holds, where that is known
    costs: CostTable = FREE
    device: str = "none"
    cloner: Cloner | None = None  # of a base checkpoint
    beside: tuple[Beside, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint that has been found and looked at, but not loaded."""

    path: Path
    offer: Offer


def load_parts(
    model: Models, config: EngineConfig, *, revision: str | None, offline: bool
) -> Parts:
    """Find, read and warm up a checkpoint, or several; None is the embedded one.

    Raises CheckpointError that says what to do.
    """
    started = time.monotonic()
    sources = [_find(name, revision, offline) for name in several(model)]
    _check_alike(sources)
    device = _device(config.device)
    try:
        crew, cloners = _start(sources, device, config)
    except torch.cuda.OutOfMemoryError as error:
        raise CheckpointError(
            f"{device} ran out of memory at start; lower --max-sessions (now "
            f"{config.max_sessions}), session_context or prefix_mb, or end other programs on it"
        ) from error
    offers = [source.offer for source in sources]
    names = ", ".join(offer.model_id for offer in offers)
    log.info("%s: ready on %s after %.1f s", names, device, time.monotonic() - started)
    first, label = offers[0], _label(device, crew.first, config.quantize)
    costs = [crew.shelf.held[i].costs if i in crew.shelf.held else None for i in range(len(offers))]
    assert costs[0] is not None, "the first is loaded at the start"
    return Parts(
        first.model_id,
        first.spec,
        first.tokenizer,
        crew,
        crew.slots,
        costs[0],
        label,
        cloners[0],
        tuple(map(Beside, offers[1:], costs[1:], cloners[1:])),
    )


def _find(name: str | Path | None, revision: str | None, offline: bool) -> Source:
    """Where it lies and what it is, after a look at the headers of all its tensors."""
    id = EMBEDDED[0] if name is None or str(name) in EMBEDDED else str(name)
    path = locate(id, revision=revision, offline=offline)
    return Source(path, Offer(id, look(path), Tokenizer.from_dir(path)))


def _check_alike(sources: Sequence[Source]) -> None:
    """All models speak through one codec; the same one is not listed twice."""
    first, *others = sources
    for i, source in enumerate(others, 1):
        if source.path.resolve() in [before.path.resolve() for before in sources[:i]]:
            raise CheckpointError(f"{source.offer.model_id} is listed twice", code="listed_twice")
    for source in others:
        if source.offer.spec.prints.codec != first.offer.spec.prints.codec:
            raise CheckpointError(
                f"{source.offer.model_id} and {first.offer.model_id} have different speech "
                "tokenizers, and models of one engine share it: serve one of them elsewhere",
                code="other_codec",
            )


def _label(device: torch.device, runner: Runner, quantize: str) -> str:
    """What step times depend on, besides the model."""
    dtype = str(runner.state.next_input.dtype).removeprefix("torch.")
    if quantize != "none":
        dtype = f"{dtype}, {quantize}"
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {dtype}"
    return f"CPU, {os.cpu_count()} cores, {dtype}"


def _start(
    sources: Sequence[Source], device: torch.device, config: EngineConfig
) -> tuple[Crew, list[Cloner | None]]:
    """Warm runners and cloners; without our kernels where a size of them does not compile."""
    try:
        crew = _crew(sources, device, config)
        cloners = [_cloner(source, device) for source in sources]
        _settle(device)
        return crew, cloners
    except (CheckpointError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        if device.type != "cuda" or not config.kernels:
            raise
        log.warning("no kernels of ours, so steps are slower: %s", _cause(error))
    return _start(sources, device, replace(config, kernels=False))


def _cause(error: Exception) -> str:
    """The first line of what it says."""
    return str(error).strip().split("\n")[0]


def _crew(sources: Sequence[Source], device: torch.device, config: EngineConfig) -> Crew:
    """Make sure that it fits, and load what is to be in memory from the start."""
    dtype = _dtype(config.dtype, device)
    check(config.quantize, device, dtype, ours=config.kernels)
    weights = {
        i: _weight(source.offer.spec, dtype, config.quantize) for i, source in enumerate(sources)
    }
    budget = config.model_memory_mb << 20 or sum(weights.values())
    _check_sizes(sources, weights, budget)
    memory = _memory(sources, weights, budget, device, dtype, config)
    tokens = ThreadPoolExecutor(1, "vivace-tokens")
    threads = max(_threads(config.threads, source.offer.spec) for source in sources)
    tokens.submit(torch.set_num_threads, max(1, threads - threads // 2)).result()
    # The codec's lane has the threads that the talkers' has not.
    bring = Bringer(sources, memory, config, device, dtype, tokens, max(1, threads // 2))
    held: dict[int, Warm] = {}
    for i, source in enumerate(sources):
        if sum(weights[model] for model in held) + weights[i] <= budget:
            held[i] = bring.first(i) if not held else bring.next(i, in_lane=True)
            if device.type == "cuda":
                _lay_voices(held[i].runner, source.offer.tokenizer, config.profile.prefill_rows)
    return Crew(Shelf(held, weights, budget, bring.next))


def _check_sizes(sources: Sequence[Source], weights: Mapping[int, int], budget: int) -> None:
    """Each must fit the budget by itself."""
    for i, source in enumerate(sources):
        if weights[i] > budget:
            raise CheckpointError(
                f"{source.offer.model_id} takes {weights[i] >> 20} MiB, and --model-memory-mb is "
                f"{budget >> 20}: raise it, or leave the model out",
                code="memory",
            )


@dataclass(slots=True)
class Bringer:
    """Loads models and warms them up, at the start or while others speak."""

    sources: Sequence[Source]
    memory: Memory
    config: EngineConfig
    device: torch.device
    dtype: torch.dtype
    tokens: ThreadPoolExecutor
    threads: int  # of the codec's lane, on the CPU
    shared: Shared | None = None

    def first(self, number: int) -> Warm:
        """The one that makes what all share."""
        warm = self.next(number, in_lane=True)
        self.shared = warm.runner.shared
        return warm

    def next(self, number: int, *, in_lane: bool = False) -> Warm:
        """A further one. Raises CheckpointError; `in_lane` reads its weights in the tokens' thread.

        On the CPU OpenMP keeps a pool for each thread that computes: at the start that of the lane.
        """
        source = self.sources[number]
        try:
            parts = (
                self.tokens.submit(self._read, source).result() if in_lane else self._read(source)
            )
            runner = self._runner(parts)
            sizes = runner.sizes or _sizes(self.config.profile, self.memory.sessions, card=False)
            return Warm(runner, runner.warm_up(sizes))
        except torch.cuda.OutOfMemoryError as error:
            if self.shared is None or in_lane:
                raise
            raise CheckpointError(
                f"{self.device} has no memory left for {source.offer.model_id}", code="memory"
            ) from error

    def _read(self, source: Source) -> Model:
        codec = None if self.shared is None else self.shared.codec
        spec, device = source.offer.spec, self.device
        parts = load_talker(source.path, spec, device, self.dtype, codec)
        if self.config.quantize != "none":
            quantize(parts.talker, parts.predictor, self.config.quantize)
        return parts

    def _runner(self, parts: Model) -> Runner:
        """One model's, with the slots of them all."""
        config, memory, card = self.config, self.memory, self.device.type == "cuda"
        sizes = _sizes(config.profile, memory.sessions, card)
        fused, sound = False, None
        if card and config.kernels:
            fused, sound = _kernels(parts, memory.sessions, sizes, codec=self.shared is None)
        return Runner(
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
            threads=self.threads,
            thread=self.tokens,
            shared=self.shared,
        )


def _cloner(source: Source, device: torch.device) -> Cloner | None:
    """A base model's, warm; its encoders stay in memory whether the model does or not."""
    encoders = load_encoders(source.path, source.offer.spec, device)
    if encoders is None:
        return None
    cloner = Cloner(*encoders.both)
    cloner.warm_up()
    return cloner


def _settle(device: torch.device) -> None:
    """What lives now lives as long as the process; collections need not look at it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        gc.collect()
        gc.freeze()


def _memory(
    sources: Sequence[Source],
    weights: Mapping[int, int],
    budget: int,
    device: torch.device,
    dtype: torch.dtype,
    config: EngineConfig,
) -> Memory:
    """What it will take, from the shapes alone; said, and compared with what is free."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    loads = [
        Load(source.offer.model_id, source.offer.spec, weights[i], _hearing(source.offer.spec))
        for i, source in enumerate(sources)
    ]
    codec = unfilled_codec(sources[0].offer.spec, "meta")
    size = weigh(codec)
    if device.type == "cuda" and config.kernels:
        size += size // 2  # packed in half precision, beside
    memory = plan_memory(config, loads, size, codec.shapes, dtype.itemsize, free, budget)
    log.info("%s", memory)
    if memory.sessions < config.max_sessions:
        log.warning("%s holds %d of %d sessions", device, memory.sessions, config.max_sessions)
    return memory


def _weight(spec: ModelSpec, dtype: torch.dtype, kind: str) -> int:
    """Bytes of a checkpoint's talker and predictor in memory, with weights of that kind."""
    stacks = unfilled(spec, "meta", dtype)
    if kind != "none":
        quantize(*stacks, kind)
    return weigh(*stacks)


def _hearing(spec: ModelSpec) -> int:
    """Bytes of its encoders."""
    encoders = unfilled_encoders(spec, "meta")
    return 0 if encoders is None else weigh(*encoders.both)


def _kernels(parts: Model, slots: int, sizes: Sizes, *, codec: bool) -> tuple[bool, Sound | None]:
    """Put the modules on their kernels where those work: is the talker, and the codec if it is.

    The `codec` only once, with the first model.
    """
    device = parts.codec.codebooks.device
    with ThreadPoolExecutor(2, initializer=torch.cuda.set_device, initargs=(device,)) as pool:
        fused = pool.submit(use_kernels, parts.talker, parts.predictor)
        sound = pool.submit(_sound, parts.codec, slots + 1, sizes) if codec else finished(None)
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
