"""Typed access to the fields of a JSON config that names every fault at once."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from vivace.errors import CheckpointError

T = TypeVar("T")


class Fields:
    """One JSON object of a config file.

    What is missing or of the wrong type is noted in `faults` and read as an empty value of the
    right type, so that one error can name all of it. `where` is the file and the path inside it.
    """

    def __init__(self, where: str, data: Mapping[str, object], faults: list[str]) -> None:
        self.where, self.data, self.faults = where, data, faults

    def __contains__(self, name: str) -> bool:
        return name in self.data

    def fault(self, name: str, what: str) -> None:
        """Note what is wrong with the field `name`."""
        self.faults.append(f"{self.where}{name} {what}")

    def _get(self, name: str, kind: type[T], default: T | None) -> T:
        value = self.data.get(name)
        if value is None and default is not None:
            return default
        if type(value) is kind:  # exactly: true is no number
            return value
        self.fault(name, f"is {value!r:.60}, not {kind.__name__}" if name in self else "is missing")
        return kind()

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number."""
        return self._get(name, int, default)

    def number(self, name: str, default: float | None = None) -> float:
        """A number, with or without a fraction."""
        if type(self.data.get(name)) is int:
            return float(self.integer(name))
        return self._get(name, float, default)

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or false."""
        return self._get(name, bool, default)

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        return self._get(name, str, default)

    def integers(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """A list of integers."""
        items: list[Any] = self._get(name, list, None if default is None else [*default])
        if all(type(item) is int for item in items):
            return tuple(items)
        self.fault(name, f"is {items!r:.60}, not a list of integers")
        return ()

    def child(self, name: str) -> "Fields":
        """An object inside this one."""
        data: dict[str, object] = self._get(name, dict, None)
        return Fields(f"{self.where}{name}.", data, self.faults)

    def ids(self, name: str) -> dict[str, int]:
        """An object of names, which are read in lower case, to ids."""
        child = self.child(name)
        return {key.lower(): child.integer(key) for key in child.data}


def read_json(path: Path, hint: str) -> dict[str, object]:
    """Read the JSON object in `path`; `hint` says what to do if the file is not there."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{path} does not exist. {hint}", code="missing_file") from None
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}.", code="unreadable"
        ) from None
    except ValueError as error:
        raise CheckpointError(
            f"{path} is not JSON ({error}). Fetch the file again.", code="malformed"
        ) from None
    if not isinstance(data, dict):
        raise CheckpointError(
            f"{path} holds a {type(data).__name__}, not an object. Fetch the file again.",
            code="malformed",
        )
    return data
