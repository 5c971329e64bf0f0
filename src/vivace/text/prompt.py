"""The rows a session puts before the talker: a text id and a codec id for each position.

Two lanes run beside each other. The text lane holds the body's tokens and an end mark, then padding
for ever; the codec lane holds "begin", then a clone's reference frames, then what the model speaks.
Streaming text zips the lanes; whole text lays the text down first, over codec padding. Nothing here
is a string with control tokens in it: prompts are built from ids, so text can only ever be text.
"""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from vivace.model.spec import ModelSpec
from vivace.types import Clone, Codes, Pcm, SpeechRequest, TextMode

NONE = -1  # no codec embedding in this row
X_VECTOR = -2  # the speaker's vector stands in for a codec embedding
Cell = tuple[int, int]  # text id, codec id


class Encoder(Protocol):
    """Text to ids, control tokens inert."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """Rows to prefill; the last one becomes the session's first talker step.

    The last `len(ref_codes)` rows carry the sum of a reference frame's embeddings. The first `head`
    ones are the same for every text.
    """

    text: list[int]  # [P]
    codec: list[int]  # [P] codec id, NONE or X_VECTOR
    x_vector: Pcm | None = None  # [hidden]
    ref_codes: Codes | None = None  # [R, 16]
    head: int = 0


def head(spec: ModelSpec, request: SpeechRequest, encoder: Encoder) -> list[Cell]:
    """The rows before the text: instruct, role, language, speaker. They depend on nothing else."""
    t, c = spec.text_ids, spec.codec_ids
    (newline,) = encoder.encode("\n")
    rows: list[Cell] = []
    if request.instruct:
        user = encoder.encode("user\n" + request.instruct)
        rows += [(i, NONE) for i in (t.im_start, *user, t.im_end, newline)]
    rows += [(i, NONE) for i in (t.im_start, t.assistant, newline)]
    language = _language(spec, request)
    if language is None:
        think = [c.nothink, c.think_bos, c.think_eos]
    else:
        think = [c.think, c.think_bos, language, c.think_eos]
    rows += [(t.tts_pad, i) for i in think]
    if request.clone is not None:
        rows.append((t.tts_pad, X_VECTOR))
    elif request.voice is not None:
        rows.append((t.tts_pad, spec.speakers[request.voice]))
    rows.append((t.tts_bos, c.pad))
    return rows


def _language(spec: ModelSpec, request: SpeechRequest) -> int | None:
    """Codec id of the language; a dialect speaker's own one where Chinese or none is asked for."""
    dialect = spec.dialects.get(request.voice or "")
    if dialect is not None and request.language in ("auto", "chinese"):
        return spec.languages[dialect]
    return None if request.language == "auto" else spec.languages[request.language]


class Script:
    """One session's two lanes: ids come in, then the prompt and a row a frame go out."""

    def __init__(self, spec: ModelSpec, request: SpeechRequest, encoder: Encoder) -> None:
        self.ids = spec.text_ids
        self.codec = spec.codec_ids
        self.whole = request.text_mode is TextMode.WHOLE
        self.clone: Clone | None = request.clone
        self.head = head(spec, request, encoder)
        self.lane: deque[int] = deque()
        self.ended = False
        if self.clone is not None and self.clone.ref_codes is not None:
            self.lane.extend(encoder.encode(self.clone.ref_text))

    @property
    def lead_frames(self) -> int:
        """Reference frames the codec lane holds after its begin mark."""
        codes = self.clone.ref_codes if self.clone is not None else None
        return 0 if codes is None else len(codes)

    def append(self, ids: list[int]) -> None:
        """Add tokens of the body."""
        self.lane.extend(ids)

    def end(self) -> None:
        """No more text comes."""
        self.ended = True
        self.lane.append(self.ids.tts_eos)

    @property
    def prompt_ready(self) -> bool:
        """Is there text under every row that must have some?"""
        return self.ended or (not self.whole and len(self.lane) > self.lead_frames)

    @property
    def rows_ready(self) -> bool:
        """Can the next frame be made, or does it wait for text?"""
        return self.ended or bool(self.lane)

    def next_text(self) -> int:
        """The text id under the next frame."""
        return self.lane.popleft() if self.lane else self.ids.tts_pad

    def prompt(self) -> Prompt:
        """Take the prompt's rows out of the lanes."""
        rows = list(self.head)
        if self.whole:
            rows += [(i, self.codec.pad) for i in self.lane]
            self.lane.clear()
        rows.append((self.next_text(), self.codec.bos))
        rows += [(self.next_text(), NONE) for _ in range(self.lead_frames)]
        text, codec = (list(column) for column in zip(*rows, strict=True))
        clone = self.clone
        return Prompt(
            text,
            codec,
            None if clone is None else clone.x_vector,
            None if clone is None else clone.ref_codes,
            len(self.head),
        )
