"""Is it still speech? A sample of a run is transcribed and compared with its texts."""

import io
import json
import os
import unicodedata
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence

from vivace.bench.texts import Text, words
from vivace.errors import InvalidRequest

Transcribe = Callable[[bytes, Text], str]
"""(a WAV file, what it should say) -> what it says."""


def spoken(text: str) -> str:
    """Words alone: no case, no marks; a Chinese character is a word."""
    plain = "".join(
        c if unicodedata.category(c)[0] in "LNM" else "" if c in "'’" else " "
        for c in unicodedata.normalize("NFKC", text).lower()
    )
    spaced = (" ".join(word) if Text("", word).chinese else word for word in words(plain))
    return " ".join(" ".join(spaced).split())


def errors(said: Sequence[str], heard: Sequence[str]) -> int:
    """Words to put in, take out or change until one is the other."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, 1):
        before, row = row, [i]
        for j, other in enumerate(heard, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (word != other)))
    return row[-1]


def score(sounds: Mapping[str, bytes], texts: Sequence[Text], transcribe: Transcribe) -> object:
    """Word error rate over all samples, and how many are far too long or say nothing."""
    by_id = {text.id: text for text in texts}
    pairs = {
        name: (spoken(by_id[name].text), spoken(transcribe(wav, by_id[name])))
        for name, wav in sounds.items()
    }
    if not pairs:
        return None
    split = [(said.split(), heard.split()) for said, heard in pairs.values()]
    wrong, count = sum(errors(*pair) for pair in split), sum(len(said) for said, _ in split)
    return {
        "samples": len(split),
        "wer_percent": round(100 * wrong / count, 2),
        "runaways": sum(len(heard) > 2 * len(said) for said, heard in split),
        "silent": sum(not heard for _, heard in split),
        "transcripts": [{"text": n, "said": s, "heard": h} for n, (s, h) in pairs.items()],
    }


def transcriber(model: str, url: str | None) -> Transcribe:
    """faster-whisper on the CPU, or the server at `url`."""
    return _remote(url, model) if url else _local(model)


def _local(model: str) -> Transcribe:
    """`model` is a folder or one of whisper's names, such as tiny.en."""
    try:
        from faster_whisper import WhisperModel
    except ImportError:
        raise InvalidRequest("--wer needs more packages: pip install 'vivace[wer]'") from None

    try:
        whisper = WhisperModel(model, device="cpu", compute_type="int8")
    except Exception as error:  # the hub's and CTranslate2's own kinds
        raise InvalidRequest(f"no whisper model {model!r}: {error}") from None

    def transcribe(wav: bytes, text: Text) -> str:
        language = "zh" if text.chinese else "en"
        segments, _ = whisper.transcribe(io.BytesIO(wav), language=language, beam_size=5)
        return " ".join(segment.text for segment in segments)

    return transcribe


def _remote(url: str, model: str) -> Transcribe:
    """`POST {url}/audio/transcriptions` as OpenAI has it; the key is in VIVACE_WER_KEY."""
    key = os.environ.get("VIVACE_WER_KEY")

    def transcribe(wav: bytes, text: Text) -> str:
        mark = uuid.uuid4().hex
        fields = {"model": model, "language": "zh" if text.chinese else "en"}
        parts = [_part(mark, f'name="{name}"', value.encode()) for name, value in fields.items()]
        parts.append(_part(mark, 'name="file"; filename="speech.wav"', wav))
        request = urllib.request.Request(
            f"{url.rstrip('/')}/audio/transcriptions",
            data=b"".join(parts) + f"--{mark}--\r\n".encode(),
            headers={"content-type": f"multipart/form-data; boundary={mark}"}
            | ({"authorization": f"Bearer {key}"} if key else {}),
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return str(json.load(reply)["text"])
        except (urllib.error.URLError, OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(f"no transcript from {url}: {error!r}") from None

    return transcribe


def _part(mark: str, name: str, value: bytes) -> bytes:
    return f"--{mark}\r\ncontent-disposition: form-data; {name}\r\n\r\n".encode() + value + b"\r\n"
