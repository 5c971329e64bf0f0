"""How much one key may ask for: speeches at a time, and in a minute."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from vivace.errors import Overloaded

LATER_S = 1.0  # when to come back who speaks too much at a time: an end cannot be foretold


@dataclass(slots=True)
class Account:
    """What one key has in use."""

    open: int = 0
    left: float = 0.0  # of a minute's speeches
    at_s: float = 0.0  # when that was reckoned


class Quotas:
    """The same for every key; 0 is no limit. For one thread.

    A minute's worth may come at once, then it fills up evenly.
    """

    def __init__(
        self, at_once: int, a_minute: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._at_once, self._a_minute, self._clock = at_once, a_minute, clock
        self._accounts: dict[str, Account] = {}  # by the names of keys, which are few

    def take(self, name: str) -> None:
        """Begin a speech. Raises Overloaded, with the code `key_busy` or `key_often`."""
        now_s = self._clock()
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = Account(left=self._a_minute, at_s=now_s)
        if self._at_once and account.open >= self._at_once:
            raise _over(f"{self._at_once} of this key's requests speak", "key_busy", LATER_S)
        if self._a_minute:
            self._reckon(account, now_s)
        account.open += 1

    def _reckon(self, account: Account, now_s: float) -> None:
        each_s = 60 / self._a_minute
        left = min(self._a_minute, account.left + (now_s - account.at_s) / each_s)
        account.left, account.at_s = left, now_s
        if left < 1:
            text = f"this key has made its {self._a_minute} requests a minute"
            raise _over(text, "key_often", (1 - left) * each_s)
        account.left -= 1

    def give_back(self, name: str) -> None:
        """A speech is over."""
        self._accounts[name].open -= 1


def _over(text: str, code: str, retry_after_s: float) -> Overloaded:
    error = Overloaded(f"{text}; try again later", retry_after_s=retry_after_s)
    error.code = code
    return error
