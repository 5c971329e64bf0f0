"""How much later the first byte of each response format comes than that of bare samples."""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Sequence

from vivace.bench.answer import Answer, Manners
from vivace.bench.http import Peer, ask
from vivace.bench.machine import command, commit, hardware, versions
from vivace.bench.summary import ranked
from vivace.bench.targets import Ask, http_request
from vivace.errors import Unavailable

YARDSTICK = "pcm"
TEXT = "The ferry leaves from the second pier at nine, and the crossing takes half an hour."
Times = dict[str, list[float]]  # ms from request to first byte, by format


def compare_formats(
    base: Ask, forms: Sequence[str], rounds: int, tell: Callable[[str], object]
) -> dict[str, object]:
    """The same request in each format, one at a time, in an order that turns from round to round.

    Raises:
        Unavailable: The server did not answer a request with sound.
    """
    forms = [YARDSTICK, *(form for form in forms if form != YARDSTICK)]
    times = asyncio.run(_times(base, forms, rounds))
    rows = {form: _row(times[form], times[YARDSTICK]) for form in forms}
    for form, row in rows.items():
        tell(f"{form:6} first byte {row['first_byte_ms']} ms, later than pcm {row['later_ms']} ms")
    return {
        "command": command(),
        "commit": commit(),
        "hardware": hardware(),
        "versions": versions(),
        "text": TEXT,
        "rounds": rounds,
        "formats": rows,
    }


def _row(times: Sequence[float], yardstick: Sequence[float]) -> dict[str, object]:
    later = [ours - pcm for ours, pcm in zip(times, yardstick, strict=True)]
    return {"first_byte_ms": ranked(times), "later_ms": ranked(later)}


async def _times(base: Ask, forms: Sequence[str], rounds: int) -> Times:
    tls = ssl.create_default_context() if base.tls else None
    address = socket.getaddrinfo(base.parts.hostname, base.port, type=socket.SOCK_STREAM)[0][4][0]
    peer = Peer(str(address), base.port, base.parts.hostname or "", tls)
    times: Times = {form: [] for form in forms}
    for turn in range(-1, rounds):  # the first round warms up
        for at in range(len(forms)):
            form = forms[(at + turn) % len(forms)]
            first_ms = await _first_byte_ms(base, peer, form)
            if turn >= 0:
                times[form].append(first_ms)
    return times


async def _first_byte_ms(base: Ask, peer: Peer, form: str) -> float:
    fields = {"seed": 7, **base.fields, "response_format": form}
    asked = Ask(base.target, base.url, base.model, base.voice, base.language, fields, base.key)
    answer: Answer = await ask(peer, http_request(asked, TEXT), time.monotonic(), Manners(), 120.0)
    if answer.status != 200 or not answer.arrivals:
        raise Unavailable(f"{form}: {answer.status} {answer.kind} {answer.detail}")
    return (answer.arrivals[0][0] - answer.sent_s) * 1e3
