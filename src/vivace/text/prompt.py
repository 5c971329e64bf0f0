"""The rows a session puts before the talker: a text id and a codec id for each position.

Two lanes run beside each other. The text lane holds the body's tokens and an end mark, then padding
for ever; the codec lane holds "begin", then a clone's reference frames, then what the model speaks.
Streaming text zips the lanes; whole text lays the text down first, over codec padding. Nothing here
is a string with control tokens in it: prompts are built from ids, so text can only ever be text.
"""

from collections import deque
from dataclasses import dataclass, field
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
    after: int = 0  # frames of the session's sound that it goes on from


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


@dataclass(slots=True)
class Piece:
    """The text lane of one prompt: a piece's tokens and, once it is whole, an end mark."""

    lane: deque[int] = field(default_factory=deque)
    most_frames: int | None = None  # how long it may sound; None while more of it may come


class Script:
    """One session's two lanes: ids come in, then prompts and a row a frame go out.

    A long text comes in pieces, each with a prompt of its own. The first piece is the one that is
    spoken now. `ahead` tokens of streaming text stand before the first frame of the whole, as all
    of them do in whole text, so that each frame knows so many more.
    """

    def __init__(
        self, spec: ModelSpec, request: SpeechRequest, encoder: Encoder, *, ahead: int = 0
    ) -> None:
        self.ids = spec.text_ids
        self.codec = spec.codec_ids
        self.whole = request.text_mode is TextMode.WHOLE
        self.clone: Clone | None = request.clone
        self.head = head(spec, request, encoder)
        self.pieces: deque[Piece] = deque()
        self.ended = False  # the piece is whole
        self.closed = False  # no piece comes after those that are there
        self._surplus = False  # the piece that still comes in has been spoken as far as it will be
        self._ahead = ahead  # tokens still to be laid down before the first frame
        self._log: list[tuple[list[int], int | None, bool]] = []  # what has come, to start over
        self._lead: list[int] = []  # text of the reference
        if self.clone is not None and self.clone.ref_codes is not None:
            self._lead = encoder.encode(self.clone.ref_text)
            self._ahead = 0  # the frames of the reference let the text run ahead
        self._ahead_at_first = self._ahead

    @property
    def lead_frames(self) -> int:
        """Reference frames the codec lane holds after its begin mark."""
        codes = self.clone.ref_codes if self.clone is not None else None
        return 0 if codes is None else len(codes)

    @property
    def _shared_lead(self) -> int:
        """Rows behind the head that are the clip's alone: its words, and what lies over them."""
        return len(self._lead) if self.whole else min(len(self._lead), self.lead_frames)

    def append(self, ids: list[int], most_frames: int | None = None, *, last: bool = False) -> None:
        """Add tokens of the newest piece; `most_frames` says that they end it, `last` the text."""
        self._log.append((ids, most_frames, last))
        self.closed = self.closed or last
        if self._surplus:
            self._surplus = most_frames is None
        elif ids or most_frames is not None:
            self._add(ids, most_frames)
            self.ended = self.most_frames is not None

    def _add(self, ids: list[int], most_frames: int | None) -> None:
        if not self.pieces or self.pieces[-1].most_frames is not None:
            self.pieces.append(Piece(deque(self._lead)))
        piece = self.pieces[-1]
        piece.lane.extend(ids)
        if most_frames is not None:
            piece.lane.append(self.ids.tts_eos)
            piece.most_frames = most_frames

    def start_over(self) -> None:
        """Make it a script of which nothing has been taken."""
        log, self._log = self._log, []
        self.pieces.clear()
        self.ended = self.closed = self._surplus = False
        self._ahead = self._ahead_at_first
        for ids, most_frames, last in log:
            self.append(ids, most_frames, last=last)

    def next_piece(self) -> None:
        """The piece is spoken; what still comes of it is not."""
        self._surplus = not self.ended
        self.pieces.popleft()
        self.ended = self.most_frames is not None

    @property
    def over(self) -> bool:
        """Is all the text spoken?"""
        return self.closed and not self.pieces

    @property
    def said(self) -> bool:
        """Is the piece whole, and all of its text under frames?"""
        return self.ended and not self.pieces[0].lane

    @property
    def most_frames(self) -> int | None:
        """How long the piece may sound, once it is whole."""
        return self.pieces[0].most_frames if self.pieces else None

    @property
    def prompt_ready(self) -> bool:
        """Is there text under every row of the piece's prompt that must have some?"""
        if not self.pieces:
            return False
        enough = not self.whole and len(self.pieces[0].lane) > self.lead_frames + self._ahead
        return enough or self.ended

    @property
    def rows_ready(self) -> bool:
        """Can the piece's next frame be made, or does it wait for text?"""
        return self.ended or bool(self.pieces and self.pieces[0].lane)

    def next_text(self) -> int:
        """The text id under the next frame."""
        lane = self.pieces[0].lane
        return lane.popleft() if lane else self.ids.tts_pad

    def _taken_first(self) -> list[int]:
        """Take the text that stands before the first frame."""
        lane = self.pieces[0].lane
        count = len(lane) if self.whole else min(self._ahead, len(lane) - 1)
        self._ahead = 0
        return [lane.popleft() for _ in range(count)]

    def prompt(self, after: int = 0) -> Prompt:
        """Take the rows of the piece's prompt out of the lanes; `after` frames have been made."""
        rows = [*self.head, *((i, self.codec.pad) for i in self._taken_first())]
        rows.append((self.next_text(), self.codec.bos))
        rows += [(self.next_text(), NONE) for _ in range(self.lead_frames)]
        text, codec = (list(column) for column in zip(*rows, strict=True))
        clone = self.clone
        return Prompt(
            text,
            codec,
            None if clone is None else clone.x_vector,
            None if clone is None else clone.ref_codes,
            len(self.head) + self._shared_lead,
            after,
        )
