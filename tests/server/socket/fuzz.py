"""Sequences of messages at random: what is always true of a socket, and that nothing is left.

As a program: how many sequences were run, and what they met.

    python -m tests.server.socket.fuzz 0 10000 benchmarks/results/socket-fuzz.json
"""

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp
from tests.server.socket.client import Socket, app_of, counted, given_back

from vivace.engine import Engine
from vivace.server.live.wire import DRAIN

JUNK = [
    "",
    "{",
    "[]",
    "null",
    '"text"',
    "{}",
    '{"type": 3}',
    '{"type": "x"}',
    '{"a":1,"a":2}',
    b"",
    b"\0",
]
WISHES: list[dict[str, object]] = [
    {"seed": 1},
    {"seed": 9, "format": "wav"},
    {"seed": 3, "encoding": "base64"},
    {"format": "pcm", "sample_rate": 16_000},
    {"encoding": None, "format": None},
    {"voice": "nobody"},
    {"seed": -1},
    {"speed": 2},
    {"no_such": 1},
    {"format": "pcm", "response_format": "wav"},
    {"max_new_tokens": 2},
]
HANGS_S = 600.0  # no sequence takes 0.2 s of a core, of which a busy machine may give a 500th
TEXTS = ["", " ", "Hello.", "Yes, ", "word ", "\ud83d", "\ude00", "😀", "*", "12", "x" * 3_000]


def moves(dice: random.Random, socket: Socket) -> list[tuple[int, Callable[[], Any]]]:
    """What a client may do next, with weights."""
    return [
        (8, lambda: socket.say("input_text.append", text=dice.choice(TEXTS))),
        (4, lambda: socket.say("input_text.end")),
        (2, lambda: socket.say("input_text.flush")),
        (2, lambda: socket.say("input_text.clear")),
        (4, lambda: socket.say("response.cancel")),
        (1, lambda: socket.say("response.cancel", turn_id=dice.choice([0, 1, 2, 3, "1"]))),
        (2, lambda: socket.say("session.update", **dice.choice(WISHES))),
        (1, lambda: socket.say("session.keepalive")),
        (1, lambda: socket.say("input_text.append", text=dice.choice([3, None, []]))),
        (1, lambda: socket.say(dice.choice(["input.text", "session.config", "over"]))),
        (2, lambda: socket.raw(dice.choice(JUNK))),
        (1, socket.reading.clear),
        (2, socket.reading.set),
        (1, lambda: socket.push({"type": DRAIN}) if dice.random() < 0.2 else None),
    ]


async def sequence(seed: int, app: ASGIApp) -> Counter[str]:
    """One connection; raises AssertionError for a message that must not come."""
    dice, met = random.Random(seed), Counter[str]()
    async with Socket(app) as socket:
        can, orderly = moves(dice, socket), dice.random() < 0.5
        weights = [weight for weight, _ in can]
        for _ in range(dice.randrange(1, 25)):
            _, do = dice.choices(can, weights)[0]
            do()
            for _ in range(dice.choice([0, 0, 1, 3, 30])):
                await asyncio.sleep(0)
        if orderly:
            socket.reading.set()
            await _to_the_end(socket, met)
        while socket.waiting():
            _note(await socket.hear(), met)
    _check(met)
    return met


async def _to_the_end(socket: Socket, met: Counter[str]) -> None:
    """End the turn that may be open, then wait for the terminal event of every one."""
    socket.say("input_text.end")
    socket.say("the last message")
    ended = False
    while socket.closed is None and not (ended and met["open"] == met["closed"]):
        message = await socket.hear()
        if message is None:
            break
        ended = ended or "the last message" in str(message)
        _note(message, met)
    met["orderly"] = 1


def _note(message: Any, met: Counter[str]) -> None:
    """Keep book of turns; a message of a turn that is not open is a fault."""
    if message is None:
        return
    if isinstance(message, tuple):
        turn, kind = message[0], "sound"
        assert len(message[1]) % 2 == 0
    else:
        turn, kind = message.get("turn_id"), message["type"]
    met[kind] += 1
    if kind == "response.created":
        assert turn == met["open"] + 1, "turns are numbered from 1 on"
        met["open"] += 1
    elif kind in ("sound", "speech.audio.delta", "speech.audio.done", "response.cancelled"):
        assert 1 <= turn <= met["open"], "a turn that nobody opened"
        assert not met[f"over {turn}"], "nothing of a turn comes after its end"
        if kind in ("speech.audio.done", "response.cancelled"):
            met[f"over {turn}"] += 1
            met["closed"] += 1
        else:
            assert turn >= met["speaks"], "turns speak in their order"
            met["speaks"] = turn
    elif kind == "error":
        assert message["error"]["message"]
        assert message["error"]["type"] == "invalid_request_error" or message["turn_id"] is None


def _check(met: Counter[str]) -> None:
    for name in [name for name in met if name.startswith("over ")]:
        assert met.pop(name) == 1, "one terminal event a turn"
    met.pop("speaks", None)


async def run(first: int, last: int, engine: Engine) -> Counter[str]:
    """The sequences of those seeds, one after another; the engine is empty after each hundred."""
    app, met = app_of(engine), Counter[str]()
    for seed in range(first, last):
        try:
            async with asyncio.timeout(HANGS_S):
                met += await sequence(seed, app)
        except BaseException as error:
            error.add_note(f"seed {seed}; {engine.stats()}")
            raise
        if seed % 100 == 99:
            await given_back(engine)
    await given_back(engine)
    return met


def main(first: int, last: int, output: Path) -> None:
    """Run them and write down what they met."""
    with counted(max_sessions=4, max_queue=8) as engine:
        met = asyncio.run(run(first, last, engine))
        stats = engine.stats()
    result = {
        "command": f'make socket-fuzz SEEDS="{first} {last}"',
        "sequences": last - first,
        "sessions_held_at_the_end": stats.slots_total - stats.slots_free + stats.waiting,
        "messages": dict(sorted(met.items())),
    }
    output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
