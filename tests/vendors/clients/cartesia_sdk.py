"""Cartesia's SDK: prints `first` at the first sound, and how many bytes it was."""

import asyncio
import sys

from cartesia import AsyncCartesia, Cartesia

url, case = sys.argv[1:]
VOICE = {"mode": "id", "id": "6ccbfb76-1fc6-48f7-b71d-91ac6298247b"}
ASK = {"model_id": "sonic-3", "voice": VOICE}
TEXT = "Every word is spoken when it is time for it."
client = Cartesia(base_url=url, api_key="none")
RAW = {"container": "raw", "encoding": "pcm_f32le", "sample_rate": 44_100}
heard: list[bytes] = []


def hear(sound: bytes | None) -> None:
    """Keep it."""
    if sound and not heard:
        print("first", flush=True)
    heard.append(sound or b"")


def contexts() -> None:
    """The last words come when something has been heard."""
    with client.tts.websocket_connect() as connection:
        context = connection.context(**ASK)  # with the sound that the SDK asks for
        for word in TEXT.split():
            context.push(f"{word} ")
        events = context.receive()
        hear(next(events).audio)
        context.push("Last words.")
        context.no_more_inputs()
        *chunks, last = list(events)
        assert last.type == "done", last
        for chunk in chunks:
            hear(chunk.audio)


async def cancel() -> None:
    """One of two contexts is cancelled; the other one does not notice."""
    client = AsyncCartesia(base_url=url, api_key="none")
    async with client.tts.websocket_connect() as connection:
        one, other = connection.context(**ASK), connection.context(**ASK)
        await one.push(TEXT)
        async for event in one.receive():
            assert event.type == "chunk", event
            hear(event.audio)
            break
        await one.cancel()
        await other.push(TEXT, continue_=False)
        events = [event async for event in other.receive()]
        assert events[-1].type == "done", events[-1]
        assert all(event.type == "chunk" for event in events[:-1])


if case == "bytes":
    with client.tts.with_streaming_response.generate(
        **ASK, transcript=TEXT, output_format=RAW
    ) as response:  # plain `generate` reads to the end first
        for piece in response.iter_bytes():
            hear(piece)
elif case == "sse":
    for event in client.tts.generate_sse(**ASK, transcript=TEXT, output_format=RAW):
        assert event.type in ("chunk", "done"), event
        hear(event.audio if event.type == "chunk" else None)
elif case == "contexts":
    contexts()
else:
    asyncio.run(cancel())
print(sum(map(len, heard)))
