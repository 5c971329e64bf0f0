"""Train talker and predictor on (text, codes) in the published prompt layouts.

    python lm.py --texts train.txt --codes DIR --valid-texts valid.txt --valid-codes DIR \
        --tokenizer DIR --out DIR --seconds 400

Streaming and whole text, with and without a language, now and then behind an instruction (which
says nothing about the sound, so that the model learns to pass over it). Code shards are picked up
as they come; checkpoints are written while training.
"""

import argparse
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import bpe
import numpy as np
import torch
from language import BOOKS, CODEC_IDS, ENTRIES, Batch, Talker
from texts import HERE
from torch import Tensor, distributed, nn

LENGTH = 512
NOTHING, IGNORE = -1, -100
CHUNK = 8_192  # clips packed at a time
# Silent frames before the speech in streaming layout, where a frame knows only as many tokens as
# there were frames: two, so that the first sounds know what follows, and three where the text
# starts with a digit or a sign ("1" in 1, 15, $1,200).
LAG, LAG_FIGURES = 2, 3
LATER_WEIGHT = 2.0


class Prefixes:
    """Rows before the text, for every mix of instruction and language: [variants, longest]."""

    def __init__(self, folder: Path, instructions: list[str], device: str) -> None:
        self.tokenizer, ids = bpe.load(folder)
        self.pad, self.end, begin = (ids[f"<tts_{n}>"] for n in ("pad", "text_eod", "text_bos"))
        c, newline = CODEC_IDS, ids[bpe.NEWLINE]
        role = [ids["<|im_start|>"], ids["assistant"], newline]
        languages = (
            [c["nothink"], c["think_bos"], c["think_eos"]],
            [c["think"], c["think_bos"], c["english"], c["think_eos"]],
        )
        users = [self.tokenizer.encode("user\n" + text).ids for text in instructions]
        asks = [[ids["<|im_start|>"], *u, ids["<|im_end|>"], newline] for u in users]
        self.plain = len(languages)  # the first variants have no instruction
        rows = [
            (ask + role, [*think, c["heart"], c["pad"]])
            for ask in ([], *asks)
            for think in languages
        ]
        longest = max(len(a) + len(b) for a, b in rows)
        text, codec = (torch.full((len(rows), longest), NOTHING) for _ in "ab")
        for i, (a, b) in enumerate(rows):
            text[i, : len(a) + len(b)] = torch.tensor(a + [self.pad] * (len(b) - 1) + [begin])
            codec[i, len(a) : len(a) + len(b)] = torch.tensor(b)
        self.length = (text >= 0).sum(1).to(device)
        self.text, self.codec = text.to(device), codec.to(device)

    def draw(self, n: int, random_rows: torch.Generator) -> Tensor:
        """Variants [n]: half with a language, one in ten behind an instruction."""
        device = self.text.device
        asked = torch.rand(n, device=device, generator=random_rows) < 0.1
        any_one = torch.randint(len(self.text), (n,), device=device, generator=random_rows)
        return torch.where(asked, any_one, any_one % self.plain)


class Clips:
    """Texts as tokens and speech as codes, on the device; grows as shards come in."""

    def __init__(self, texts: Path, codes: Path, prefixes: Prefixes, device: str) -> None:
        self.lines, self.folder = texts.read_text().splitlines(), codes
        self.prefixes, self.device = prefixes, device
        self.seen: set[str] = set()
        self.tokens = torch.zeros(0, dtype=torch.int32, device=device)
        self.codes = torch.zeros(1, BOOKS, dtype=torch.uint8, device=device)  # first: silence
        self.counts, self.frames, self.lag = (torch.zeros(0, dtype=torch.int64) for _ in "abc")

    def refresh(self) -> None:
        paths = [p for p in sorted(self.folder.glob("codes_*.npz")) if p.name not in self.seen]
        shards = [np.load(p) for p in paths]
        if not shards:
            return
        self.seen.update(p.name for p in paths)
        self.codes[0] = torch.from_numpy(shards[0]["silence"]).to(self.device)
        texts = [self.lines[i] for z in shards for i in z["index"]]
        tokens = [e.ids for e in self.prefixes.tokenizer.encode_batch(texts)]
        flat = torch.tensor([i for ids in tokens for i in ids], dtype=torch.int32)
        codes = torch.from_numpy(np.concatenate([z["codes"] for z in shards]))
        frames = torch.from_numpy(np.concatenate([z["frames"] for z in shards])).long()
        self.tokens = torch.cat((self.tokens, flat.to(self.device)))
        self.codes = torch.cat((self.codes, codes.to(self.device)))
        self.counts = torch.cat((self.counts, torch.tensor([len(t) for t in tokens])))
        self.frames = torch.cat((self.frames, frames))
        lag = torch.tensor([LAG if t[0].isalpha() else LAG_FIGURES for t in texts])
        self.lag = torch.cat((self.lag, lag))

    def hours(self) -> float:
        return self.frames.sum().item() / 45_000

    def chunks(self, randoms: torch.Generator, streaming: float) -> Iterator[Batch]:
        """Every clip once, in a new order, packed a chunk at a time."""
        order = torch.randperm(len(self.frames))
        for part in order.split(CHUNK):
            yield self.pack(part, randoms, streaming)

    def pack(self, clips: Tensor, randoms: torch.Generator, streaming: float) -> Batch:
        """Lay clips out in rows of LENGTH, each in the layout of a drawn prompt."""
        device, n = self.device, len(clips)
        token_start = (self.counts.cumsum(0) - self.counts)[clips].to(device)
        frame_start = (1 + self.frames.cumsum(0) - self.frames)[clips].to(device)
        words, frames = self.counts[clips].to(device), self.frames[clips].to(device)
        variant = self.prefixes.draw(n, randoms)
        prefix = self.prefixes.length[variant]
        zipped = torch.rand(n, device=device, generator=randoms) < streaming
        lag = self.lag[clips].to(device) * zipped
        zipped &= words < frames + lag  # text must not outlast its speech
        lag *= zipped
        frames = frames + lag
        head = prefix + torch.where(zipped, 1, words + 2)
        size = head + frames
        place, rows = places(size.cpu())
        keep = (place >= 0).to(device)
        place = place.to(device)[keep]
        kept = (token_start, frame_start, words, frames, lag, variant, prefix, zipped, head, size)
        token_start, frame_start, words, frames, lag, variant, prefix, zipped, head, size = (
            t[keep] for t in kept
        )

        clip = torch.repeat_interleave(torch.arange(len(size), device=device), size)
        p = torch.arange(len(clip), device=device) - (size.cumsum(0) - size)[clip]
        words, frames, prefix, head = words[clip], frames[clip], prefix[clip], head[clip]
        inside = p < prefix
        lane = p - prefix  # place in the text lane
        slot = p.clamp(max=self.prefixes.text.shape[1] - 1)
        pad, end = self.prefixes.pad, self.prefixes.end
        word = self.tokens[(token_start[clip] + lane.clamp(min=0)).clamp(max=len(self.tokens) - 1)]
        body = torch.where(lane < words, word, torch.where(lane == words, end, pad))
        text = torch.where(inside, self.prefixes.text[variant[clip], slot], body)
        frame = p - head
        over = torch.where(~zipped[clip] & (frame < -1), CODEC_IDS["pad"], NOTHING)
        over = torch.where(frame == -1, CODEC_IDS["bos"], over)
        codec = torch.where(inside, self.prefixes.codec[variant[clip], slot], over)
        sound = frame - lag[clip]
        here = torch.where(sound >= 0, frame_start[clip] + sound, 0)
        here = torch.where(frame >= 0, here, NOTHING)
        coming = (frame >= -1) & (frame < frames - 1)
        target = torch.where(sound >= -1, frame_start[clip] + sound + 1, 0)
        target = torch.where(coming, target, NOTHING)
        label = torch.where(coming, self.codes[target.clamp(min=0), 0].long(), IGNORE)
        label = torch.where(frame == frames - 1, CODEC_IDS["eos"], label)

        where = place[clip] + p
        columns = (text, codec, here, target, label, p, clip + 1)
        blanks = (NOTHING, NOTHING, NOTHING, NOTHING, IGNORE, 0, 0)
        packed = []
        for values, blank in zip(columns, blanks, strict=True):
            out = torch.full((rows * LENGTH,), blank, device=device)
            out[where] = values.long()
            packed.append(out.view(rows, LENGTH))
        return Batch(*packed)


def places(sizes: Tensor) -> tuple[Tensor, int]:
    """Flat start of each clip when rows are filled in order (-1: too long), and the rows used."""
    start, row, used = torch.full_like(sizes, -1), 0, 0
    for i, size in enumerate(sizes.tolist()):
        if size > LENGTH:
            continue
        if used + size > LENGTH:
            row, used = row + 1, 0
        start[i] = row * LENGTH + used
        used += size
    return start, row + 1


class Group:
    """The processes that train together, one a card; each packs its own rows."""

    def __init__(self) -> None:
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        if self.size > 1:
            distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")

    def average(self, parameters: list[nn.Parameter]) -> None:
        """Replace every gradient by the mean over the processes."""
        if self.size == 1:
            return
        flat = torch.cat([p.grad.flatten() for p in parameters])
        distributed.all_reduce(flat)
        flat /= self.size
        for p, grad in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            p.grad.copy_(grad.view_as(p))

    def agree(self, value: float, device: str) -> float:
        """The first process's value, everywhere."""
        if self.size == 1:
            return value
        told = torch.tensor([value], device=device)
        distributed.broadcast(told, 0)
        return told.item()


class Trainer:
    def __init__(self, args: argparse.Namespace) -> None:
        self.group = Group()
        if self.group.size > 1 and args.device == "cuda":
            args.device = f"cuda:{self.group.rank}"
            torch.cuda.set_device(self.group.rank)
        self.args, self.device = args, args.device
        self.model = Talker(args.dropout).to(self.device)
        if args.start:
            self.model.load_state_dict(published_to_ours(torch.load(args.start)))
        self.step_losses = self.model.losses
        if args.compile:
            self.step_losses = torch.compile(self.model.losses, dynamic=False)
        self.optimizer = self.fresh_optimizer()

    def fresh_optimizer(self) -> torch.optim.Optimizer:
        wide = [p for p in self.model.parameters() if p.dim() >= 2]
        thin = [p for p in self.model.parameters() if p.dim() < 2]
        groups = [
            {"params": wide, "weight_decay": self.args.decay},
            {"params": thin, "weight_decay": 0.0},
        ]
        fused = self.device.startswith("cuda")
        return torch.optim.AdamW(groups, lr=self.args.rate, betas=(0.9, 0.98), fused=fused)

    def losses(self, batch: Batch, codes: Tensor, noise: float) -> tuple[Tensor, Tensor]:
        """Losses of packed rows, with some frames put in and some codes told replaced at random."""
        given = batch.frame.clamp(min=0)
        if noise:
            stray = torch.randint(len(codes), given.shape, device=self.device)
            given = torch.where(torch.rand(given.shape, device=self.device) < noise, stray, given)
        usable = (batch.target.flatten() >= 0).float() + 1e-9
        chosen = torch.multinomial(usable, self.args.frames)
        wanted = codes[batch.target.flatten()[chosen].clamp(min=0)].long()
        told = wanted
        if noise:
            wrong = torch.rand(wanted.shape, device=self.device) < noise / 2
            told = torch.where(wrong, torch.randint_like(wanted, ENTRIES), wanted)
        run = self.step_losses if self.model.training else self.model.losses
        with torch.autocast(self.device.split(":")[0], torch.bfloat16):
            return run(batch, codes[given].long(), chosen, told, wanted)

    def step(self, batch: Batch, codes: Tensor, rate: float) -> tuple[Tensor, Tensor]:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        first, later = self.losses(batch, codes, self.args.noise)
        (first + LATER_WEIGHT * later.mean()).backward()
        self.group.average([p for p in self.model.parameters() if p.requires_grad])
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return first.detach(), later.detach()

    def warm_up(self) -> None:
        """Compile on made-up rows, before there is speech, then start afresh."""
        start = time.time()
        before = {k: v.clone() for k, v in self.model.state_dict().items()}
        shape, device = (self.args.rows, LENGTH), self.device
        ids = torch.randint(ENTRIES, shape, device=device)
        steps = torch.arange(LENGTH, device=device).expand(shape).contiguous()
        batch = Batch(ids, ids, ids, ids, ids, steps, torch.ones_like(ids))
        codes = torch.randint(ENTRIES, (ENTRIES, BOOKS), device=device, dtype=torch.uint8)
        try:
            sum(loss.sum() for loss in self.losses(batch, codes, self.args.noise)).backward()
        except Exception as error:  # a compiler that fails must not cost the run
            print(f"lm: not compiled: {error}", flush=True)
            self.step_losses = self.model.losses
        for _ in range(10):
            self.step(batch, codes, 1e-4)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        self.model.load_state_dict(before)
        self.optimizer = self.fresh_optimizer()
        print(f"lm: warm after {time.time() - start:.0f} s", flush=True)

    @torch.no_grad()
    def evaluate(self, valid: Clips) -> str:
        """Teacher-forced losses on held-out texts, streaming and whole."""
        self.model.eval()
        report = []
        for share, name in ((1.0, "streaming"), (0.0, "whole")):
            randoms = torch.Generator(self.device).manual_seed(1)
            batch = valid.pack(torch.arange(min(len(valid.frames), 600)), randoms, share)
            first, later = self.losses(batch, valid.codes, 0.0)
            early = " ".join(f"{x:.2f}" for x in later[:4].tolist())
            report.append(f"{name} {first.item():.3f} [{early} .. {later.mean().item():.3f}]")
        self.model.train()
        return " ".join(report)

    def save(self, name: str) -> None:
        part = self.args.out / f"part_{name}"
        state = {k: v.detach().to("cpu", torch.float16) for k, v in self.model.state_dict().items()}
        torch.save({f"talker.{k}": v for k, v in state.items()}, part)
        part.rename(self.args.out / name)


def published_to_ours(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix("talker."): v.float() for k, v in state.items()}


def wait_for(path: Path, pattern: str, count: int) -> None:
    while len(list(path.glob(pattern))) < count and not (path / "DONE").exists():
        time.sleep(0.5)


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    trainer = Trainer(args)
    print(f"lm: {sum(p.numel() for p in trainer.model.parameters()) / 1e6:.2f} M", flush=True)
    trainer.warm_up()
    instructions = bank(args.seed)
    prefixes = Prefixes(args.tokenizer, instructions, args.device)
    train_clips = Clips(args.texts, args.codes, prefixes, args.device)
    valid = Clips(args.valid_texts, args.valid_codes, prefixes, args.device)
    wait_for(args.codes, "codes_*.npz", args.wait)
    wait_for(args.valid_codes, "DONE", 1)
    valid.refresh()
    group, main_one = trainer.group, trainer.group.rank == 0
    torch.manual_seed(args.seed + group.rank)
    randoms = torch.Generator(args.device).manual_seed(args.seed + group.rank)
    start = marked = saved = time.time()
    seconds = min(args.seconds, args.deadline - start)
    steps, done = 0, 0.0
    for batch in endless(train_clips, randoms, args):
        if steps % 20 == 0:  # all stop at the same step
            done = group.agree(
                max((time.time() - start) / seconds, steps / args.steps), args.device
            )
        if done >= 1:
            break
        rate = args.rate * min(1, (steps + 1) / 300) * (1 - done)
        first, later = trainer.step(batch, train_clips.codes, rate)
        steps += 1
        if main_one and steps % args.log == 0:
            now = time.time()
            print(
                f"lm {steps} {now - start:.0f}s code0 {first.item():.3f} "
                f"later {later.mean().item():.3f} {(now - marked) / args.log * 1e3:.1f} ms "
                f"{train_clips.hours():.0f} h valid: {trainer.evaluate(valid)}",
                flush=True,
            )
            marked = time.time()
        if main_one and time.time() - saved > 60:
            trainer.save("lm.pt")
            saved = time.time()
    if main_one:
        trainer.save("lm.pt")
        print(f"lm: {steps} steps, valid: {trainer.evaluate(valid)}", flush=True)


def endless(clips: Clips, randoms: torch.Generator, args: argparse.Namespace) -> Iterator[Batch]:
    """Rows in full batches, pass after pass, new shards taken in between passes."""
    while True:
        clips.refresh()
        for chunk in clips.chunks(randoms, args.streaming):
            for rows in torch.randperm(len(chunk.text)).to(args.device).split(args.rows):
                if len(rows) == args.rows:
                    yield Batch(*(t[rows] for t in chunk))


def bank(seed: int) -> list[str]:
    """Instructions to pass over: the written ones, and pairs of them."""
    line = next(
        x for x in (HERE / "templates.txt").read_text().splitlines() if x.startswith("@instruct")
    )
    single = [x.strip() for x in line.split(":", 1)[1].split("., ")]
    r = random.Random(seed)
    return single + [" ".join(r.sample(single, 2)) for _ in range(20)]


def main() -> None:
    parser = argparse.ArgumentParser()
    for folder in ("texts", "codes", "valid-texts", "valid-codes", "tokenizer", "out", "start"):
        parser.add_argument(f"--{folder}", type=Path, required=folder != "start")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--deadline", type=float, default=1e12, help="unix time to be done by")
    parser.add_argument("--steps", type=float, default=1e9)
    parser.add_argument("--wait", type=int, default=1, help="shards to wait for before starting")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--frames", type=int, default=4_096, help="frames given to the predictor")
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--noise", type=float, default=0.06)
    parser.add_argument("--streaming", type=float, default=0.6, help="share of the clips")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=int, default=500)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = True
    train(args)


if __name__ == "__main__":
    main()
