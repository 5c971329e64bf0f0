"""Voices that are kept: made once, found by id or name for ever after."""

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from vivace.errors import NotFound, TooLarge, Unprocessable
from vivace.types import Clone
from vivace.voices.folder import Folder
from vivace.voices.kept import (
    Card,
    Consent,
    Kept,
    check_name,
    clip_of,
    content_of,
    folded,
    from_file,
    to_file,
)

Check = Callable[[Kept, bytes], None]
EDITABLE: Final = frozenset({"name", "description", "labels", "language", "seed", "instruct"})


@dataclass(frozen=True, slots=True)
class Making:
    """What a client says of a voice that it wants to be kept.

    `ref_text` are the words in its clip; without them it is an x-vector alone.
    """

    name: str
    ref_text: str = ""
    keep_clip: bool = True
    description: str = ""
    language: str = ""
    seed: int | None = None
    instruct: str = ""
    prompt: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    consent: Consent | None = None


class Store:
    """The voices of one folder, in memory but for their clips. Safe from any thread.

    What is acknowledged is on the disk, and each voice is there whole or not at all.
    """

    def __init__(
        self,
        folder: Path,
        *,
        most: int = 1000,
        most_bytes: int = 16 << 20,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.most, self.most_bytes = most, most_bytes
        self._folder = Folder(folder, from_file, lambda kept: kept.card.id)
        self._now_s = now_s

    def voices(self) -> list[Kept]:
        """All of them, oldest first."""
        found = self._folder.records().values()
        return sorted(found, key=lambda kept: (kept.card.created_s, kept.card.id))

    def find(self, name: str) -> Kept | None:
        """The voice of that id or, in any case, name."""
        records, wanted = self._folder.records(), folded(name)
        if wanted in records:
            return records[wanted]
        return next((k for k in records.values() if folded(k.card.name) == wanted), None)

    def get(self, name: str) -> Kept:
        """The same. Raises NotFound, which lists what there is."""
        if (kept := self.find(name)) is not None:
            return kept
        names = ", ".join(kept.card.name for kept in self.voices()[:50]) or "none"
        raise NotFound(
            f"There is no kept voice {name[:64]!r} here. Kept voices: {names}.",
            param="voice",
            code="voice_not_found",
        )

    def add(
        self,
        making: Making,
        clone: Clone,
        encoder: str,
        clip: bytes = b"",
    ) -> Kept:
        """Keep a new voice.

        Raises Unprocessable for a name that is taken or none, or if there are too many voices,
        TooLarge for one over the limit, Unavailable if it cannot be written.
        """
        card = Card(
            id=f"voice_{secrets.token_hex(10)}",
            name=check_name(making.name),
            created_s=self._now_s(),
            content=content_of(clone),
            encoder=encoder,
            origin="prompt" if making.prompt else "clip",
            prompt=making.prompt,
            ref_text=clone.ref_text,
            description=making.description,
            labels=dict(making.labels),
            language=making.language,
            seed=making.seed,
            instruct=making.instruct,
            consent=making.consent,
            clip_bytes=len(clip),
        )
        with self._folder.changing():
            self._check_room(card.name)
            return self._put(card, clone, clip)

    def check_new(self, making: Making) -> None:
        """Raises what `add` would, before the long work of making the voice."""
        self._check_room(check_name(making.name))

    def change(self, which: str, /, **changes: object) -> Kept:
        """The voice with other values in fields of `EDITABLE`. Raises as `add` does."""
        assert changes.keys() <= EDITABLE
        if "name" in changes:
            changes["name"] = check_name(str(changes["name"]))
        with self._folder.changing():
            kept = self.get(which)
            card = msgspec.structs.replace(kept.card, **changes)
            self._check_name(card.name, card.id)
            return self._put(card, kept.clone, self._clip(kept))

    def renew(self, name: str, clone: Clone, encoder: str) -> Kept:
        """The voice as another model's encoder has made it of the same clip."""
        with self._folder.changing():
            kept = self.get(name)
            card = msgspec.structs.replace(kept.card, content=content_of(clone), encoder=encoder)
            return self._put(card, clone, self._clip(kept))

    def remove(self, name: str) -> Kept:
        """Forget a voice. Raises NotFound."""
        with self._folder.changing():
            kept = self.get(name)
            self._folder.remove(kept.card.id)
            return kept

    def clip(self, kept: Kept) -> bytes:
        """The clip it was made from, in FLAC; empty if none is kept. Raises NotFound."""
        return self._clip(kept) if kept.card.clip_bytes else b""

    def export(self, name: str) -> bytes:
        """The one file that holds all of a voice. Raises NotFound."""
        return self._folder.read(self.get(name).card.id, Path.read_bytes)

    def _clip(self, kept: Kept) -> bytes:
        return self._folder.read(kept.card.id, clip_of)

    def take_in(
        self, data: bytes, name: str | None = None, check: Check = lambda kept, clip: None
    ) -> Kept:
        """Keep a voice that was exported, under its own name or another.

        Its id stays, unless another voice has it. Raises as `add` does, InvalidRequest if `data` is
        no such file, and what `check` raises of a voice and its clip.
        """
        self._check_size(len(data))
        kept, clip = self._folder.staged(data, lambda path: (from_file(path), clip_of(path)))
        check(kept, clip)
        with self._folder.changing():
            card = msgspec.structs.replace(kept.card, clip_bytes=len(clip))
            if name is not None:
                card = msgspec.structs.replace(card, name=check_name(name))
            if card.id in self._folder.records():
                card = msgspec.structs.replace(card, id=f"voice_{secrets.token_hex(10)}")
            self._check_room(card.name)
            return self._put(card, kept.clone, clip)

    def _put(self, card: Card, clone: Clone, clip: bytes) -> Kept:
        data = to_file(card, clone, clip)
        self._check_size(len(data))
        return self._folder.put(card.id, data)

    def _check_room(self, name: str) -> None:
        if len(self._folder.records()) >= self.most:
            raise Unprocessable(
                f"{self.most} voices are kept, which is the most; delete one first.",
                code="too_many_voices",
            )
        self._check_name(name)

    def _check_name(self, name: str, id: str | None = None) -> None:
        """Refuse a name that another voice than that of the id has."""
        other = self.find(name)
        if other is not None and other.card.id != id:
            raise Unprocessable(
                f"A voice {other.card.name!r} is kept already: choose another name, or delete it.",
                param="name",
                code="voice_exists",
            )

    def _check_size(self, size: int) -> None:
        if size > self.most_bytes:
            raise TooLarge(
                f"The voice has {size:,} bytes; the limit is {self.most_bytes:,}.",
                code="voice_too_large",
            )
