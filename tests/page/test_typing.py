"""The page's other way to send a text: typed into the socket as a language model would."""

import sys
from pathlib import Path
from subprocess import run

import pytest
from playwright.sync_api import Page, WebSocket
from tests.fakes import FakeSession, Play
from tests.page.conftest import Stage
from tests.page.test_browser import COUNT_OF_COLOUR, NASTY, WITHOUT_WORKLET

from vivace.errors import Overloaded

TEXT = " ".join(["You hear this while it is still being written, word by word."] * 4)
SLOWEST, FASTEST = "2", "100"


def choose(stage: Stage, pace: str = FASTEST, text: str = TEXT) -> Page:
    """The page, ready to type."""
    page = stage.open()
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_text("Typed").click()
    page.get_by_label("tokens a second").fill(pace)
    return page


def parts(page: Page) -> list[str]:
    """Of the text: heard, sounding, written, not yet written."""
    return page.locator("#script > *").evaluate_all("all => all.map((e) => e.textContent)")


def finish(page: Page, session: FakeSession) -> None:
    """Type the rest at once and let it be heard."""
    page.get_by_label("tokens a second").fill(FASTEST)
    session.allow(1000)
    page.wait_for_selector("body[data-state=idle]")


@pytest.mark.parametrize("worklet", [True, False], ids=["worklet", "plain http"])
def test_speech_is_heard_before_its_text_is_written(stage: Stage, worklet: bool) -> None:
    if not worklet:
        stage.page.add_init_script(WITHOUT_WORKLET)
    page = choose(stage, SLOWEST)
    stage.engine.play = Play(chunks=12, open_gates=4)
    session = stage.speak()
    page.wait_for_selector("body:is([data-state=playing], [data-state=dry])")
    assert not session.ended
    assert TEXT.startswith(session.text.rstrip())
    page.get_by_role("button", name="Stop").wait_for()
    assert parts(page)[3] != ""
    finish(page, session)
    assert session.text == TEXT
    assert session.ended
    assert "Done: 1.0\xa0s of speech" in page.inner_text("#status")


def test_the_text_shows_what_is_heard_and_what_is_written(stage: Stage) -> None:
    page = choose(stage, SLOWEST)
    stage.engine.play = Play(chunks=40, open_gates=10)
    session = stage.speak()
    page.wait_for_selector("mark:not(:empty)")
    heard, sounding, written, rest = parts(page)
    assert heard + sounding + written + rest == TEXT
    assert sounding.strip() and rest
    assert page.locator("#script").is_visible()
    page.locator("#speed .detail", has_text="about").wait_for()
    ahead = int(page.inner_text("#speed dd >> nth=0"))
    said = page.inner_text("#speed .detail")
    finish(page, session)
    words = len(TEXT.split())
    assert 0 <= ahead < words and "heard" in said
    assert page.inner_text("#speed .detail") == f"{words} written, about {words} heard"
    assert page.inner_text("#speed dd >> nth=0") == "0"
    assert not page.locator("#script").is_visible()


def test_no_word_is_heard_that_was_not_written(stage: Stage) -> None:
    page = stage.open()
    counts = page.evaluate(
        """async () => {
          const { script } = await import("/page/script.js");
          const node = document.querySelector("#script");
          const lines = script(node);
          lines.begin("one two three four");
          lines.typed(5); // "one t"
          lines.add(new Float32Array(240000).fill(0.5)); // ten loud seconds
          const told = [lines.at(0), lines.at(240000)];
          const shown = [...node.children].map((part) => part.textContent);
          lines.typed(13);
          lines.end();
          told.push(lines.at(120000), lines.at(240000), lines.at(0));
          return [told.map(({ written, heard }) => [written, heard]), shown];
        }"""
    )
    assert counts == [[[2, 0], [2, 2], [4, 3], [4, 4], [4, 4]], ["one ", "t", "", "wo three four"]]


def test_a_turn_after_one_that_was_not_typed_shows_its_words(stage: Stage) -> None:
    page = stage.open()
    stage.speak()
    stage.wait("playing")
    stage.wait("idle")
    page.get_by_label("Text", exact=True).fill(TEXT)
    page.get_by_text("Typed").click()
    stage.engine.play = Play(chunks=40, open_gates=10)
    session = stage.speak()
    page.wait_for_selector("mark:not(:empty)", timeout=30_000)
    finish(page, session)


@pytest.mark.parametrize("text", ["", "\N{GRINNING FACE}"], ids=["not typed", "emoji"])
def test_speech_without_words_says_nothing_of_the_next(stage: Stage, text: str) -> None:
    page = stage.open()
    heard = page.evaluate(
        """async (text) => {
          const { script } = await import("/page/script.js");
          const lines = script(document.querySelector("#script"));
          const speak = (text) => {
            lines.begin(text);
            lines.typed(text.length);
            lines.add(new Float32Array(24000).fill(0.5));
            const { heard } = lines.at(24000);
            lines.end();
            return heard;
          };
          speak(text);
          return speak("one two three four five six seven eight nine ten");
        }""",
        text,
    )
    assert 0 < heard < 10


@pytest.mark.parametrize("way", ["Typed", "At once"])
def test_nothing_is_ahead_of_a_turn_that_is_over(stage: Stage, way: str) -> None:
    page = choose(stage)
    page.get_by_text(way).click()
    stage.engine.play = Play(chunks=99, open_gates=3)
    stage.speak()
    page.locator("#ahead", has_text="ahead").wait_for()
    page.keyboard.press("Escape")
    stage.wait("idle")
    assert page.inner_text("#ahead") == ""
    page.get_by_label("Text", exact=True).fill("\N{GRINNING FACE}")
    stage.engine.play = Play(chunks=0)
    page.get_by_role("button", name="Speak").click()
    page.get_by_role("alert").wait_for()
    stage.wait("idle")
    assert page.inner_text("#ahead") == ""
    stage.complaints.clear()  # the browser's own words on a refusal


def test_a_pause_moves_no_word(stage: Stage) -> None:
    page = stage.open()
    before, after = page.evaluate(
        """async () => {
          const { script } = await import("/page/script.js");
          const lines = script(document.querySelector("#script"));
          lines.begin("one two three four five six seven eight nine ten");
          lines.typed(48);
          lines.add(new Float32Array(12000).fill(0.5));
          lines.add(new Float32Array(48000)); // silence
          return [lines.at(12000).heard, lines.at(60000).heard];
        }"""
    )
    assert 0 < before == after < 10


@pytest.mark.parametrize(
    "text",
    [TEXT, NASTY, " \n ", "你好世界。안녕하세요", "e\u0301a\u0308 ไทย العربية", "", "👩‍👩‍👧\ud83d"],
)
def test_pieces_are_the_text(stage: Stage, text: str) -> None:
    page = stage.open()
    script = """async (text) => {
      const { pieces } = await import("/page/live.js");
      return [pieces(text).join("") === text, pieces(text).length];
    }"""
    whole, count = page.evaluate(script, text)
    assert whole and count <= len(text)


@pytest.mark.parametrize("by", ["key", "button"])
def test_a_stop_is_a_cancel_and_the_connection_stays(stage: Stage, by: str) -> None:
    sockets: list[WebSocket] = []

    def listen(socket: WebSocket) -> None:
        sockets.append(socket)

    stage.page.on("websocket", listen)
    page = choose(stage, SLOWEST)
    stage.engine.play = Play(chunks=99, open_gates=3)
    session = stage.speak()
    page.wait_for_selector("body:is([data-state=playing], [data-state=dry])")
    if by == "key":
        page.keyboard.press("Escape")
    else:
        page.get_by_role("button", name="Stop").click()
    assert session.cancelled.wait(timeout=30)
    stage.wait("idle")
    page.get_by_text("Stopped within").wait_for()
    left = session.text
    stage.engine.play = Play()
    page.get_by_label("tokens a second").fill(FASTEST)
    again = stage.speak()
    stage.wait("playing")
    stage.wait("idle")
    assert "Done" in page.inner_text("#status")
    assert (session.text, again.text) == (left, TEXT)
    assert len(sockets) == 1 and not sockets[0].is_closed()


def test_a_stop_before_the_first_sound_is_a_cancel_too(stage: Stage) -> None:
    page = choose(stage)
    stage.engine.play = Play(chunks=9, open_gates=0)
    session = stage.speak()
    page.keyboard.press("Escape")
    assert session.cancelled.wait(timeout=30)
    stage.wait("idle")
    assert page.get_by_role("button", name="Download").is_disabled()


def test_a_gap_says_what_it_waited_for(stage: Stage) -> None:
    page = choose(stage, SLOWEST)
    stage.engine.play = Play(chunks=12, open_gates=4)
    session = stage.speak()
    stage.wait("dry")  # only some of the text is there
    session.allow(4)
    stage.wait("playing")
    page.get_by_label("tokens a second").fill(FASTEST)
    finish(page, session)
    assert "for text" in page.inner_text("#gaps .detail")


def test_the_wishes_are_those_of_the_form(stage: Stage) -> None:
    page = choose(stage, text=NASTY)
    page.get_by_label("Voice").select_option("ryan")
    page.get_by_label("Language").select_option("german")
    page.get_by_label("Instructions").fill("Softly.")
    first = stage.speak()
    stage.wait("playing")
    stage.wait("idle")
    assert first.text == NASTY
    assert (first.request.voice, first.request.language) == ("ryan", "german")
    assert first.request.instruct == "Softly."
    page.get_by_label("Language").select_option("auto")
    page.get_by_label("Instructions").fill("")
    second = stage.speak()
    assert (second.request.language, second.request.instruct) == ("auto", "")
    stage.wait("playing")
    stage.wait("idle")


def test_what_went_wrong_is_said(stage: Stage) -> None:
    page = choose(stage)
    stage.engine.play = Play(refusal=Overloaded("Every place is taken.", retry_after_s=1))
    page.get_by_role("button", name="Speak").click()
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert alert.inner_text() == "Every place is taken."
    stage.engine.play = Play(chunks=9, open_gates=2, fault_at=2)
    session = stage.speak()
    assert not alert.is_visible()
    session.allow(1)
    alert.wait_for()
    stage.wait("idle")
    stage.engine.play = Play()
    stage.speak()
    stage.wait("playing")
    stage.wait("idle")
    assert not alert.is_visible()


def test_a_checkpoint_that_needs_instructions_says_so(stage: Stage) -> None:
    stage.engine.reset("voice_design", "1b7")
    page = choose(stage)
    page.get_by_label("Instructions").evaluate("e => e.required = false")  # as an old page would
    page.get_by_role("button", name="Speak").click()
    page.get_by_role("alert").wait_for()
    assert "instructions" in page.get_by_role("alert").inner_text()
    stage.wait("idle")
    page.get_by_label("Instructions").fill("A calm voice.")
    assert stage.speak().request.instruct == "A calm voice."
    stage.wait("playing")
    stage.wait("idle")


def test_a_connection_that_closed_is_opened_again(stage: Stage) -> None:
    page = choose(stage)
    page.evaluate(
        """async () => {
          const { connect } = await import("/page/live.js");
          const url = new URL("v1/audio/speech/stream", document.baseURI).href;
          const line = await connect(url);
          await new Promise((done) => (line.addEventListener("close", done), line.close()));
        }"""
    )
    assert stage.speak().request
    stage.wait("playing")
    stage.wait("idle")
    assert "Done" in page.inner_text("#status")


def test_a_connection_that_breaks_is_told(stage: Stage) -> None:
    page = choose(stage)
    stage.engine.play = Play(chunks=9, open_gates=2)
    session = stage.speak()
    page.wait_for_selector("body:is([data-state=playing], [data-state=dry])")
    page.evaluate(
        """async () => {
          const { connect } = await import("/page/live.js");
          (await connect(new URL("v1/audio/speech/stream", document.baseURI).href)).close();
        }"""
    )
    page.get_by_text("broke off").wait_for()
    assert session.cancelled.wait(timeout=30)
    stage.wait("idle")


def test_the_program_shown_does_the_same(stage: Stage, tmp_path: Path) -> None:
    page = choose(stage, text=NASTY)
    page.get_by_label("Voice").select_option("ryan")
    page.get_by_label("Instructions").fill("Don't rush.")
    assert page.locator("#python").is_visible() and not page.locator("#curl").is_visible()
    assert not page.get_by_role("radio", name="curl").is_visible()
    code = page.locator("#python").text_content() or ""
    run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    session = stage.engine.next_session()
    assert session.text.rstrip() == NASTY
    assert (session.request.voice, session.request.instruct) == ("ryan", "Don't rush.")
    assert (tmp_path / "speech.wav").read_bytes()[:4] == b"RIFF"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_it_fits_a_phone(stage: Stage, width: int, scheme: str) -> None:
    stage.page.set_viewport_size({"width": width, "height": 800})
    stage.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page = choose(stage, SLOWEST)
    stage.engine.play = Play(chunks=30, open_gates=10)
    session = stage.speak()
    page.wait_for_selector("mark:not(:empty)")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    field, script, pace, stop = (
        page.locator(part).bounding_box() for part in ("#input", "#script", "#pace", "#speak")
    )
    assert field and script and pace and stop
    assert script == field
    assert pace["height"] >= 24 and stop["height"] >= 44  # a finger's
    way = page.locator("form .tabs").bounding_box()
    assert way and way["height"] < 48 and way["x"] + way["width"] <= pace["x"]
    assert pace["x"] + pace["width"] <= width and pace["width"] > 100
    assert page.evaluate(COUNT_OF_COLOUR, ["#wave", "accent"]) > 40
    finish(page, session)
