"""Runs the three modules over slots: every tensor of a session lives here, indexed by its slot.

Eager torch, on the CPU or on a card. A step's host input is slot numbers and text ids; its output
is the codes, the end-of-speech flags and the sound. Two lanes, a thread each: tokens and sound.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from vivace.config import MOST_CHUNK
from vivace.model.codec import Codec
from vivace.model.predictor import Pick, Predictor
from vivace.model.sampling import Rows, penalise
from vivace.model.spec import ModelSpec
from vivace.model.talker import Talker
from vivace.runtime.kv import KvPool, PagedCache
from vivace.runtime.pages import Pages
from vivace.text.prompt import X_VECTOR, Prompt
from vivace.types import Frames, Pcm, Row, Sampling

PAGE = 64  # positions
RING = 3 * MOST_CHUNK  # frames per slot: those that wait for the codec, and those it is at
P = ParamSpec("P")
R = TypeVar("R")
COLDEST = 1e-4  # below it a draw is argmax, and logits divided by it would leave fp32's range
LEAST_PENALTY = 1e-2


class _Draws:
    """Sampling parameters per slot, for one of the two stacks that draw."""

    def __init__(self, slots: int, vocab: int, device: torch.device) -> None:
        self.vocab = vocab
        self.temperature = torch.ones(slots, device=device)
        self.top_k = torch.ones(slots, dtype=torch.int64, device=device)
        self.top_p = torch.full((slots,), torch.inf, device=device)
        self.widest = [1] * slots  # the host's copy of top_k
        self.nucleus = [False] * slots  # and of whether there is a top_p

    def set(self, slot: int, temperature: float, top_k: int, top_p: float) -> None:
        """Temperature 0 is top-k of 1; top-k 0 keeps the vocabulary; top-p 1 keeps every tail."""
        greedy = temperature == 0.0
        self.widest[slot] = 1 if greedy else min(top_k or self.vocab, self.vocab)
        self.nucleus[slot] = top_p < 1.0
        self.temperature[slot] = 1.0 if greedy else max(temperature, COLDEST)
        self.top_k[slot] = self.widest[slot]
        self.top_p[slot] = torch.inf if top_p >= 1.0 else top_p

    def rows(self, rows: Sequence[Row], slots: Tensor, seed: Tensor, frame: Tensor) -> Rows:
        """The parameters of one step's rows."""
        widest = max(self.widest[row.slot] for row in rows)
        nucleus = any(self.nucleus[row.slot] for row in rows)
        t, k, p = self.temperature[slots], self.top_k[slots], self.top_p[slots]
        return Rows(t, k, p, seed[slots], frame[slots], widest, nucleus)


class Runner:
    """Owner of the slots' device state: next inputs, positions, draws, keys and values, codec.

    `tokens` is the thread that has loaded the weights, since OpenMP keeps a pool for each thread
    that computes, and two pools on the same cores cost each other a factor of three.
    """

    depth = 1  # a frame ahead would be computed in vain after every end of speech
    poll_s = math.inf  # `watch` tells

    def __init__(
        self,
        spec: ModelSpec,
        talker: Talker,
        predictor: Predictor,
        codec: Codec,
        *,
        slots: int,
        pages: int,
        threads: int = 1,
        tokens: ThreadPoolExecutor | None = None,
    ) -> None:
        self.spec, self.talker, self.predictor, self.codec = spec, talker, predictor, codec
        weight = talker.codec_embedding.weight
        self.device, dtype = weight.device, weight.dtype
        self.pages = Pages(pages, PAGE)
        self.kv = KvPool(spec.talker, pages, PAGE, self.device, dtype)

        def per_slot(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(slots, *shape, dtype=dtype, device=self.device)

        self.next_input = per_slot(spec.talker.hidden, dtype=dtype)
        self.position, self.frames = per_slot(), per_slot()
        self.seed, self.min_frames = per_slot(), per_slot()
        self.penalty = per_slot(dtype=torch.float32)
        self.seen = per_slot(spec.talker.vocab, dtype=torch.bool)
        self.first_draws = _Draws(slots, spec.talker.vocab, self.device)
        self.later_draws = _Draws(slots, spec.predictor.vocab, self.device)
        self.ring = per_slot(RING, spec.codebooks)
        self.made, self.voiced = [0] * slots, [0] * slots
        self.least = [0] * slots  # frames before an end of speech, of each prompt
        self.codec_state = codec.fresh(slots)
        self.prompts = [self.next_input[:0]] * slots  # rows not yet laid down
        self.begun: list[Future[None]] = [Future()] * slots
        self.suppressed = self._suppressed()
        self.tokens = tokens or ThreadPoolExecutor(1, "vivace-tokens")
        self.sound = ThreadPoolExecutor(1, "vivace-codec", torch.set_num_threads, (threads,))
        self._wake: Callable[[], None] = lambda: None

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever a step is done."""
        self._wake = wake

    def _start(
        self, lane: ThreadPoolExecutor, step: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> "Future[R]":
        future = lane.submit(step, *args, **kwargs)
        future.add_done_callback(lambda _: self._wake())
        return future

    def _suppressed(self) -> Tensor:
        """Bias [vocab] that shuts out the special ids, except end of speech."""
        bias = torch.zeros(self.spec.talker.vocab, device=self.device)
        bias[self.spec.talker.vocab - 1024 :] = -torch.inf
        bias[self.spec.codec_ids.eos] = 0.0
        return bias

    def open(self, slot: int, sampling: Sampling, seed: int) -> None:
        """Make the slot a fresh one with these draws."""
        self.tokens.submit(self._open, slot, sampling, seed)

    def _open(self, slot: int, sampling: Sampling, seed: int) -> None:
        self.made[slot] = self.voiced[slot] = 0
        for tensor in (self.position, self.frames, self.seen, *self.codec_state):
            tensor[slot] = 0
        self.seed[slot] = seed
        self.min_frames[slot] = self.least[slot] = sampling.min_frames
        self.penalty[slot] = max(sampling.repetition_penalty, LEAST_PENALTY)
        s = sampling
        self.first_draws.set(slot, s.temperature, s.top_k, s.top_p)
        self.later_draws.set(slot, s.subtalker_temperature, s.subtalker_top_k, s.subtalker_top_p)

    def close(self, slot: int) -> None:
        """Give back the slot's pages; steps under way keep theirs, and others come after them."""
        self.pages.release(slot)

    def room(self, slot: int, positions: int) -> bool:
        """Make sure the slot's pages hold `positions`; false if the pool has run out."""
        return self.pages.grow(slot, positions) is not None

    def begin(self, slot: int, prompt: Prompt) -> None:
        """Take a prompt, whose last row the first frame takes; the others wait for `prefill`.

        A slot that has spoken takes the next one with an empty context; its sound goes on. A
        clone's reference goes through the codec before the first, so that speech continues it.
        """
        self.begun[slot] = self.tokens.submit(self._begin, slot, prompt)

    @torch.inference_mode()
    def _begin(self, slot: int, prompt: Prompt) -> None:
        x, self.next_input[slot] = self._embed(prompt)
        self.prompts[slot] = x[:-1]
        self.position[slot], self.seen[slot] = 0, False
        # Frames keep their numbers, and with them their draws and their places in the ring.
        self.frames[slot] = prompt.after
        self.min_frames[slot] = prompt.after + self.least[slot]
        if prompt.ref_codes is not None and not prompt.after:
            codes = torch.as_tensor(prompt.ref_codes, device=self.device)[None]
            self._decode([slot], codes)

    def prefill(self, slot: int, rows: int) -> "Future[bool]":
        """Lay down the next rows of the slot's prompt; true once there are no more."""
        return self._start(self.tokens, self._prefill, slot, rows, self._tables([slot]))

    @torch.inference_mode()
    def _prefill(self, slot: int, rows: int, tables: list[list[int]]) -> bool:
        self.begun[slot].result()  # long done; raises what went wrong there
        x, rest = self.prompts[slot].tensor_split((rows,))
        if len(x):
            positions = self.position[slot] + torch.arange(len(x), device=self.device)
            self.talker(x, self._cache(tables, positions[None]))
            self.position[slot] += len(x)
        self.prompts[slot] = rest
        return not len(rest)

    def _embed(self, prompt: Prompt) -> tuple[Tensor, Tensor]:
        """The prompt's rows [P, hidden], and the last one without its text [hidden]."""
        text = torch.tensor(prompt.text, device=self.device)
        codec = torch.tensor(prompt.codec, device=self.device)
        part = self.talker.codes(codec.clamp(min=0)) * (codec >= 0)[:, None]
        if prompt.x_vector is not None:
            vector = torch.as_tensor(prompt.x_vector, device=self.device, dtype=part.dtype)
            part[codec == X_VECTOR] = vector
        if prompt.ref_codes is not None:
            codes = torch.as_tensor(prompt.ref_codes, device=self.device)
            part[-len(codes) :] = self._embed_codes(codes)
        return self.talker.text(text) + part, part[-1]

    def _embed_codes(self, codes: Tensor) -> Tensor:
        """The talker's input for frames of codes [B, 16]."""
        return self.talker.codes(codes[:, 0]) + self.predictor.embed(codes[:, 1:])

    def _tables(self, slots: Sequence[int]) -> list[list[int]]:
        """The slots' pages as they are now, whatever is given back before the step runs."""
        return [list(self.pages.table(slot)) for slot in slots]

    def _cache(self, tables: list[list[int]], positions: Tensor) -> PagedCache:
        width = max(map(len, tables))
        padded = [table + [0] * (width - len(table)) for table in tables]
        return PagedCache(self.kv, torch.tensor(padded, device=self.device), positions)

    def frame(self, rows: Sequence[Row]) -> "Future[Frames]":
        """Make the next frame of every row: talker, draws, predictor, next input."""
        tables = self._tables([row.slot for row in rows])
        return self._start(self.tokens, self._frame, list(rows), tables)

    @torch.inference_mode()
    def _frame(self, rows: list[Row], tables: list[list[int]]) -> Frames:
        slots = torch.tensor([row.slot for row in rows], device=self.device)
        text = torch.tensor([row.text for row in rows], device=self.device)
        cache = self._cache(tables, self.position[slots][:, None])
        x = self.next_input[slots] + self.talker.text(text)
        hidden = self.talker(x, cache)
        code0 = self._first_code(hidden, rows, slots)
        later = self.predictor(hidden, self.talker.codes(code0), self._later_codes(rows, slots))
        return self._keep(rows, slots, torch.cat((code0[:, None], later), 1))

    def _first_code(self, hidden: Tensor, rows: Sequence[Row], slots: Tensor) -> Tensor:
        eos = self.spec.codec_ids.eos
        logits = self.talker.logits(hidden)
        logits = penalise(logits, self.seen[slots], self.penalty[slots]) + self.suppressed
        early = self.frames[slots] < self.min_frames[slots]
        logits[:, eos] = logits[:, eos].masked_fill(early, -torch.inf)
        draws = self.first_draws.rows(rows, slots, self.seed, self.frames)
        return draws.draw(logits, draws.noise(0, 1, logits.shape[1])[:, 0])

    def _later_codes(self, rows: Sequence[Row], slots: Tensor) -> Pick:
        draws = self.later_draws.rows(rows, slots, self.seed, self.frames)
        noise = draws.noise(1, self.spec.codebooks - 1, self.spec.predictor.vocab)
        return lambda book, logits: draws.draw(logits, noise[:, book - 1])

    def _keep(self, rows: Sequence[Row], slots: Tensor, codes: Tensor) -> Frames:
        """Store what the next step and the codec need; a row that ended keeps no frame."""
        self.next_input[slots] = self._embed_codes(codes)
        self.seen[slots, codes[:, 0]] = True
        # An end of speech is stored as well, as a code that the codec has; nobody decodes it.
        self.ring[slots, self.frames[slots] % RING] = codes.clamp(max=self.predictor.spec.vocab - 1)
        self.position[slots] += 1
        self.frames[slots] += 1
        ended = codes[:, 0] == self.spec.codec_ids.eos
        out = Frames(codes.cpu().numpy(), ended.cpu().numpy())
        for row, end in zip(rows, out.ended, strict=True):
            self.made[row.slot] += not end
        return out

    def voice(self, slots: Sequence[int], frames: int) -> "Future[Pcm]":
        """Decode the next `frames` of every slot: samples [B, frames * 1920].

        Beside talker steps: on two cores eight streams take half the time. Until it is done, its
        slots must not be opened anew.
        """
        return self._start(self.sound, self._voice, list(slots), frames)

    @torch.inference_mode()
    def _voice(self, slots: list[int], frames: int) -> Pcm:
        start = torch.tensor([self.voiced[slot] for slot in slots], device=self.device)
        places = (start[:, None] + torch.arange(frames, device=self.device)) % RING
        rows = torch.tensor(slots, device=self.device)
        pcm = self._decode(slots, self.ring[rows[:, None], places])
        for slot in slots:
            self.voiced[slot] += frames
        out: Pcm = pcm.float().cpu().numpy()
        return out

    def _decode(self, slots: Sequence[int], codes: Tensor) -> Tensor:
        rows = torch.tensor(slots, device=self.device)
        pcm: Tensor
        pcm, state = self.codec(codes, [tensor[rows] for tensor in self.codec_state])
        for kept, new in zip(self.codec_state, state, strict=True):
            kept[rows] = new
        return pcm
