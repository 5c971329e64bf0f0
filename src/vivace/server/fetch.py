"""Fetches a clip from a URL a stranger has given: https, a public address, no detours, bounded.

The address is checked where the connection is made, on the address that is then connected to: a
name that resolves to another one a moment later gains nothing.
"""

import contextlib
import http.client
import ipaddress
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from vivace.audio.decoder import PARAM
from vivace.config import Limits
from vivace.errors import TooLarge, Unprocessable

PIECE: Final = 1 << 16
PORT: Final = 443

log = logging.getLogger(__name__)


class Refused(Exception):
    """Why it is not fetched; for the log, since the answer could tell of what stands behind us."""


class Deadline:
    """So many seconds from now."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._end_s = clock, clock() + seconds

    @property
    def left_s(self) -> float:
        """Seconds left. Raises TimeoutError if there are none."""
        left_s = self._end_s - self._clock()
        if left_s <= 0:
            raise TimeoutError("out of time")
        return left_s


class Checked(http.client.HTTPSConnection):
    """A connection to a public address of its host, and to no other."""

    def __init__(self, host: str, deadline: Deadline, context: ssl.SSLContext) -> None:
        super().__init__(host, PORT, context=context)
        self._deadline, self._tls = deadline, context
        self._cut: threading.Timer | None = None

    def connect(self) -> None:
        """Resolve, check, connect; whoever drips is cut off at the deadline."""
        plain = self._reach(public_addresses(self.host))
        self.sock = self._tls.wrap_socket(
            plain, server_hostname=self.host, do_handshake_on_connect=False
        )
        left_s = self._deadline.left_s
        self.sock.settimeout(left_s)
        self._cut = threading.Timer(left_s, _shut, [self.sock])
        self._cut.daemon = True
        self._cut.start()
        self.sock.do_handshake()

    def _reach(self, addresses: list[str]) -> socket.socket:
        for address in addresses[:-1]:
            with contextlib.suppress(OSError):
                return socket.create_connection((address, PORT), self._deadline.left_s / 2)
        return socket.create_connection((addresses[-1], PORT), self._deadline.left_s)

    def end(self) -> None:
        """Close, with the timer.

        `close` leaves the timer: http.client calls it before it reads a body that ends with its
        connection.
        """
        if self._cut is not None:
            self._cut.cancel()
        self.close()


def _shut(sock: socket.socket) -> None:
    """End what a read waits for, under TLS and from another thread."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def public_addresses(host: str) -> list[str]:
    """The addresses of the host, all of which must be public. Raises Refused."""
    entries = socket.getaddrinfo(host, PORT, type=socket.SOCK_STREAM)
    found = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    for address in found:
        if not is_public(address):
            raise Refused(f"{host} resolves to {address}, which is not public")
    return found


def is_public(address: str) -> bool:
    """Does everybody reach the same machine under this address, also by way of IPv6?"""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo and ip.teredo[1])
        if inner and not inner.is_global:
            return False
        if ip in ipaddress.ip_network("64:ff9b::/96"):  # translated to IPv4 on the way
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
    return ip.is_global and not ip.is_multicast


def fetch(url: str, limits: Limits, context: ssl.SSLContext | None = None) -> bytes:
    """The body behind an https URL.

    Raises TooLarge, and Unprocessable with no word on why it could not be fetched.
    """
    deadline = Deadline(limits.clip_decode_s)
    try:
        host, target = _parts(url)
        connection = Checked(host, deadline, context or ssl.create_default_context())
        try:
            connection.request("GET", target, headers={"Accept": "audio/*", "User-Agent": "vivace"})
            return _body(connection, limits.clip_bytes, deadline)
        finally:
            connection.end()
    except (OSError, http.client.HTTPException, ValueError, Refused) as error:
        log.info("a clip was not fetched from %.200r: %s", url, error)
        raise Unprocessable(
            f"`{PARAM}` could not be fetched: it must be an https URL of a file on a public "
            "server, without redirects.",
            param=PARAM,
            code="clip_not_fetched",
        ) from None


def _parts(url: str) -> tuple[str, str]:
    """Host and target. Raises ValueError, Refused."""
    parts = urlsplit(url)
    if parts.scheme.lower() != "https" or not parts.hostname:
        raise Refused("no https URL")
    if parts.port not in (None, PORT) or parts.username is not None or parts.password is not None:
        raise Refused("a port or a password of its own")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return parts.hostname, target


def _body(connection: http.client.HTTPSConnection, most: int, deadline: Deadline) -> bytes:
    """What the answer holds, however it is framed. Raises TimeoutError, TooLarge, Refused."""
    body = bytearray()
    with connection.getresponse() as response:
        if response.status != 200:
            raise Refused(f"status {response.status}")
        while piece := response.read1(PIECE):
            body += piece
            _ = deadline.left_s
            if len(body) > most:
                raise TooLarge(
                    f"`{PARAM}` is over the limit of {most:,} bytes.",
                    param=PARAM,
                    code="clip_too_large",
                )
    _ = deadline.left_s  # what was cut off looks like an end
    return bytes(body)
