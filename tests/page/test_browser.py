"""What a person meets at `/`."""

import io
import re
import subprocess
import sys
import wave
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.fakes import Play
from tests.page.conftest import Stage

from vivace.errors import Overloaded
from vivace.types import FRAME_S

FRAMES = 12
NASTY = 'It\'s "quoted" \\ $HOME `id` 100%\nnext line, \N{SNOWMAN} \N{GRINNING FACE} \u2028 end.'
WITHOUT_WORKLET = (
    "Object.defineProperty(BaseAudioContext.prototype, 'audioWorklet', { value: undefined })"
)


@pytest.mark.parametrize("worklet", [True, False], ids=["worklet", "plain http"])
def test_plays_measures_and_keeps_the_sound(stage: Stage, worklet: bool) -> None:
    if not worklet:
        stage.page.add_init_script(WITHOUT_WORKLET)
    page = stage.open()
    stage.engine.play = Play(chunks=FRAMES)
    stage.speak()
    stage.wait("playing")
    stage.wait("idle")
    assert re.fullmatch(r"\d+\sms", page.inner_text("#first dd >> nth=0"))
    shares = [int(n) for n in re.findall(r"(\d+)\sms", page.inner_text("#first .detail"))]
    assert len(shares) == 3
    assert sum(shares) == pytest.approx(int(page.inner_text("#first dd")[:-3]), abs=2)
    assert f"{FRAMES * FRAME_S:.1f}\xa0s of speech" in page.inner_text("#status")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    with wave.open(io.BytesIO(download.value.path().read_bytes())) as sound:
        assert sound.getparams()[:4] == (1, 2, 24_000, FRAMES * 1920)
        kept = sound.readframes(sound.getnframes())
    body = {"input": "The same.", "response_format": "pcm"}
    assert kept == httpx.post(f"{stage.url}/v1/audio/speech", json=body).content


@pytest.mark.parametrize("worklet", [True, False], ids=["worklet", "plain http"])
def test_a_dry_spell_is_counted(stage: Stage, worklet: bool) -> None:
    if not worklet:
        stage.page.add_init_script(WITHOUT_WORKLET)
    page = stage.open()
    stage.engine.play = Play(chunks=6, open_gates=2)
    session = stage.speak()
    stage.wait("dry")
    session.allow(4)
    stage.wait("idle")
    assert int(page.inner_text("#gaps dd >> nth=0")) >= 1
    assert re.match(r"[1-9]\d*\sms of silence", page.inner_text("#gaps .detail"))
    assert re.search(r"[1-9] gaps?\.", page.inner_text("#status"))


def test_silence_behind_the_last_word_is_no_gap(stage: Stage) -> None:
    page = stage.open()
    page.get_by_text("Copy").click()  # a gesture, or no sound may be made
    told = page.evaluate(
        """async () => {
          const { openPlayer } = await import("/page/player.js");
          const told = [];
          await new Promise(async (done) => {
            const player = await openPlayer((state) => {
              told.push(state);
              if (state.dry) player.end(); // all was played, and nothing more comes
              if (state.done) done();
            });
            player.push(new Float32Array(2400).fill(0.5));
          });
          return told;
        }"""
    )
    assert any(state["dry"] for state in told)
    assert told[-1]["played"] == 2400
    assert not any(state.get("gap") for state in told)


def test_a_gap_ends_when_there_is_a_little_more(stage: Stage) -> None:
    page = stage.open()
    page.get_by_text("Copy").click()
    gaps, held = page.evaluate(
        """async () => {
          const { openPlayer } = await import("/page/player.js");
          const piece = () => new Float32Array(1920).fill(0.5);
          let gaps = 0;
          let held = 0; // reports of a piece that waits for another
          await new Promise(async (done) => {
            let pieces = 1;
            const player = await openPlayer(({ played, buffered, dry, gap, done: over }) => {
              if (gap) gaps += 1;
              if (dry && played === 1920 && buffered === 1920 && (held += 1) === 2) {
                player.push(piece());
                player.end();
              } else if (dry && pieces === 1) {
                pieces = 2;
                player.push(piece());
              }
              if (over) done();
            });
            player.push(piece());
          });
          return [gaps, held];
        }"""
    )
    assert (gaps, held) == (1, 2)


@pytest.mark.parametrize("by", ["key", "button"])
def test_stop_frees_the_session(stage: Stage, by: str) -> None:
    page = stage.open()
    stage.engine.play = Play(chunks=99, open_gates=3)
    session = stage.speak()
    page.wait_for_selector("body:is([data-state=playing], [data-state=dry])")
    if by == "key":
        page.keyboard.press("Escape")
    else:
        page.get_by_label("Text").fill("")  # a form that could not be sent
        page.get_by_role("button", name="Stop").click()
        page.get_by_label("Text").fill("Again.")
    assert session.cancelled.wait(timeout=30)
    stage.wait("idle")
    stage.engine.play = Play()
    stage.speak()
    stage.wait("playing")
    stage.wait("idle")
    assert "Done" in page.inner_text("#status")


def test_a_stop_before_the_first_sound(stage: Stage) -> None:
    page = stage.open()
    stage.engine.play = Play(chunks=9, open_gates=0)
    session = stage.speak()
    page.keyboard.press("Escape")
    assert session.cancelled.wait(timeout=30)
    stage.wait("idle")
    assert page.get_by_role("button", name="Download").is_disabled()


def test_what_went_wrong_is_said(stage: Stage) -> None:
    page = stage.open()
    stage.engine.play = Play(refusal=Overloaded("Every place is taken.", retry_after_s=1))
    page.get_by_role("button", name="Speak").click()
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert alert.inner_text() == "Every place is taken."
    assert page.inner_text("#first dd >> nth=0") == "–"
    stage.engine.play = Play(chunks=9, open_gates=2, fault_at=2)
    session = stage.speak()
    stage.wait("dry")
    session.allow(1)
    page.get_by_text("broke off").wait_for()
    stage.wait("idle")
    assert page.get_by_role("button", name="Download").is_enabled()
    assert len(stage.complaints) == 2  # the browser's own words on both answers
    stage.complaints.clear()


def test_the_form_is_the_request(stage: Stage) -> None:
    page = stage.open()
    page.get_by_label("Text").fill(NASTY)
    page.get_by_label("Voice").select_option("ryan")
    page.get_by_label("Language").select_option("german")
    page.get_by_label("Instructions").fill("Softly.")
    page.keyboard.press("Control+Enter")
    session = stage.engine.sessions.get(timeout=30)
    assert session.text == NASTY
    assert (session.request.voice, session.request.language) == ("ryan", "german")
    assert session.request.instruct == "Softly."
    stage.wait("playing")
    stage.wait("idle")


@pytest.mark.parametrize(
    ("kind", "size", "instructions", "voice"),
    [
        ("custom_voice", "1b7", "optional", True),
        ("custom_voice", "0b6", None, True),
        ("voice_design", "1b7", "required", False),
    ],
)
def test_the_form_fits_the_checkpoint(
    stage: Stage, kind: str, size: str, instructions: str | None, voice: bool
) -> None:
    stage.engine.reset(kind, size)
    page = stage.open()
    field = page.get_by_label("Instructions")
    assert field.is_visible() == (instructions is not None)
    assert field.evaluate("e => e.required") == (instructions == "required")
    assert page.locator("#voice").is_visible() == voice


def test_the_calls_shown_do_the_same(stage: Stage, tmp_path: Path) -> None:
    page = stage.open()
    page.get_by_label("Text").fill(NASTY)
    page.get_by_label("Voice").select_option("ryan")
    page.get_by_label("Language").select_option("german")
    page.get_by_label("Instructions").fill("Don't rush.")
    for command, block in (["bash", "-c"], "#curl"), ([sys.executable, "-c"], "#python"):
        code = page.locator(block).text_content() or ""
        subprocess.run([*command, code], cwd=tmp_path, check=True, capture_output=True)
        session = stage.engine.sessions.get(timeout=30)
        assert session.text == NASTY
        assert (session.request.voice, session.request.language) == ("ryan", "german")
        assert session.request.instruct == "Don't rush."
        assert (tmp_path / "speech.wav").read_bytes()[:4] == b"RIFF"
        (tmp_path / "speech.wav").unlink()


def test_the_other_call_comes_by_the_keyboard(stage: Stage) -> None:
    page = stage.open()
    assert page.locator("#curl").is_visible() and not page.locator("#python").is_visible()
    page.get_by_role("radio", name="curl").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#python").is_visible() and not page.locator("#curl").is_visible()


@pytest.mark.parametrize("secure", [True, False], ids=["clipboard", "plain http"])
def test_the_call_is_copied(stage: Stage, secure: bool) -> None:
    stage.page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=stage.url)
    page = stage.open()
    if not secure:
        page.evaluate("Object.defineProperty(navigator, 'clipboard', { configurable: true })")
    page.get_by_role("button", name="Copy").click()
    page.get_by_text("Copied.").wait_for()
    if not secure:
        page.evaluate("delete navigator.clipboard")
    assert page.evaluate("navigator.clipboard.readText()") == page.inner_text("#curl")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_layout_has_its_landmarks(stage: Stage, width: int, scheme: str) -> None:
    stage.page.set_viewport_size({"width": width, "height": 800})
    stage.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page = stage.open()
    stage.engine.play = Play(chunks=FRAMES)
    stage.speak()
    stage.wait("playing")
    stage.wait("idle")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    form, sound, calls = (
        page.locator(part).bounding_box() for part in ("form", ".stage", ".calls")
    )
    assert form and sound and calls
    if width >= 900:
        assert form["x"] + form["width"] < sound["x"]
        assert form["y"] == sound["y"]
    else:
        assert form["y"] + form["height"] < sound["y"]
    assert calls["y"] > sound["y"] + sound["height"]
    for canvas, name in ("#wave", "accent"), ("#level", "level"):
        assert page.evaluate(COUNT_OF_COLOUR, [canvas, name]) > 40


# How many pixels of a canvas have the colour of a custom property.
COUNT_OF_COLOUR = """([id, name]) => {
  const canvas = document.querySelector(id);
  const hex = getComputedStyle(canvas).getPropertyValue(`--${name}`).trim();
  const wanted = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let at = 0; at < data.length; at += 4)
    count += data[at + 3] === 255 && wanted.every((part, i) => Math.abs(data[at + i] - part) < 3);
  return count;
}"""


def test_case_57_samples_cut_in_two_are_joined(stage: Stage) -> None:
    page = stage.open()
    pcm = np.arange(-300, 300, dtype="<i2")
    joined = page.evaluate(
        """async ([bytes, sizes]) => {
          const { samples } = await import("/page/sound.js");
          const body = new ReadableStream({
            start(stream) {
              for (let at = 0, i = 0; at < bytes.length; at += sizes[i++ % sizes.length])
                stream.enqueue(Uint8Array.from(bytes.slice(at, at + sizes[i % sizes.length])));
              stream.close();
            },
          });
          const all = [];
          for await (const piece of samples(body)) all.push(...piece);
          return all;
        }""",
        [list(pcm.tobytes()), [1, 2, 5, 7, 64]],
    )
    assert joined == pcm.tolist()


def test_the_page_is_what_a_browser_gets(stage: Stage) -> None:
    assert "speak" in httpx.get(stage.url).json()
    assert stage.open().title() == "vivace"
