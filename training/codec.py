"""Train the codec in two stages, and encode speech with it.

    python codec.py quantise --speech DIR --out DIR --seconds 60    # log-mel patches <-> 16 codes
    python codec.py encode   --speech DIR --codec DIR --out DIR    # shards as they come
    python codec.py decode   --speech DIR --codes DIR --codec DIR --out DIR --seconds 300

Codes come from log-mel patches of one frame each, without looking at neighbours, so that a code
says nothing about sound that the text has not reached yet. The waveform decoder is trained on the
frozen codes.
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from decoder import CONFIG, Codebook, Decoder, Quantizer
from torch import Tensor, nn

FRAME, MELS, PATCH = 1_920, 100, 4
BOOKS = CONFIG["num_quantizers"]


def mel_filters(n_fft: int, mels: int, rate: int = 24_000) -> Tensor:
    """Triangular filters [mels, n_fft / 2 + 1] whose weights sum to 1."""
    top = 2595 * math.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, mels + 2) / 2595) - 1)
    bins = np.linspace(0, rate / 2, n_fft // 2 + 1)
    low, mid, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    w = np.maximum(0, np.minimum((bins - low) / (mid - low), (high - bins) / (high - mid)))
    return torch.tensor(w / np.maximum(w.sum(1, keepdims=True), 1e-3), dtype=torch.float32)


class LogMel(nn.Module):
    """Sound [B, T * 1920] to patches [B, T, 4 * 100]: four 20 ms steps to a frame."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filters", mel_filters(1024, MELS), persistent=False)
        self.register_buffer("window", torch.hann_window(1024), persistent=False)

    def forward(self, sound: Tensor) -> Tensor:
        padded = F.pad(sound, (272, 272))
        spectrum = torch.stft(
            padded, 1024, 480, window=self.window, center=False, return_complex=True
        )
        mel = (self.filters @ spectrum.abs()).clamp(min=1e-3).log()
        return (mel.transpose(1, 2).reshape(len(sound), -1, PATCH * MELS) + 3.0) / 2.5


class Mix(nn.Module):
    """Residual MLP over [B, T, C]; `past` frames of causal context."""

    def __init__(self, size: int, past: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.conv = nn.Conv1d(size, size, past + 1, groups=8) if past else None
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)
        self.past = past

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        if self.conv is not None:
            y = self.conv(F.pad(y.transpose(1, 2), (self.past, 0))).transpose(1, 2)
        return x + self.down(F.gelu(self.up(y)))


def mlp(into: int, out: int, past: int, size: int = 384, blocks: int = 3) -> nn.Sequential:
    mixes = (Mix(size, past) for _ in range(blocks))
    return nn.Sequential(nn.Linear(into, size), *mixes, nn.LayerNorm(size), nn.Linear(size, out))


class Coder(nn.Module):
    """Encoder and mel decoder around the quantiser; only the quantiser is shipped."""

    def __init__(self) -> None:
        super().__init__()
        wide = CONFIG["codebook_dim"]
        self.mel, self.quantizer = LogMel(), Quantizer(CONFIG)
        self.encoder, self.decoder = mlp(PATCH * MELS, wide, 0), mlp(wide, PATCH * MELS, 2)

    def quantise(self, z: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Latent [B, T, C] to (quantised latent, codes [B, T, 16], commitment loss).

        Rows of `keep` [B] say how many codebooks count; given in training only.
        """
        count = torch.full((len(z),), BOOKS, device=z.device) if keep is None else keep
        total, codes, loss = torch.zeros_like(z), [], z.new_zeros(())
        left = z
        for part, start in ((self.quantizer.rvq_first, 0), (self.quantizer.rvq_rest, 1)):
            x = residual = part.into(left)
            chosen = torch.zeros_like(x)
            for i, book in enumerate(part.books(), start):
                code = nearest(residual.detach(), book.entries())
                if self.training:
                    follow(book, residual.detach().flatten(0, 1), code.flatten())
                entry = F.embedding(code, book.entries()) * (count > i)[:, None, None]
                loss = loss + (residual - entry.detach()).square().mean() / BOOKS
                chosen, residual = chosen + entry, residual - entry.detach()
                codes.append(code)
            out = part.out(x + (chosen - x).detach())
            total, left = total + out, z - (total + out).detach()
        return total, torch.stack(codes, -1), loss

    @torch.no_grad()
    def encode(self, sound: Tensor) -> Tensor:
        return self.quantise(self.encoder(self.mel(sound)))[1]


def nearest(x: Tensor, entries: Tensor) -> Tensor:
    return (entries.square().sum(-1) - 2 * x @ entries.T).argmin(-1)


@torch.no_grad()
def follow(book: Codebook, x: Tensor, code: Tensor, decay: float = 0.99) -> None:
    """Move entries towards what was assigned to them; revive the unused ones."""
    entries = len(book.cluster_usage)
    hits = torch.zeros_like(book.cluster_usage).index_add_(0, code, torch.ones_like(x[:, 0]))
    sums = torch.zeros_like(book.embedding_sum).index_add_(0, code, x)
    rate = 4.0 * entries / len(code) * (1 - decay)  # usage stays near 4 for any batch size
    book.cluster_usage.mul_(decay).add_(hits, alpha=rate)
    book.embedding_sum.mul_(decay).add_(sums, alpha=rate)
    dead = book.cluster_usage < 0.3
    fresh = x[torch.randint(len(x), (entries,), device=x.device)]
    book.embedding_sum.copy_(torch.where(dead[:, None], 2.0 * fresh, book.embedding_sum))
    book.cluster_usage.copy_(torch.where(dead, 2.0, book.cluster_usage))


@torch.no_grad()
def seed_books(model: Coder, z: Tensor) -> None:
    """Start the codebooks with k-means on the latents of one batch."""
    left = z
    for part in (model.quantizer.rvq_first, model.quantizer.rvq_rest):
        x = residual = part.into(left).flatten(0, 1)
        for book in part.books():
            n = len(book.cluster_usage)
            entries = residual[torch.randint(len(residual), (n,), device=x.device)]
            for _ in range(8):
                code = nearest(residual, entries)
                hits = torch.zeros(n, device=x.device).index_add_(0, code, torch.ones_like(x[:, 0]))
                sums = torch.zeros_like(entries).index_add_(0, code, residual)
                entries = torch.where(hits[:, None] > 0, sums / hits.clamp(min=1)[:, None], entries)
            book.cluster_usage.fill_(4.0)
            book.embedding_sum.copy_(4.0 * entries)
            residual = residual - entries[nearest(residual, entries)]
        left = left - part.out(x - residual).view_as(left)


class Pool:
    """Speech shards on the device as one run of int16 samples, with codes if there are any."""

    def __init__(self, speech: Path, codes: Path | None, hours: float, device: str) -> None:
        self.speech, self.codes_dir = speech, codes
        self.sound = torch.zeros(int(hours * 45_000) * FRAME, dtype=torch.int16, device=device)
        self.codes = torch.zeros(int(hours * 45_000), BOOKS, dtype=torch.uint8, device=device)
        self.frames, self.seen, self.looked, self.full = 0, set[str](), 0.0, False

    def poll(self) -> None:
        """Take in new shards, as long as they fit; looks at the folder once in two seconds."""
        if self.full or time.time() - self.looked < 2:
            return
        for path in sorted((self.codes_dir or self.speech).glob("*.npz")):
            name = path.name.replace("codes_", "speech_")
            if name in self.seen or not name.startswith("speech_"):
                continue
            self.seen.add(name)
            if not self.full and (self.speech / name).exists():
                self._take(self.speech / name, path)
        self.looked = time.time()

    def _take(self, speech: Path, codes: Path) -> None:
        sound = torch.from_numpy(np.load(speech)["audio"])
        start, end = self.frames, self.frames + len(sound) // FRAME
        if end > len(self.codes):
            self.full = True
            return
        self.sound[start * FRAME : end * FRAME] = sound.to(self.sound.device)
        if self.codes_dir is not None:
            self.codes[start:end] = torch.from_numpy(np.load(codes)["codes"]).to(self.codes.device)
        self.frames = end

    def wait(self, frames: int) -> None:
        while self.frames < frames:
            time.sleep(0.3)
            self.poll()

    def batch(self, rows: int, frames: int, shifted: bool = False) -> tuple[Tensor, Tensor]:
        """Random crops: sound [rows, frames * 1920] and codes [rows, frames, 16]."""
        device = self.sound.device
        start = torch.randint(self.frames - frames - 1, (rows, 1), device=device)
        sample = start * FRAME
        if shifted:
            sample = sample + torch.randint(FRAME, (rows, 1), device=device)
        sound = self.sound[sample + torch.arange(frames * FRAME, device=device)]
        return sound.float() / 32767, self.codes[start + torch.arange(frames, device=device)].long()


class Clock:
    """Cosine schedule over wall-clock seconds, or over steps where a number of them is given."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.steps, self.peak = args.steps, args.rate
        self.start, self.step, self.saved = time.time(), 0, time.time()
        self.seconds = min(args.seconds, args.deadline - self.start)

    def elapsed(self) -> float:
        return time.time() - self.start

    def tick(self, optimizer: torch.optim.Optimizer) -> bool:
        """Set the learning rate of the next step; false when the time is up."""
        done = max(self.elapsed() / self.seconds, self.step / self.steps)
        warm = min(1.0, (self.step + 1) / 200)
        for group in optimizer.param_groups:
            group["lr"] = self.peak * warm * (0.02 + 0.49 * (1 + math.cos(math.pi * min(1, done))))
        self.step += 1
        return done < 1

    def save_due(self, every: float = 60) -> bool:
        if time.time() - self.saved < every:
            return False
        self.saved = time.time()
        return True


def save(state: dict[str, Tensor], path: Path) -> None:
    part = path.with_name(f"part_{path.name}")
    torch.save({k: v.detach().cpu() for k, v in state.items()}, part)
    part.rename(path)


def quantise(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = Coder().to(args.device)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, args.rate, betas=(0.9, 0.98), weight_decay=1e-3)
    pool = Pool(args.speech, None, args.hours, args.device)
    pool.wait(args.frames * 4)
    clock = Clock(args)
    while clock.tick(optimizer):
        pool.poll()
        with torch.no_grad():
            mel = model.mel(pool.batch(args.rows, args.frames, shifted=clock.step % 2 == 0)[0])
        z = model.encoder(mel)
        if clock.step == 200:
            seed_books(model, z.detach())
        if clock.step < 200:  # first a plain autoencoder, so that the books start on real latents
            parts = (model.quantizer.rvq_first, model.quantizer.rvq_rest)
            latent, loss = sum(p.out(p.into(z)) for p in parts), 0.01 * z.square().mean()
        else:
            some = torch.randint(1, BOOKS + 1, (len(z),), device=z.device)
            keep = torch.where(torch.rand(len(z), device=z.device) < 0.5, some, BOOKS)
            latent, _, loss = model.quantise(z, keep)
        error = (model.decoder(latent) - mel).abs()
        loss = error.mean() + 0.1 * loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if clock.step % args.log == 0:
            whole = error.mean((1, 2))[keep == BOOKS].mean().item() if clock.step > 200 else 0
            print(
                f"quantise {clock.step} {clock.elapsed():.0f}s mel L1 {error.mean().item():.4f} "
                f"all books {whole:.4f} pool {pool.frames / 45000:.1f} h",
                flush=True,
            )
    kept = {k: v for k, v in model.state_dict().items() if not k.startswith("decoder.")}
    save(kept, args.out / "coder.pt")
    print(f"quantise: {clock.step} steps in {clock.elapsed():.0f} s", flush=True)


def encode_shard(model: Coder, path: Path, device: str) -> dict[str, np.ndarray]:
    shard = np.load(path)
    sound = torch.from_numpy(shard["audio"]).to(device).float() / 32767
    # One pass over the whole run: a patch reaches only 11 ms into its neighbours.
    codes = model.encode(sound[None])[0].to(torch.uint8).cpu().numpy()
    silence = model.encode(torch.zeros(1, FRAME, device=device))[0, 0].to(torch.uint8).cpu().numpy()
    return {
        "index": shard["index"],
        "frames": shard["frames"],
        "codes": codes,
        "silence": silence,
    }


def encode(args: argparse.Namespace) -> None:
    """Encode shards until DONE; speech beyond `--hours` is deleted once it is encoded."""
    while not (args.codec / "coder.pt").exists():
        time.sleep(0.3)
    model = Coder().to(args.device).eval()
    model.load_state_dict(torch.load(args.codec / "coder.pt"), strict=False)  # no mel decoder
    seen, frames, finished = set[Path](), 0, False
    while not finished:
        finished = (args.speech / "DONE").exists()
        for path in sorted(set(args.speech.glob("speech_*.npz")) - seen):
            seen.add(path)
            out = encode_shard(model, path, args.device)
            name = path.name.replace("speech_", "codes_")
            np.savez(args.out / f"part_{name}", **out)
            frames += len(out["codes"])
            if frames > args.hours * 45_000:
                path.unlink()  # before the codes appear: who sees them looks for the speech
            (args.out / f"part_{name}").rename(args.out / name)
        time.sleep(0.2)
    (args.out / "DONE").touch()
    print(f"encode: {len(seen)} shards, {frames / 45_000:.2f} h", flush=True)


class SpectralLoss(nn.Module):
    """Log-mel, log-magnitude and magnitude distance at four scales."""

    SCALES = ((2048, 80), (1024, 80), (512, 40), (256, 24))

    def __init__(self) -> None:
        super().__init__()
        for n, mels in self.SCALES:
            self.register_buffer(f"filters{n}", mel_filters(n, mels))
            self.register_buffer(f"window{n}", torch.hann_window(n))

    def forward(self, made: Tensor, true: Tensor) -> Tensor:
        loss = made.new_zeros(())
        for n, _ in self.SCALES:
            window, filters = getattr(self, f"window{n}"), getattr(self, f"filters{n}")
            both = torch.stft(
                torch.cat((made, true)), n, n // 4, window=window, return_complex=True
            )
            size = both.abs()
            (a, b), (log_a, log_b) = size.chunk(2), (size + 1e-3).log().chunk(2)
            mel_a, mel_b = (filters @ size).clamp(min=1e-3).log().chunk(2)
            loss = loss + F.l1_loss(mel_a, mel_b) + 0.5 * F.l1_loss(log_a, log_b)
            loss = loss + 4 / n**0.5 * F.l1_loss(a, b)
        return loss / len(self.SCALES)


def decode(args: argparse.Namespace) -> None:
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    device, shapes = args.device, [(args.rows, 20)] * 3 + [(args.rows // 4, 80)]
    model, distance = Decoder().to(device), SpectralLoss().to(device)
    model.quantizer.requires_grad_(False)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, args.rate, betas=(0.8, 0.99), weight_decay=1e-3)
    if args.compile:
        import decoder

        decoder.sine_square = torch.compile(decoder.sine_square, dynamic=True)
    for rows, frames in shapes[2:]:  # compile and pick kernels while there is nothing to learn
        codes = torch.randint(256, (rows, frames, BOOKS), device=device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            model(codes).square().mean().backward()
        optimizer.zero_grad(set_to_none=True)
    print("decode: warm", flush=True)
    while not (args.codec / "coder.pt").exists():
        time.sleep(0.3)
    if args.start:
        model.load_state_dict(torch.load(args.start))
    coder = torch.load(args.codec / "coder.pt", map_location=device)
    books = {
        k.removeprefix("quantizer."): v for k, v in coder.items() if k.startswith("quantizer.")
    }
    model.quantizer.load_state_dict(books)
    pool = Pool(args.speech, args.codes, args.hours, device)
    pool.wait(1000)
    clock = Clock(args)
    while clock.tick(optimizer):
        pool.poll()
        sound, codes = pool.batch(*shapes[clock.step % 4])
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            made = model(codes)
        spectral = distance(made, sound)
        loss = spectral + 0.5 * F.l1_loss(made, sound)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if clock.step % args.log == 0:
            print(
                f"decode {clock.step} {clock.elapsed():.0f}s spectral {spectral.item():.3f} "
                f"pool {pool.frames / 45000:.1f} h",
                flush=True,
            )
        if clock.save_due():
            save(model.state_dict(), args.out / "decoder.pt")
    save(model.state_dict(), args.out / "decoder.pt")
    print(f"decode: {clock.step} steps in {clock.elapsed():.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    defaults = {
        "quantise": (2e-3, 128, 48, 8.0),
        "encode": (0, 0, 0, 25.0),
        "decode": (1e-3, 24, 0, 16.0),
    }
    for run in (quantise, encode, decode):
        rate, rows, frames, hours = defaults[run.__name__]
        sub = commands.add_parser(run.__name__)
        sub.set_defaults(run=run)
        for folder in ("speech", "codes", "codec", "out", "start"):
            sub.add_argument(f"--{folder}", type=Path)
        sub.add_argument("--seconds", type=float, default=1e9)
        sub.add_argument("--deadline", type=float, default=1e12, help="unix time to be done by")
        sub.add_argument("--steps", type=float, default=1e9)
        sub.add_argument("--rate", type=float, default=rate)
        sub.add_argument("--rows", type=int, default=rows)
        sub.add_argument("--frames", type=int, default=frames)
        sub.add_argument("--hours", type=float, default=hours, help="speech kept on the device")
        sub.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        sub.add_argument("--compile", action="store_true")
        sub.add_argument("--log", type=int, default=250)
    args = parser.parse_args()
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    args.run(args)


if __name__ == "__main__":
    main()
