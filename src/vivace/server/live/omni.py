"""vLLM-Omni's messages: an utterance is all text up to `input.done`, spoken while it comes."""

from collections.abc import Mapping
from typing import ClassVar, Final

from vivace.errors import InvalidRequest, VivaceError
from vivace.server.fields import Fields
from vivace.server.live.conversation import Body, Conversation, Stage, Verb, only
from vivace.server.live.turn import Ending, Turn
from vivace.server.live.wire import Event, Wire
from vivace.server.order import Manner
from vivace.server.replies import error_object

CONFIG: Final = "session.config"
# Its way to cut texts and sound; ours needs no such choice.
NOT_NEEDED: Final = ("split_granularity", "initial_codec_chunk_frames")


class Omni(Conversation):
    """The stream route, if its first message is `session.config`."""

    example = '{"type": "input.text", "text": "Hello."}'
    form = "wav"

    def __init__(self, stage: Stage, wire: Wire) -> None:
        super().__init__(stage, wire)
        self._manner: Manner | None = None
        self._texts: dict[int, list[str]] = {}  # of the turns that are open
        self._bytes = 0  # of the turn that speaks

    async def configure(self, body: Body) -> None:
        """How to speak from the next utterance on."""
        if self.taking is not None:
            raise InvalidRequest("An utterance is open: send input.done first.")
        fields = Fields(body)
        fields.rename("stream_audio", "stream")
        for name in NOT_NEEDED:
            fields.take(name)
        if fields.flag("word_timestamps"):
            raise InvalidRequest("There are no word timestamps here.", param="word_timestamps")
        fields.refuse("speaker_embedding", "a voice comes from a clip, in ref_audio.")
        self._manner = self.manner(fields)

    async def text(self, body: Body) -> None:
        """More of the utterance."""
        (text,) = only(body, "text")
        if text:
            turn = self._told()
            self._texts[turn.id].append(text)
            await turn.append(text)

    async def done(self, body: Body) -> None:
        """The utterance has all of its text."""
        only(body)
        await self._told().end()

    async def leave(self, body: Body) -> None:
        """The end of the connection."""
        only(body)
        self.close()
        self.wire.finish(Event.SAID_ALL)

    verbs: ClassVar[Mapping[str, Verb]] = {
        CONFIG: configure,
        "input.text": text,
        "input.done": done,
        "session.close": leave,
    }

    def _told(self) -> Turn[int]:
        """The utterance that takes text, or a new one."""
        if self.taking is not None:
            return self.taking
        assert self._manner is not None  # the first message is `session.config`
        turn = self.start(self._manner)
        self._texts[turn.id] = []
        return turn

    def refuse(self, error: VivaceError, turn: Turn[int] | None = None) -> None:
        """Its errors have their message at the top; ours is beside it."""
        self.say(type="error", message=error.message, error=error_object(error))
        if self._manner is None:
            self.wire.fail(error)

    async def sound(self, turn: Turn[int], data: bytes) -> None:
        """Bytes, after the word that they begin."""
        if not turn.begun:
            self._bytes = 0
            await self._begin(turn)
        await self.wire.send(data)
        self._bytes += len(data)

    async def _begin(self, turn: Turn[int]) -> None:
        form = turn.output.format
        shape = {"sample_rate": turn.output.rate, "channels": 1} if form.bare else {}
        text = "".join(self._texts[turn.id])
        await self.send(
            type="audio.start", **_place(turn), sentence_text=text, format=form.name, **shape
        )

    async def tell_over(self, turn: Turn[int], ending: Ending) -> None:
        """`audio.done` if there was sound, the error if it failed, `session.done` always."""
        failed, error = ending.error is not None, ending.error
        if error is not None:
            await self.send(type="error", message=_words(error), error=error_object(error))
        if turn.begun:
            await self.send(
                type="audio.done", **_place(turn), total_bytes=self._bytes, error=failed
            )
        del self._texts[turn.id]
        index, sentences = _place(turn)["utterance_index"], int(turn.begun)
        await self.send(type="session.done", utterance_index=index, total_sentences=sentences)


def _place(turn: Turn[int]) -> dict[str, int]:
    return {"utterance_index": turn.id - 1, "sentence_index": 0}


def _words(error: BaseException) -> str | None:
    return error_object(error)["message"]
