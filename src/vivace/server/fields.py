"""Reads the fields of one JSON object, strictly: a boolean is no number, a number no string."""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Self, TypeVar

from vivace.errors import Unprocessable

INT_MAX = 2**31 - 1
MOST_FIGURES = 20  # fewer than so many: 2**63 - 1 has 19

T = TypeVar("T", bound=str | float)


class Fields:
    """The fields of one request. Each is taken once by its name; null counts as absent.

    What nobody has taken at the end is unknown to us. Every refusal is `Unprocessable` and names
    its field.
    """

    def __init__(self, body: Mapping[str, object]) -> None:
        self._left = {name: value for name, value in body.items() if value is not None}
        self.warnings: list[str] = []

    def take(self, name: str) -> object | None:
        """The value as it came."""
        return self._left.pop(name, None)

    def text(self, name: str) -> str | None:
        """A string."""
        value = self.take(name)
        if value is None or isinstance(value, str):
            return value
        raise _wrong(name, "a string", value)

    def flag(self, name: str) -> bool | None:
        """A boolean."""
        value = self.take(name)
        if value is None or isinstance(value, bool):
            return value
        raise _wrong(name, "true or false", value)

    def flag_text(self, name: str) -> bool | None:
        """A boolean, or one as a form writes it."""
        value = self.take(name)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if value is None or isinstance(value, bool):
            return value
        raise _wrong(name, "true or false", value)

    def whole_text(self, name: str, low: int, high: int = INT_MAX) -> int | None:
        """An integer from `low` to `high`, or one as a form writes it."""
        if name in self._left:
            self._left[name] = whole_of(self._left[name])
        return self.whole(name, low, high)

    def whole(self, name: str, low: int, high: int = INT_MAX) -> int | None:
        """An integer from `low` to `high`."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        raise _wrong(name, f"a whole number from {low} to {high}", value)

    def number(self, name: str, low: float, high: float, *, above: bool = False) -> float | None:
        """A finite number from `low` to `high`; `above` leaves out `low` itself."""
        value = self.take(name)
        if value is None:
            return None
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and low <= value <= high
            and not (above and value == low)
        ):
            return float(value)
        start = "above" if above else "from"
        raise _wrong(name, f"a number {start} {low:g} {'up ' * above}to {high:g}", value)

    def choice(self, name: str, served: Collection[str]) -> str | None:
        """One of a few words, in any case."""
        value = self.text(name)
        if value is None or value.lower() in served:
            return value and value.lower()
        raise _wrong(name, " or ".join(served), value)

    def inner(self, name: str) -> Self:
        """The fields of an object inside; there are none if it is not there."""
        value = self.take(name)
        if value is None or isinstance(value, dict):
            return type(self)(value or {})
        raise _wrong(name, "an object", value)

    def either(self, name: str, alias: str, read: Callable[[str], T | None]) -> T | None:
        """A field with two names; both may be there if they agree."""
        first, second = read(name), read(alias)
        if first is not None and second is not None and first != second:
            raise Unprocessable(f"`{name}` and `{alias}` disagree: send one.", param=alias)
        return first if second is None else second

    def rename(self, alias: str, name: str) -> None:
        """Let `alias` stand for `name`, which must not be there as well."""
        if alias in self._left:
            if name in self._left:
                raise Unprocessable(f"`{name}` and `{alias}` are the same: send one.", param=alias)
            self._left[name] = self._left.pop(alias)

    def refuse(self, name: str, why: str) -> None:
        """Refuse the request if the field is there at all."""
        if self.take(name) is not None:
            raise Unprocessable(f"`{name}`: {why}", param=name, code="not_supported")

    def has(self, name: str) -> bool:
        """Is the field there, and not taken yet?"""
        return name in self._left

    def unknown(self) -> list[str]:
        """Names that nobody has taken."""
        return list(self._left)

    def left(self) -> dict[str, object]:
        """What nobody has taken, by name."""
        return dict(self._left)


def whole_of(value: object) -> object:
    """The number that a text of a few figures stands for; anything else as it is, to be refused.

    `int` reads figures of any script, and raises ValueError at thousands of them.
    """
    if isinstance(value, str) and len(value) < MOST_FIGURES and value.isascii():
        return int(value) if value.isdecimal() else value
    return value


def _wrong(name: str, wanted: str, value: object) -> Unprocessable:
    return Unprocessable(f"`{name}` must be {wanted}; got {_shown(value)}.", param=name)


def _shown(value: object) -> str:
    """A JSON value in few words."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return "a number that is not finite"
    words = repr(value)
    return words if len(words) <= 64 else f"{words[:60]}..."


def bounded(name: str, text: str, most: int) -> str:
    """The text of that field. Raises Unprocessable, with both numbers, if it is longer."""
    if len(text) > most:
        raise Unprocessable(
            f"`{name}` has {len(text):,} characters; the limit is {most:,}.",
            param=name,
            code="text_too_long",
        )
    return text
