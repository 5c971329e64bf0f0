"""Runs one model's sessions step by step: the loop's calls in, passes over slots out.

The same code on the CPU, where a pass is computed at its exact size on a thread, and on a card,
where it is a captured graph of the next larger size, padded with rows of the scratch slot.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import product
from operator import or_

import numpy as np
import torch
from torch import Tensor

from vivace.meters import Stock
from vivace.model.codec import Codec
from vivace.model.fused import embed_frames
from vivace.model.predictor import Predictor
from vivace.model.spec import ModelSpec, TransformerSpec
from vivace.model.talker import Talker
from vivace.runtime.compiling import Compiles
from vivace.runtime.decoder import Decoder
from vivace.runtime.kv import KvPool
from vivace.runtime.lanes import (
    Lane,
    Result,
    Step,
    StreamLane,
    ThreadLane,
    Vector,
    finished,
    lanes_of,
    seconds,
    send,
)
from vivace.runtime.pages import Pages
from vivace.runtime.passes import ENDED, SPOILT, FrameShape, Passes, PromptShape, any_frame
from vivace.runtime.prefix import Prefix, PrefixCache, key_of
from vivace.runtime.sizes import Sizes, fit, pieces
from vivace.runtime.sound import PlainSound, Sound
from vivace.runtime.state import PAGE, Filter, Opening, State, filter_of
from vivace.schedule.costs import CostTable, Points
from vivace.text.prompt import X_VECTOR, Prompt
from vivace.types import Frames, Pcm, Pending, Row, Sampling

SHORT = 16  # pages
POLL_S = 50e-6  # a step on a card takes milliseconds, and nobody calls when it is done


@dataclass(slots=True)
class Cold:
    """A prompt on its way into the pages."""

    prompt: Prompt
    laid: int  # rows that are there
    begun: Pending[None]

    @property
    def left(self) -> int:
        """Rows to lay down; the last one is the first frame's."""
        return len(self.prompt.text) - 1 - self.laid


@dataclass(frozen=True, slots=True)
class Shared:
    """What all runners of an engine have in common: lanes, codec, pages of each shape."""

    tokens: Lane
    decoder: Decoder
    codec: Codec
    pools: list[tuple[KvPool, Pages]] = field(default_factory=list)

    def pool(
        self, spec: TransformerSpec, pages: int, device: torch.device, dtype: torch.dtype
    ) -> tuple[KvPool, Pages]:
        """The pool that holds that talker's keys and values, made if there is none."""
        for kv, owners in self.pools:
            if kv.fits(spec, dtype):
                return kv, owners
        self.pools.append((KvPool(spec, pages + 1, PAGE, device, dtype), Pages(pages, PAGE)))
        return self.pools[-1]


class Runner:
    """Owner of one model's state and of its prompts on their way in.

    What is `shared` it has in common with the runners beside it, if there are any: slots are for
    sessions of any model, and all pages are alike in published checkpoints. A runner of another
    shape has pages of its own.

    `context` is the most positions of one session. `sizes` are those that passes are padded to,
    `common` the frame that graphs are captured for; without them every step runs as it is.
    `sound` is the codec over the slots and a scratch one, in plain torch if not given.
    `thread` is the token lane's on the CPU: the one that has loaded the weights, since OpenMP keeps
    a pool for each thread that computes, and two pools on the same cores cost each other a factor
    of three.
    """

    def __init__(
        self,
        spec: ModelSpec,
        talker: Talker,
        predictor: Predictor,
        codec: Codec,
        *,
        slots: int,
        pages: int,
        context: int | None = None,
        sizes: Sizes | None = None,
        common: FrameShape | None = None,
        sound: Sound | None = None,
        graphs: bool = True,
        prefix_bytes: int = 1 << 28,
        threads: int = 1,
        thread: ThreadPoolExecutor | None = None,
        shared: Shared | None = None,
    ) -> None:
        weight = talker.codec_embedding.weight
        self.spec, self.codec = spec, codec
        self.device, self.sizes = weight.device, sizes
        self.state = State(
            spec,
            slots=slots,
            pages=pages,
            context=pages * PAGE if context is None else context,
            device=self.device,
            dtype=weight.dtype,
        )
        if shared is None:
            tokens, lane = lanes_of(self.device, graphs=graphs, thread=thread, threads=threads)
            sound = sound or PlainSound(codec, slots + 1)
            decoder = Decoder(sound, lane, slots, spec.codebooks, self.device, sizes)
            shared = Shared(tokens, decoder, codec)
        self.shared, self.tokens, self.decoder = shared, shared.tokens, shared.decoder
        self.kv, self.pages = shared.pool(spec.talker, pages, self.device, weight.dtype)
        self.passes = Passes(spec, talker, predictor, self.state, self.kv, self.decoder.ring)
        self.prefixes = PrefixCache[Prefix](prefix_bytes)
        self.common, self._common_is_any = common, common == any_frame(spec, self.state.width)
        self._grown: list[tuple[int, int, int]] = []  # slot, place in its table, page
        self._compiles: Compiles | None = None
        self._cold: dict[int, Cold] = {}
        self._filters = [(Filter(1, False), Filter(1, False))] * (slots + 1)
        self._least = [0] * slots  # frames before an end of speech, of each prompt
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # what has been filled was on another stream

    def forget(self) -> None:
        """Let go of what the lanes keep of it; no step of it runs, or will."""
        if isinstance(self.tokens, StreamLane):
            torch.cuda.synchronize(self.device)
            self.tokens.forget(self.passes)

    @property
    def depth(self) -> int:
        """Token steps under way; on the CPU a frame ahead is in vain after an end of speech."""
        return 1 if isinstance(self.tokens, ThreadLane) else 2

    @property
    def poll_s(self) -> float:
        """How often to look whether a step is done."""
        return math.inf if isinstance(self.tokens, ThreadLane) else POLL_S

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever a step is done, where a thread can."""
        for lane in (self.tokens, self.decoder.lane):
            if isinstance(lane, ThreadLane):
                lane.wake = wake

    def stock(self) -> Stock:
        """What there is to give, and what is in use of it; for any thread."""
        held = reserved = total = 0
        if self.device.type == "cuda":
            held = torch.cuda.memory_allocated(self.device)
            reserved = torch.cuda.memory_reserved(self.device)
            total = torch.cuda.get_device_properties(self.device).total_memory
        pages, prefixes = self.pages, self.prefixes
        return Stock(
            pages.total,
            pages.free,
            prefixes.hits,
            prefixes.misses,
            prefixes.bytes,
            held,
            reserved,
            total,
        )

    @property
    def codec_buckets(self) -> tuple[tuple[int, int], ...]:
        """Rows and frames of a codec step that steps are padded to; none on the CPU."""
        s = self.sizes
        return () if s is None else tuple(product(s.codec_rows, s.codec_frames))

    @property
    def late(self) -> int:
        """On a card: steps without a graph, and kernels compiled, since the warm-up."""
        lanes = (self.tokens, self.decoder.lane)
        eager = sum(lane.eager for lane in lanes if isinstance(lane, StreamLane))
        return eager + (self._compiles.count if self._compiles else 0)

    def warm_up(self, sizes: Sizes) -> CostTable:
        """Run every pass at every one of `sizes`, and time it; on a card that makes them graphs.

        Nothing is left behind but in the scratch slot.
        """
        scratch, pad = self.state.scratch, self.spec.text_ids.tts_pad
        frame, prompt = dict[int, Step](), dict[tuple[int, int], Step]()
        for rows in reversed(sizes.frame):
            pair = np.array([[scratch], [pad]]).repeat(rows, 1)
            frame[rows] = self.passes.frame, self._shape([scratch], rows), pair
        for rows, width in product(reversed(sizes.prefill), self._prompt_widths()):
            none = np.array([scratch, *[0] * (2 + rows)])  # 0 of its rows are to be laid down
            prompt[rows, width] = self.passes.prefill, PromptShape(rows, width), none
        decoder = self.decoder
        sound = {} if decoder.times_s else decoder.steps(sizes)
        self._rehearse([*frame.values(), *prompt.values()], [*sound.values()])
        frame_s = {rows: seconds(self.tokens, step) for rows, step in frame.items()}
        prefill_s = dict[int, float]()
        for (rows, _), step in prompt.items():
            prefill_s.setdefault(rows, seconds(self.tokens, step))
        if sound:
            decoder.time(sound)
        for lane in (self.tokens, decoder.lane):
            if isinstance(lane, StreamLane):
                lane.eager, self._compiles = 0, Compiles()
        if self.sizes is None:
            return CostTable(frame_s, decoder.times_s, prefill_s)
        return cost_table(sizes, frame_s, decoder.times_s, prefill_s)

    def _rehearse(self, tokens: list[Step], sound: list[Step]) -> None:
        """The lanes at the same time, each in its order: on a card most of it is compiling.

        More threads would meet in one kernel, and Triton 3.6 lets the second launch it half loaded.
        """

        def run(lane: Lane, steps: list[Step]) -> None:
            for step in steps:
                lane.rehearse(*step)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(run, (self.tokens, self.decoder.lane), (tokens, sound)))

    def open(self, slot: int, sampling: Sampling, seed: int, model: int = 0) -> None:
        """Make the slot a fresh one with these draws; the model is this one."""
        s, vocab = sampling, self.spec.talker.vocab
        first = filter_of(vocab, s.temperature, s.top_k, s.top_p)
        vocab = self.spec.predictor.vocab
        later = filter_of(vocab, s.subtalker_temperature, s.subtalker_top_k, s.subtalker_top_p)
        self._filters[slot], self._least[slot] = (first, later), sampling.min_frames
        self.tokens.do(partial(self._open, slot, Opening(seed, sampling, first, later)))
        self.decoder.open(slot)

    def _open(self, slot: int, opening: Opening) -> None:
        s = self.state
        s.open(slot)
        s.whole[:, slot] = send(opening.whole(), self.device)
        s.real[:, slot] = send(opening.real(), self.device)

    def close(self, slot: int) -> None:
        """Give back the slot's pages; steps under way keep theirs, since others come after."""
        self.pages.release(slot)
        self._cold.pop(slot, None)

    def room(self, slot: int, positions: int) -> bool:
        """Make sure the slot's pages hold `positions`; false if the pool has run out."""
        owned = len(self.pages.table(slot))
        added = self.pages.grow(slot, positions)
        self._grown += [(slot, owned + i, page) for i, page in enumerate(added or ())]
        return added is not None

    def _place(self) -> None:
        """Tell the device which pages have been given out since the last step."""
        if self._grown:
            grown, self._grown = np.array(self._grown).T, []
            self.tokens.do(partial(self._enter, grown))

    def _enter(self, grown: Vector) -> None:
        slots, places, pages = send(grown, self.device)
        self.state.tables[slots, places] = pages

    def begin(self, slot: int, prompt: Prompt) -> bool:
        """Take a prompt, whose last row the first frame takes; the others wait for `prefill`.

        Rows that another session has laid down before are copied; true if those are all. A slot
        that has spoken takes the next one with an empty context; its sound goes on. A clone's
        reference goes through the codec before the first, so that speech continues its sound.
        """
        self._place()
        prefix = self.prefixes.get(key_of(prompt)) if prompt.head else None
        begun = self.tokens.do(
            partial(self._begin, slot, prompt, prefix, self.pages.table(slot)[:])
        )
        cold = self._cold[slot] = Cold(prompt, 0 if prefix is None else prefix.rows, begun)
        if prompt.ref_codes is not None and not prompt.after:
            self.decoder.refer(slot, prompt.ref_codes)
        return not cold.left

    def _begin(self, slot: int, prompt: Prompt, prefix: Prefix | None, pages: list[int]) -> None:
        s, last = self.state, len(prompt.text) - 1
        if prompt.after:
            s.resume(slot, prompt.after, self._least[slot])
        s.next_input[slot] = self._rows(prompt, last, last + 1)[0]
        if prefix is not None:
            self.kv.lay(pages, prefix.keys, prefix.values)
            s.counts[0, slot].fill_(prefix.rows)

    def prefill(self, slot: int, rows: int) -> Pending[bool]:
        """Lay down the next rows of the slot's prompt; true once there are no more."""
        cold = self._cold[slot]
        start, head = cold.laid, cold.prompt.head
        most = rows if self.sizes is None else min(rows, self.sizes.prefill[-1])
        # A head alone, in the same steps for everybody: then it is the same, whatever follows it.
        count = min(most, cold.left, head - start if start < head else cold.left)
        if not count:
            return finished(True)
        cold.laid += count
        done = not cold.left
        size = count if self.sizes is None else fit(self.sizes.prefill, count)
        vector = np.zeros(3 + size, dtype=np.int64)
        vector[:3] = slot, start, count
        vector[3 : 3 + count] = cold.prompt.text[start : start + count]
        self._place()
        self.tokens.do(partial(self._supply, cold.prompt, start, start + count))
        pages = len(self.pages.table(slot))
        shape = PromptShape(size, next(w for w in self._prompt_widths(pages) if w >= pages))
        out = self.tokens.run(
            self.passes.prefill, shape, vector, lambda _: cold.begun.result() or done
        )
        if cold.laid == head:
            self.tokens.do(partial(self._keep_head, cold.prompt, self.pages.table(slot)[:], out))
        return out

    def _supply(self, prompt: Prompt, start: int, end: int) -> None:
        self.state.rows[: end - start] = self._rows(prompt, start, end)

    def _keep_head(self, prompt: Prompt, pages: list[int], laid: Pending[bool]) -> None:
        """Keep what the head has left in the pages, for those who come after."""
        if not isinstance(laid, Future) or laid.exception() is None:
            self.prefixes.put(key_of(prompt), Prefix(*self.kv.take(pages, prompt.head)))

    def _rows(self, prompt: Prompt, start: int, end: int) -> Tensor:
        """The prompt's rows [end - start, hidden] without their text."""
        ids = prompt.codec[start:end]
        codec = send(ids, self.device)
        talker = self.passes.talker
        part = talker.codes(codec.clamp(min=0)) * (codec >= 0)[:, None]
        if X_VECTOR in ids:
            part[ids.index(X_VECTOR)] = send(prompt.x_vector, self.device, part.dtype)
        if prompt.ref_codes is not None:
            first = len(prompt.codec) - len(prompt.ref_codes)
            if end > first:
                codes = prompt.ref_codes[max(0, start - first) : end - first]
                part[-len(codes) :] = embed_frames(
                    talker, self.passes.predictor, send(codes, self.device)
                )
        return part

    def frame(self, rows: Sequence[Row]) -> Pending[Frames]:
        """Make the next frame of every row: talker, draws, predictor, next input."""
        shape, vector = self.step(rows)
        self._place()
        slots = [row.slot for row in rows]
        return self.tokens.run(self.passes.frame, shape, vector, partial(self._frames, slots))

    def _frames(self, slots: list[int], out: Result) -> Frames:
        """What a pass has put out for these slots; pages of spoilt ones are wiped."""
        codes, state = out[: len(slots), :-1].copy(), out[: len(slots), -1]
        spoilt = state == SPOILT
        if not spoilt.any():
            return Frames(codes, state == ENDED)
        pages = [
            page
            for slot, bad in zip(slots, spoilt, strict=True)
            if bad
            for page in self.pages.table(slot)
        ]
        self.tokens.do(partial(self.kv.wipe, pages))
        return Frames(codes, state == ENDED, spoilt)

    def step(self, rows: Sequence[Row]) -> tuple[FrameShape, Vector]:
        """What a pass over these rows takes, padded."""
        count, slots = len(rows), [row.slot for row in rows]
        size = count if self.sizes is None else fit(self.sizes.frame, count)
        vector = np.empty((2, size), dtype=np.int64)
        vector[0, :count], vector[0, count:] = slots, self.state.scratch
        vector[1, :count], vector[1, count:] = (
            [row.text for row in rows],
            self.spec.text_ids.tts_pad,
        )
        return self._shape(slots, size), vector

    def _shape(self, slots: list[int], size: int) -> FrameShape:
        """What the rows need; on a card what graphs are captured for, unless they need more."""
        common = self.common
        if common is not None and self._common_is_any:
            return FrameShape(size, common.width, common.first, common.later)
        first, later = (
            reduce(or_, filters)
            for filters in zip(*(self._filters[slot] for slot in slots), strict=True)
        )
        if common is not None:
            first, later = first | common.first, later | common.later
        return FrameShape(size, self._width(slots), first, later)

    def _prompt_widths(self, pages: int = 1) -> tuple[int, ...]:
        """Pages that a prompt's rows look over: most are short."""
        return (pages,) if self.sizes is None else (min(SHORT, self.state.width), self.state.width)

    def _width(self, slots: list[int]) -> int:
        """Pages that hold the rows of every slot."""
        least = 1 if self.common is None else self.common.width
        return max(least, *(len(self.pages.table(slot)) for slot in slots))

    def voice(self, slots: Sequence[int], frames: int) -> Pending[Pcm]:
        """Decode the next `frames` of every slot."""
        return self.decoder.voice(slots, frames)


def cost_table(s: Sizes, frame: Points, voice: Mapping[int, Points], prefill: Points) -> CostTable:
    """Costs of every size from those of the captured ones, which steps are padded to."""

    def every(points: Points, sizes: tuple[int, ...]) -> Points:
        return {count: points[fit(sizes, count)] for count in range(1, sizes[-1] + 1)}

    rows = {frames: every(points, s.codec_rows) for frames, points in voice.items()}
    return CostTable(
        every(frame, s.frame),
        {
            frames: {
                count: sum(rows[part][count] for part in pieces(s.codec_frames, frames))
                for count in range(1, s.codec_rows[-1] + 1)
            }
            for frames in range(1, s.codec_frames[-1] + 1)
        },
        every(prefill, s.prefill),
    )
