"""The loop's end of the link, without the process around it."""

import time

from tests.remote.builds import parts
from tests.runners import FakeRunner

from vivace.config import EngineConfig
from vivace.remote.far import FarLoop
from vivace.remote.messages import Batch, FromLoop, More, Open
from vivace.types import Sampling, SpeechRequest


class Recorded:
    """A link that only notes, among the runner's calls, that sound has left."""

    def __init__(self, runner: FakeRunner) -> None:
        self.runner = runner

    def send(self, message: FromLoop) -> None:
        assert isinstance(message, Batch)
        if message.events:
            self.runner.calls.append(("sent", ()))


def test_sound_leaves_before_the_next_steps_are_planned() -> None:
    runner = FakeRunner(lambda seed: 40)
    link = Recorded(runner)
    far = FarLoop(parts(runner), EngineConfig(), time.monotonic, link)  # type: ignore[arg-type]
    request = SpeechRequest(voice="ryan", trim=False)
    far._take(Open("s1", request, Sampling(), 1, 0.0, 40))
    far._take(More("s1", [1, 2, 3], 40, True))
    while ("sent", ()) not in runner.calls:
        assert far.step()
    voiced, sent = runner.calls.index(("voice", (0,))), runner.calls.index(("sent", ()))
    assert sent - voiced <= 2, "the token step that began with it lies between, and no other"
