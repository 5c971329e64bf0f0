"""From what a client writes, as it comes, to the tokens of pieces."""

from dataclasses import dataclass, field

from vivace.errors import Unprocessable
from vivace.text.cap import Cap
from vivace.text.clean import Cleaner, speakable
from vivace.text.normalize import Normalizer
from vivace.text.segment import Part, Segmenter
from vivace.text.tokenize import TokenStream


@dataclass(frozen=True, slots=True)
class Words:
    """Tokens of the current piece; `most_frames` says that it ends with them and how long it is."""

    ids: list[int]
    most_frames: int | None = None


@dataclass(slots=True)
class _Piece:
    """The piece that comes in now."""

    cap: Cap
    speakable: bool = False
    tokens: int = 0
    held: list[int] = field(default_factory=list)  # tokens kept back while it has no sound
    text: list[str] = field(default_factory=list)


class Intake:
    """Cleans, normalises if asked to, cuts into pieces and tokenises one text, in any chunking.

    `ids` are the tokens given out so far. `skipped` is what of the text nobody can speak: emoji
    that were taken out, pieces without a letter or a figure.
    """

    def __init__(
        self,
        tokens: TokenStream,
        language: str,
        *,
        piece_s: float,
        most_tokens: int,
        normalize: bool = False,
    ) -> None:
        self.ids: list[int] = []
        self.skipped: list[str] = []
        self._language, self._most_tokens = language, most_tokens
        self._cleaner = Cleaner()
        self._normalizer = Normalizer() if normalize else None
        self._pausing = False  # does white space, or else the end, follow what came this far?
        self._segmenter = Segmenter(piece_s, language)
        self._tokens = tokens
        self._piece = _Piece(Cap(language))

    def feed(self, text: str) -> list[Words]:
        """The tokens that are certain with this text.

        Raises InvalidRequest for an unpaired surrogate and Unprocessable for SSML, without this
        text; Unprocessable, from then on, for a piece of more tokens than `most_tokens`.
        """
        return self._words(self._parts(self._cleaner.feed(text), end=False))

    def finish(self) -> list[Words]:
        """The rest. Raises as `feed` does."""
        return self._words(self._parts(self._cleaner.finish(), end=True))

    def flush(self) -> list[Words]:
        """The rest of what has come; what comes next begins a new piece. Raises as `feed` does."""
        words = self.finish()
        self._cleaner = Cleaner()
        self._normalizer = None if self._normalizer is None else Normalizer()
        return words

    def _parts(self, text: str, *, end: bool) -> list[Part]:
        self._pausing = self._cleaner.pausing
        if self._normalizer is not None:
            text = self._normalizer.feed(text, pausing=self._pausing)
            text += self._normalizer.finish() if end else ""
            self._pausing = self._normalizer.pausing
            self.skipped += self._normalizer.dropped
            self._normalizer.dropped = []
        parts = self._segmenter.feed(text)
        return parts + self._segmenter.finish() if end else parts

    def _words(self, parts: list[Part]) -> list[Words]:
        words = [words for part in parts if (words := self._take(part)) is not None]
        if self._pausing or self._segmenter.pausing:
            words += self._settled()
        return words

    def _settled(self) -> list[Words]:
        """The last word of what has come, that the tokenizer still held."""
        self._add(self._piece, "", self._tokens.settle())
        ids = self._give_out(self._piece)
        return [Words(ids)] if ids else []

    def _take(self, part: Part) -> Words | None:
        """One part's tokens, with those held back, once its piece has a sound."""
        piece, text = self._piece, part.text.rstrip() if part.ends else part.text
        self._add(piece, text, self._tokens.feed(text))
        if part.ends:
            self._add(piece, "", self._tokens.finish())
            self._piece = _Piece(Cap(self._language))
        if not piece.speakable:
            self.skipped += ["".join(piece.text)] * part.ends
            return None
        ids = self._give_out(piece)
        return Words(ids, piece.cap.frames if part.ends else None) if ids or part.ends else None

    def _give_out(self, piece: _Piece) -> list[int]:
        """Its tokens, with those that were kept back, if it has a sound."""
        if not piece.speakable:
            return []
        ids, piece.held = piece.held, []
        self.ids += ids
        return ids

    def _add(self, piece: _Piece, text: str, ids: list[int]) -> None:
        piece.cap.add(text)
        piece.speakable = piece.speakable or speakable(text)
        piece.text.append(text)
        piece.held += ids
        piece.tokens += len(ids)
        if piece.tokens > self._most_tokens:
            raise Unprocessable(
                f"a piece of the text has {piece.tokens} tokens; one prompt holds "
                f"{self._most_tokens}",
                param="input",
                code="text_too_long",
            )
