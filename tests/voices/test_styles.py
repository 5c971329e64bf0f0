"""Ways of speaking by name: the built-in ones, an operator's, and files that are not right."""

from pathlib import Path

import pytest

from vivace.errors import InvalidRequest, NotFound
from vivace.voices.styles import Style, find_style, read_styles


def own(folder: Path, text: str | bytes) -> Path:
    path = folder / "styles.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_every_built_in_style_has_both_languages() -> None:
    styles = read_styles()
    assert {"news", "story", "product", "customer_care"} <= set(styles)
    for name, style in styles.items():
        assert style.name == name
        assert style.about and style.english.isascii() and not style.chinese.isascii()


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("chinese", "说"),
        ("sichuan_dialect", "说"),
        ("english", "Say"),
        ("auto", "Say"),
        ("german", "Say"),
    ],
)
def test_the_language_picks_the_words(language: str, expected: str) -> None:
    assert Style("x", "Say", "说").instruct(language) == expected


def test_one_language_serves_all_if_there_is_no_other() -> None:
    assert Style("x", english="Say").instruct("chinese") == "Say"
    assert Style("x", chinese="说").instruct("english") == "说"


def test_own_styles_are_added_and_go_before(tmp_path: Path) -> None:
    path = own(
        tmp_path, "pirate:\n  english: |\n    Speak like\n    a pirate.\nnews: {chinese: 快}\n"
    )
    styles = read_styles(path)
    assert styles["pirate"].english == "Speak like a pirate."
    assert styles["news"] == Style("news", chinese="快")
    assert styles["story"] == read_styles()["story"]


def test_an_empty_file_adds_nothing(tmp_path: Path) -> None:
    assert read_styles(own(tmp_path, "# nothing yet\n")) == read_styles()


def test_names_are_found_in_any_case() -> None:
    styles = read_styles()
    assert find_style("Customer Care", styles) is styles["customer_care"]
    for name in ("", "../news", "nobody"):
        with pytest.raises(NotFound, match="Styles: news, story"):
            find_style(name, styles)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a\n- b\n", "mapping"),
        ("news: calm\n", "'news'"),
        ("news: {english: 1}\n", "'news'"),
        ("news: {}\n", "english or chinese"),
        ("news: {about: x}\n", "english or chinese"),
        ("news: {english: x, french: y}\n", "'french'"),
        ("News: {english: x}\n", "'News'"),
        ("1: {english: x}\n", "'1'"),
        ("../x: {english: x}\n", "'../x'"),
        (f"news: {{english: {'x' * 1025}}}\n", "1024"),
        ("news: {english: [unclosed\n", "not YAML"),
        ("news: !!python/object/apply:os.system ['true']\n", "not YAML"),
        (b"news: {english: \xff}\n", "not YAML"),
        ("[" * 1500, "not YAML"),
        ("#" * (1 << 20) + "\n", "over the limit"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str | bytes, words: str) -> None:
    path = own(tmp_path, text)
    with pytest.raises(InvalidRequest) as caught:
        read_styles(path)
    assert words in caught.value.message
    assert str(path) in caught.value.message


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="No such file"):
        read_styles(tmp_path / "none.yaml")
