"""Keys and values of prompt rows that many sessions share: what stands before the text.

They depend on the checkpoint, the voice or its vector, the language and the instructions alone;
behind a clip whose speech is continued also on its words and on the frames that lie over them.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from vivace.text.prompt import Prompt


@dataclass(frozen=True, slots=True)
class Prefix:
    """Keys and values [layers, rows, kv, D] of the first rows of a prompt."""

    keys: Tensor
    values: Tensor

    @property
    def rows(self) -> int:
        """Positions it fills."""
        return self.keys.shape[1]

    @property
    def bytes(self) -> int:
        """Memory it holds."""
        return self.keys.nbytes + self.values.nbytes


def key_of(prompt: Prompt) -> Hashable:
    """What the prompt's head depends on."""
    head = prompt.head
    vector = None if prompt.x_vector is None else prompt.x_vector.tobytes()
    codes = b""
    if prompt.ref_codes is not None:  # in its last rows, of which the first may be the head's
        first = len(prompt.codec) - len(prompt.ref_codes)
        codes = prompt.ref_codes[: max(0, head - first)].tobytes()
    return tuple(prompt.text[:head]), tuple(prompt.codec[:head]), vector, codes


class Sized(Protocol):
    """Something on the device."""

    @property
    def bytes(self) -> int:
        """Memory it holds."""
        ...


T = TypeVar("T", bound=Sized)


class PrefixCache(Generic[T]):
    """Prefixes by key, the least recently used dropped where they exceed `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.bytes = most_bytes, 0
        self.hits = self.misses = 0
        self._one = Lock()  # found by the loop, kept by the lane
        self._kept: OrderedDict[Hashable, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> T | None:
        """The prefix, counted as a hit or a miss."""
        with self._one:
            prefix = self._kept.get(key)
            if prefix is None:
                self.misses += 1
            else:
                self.hits += 1
                self._kept.move_to_end(key)
            return prefix

    def put(self, key: Hashable, prefix: T) -> None:
        """Keep a prefix, unless it is larger than all there may be."""
        with self._one:
            if prefix.bytes > self.most_bytes or key in self._kept:
                return
            self._kept[key] = prefix
            self.bytes += prefix.bytes
            while self.bytes > self.most_bytes:
                self.bytes -= self._kept.popitem(last=False)[1].bytes
