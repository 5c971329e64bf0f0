"""One request to a fake server, without a load around it."""

import time

from vivace.bench.answer import Answer, Manners
from vivace.bench.http import Peer, ask
from vivace.bench.record import Record, judge
from vivace.bench.sockets import talk
from vivace.bench.targets import Ask, http_request, socket_talk
from vivace.bench.texts import Text, words

TEXT = Text("t", "Good morning, wherever you are.")


async def exchange(
    asked: Ask, *, manners: Manners | None = None, timeout_s: float = 20.0, pace_s: float = 0.0
) -> Answer:
    """What comes back for TEXT, sent now."""
    asked.check()
    peer = Peer("127.0.0.1", asked.port, "127.0.0.1")
    manners, now_s = manners or Manners(), time.monotonic()
    if asked.socket:
        pieces = words(TEXT.text) if pace_s else [TEXT.text]
        chat = socket_talk(asked, 7)
        return await talk(peer, chat, pieces, now_s, pace_s, manners, timeout_s)
    return await ask(peer, http_request(asked, TEXT.text), now_s, manners, timeout_s)


def judged(answer: Answer) -> Record:
    """Its line in the results."""
    record = Record(7, TEXT.id, len(TEXT.text), 0.0, warmup=False)
    judge(record, answer, TEXT, (0.0, 1e12))
    return record
