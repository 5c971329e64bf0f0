"""Who owns which page of the key-value pool. Host-side bookkeeping only: no torch here."""


class Pages:
    """Gives pages of `size` positions to slots as they grow, and takes them all back at once.

    Owner of the free list; the runner keeps the device's copy of the tables.
    """

    def __init__(self, total: int, size: int) -> None:
        self.total, self.size = total, size
        self._free = list(range(total - 1, -1, -1))
        self._owned: dict[int, list[int]] = {}

    @property
    def free(self) -> int:
        """Pages nobody owns."""
        return len(self._free)

    def table(self, slot: int) -> list[int]:
        """The slot's pages, in the order of its positions."""
        return self._owned.get(slot, [])

    def grow(self, slot: int, positions: int) -> list[int] | None:
        """Make room for `positions` in all; the pages added, or None if too few are free."""
        owned = self._owned.setdefault(slot, [])
        missing = -(-positions // self.size) - len(owned)
        if missing > len(self._free):
            return None
        added = [self._free.pop() for _ in range(missing)]
        owned += added
        return added

    def release(self, slot: int) -> None:
        """Take back everything the slot owns."""
        self._free += reversed(self._owned.pop(slot, []))
