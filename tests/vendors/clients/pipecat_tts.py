"""Pipecat's TTS services in a pipeline: prints `first` at the first sound.

A language model's words come one by one, the last of them after the first sound.
"""

import asyncio
import sys

from loguru import logger
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.cartesia.tts import CartesiaTTSService
from pipecat.services.elevenlabs.tts import ElevenLabsTTSService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.services.tts_service import TTSService
from pipecat.workers.runner import WorkerRunner

logger.remove()
logger.add(sys.stderr, level="WARNING")
url, case = sys.argv[1:]
TEXT = "This is the first of the sentences. The second one is a good deal longer than that. And"
LAST = "the last word."


def made() -> TTSService:
    """The service of that name, at another address."""
    sockets = url.replace("http", "ws", 1)
    if case == "openai":
        return OpenAITTSService(api_key="none", base_url=f"{url}/v1")
    if case == "elevenlabs":
        settings = ElevenLabsTTSService.Settings(voice="nova")
        return ElevenLabsTTSService(api_key="none", url=sockets, settings=settings)
    return CartesiaTTSService(
        api_key="none",
        url=f"{sockets}/tts/websocket",
        settings=CartesiaTTSService.Settings(voice="nova"),
    )


class Ear(FrameProcessor):
    """What comes out of the service."""

    def __init__(self) -> None:
        super().__init__()
        self.heard, self.stopped, self.text = asyncio.Event(), asyncio.Event(), ""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, ErrorFrame):
            sys.exit(f"pipecat: {frame.error}")
        if isinstance(frame, TTSAudioRawFrame) and not self.heard.is_set():
            print("first", flush=True)
            self.heard.set()
        if isinstance(frame, TTSTextFrame):
            self.text += f"{frame.text} "
        if isinstance(frame, TTSStoppedFrame):
            self.stopped.set()
        await self.push_frame(frame, direction)


async def main() -> None:
    ear = Ear()
    worker = PipelineWorker(Pipeline([made(), ear]), cancel_on_idle_timeout=False)
    runner, started = WorkerRunner(), asyncio.Event()

    @worker.event_handler("on_pipeline_started")
    async def _(*_: object) -> None:
        started.set()

    async def talk() -> None:
        await started.wait()
        await worker.queue_frame(LLMFullResponseStartFrame())
        for word in TEXT.split():
            await worker.queue_frame(LLMTextFrame(f"{word} "))
        await asyncio.wait_for(ear.heard.wait(), 30)
        await worker.queue_frame(LLMTextFrame(LAST))
        await worker.queue_frame(LLMFullResponseEndFrame())
        while LAST not in ear.text:
            ear.stopped.clear()
            await asyncio.wait_for(ear.stopped.wait(), 30)
        await worker.queue_frame(EndFrame())

    await runner.add_workers(worker)
    await asyncio.gather(runner.run(), talk())


asyncio.run(main())
