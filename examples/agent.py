r"""Speaks what a language model writes, while it writes; a new question interrupts both.

    OPENAI_BASE_URL=... OPENAI_API_KEY=... python examples/agent.py --model NAME | \
        ffplay -nodisp -loglevel error -f s16le -ar 24000 -i -

Questions come from stdin, a line each; samples (24 kHz, 16 bit, mono) go to stdout, words to
stderr. Needs `pip install openai websockets`.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable

from openai import AsyncOpenAI
from websockets.asyncio.client import ClientConnection, connect


class Voice:
    """One connection to vivace; plays the latest turn alone."""

    def __init__(self, socket: ClientConnection, play: Callable[[bytes], object]) -> None:
        self.socket, self.play = socket, play
        self.silent = asyncio.Event()  # no turn is open
        self.silent.set()

    async def say(self, type: str, **fields: str) -> None:
        """Send a message. Text opens a turn, and only when the last one is over."""
        if type.startswith("input_text."):
            self.silent.clear()
        await self.socket.send(json.dumps({"type": type, **fields}))

    async def listen(self) -> None:
        """Play what comes; after a cancel nothing of that turn does."""
        async for message in self.socket:
            if isinstance(message, bytes):
                self.play(message[4:])
                continue
            told = json.loads(message)
            if told["type"] in ("speech.audio.done", "response.cancelled"):
                self.silent.set()
            elif told["type"] == "error" and told["error"]["code"] != "no_open_turn":
                print(told["error"]["message"], file=sys.stderr)


async def answer(model: AsyncOpenAI, name: str, question: str, voice: Voice) -> None:
    """One answer, from the model's tokens straight into the socket."""
    stream = await model.chat.completions.create(
        model=name, messages=[{"role": "user", "content": question}], stream=True
    )
    async for part in stream:
        if part.choices and (text := part.choices[0].delta.content):
            print(text, end="", file=sys.stderr, flush=True)
            await voice.say("input_text.append", text=text)
    await voice.say("input_text.end")


async def interrupt(writing: asyncio.Task[None] | None, voice: Voice) -> None:
    """Barge-in: the model stops writing and the voice stops speaking."""
    if writing is not None and not writing.done():
        writing.cancel()
        await asyncio.wait([writing])
    if not voice.silent.is_set():
        await voice.say("response.cancel")
        await voice.silent.wait()


async def main() -> None:
    """Ask, speak, be interrupted, until stdin ends."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--vivace", default="ws://127.0.0.1:8000")
    options.add_argument("--model", required=True)
    asked = options.parse_args()
    model, writing = AsyncOpenAI(), None
    async with connect(f"{asked.vivace}/v1/audio/speech/stream") as socket:

        def play(samples: bytes) -> None:
            sys.stdout.buffer.write(samples)
            sys.stdout.buffer.flush()

        voice = Voice(socket, play)
        listening = asyncio.create_task(voice.listen())
        while question := await asyncio.to_thread(sys.stdin.readline):
            await interrupt(writing, voice)
            writing = asyncio.create_task(answer(model, asked.model, question, voice))
        if writing is not None:
            await writing
            await voice.silent.wait()
        listening.cancel()


if __name__ == "__main__":
    asyncio.run(main())
