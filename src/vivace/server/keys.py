"""API keys: who may speak. Only their digests are kept, and only their names are told."""

import base64
import binascii
import hashlib
import hmac
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers, QueryParams
from starlette.types import Scope

from vivace.errors import InvalidRequest

log = logging.getLogger(__name__)

LEAST: Final = 16  # characters of a key: less can be guessed
_NAME: Final = re.compile(r"[\w.@-]{1,64}", re.ASCII)
_KEY: Final = re.compile(rf"[!-~]{{{LEAST},512}}")
OTHERS: Final = 0o077  # who else than its owner may read a file
# Where clients of one kind or another show a key, beside Authorization. What stands in an address
# can end up in the logs of proxies: that is for sockets alone, where browsers have no other way.
HEADERS: Final = ("xi-api-key", "x-api-key")
QUERIES: Final = ("api_key", "xi-api-key", "access_token")


class Keys:
    """Names by the digests of their keys; without any, everybody may speak."""

    def __init__(self, named: Mapping[str, str]) -> None:
        for name, key in named.items():
            _check(name, key)
        self._digests = {name: _digest(key) for name, key in named.items()}

    def __bool__(self) -> bool:
        return bool(self._digests)

    def name_of(self, shown: str) -> str | None:
        """Whose key that is. It takes as long whether one fits, or none."""
        digest, found = _digest(shown), None
        for name, known in self._digests.items():
            if hmac.compare_digest(digest, known):
                found = name
        return found


def _check(name: str, key: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"The name of an API key must be a short word; got {name[:64]!r}.")
    if not _KEY.fullmatch(key):
        raise InvalidRequest(
            f"The API key {name!r} must be {LEAST} or more printable characters without a space."
        )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def load_keys(given: Mapping[str, str], file: Path | None) -> Keys:
    """Those of the setting and those of a file with a `name=key` in each line.

    Raises:
        InvalidRequest: A line that is none, a name given twice, a key that can be guessed.
        OSError: The file cannot be read.
    """
    named = dict(given)
    for number, line in _lines(file):
        name, _, key = map(str.strip, line.partition("="))
        if not key:  # the line itself may be a secret
            raise InvalidRequest(f"{file}, line {number}: not a name=key.")
        if name in named:
            raise InvalidRequest(f"{file}, line {number}: {name!r} is given twice.")
        named[name] = key
    return Keys(named)


def _lines(file: Path | None) -> Iterator[tuple[int, str]]:
    if file is None:
        return
    if file.stat().st_mode & OTHERS:
        log.warning("%s holds API keys and others can read it: chmod 600", file)
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line


def shown_by(scope: Scope) -> str | None:
    """The key that a request or a handshake shows, if it shows one."""
    headers = Headers(scope=scope)
    found = [_authorization(headers.get("authorization", ""))]
    found += [headers.get(name) for name in HEADERS]
    if scope["type"] == "websocket":
        query = QueryParams(scope["query_string"])
        found += [query.get(name) for name in QUERIES]
    return next(filter(None, found), None)


def _authorization(header: str) -> str | None:
    """`Bearer KEY`, or what a browser's window for passwords makes of one."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() != "basic":
        return None
    try:
        words = base64.b64decode(value, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return None
    user, _, password = words.partition(":")
    return password or user
