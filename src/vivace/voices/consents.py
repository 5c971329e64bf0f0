"""Consents: recordings of people who agree that their voice is used."""

import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from vivace.errors import InvalidRequest, NotFound, Unprocessable
from vivace.voices.folder import Folder, pack, unpack
from vivace.voices.kept import Consent, check_name

_KIND: Final = "vivace.consent"
_ID = re.compile(r"cons_[0-9a-f]{20}")


@dataclass(frozen=True, slots=True)
class Consents:
    """The consents of one folder. Safe from any thread."""

    folder: Folder[Consent]
    most: int
    now_s: Callable[[], float] = time.time

    def all(self) -> list[Consent]:
        """All of them, oldest first."""
        found = self.folder.records().values()
        return sorted(found, key=lambda consent: (consent.created_s, consent.id))

    def get(self, id: str) -> Consent:
        """The consent of that id. Raises NotFound."""
        if (consent := self.folder.records().get(id)) is not None:
            return consent
        raise NotFound(
            f"There is no consent {id[:64]!r} here.", param="consent", code="consent_not_found"
        )

    def add(self, name: str, language: str, recording: bytes) -> Consent:
        """Keep one. `recording` is kept as it came.

        Raises Unprocessable for a name that is none, an empty recording or if there are too many,
        Unavailable if it cannot be written.
        """
        if not recording:
            raise Unprocessable(
                "`recording` is empty: it must hold the person's words of consent.",
                param="recording",
                code="clip_empty",
            )
        consent = Consent(
            id=f"cons_{secrets.token_hex(10)}",
            name=check_name(name),
            language=language[:64],
            created_s=int(self.now_s()),
        )
        with self.folder.changing():
            if len(self.folder.records()) >= self.most:
                raise Unprocessable(
                    f"{self.most} consents are kept, which is the most; delete one first.",
                    code="too_many_consents",
                )
            return self.folder.put(consent.id, _to_file(consent, recording))

    def rename(self, id: str, name: str) -> Consent:
        """The consent under another name. Raises NotFound and as `add` does."""
        with self.folder.changing():
            consent = msgspec.structs.replace(self.get(id), name=check_name(name))
            return self.folder.put(id, _to_file(consent, self.recording(id)))

    def remove(self, id: str) -> Consent:
        """Forget one; voices that were made with it keep what they know of it. Raises NotFound."""
        with self.folder.changing():
            consent = self.get(id)
            self.folder.remove(id)
            return consent

    def recording(self, id: str) -> bytes:
        """The recording as it came."""
        return self.folder.read(self.get(id).id, _recording)


def open_consents(path: Path, most: int = 1000) -> Consents:
    """Those of a folder. Raises Unavailable if it cannot be used."""
    return Consents(Folder(path, _from_file, lambda consent: consent.id), most)


def _recording(path: Path) -> bytes:
    _, arrays = unpack(path, _KIND, "recording")
    if "recording" not in arrays:
        raise InvalidRequest("the consent has no recording")
    return arrays["recording"].tobytes()


def _to_file(consent: Consent, recording: bytes) -> bytes:
    sound = np.frombuffer(recording, np.uint8)
    return pack(_KIND, msgspec.json.encode(consent), {"recording": sound})


def _from_file(path: Path) -> Consent:
    raw, _ = unpack(path, _KIND)
    try:
        consent = msgspec.json.decode(raw, type=Consent)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"the consent cannot be read: {error}") from None
    if not _ID.fullmatch(consent.id):
        raise InvalidRequest("the consent's id is none")
    return consent
