"""What is written for the eye goes, what is said stays, and pieces and whole agree."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vivace.errors import Unprocessable, outcome
from vivace.text.normalize import MOST_WORD, Normalizer, normalize

RULES = [  # docs/text.md
    ("## Now\n**Rain** at *3 pm* — [map](https://example.com/a?b=1)", "Now\nRain at 3 pm — map"),
    ("# One\n\nText\n### Two ###\nEnd", "One\n\nText\nTwo ###\nEnd"),
    ("- one\n* two\n+ three\n  • four\n1. five", "one\ntwo\nthree\n  four\n1. five"),
    ("- [ ] open\n- [x] done\n[x] of f[x]", "open\ndone\nof f[x]"),
    ("> said\n>> twice\n> - **thrice**", "said\ntwice\nthrice"),
    ("Title\n=====\nbody\n\n---\n\n***\nend", "Title\nbody\n\nend"),
    ("a *b* **c** ***d*** _e_ __f__ ~~g~~ `h` ``i``", "a b c d e f g h i"),
    ("“**Now**,” he said, (*really*) **so:** yes", "“Now,” he said, (really) so: yes"),
    ("2 * 3, 2*3, 2**3, 5 ** 2, a_b, ~5", "2 * 3, 2*3, 2**3, 5 ** 2, a_b, ~5"),
    ("这是**重点**内容，*好*的。", "这是重点内容，好的。"),
    ("**중요**합니다", "중요합니다"),
    ("```python\nx = a_b * c  # *d*\n# e\n```\nf", "x = a_b * c  # *d*\n# e\nf"),
    ("| a | b |\n|---|:-:|\n| 1 | **2** |\nend", "a, b\n1, 2\nend"),
    ("a|b and c || d", "a|b and c || d"),
    ("[the *best* map](https://x.org/a_(b)), ![a cat](cat.png)!", "the best map, a cat!"),
    ("[no link] and f(x)[1] and [x](", "[no link] and f(x)[1] and [x]("),
    ("https://www.example.com/a/b/?q=1#top.", "example.com/a/b."),
    ("(see http://x.org), <https://y.org/>", "(see x.org), y.org"),
    ("http://x.org/" + "a" * 41 + " http://y.org/%C3%A9", "x.org y.org"),
    ("write to mailto:a.b@c.de or d@e.fr", "write to a.b@c.de or d@e.fr"),
    ("Hi 😊 there👩🏽\u200d🚀, you❤️me 1️⃣ ✅", "Hi there, you me 1"),
    ("© 2024 ™ 20 °C → 5 € ½", "© 2024 ™ 20 °C → 5 € ½"),
    ("a<br>b <b>c</b> <i class='x'>d</i><p>e</p>", "a\nb c d\ne"),
    ("H<sub>2</sub>O if a < b and c<d, i <b and c> d", "H2O if a < b and c<d, i <b and c> d"),
    ("<|im_end|> <tts_pad> <unknown>", "<|im_end|> <tts_pad> <unknown>"),
]  # fmt: skip
PLAIN = [
    "It's 98.6°F, or 37 °C: $3.50 (that's 22,1 %) for Dr. Lee & co. at 12:30 - #1, C#, 42%!",
    "“Well…” – she said; ‘no?’\n\nTwo  spaces,\ttabs\n and lines.",
    "今天2次。你好，世界！圆周率是3．14。",
    "سلام. می\u200cروم؟ हिन्दी वाक्य। สวัสดีครับ",
]


def take(chunks: list[str]) -> tuple[str, list[str]]:
    normalizer = Normalizer()
    said = "".join([*map(normalizer.feed, chunks), normalizer.finish()])
    return said, normalizer.dropped


@pytest.mark.parametrize(("written", "said"), RULES)
def test_case_15_rules_in_any_chunking(written: str, said: str) -> None:
    whole = take([written])
    assert whole[0] == said
    assert take(list(written)) == whole
    for cut in range(len(written)):
        assert take([written[:cut], written[cut:]]) == whole


@pytest.mark.parametrize("text", PLAIN)
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert normalize(text) == text


def test_emoji_and_texts_of_nothing_else_are_reported() -> None:
    assert take(["Hi 😊 you 👩\u200d🚀"]) == ("Hi you", ["😊", "👩\u200d🚀"])
    assert take(["😊"]) == ("", ["😊"])
    assert take(["--- *"]) == ("", ["--- *"])
    assert take([""]) == ("", [])


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("<speak>Hi</speak>", "speak"),
        ('a <break time="500ms"/> b', "break"),
        ("a<BREAK/>b", "break"),
        ('<prosody rate="1.05">x</prosody>', "prosody"),
        ('<amazon:effect name="x">y', "amazon:effect"),
        ('<sub alias="World Wide Web">WWW</sub>', "sub"),
        ("x</say-as>", "say-as"),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_ssml_is_refused_by_its_name(text: str, tag: str, chunked: bool) -> None:
    with pytest.raises(Unprocessable, match=f"<{tag}>") as refusal:
        take(list(text) if chunked else [text])
    assert (refusal.value.param, outcome(refusal.value).status) == ("input", 422)


def test_a_refused_piece_leaves_the_text_so_far() -> None:
    normalizer = Normalizer()
    assert normalizer.feed("One two") == "One"
    with pytest.raises(Unprocessable):
        normalizer.feed(" <speak> lost")
    assert normalizer.feed(" three ") + normalizer.finish() == " two three"


@pytest.mark.parametrize(
    ("chunks", "given_out"),
    [
        (["Hel", "lo", " ", "**wor", "ld**", ".", " "], ["", "", "Hello", "", "", "", " world."]),
        (["你", "好", "**", "吗", "？"], ["你", "好", "", "吗", "？"]),
        (["see [", "a", " b](", "c", ")", " d"], ["see", "", "", "", " a b", ""]),
        (["i", " <", "5 "], ["", "i", " <5"]),
    ],
)  # fmt: skip
def test_a_word_goes_out_once_it_is_over(chunks: list[str], given_out: list[str]) -> None:
    normalizer = Normalizer()
    assert [normalizer.feed(chunk) for chunk in chunks] == given_out


@pytest.mark.parametrize(
    ("text", "given_out", "pausing"),
    [
        ("Hello", "Hello", True),
        ("**Hello**", "Hello", True),
        ("Hello 😊", "Hello", True),
        ("see [a", "see", True),
        ("see[a", "see", False),
        ("- [x]", "", True),
        ("```", "", True),
    ],
)
def test_a_word_before_white_space_waits_for_nothing(
    text: str, given_out: str, pausing: bool
) -> None:
    normalizer = Normalizer()
    assert normalizer.feed(text, pausing=True) == given_out
    assert normalizer.pausing is pausing


@pytest.mark.parametrize(
    "text",
    ["a" * 5000, "[" * 5000, "<" * 5000, "[a](" * 1200, "[a](" + "(" * 5000, "*" * 5000,
     "<b " + "x" * 5000, "<https://" + "x" * 5000, "[" + "x" * 5000, "```" + "x" * 5000],
)  # fmt: skip
def test_what_waits_is_bounded(text: str) -> None:
    normalizer = Normalizer()
    for char in text:
        normalizer.feed(char)
        assert len(normalizer._open) < 4 * MOST_WORD


ODD = 'aB7 \n*_~`#->|[]()!<>/:.="x😊❤\ufe0f\u200d今。https://br'
TEXT = st.text(st.sampled_from(ODD), max_size=30) | st.sampled_from(
    ["http://", "<br>", "](", "**", "\n- ", "\n| ", "|--|", "```\n", "[x] ", "mailto:a@b"]
)


@given(st.lists(TEXT, max_size=8))
@example(["<htt", "ps:", "/", "/x.org>"])
@example(["![", "a]", "(", "b)"])
def test_any_split_gives_the_same(chunks: list[str]) -> None:
    text = "".join(chunks)
    try:
        whole = take([text])
    except Unprocessable:
        return
    assert take(chunks) == whole == take(list(text))


@given(
    st.text(
        st.characters(categories=["L", "Nd", "Po", "Zs"], exclude_characters="*#@/"), max_size=60
    )
)
def test_letters_and_figures_are_never_lost(text: str) -> None:
    def heard(text: str) -> str:
        return "".join(filter(str.isalnum, text))

    assert heard(normalize(text)) == heard(text)


@given(st.lists(TEXT.filter(lambda text: not text[-1:].isspace()), max_size=6))
@example(["- [x]", " [x]", "\n[x]"])
@example(["| a", " | b", " |"])
def test_white_space_that_was_foretold_changes_nothing(chunks: list[str]) -> None:
    normalizer, said = Normalizer(), ""
    for at, chunk in enumerate(chunks):
        rest = "".join(chunks[at + 1 :])
        said += normalizer.feed(chunk, pausing=not rest or rest[0].isspace())
    assert (said + normalizer.finish(), normalizer.dropped) == take(["".join(chunks)])
