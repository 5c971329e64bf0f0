"""Ways of speaking by name: the package's own, and an operator's in a YAML file like it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from vivace.errors import InvalidRequest, NotFound

BUILT_IN: Final = Path(__file__).with_name("styles.yaml")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_MOST_BYTES: Final = 1 << 20
_MOST_CHARS: Final = 1024  # of one instruction
_PARTS: Final = ("about", "english", "chinese")


@dataclass(frozen=True, slots=True)
class Style:
    """A way of speaking. One of its two instructions may be empty, not both."""

    name: str
    english: str = ""
    chinese: str = ""
    about: str = ""

    def instruct(self, language: str) -> str:
        """The instruction for speech in that language of a checkpoint's."""
        chinese = language == "chinese" or language.endswith("_dialect")
        first, second = (self.chinese, self.english) if chinese else (self.english, self.chinese)
        return first or second


Styles = Mapping[str, Style]


def read_styles(own: Path | None = None) -> Styles:
    """The package's styles, and those of a file, which go before them.

    Raises InvalidRequest if the file is not as it should be, and names the style at fault.
    """
    styles = _read(BUILT_IN)
    return styles if own is None else {**styles, **_read(own)}


def find_style(name: str, styles: Styles) -> Style:
    """The style of that name in any case. Raises NotFound, which lists them."""
    wanted = name.lower().replace(" ", "_")
    if wanted not in styles:
        raise NotFound(
            f"There is no style {name[:64]!r} here. Styles: {', '.join(styles) or 'none'}.",
            param="style",
            code="style_not_found",
        )
    return styles[wanted]


def _read(path: Path) -> dict[str, Style]:
    """The styles of one file. safe_load makes plain values only."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise InvalidRequest(f"{path}: over the limit of {_MOST_BYTES:,} bytes", param="styles")
        content = yaml.safe_load(raw) or {}
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror or error}", param="styles") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"{path}: not YAML: {' '.join(str(error).split())}", param="styles"
        ) from None
    if not isinstance(content, dict):
        raise InvalidRequest(f"{path}: must be a mapping of names to styles", param="styles")
    return dict(_style(path, name, said) for name, said in content.items())


def _style(path: Path, name: object, said: object) -> tuple[str, Style]:
    where = f"{path}: style {str(name)[:64]!r}"
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise InvalidRequest(
            f"{where}: a name is 1 to 64 of a-z, 0-9, _ and -, and no - or _ first", param="styles"
        )
    if not isinstance(said, dict) or not all(isinstance(text, str) for text in said.values()):
        raise InvalidRequest(f"{where}: must have texts called {_listed()}", param="styles")
    if unknown := [str(part) for part in said if part not in _PARTS]:
        raise InvalidRequest(
            f"{where}: there is no {unknown[0][:64]!r}, only {_listed()}", param="styles"
        )
    style = Style(name, **{part: " ".join(text.split()) for part, text in said.items()})
    if not (style.english or style.chinese):
        raise InvalidRequest(f"{where}: needs a text called english or chinese", param="styles")
    if max(len(style.english), len(style.chinese)) > _MOST_CHARS:
        raise InvalidRequest(f"{where}: over {_MOST_CHARS} characters", param="styles")
    return name, style


def _listed() -> str:
    return ", ".join(_PARTS)
