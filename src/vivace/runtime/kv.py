"""The talker's keys and values, in pages shared by all slots."""

import torch
from torch import Tensor

from vivace.model.layers import Attend, grouped_attention
from vivace.model.spec import TransformerSpec


class PagedCache:
    """One step's view of the pool: where its rows write, and what each of them may see."""

    def __init__(self, pool: "KvPool", table: Tensor, positions: Tensor) -> None:
        """`table` [B, P] are the rows' pages, `positions` [B, T] the step's positions."""
        size = pool.keys.shape[2]
        self.pool, self.table, self.positions = pool, table, positions.flatten()
        self.write = (table.gather(1, positions // size) * size + positions % size).flatten()
        seen = torch.arange(table.shape[1] * size, device=table.device)
        self.mask = seen <= positions[..., None]  # [B, T, L]

    def layer(self, index: int) -> Attend:
        """Attention of one layer over the rows' pages, after writing this step's keys there."""
        keys, values = self.pool.keys[index], self.pool.values[index]

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys.flatten(0, 1)[self.write] = k
            values.flatten(0, 1)[self.write] = v
            k, v = (pages[self.table].flatten(1, 2).transpose(1, 2) for pages in (keys, values))
            return grouped_attention(q, k, v, self.mask)

        return attend


class KvPool:
    """Pages of keys and values [layers, pages, page, kv, D]."""

    def __init__(
        self, spec: TransformerSpec, pages: int, page: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = (spec.layers, pages, page, spec.kv_heads, spec.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)

    def fits(self, spec: TransformerSpec, dtype: torch.dtype) -> bool:
        """Can it hold that talker's keys and values too? All published ones are alike."""
        layers, _, _, *row = self.keys.shape
        return (layers, *row) == (spec.layers, spec.kv_heads, spec.head_dim) and (
            self.keys.dtype == dtype
        )

    def lay(self, pages: list[int], keys: Tensor, values: Tensor) -> None:
        """Copy the first rows [layers, rows, kv, D] of a session into its pages."""
        for kept, new in ((self.keys, keys), (self.values, values)):
            for i, page in enumerate(pages[: -(-new.shape[1] // kept.shape[2])]):
                rows = new[:, i * kept.shape[2] :][:, : kept.shape[2]]
                kept[:, page, : rows.shape[1]] = rows

    def wipe(self, pages: list[int]) -> None:
        """Zero these pages. What is masked still counts if it is no number: 0 * nan is nan."""
        for kept in (self.keys, self.values):
            for page in pages:
                kept[:, page].zero_()

    def take(self, pages: list[int], rows: int) -> tuple[Tensor, Tensor]:
        """A copy of the first rows of a session, as `lay` takes them."""
        most = -(-rows // self.keys.shape[2])
        keys, values = (
            torch.cat([kept[:, page] for page in pages[:most]], 1)[:, :rows].clone()
            for kept in (self.keys, self.values)
        )
        return keys, values
