"""ElevenLabs' SDK with its own settings: prints `first` at the first sound, and how much it was."""

import sys
from collections.abc import Iterator

from elevenlabs.client import ElevenLabs

url, case = sys.argv[1:]
VOICE = "JBFqnCBsd6RMkjVDRZzb"  # the one in its README
TEXT = "The first move is what sets everything in motion."
client = ElevenLabs(base_url=url, api_key="none")
heard = 0


def words() -> Iterator[str]:
    """The last word comes only when something has been heard."""
    for word in TEXT.split():
        yield f"{word} "
    for _ in range(1000):
        if heard:
            yield "Last."
            return
        yield "and "
    sys.exit("nothing was heard before the last word")


if case == "convert":
    sound = client.text_to_speech.convert(VOICE, text=TEXT, model_id="eleven_multilingual_v2")
elif case == "stream":
    sound = client.text_to_speech.stream(VOICE, text=TEXT, model_id="eleven_multilingual_v2")
else:
    sound = client.text_to_speech.convert_realtime(VOICE, text=words(), model_id="eleven_turbo_v2")

for chunk in sound:
    if chunk and not heard:
        print("first", flush=True)
    heard += len(chunk)
print(heard)
