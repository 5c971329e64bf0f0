"""Which models are in memory: loaded at first use, the one unused for longest makes room."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

log = logging.getLogger("vivace")

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Coming(Generic[M]):
    """A model that is being loaded."""

    model: int
    loading: "Future[M]"


class Shelf(Generic[M]):
    """Owner of what is in memory, by the models' numbers; loads one at a time, on a thread.

    `sizes` are the bytes of each, of which at most `budget` are there together; `bring` loads one.
    `wake` is called when that is done. All else is for the loop's thread.
    """

    def __init__(
        self,
        held: Mapping[int, M],
        sizes: Mapping[int, int],
        budget: int,
        bring: Callable[[int], M],
    ) -> None:
        self.held = OrderedDict(held)  # the one unused for longest first
        self.sizes, self.budget, self._bring = sizes, budget, bring
        self.wake: Callable[[], None] = lambda: None
        self._coming: Coming[M] | None = None
        self._thread = ThreadPoolExecutor(1, "vivace-loader", torch.set_num_threads, (1,))

    def fetch(self, model: int, busy: Collection[int]) -> M | None:
        """The model, if it is in memory; if not it is loaded, once the idle ones leave it room.

        Raises what has kept it from being loaded; asked again, it is tried again.
        """
        self._take_in(model)
        if model in self.held:
            self.held.move_to_end(model)
            return self.held[model]
        if self._coming is None and self._make_room(self.sizes[model], busy):
            loading = self._thread.submit(self._bring, model)
            self._coming = Coming(model, loading)
            loading.add_done_callback(lambda _: self.wake())
        return None

    def _take_in(self, wanted: int) -> None:
        """Keep what has been loaded. What could not be is told to who wants it."""
        coming = self._coming
        if coming is None or not coming.loading.done():
            return
        self._coming = None
        error = coming.loading.exception()
        if error is None:
            self.held[coming.model] = coming.loading.result()
        elif coming.model == wanted:
            raise error
        else:
            log.warning("model %d could not be loaded, and nobody waits: %s", coming.model, error)

    def _make_room(self, size: int, busy: Collection[int]) -> bool:
        """Unload idle models until it fits; none, if that would not do."""
        room = self.budget - sum(self.sizes[model] for model in self.held)
        idle = [model for model in self.held if model not in busy]
        if room + sum(self.sizes[model] for model in idle) < size:
            return False
        for model in idle:
            if room >= size:
                break
            del self.held[model]
            room += self.sizes[model]
        return True
