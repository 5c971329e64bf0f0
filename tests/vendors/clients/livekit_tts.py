"""LiveKit's TTS classes with their own settings: prints `first` at the first sound.

Each makes one whole text, then speaks one that comes word by word, the last of them after the first
sound. `openai` has no stream of its own: sentences go through the adapter that agents use.
"""

import asyncio
import sys

import aiohttp
from livekit.agents import tokenize, tts
from livekit.plugins import cartesia, elevenlabs, openai

url, case = sys.argv[1:]
TEXT = "This is the first of the sentences. The second one is a good deal longer than that."


def made(session: aiohttp.ClientSession) -> tts.TTS:
    """The class of that name, at another address."""
    if case == "openai":
        return openai.TTS(base_url=f"{url}/v1", api_key="none")
    if case == "elevenlabs":
        return elevenlabs.TTS(base_url=f"{url}/v1", api_key="none", http_session=session)
    return cartesia.TTS(base_url=url, api_key="none", http_session=session)


async def main() -> None:
    async with aiohttp.ClientSession() as session:
        voice = made(session)
        async with voice.synthesize(TEXT) as stream:
            heard = False
            async for _ in stream:
                if not heard:
                    print("first", flush=True)
                heard = True
        assert heard
        if not voice.capabilities.streaming:
            voice = tts.StreamAdapter(
                tts=voice, sentence_tokenizer=tokenize.blingfire.SentenceTokenizer()
            )
        await say(voice)
        await voice.aclose()


async def say(voice: tts.TTS) -> None:
    """Word by word."""
    heard = asyncio.Event()
    async with voice.stream() as stream:

        async def write() -> None:
            for word in f"{TEXT} And".split():
                stream.push_text(f"{word} ")
            await asyncio.wait_for(heard.wait(), 30)
            stream.push_text("the last word.")
            stream.end_input()

        writing = asyncio.create_task(write())
        async for _ in stream:
            heard.set()
        await writing


asyncio.run(main())
