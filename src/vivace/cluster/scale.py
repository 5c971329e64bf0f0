"""How many replicas the load needs: by how full they are, and by whether anybody waits."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

FULL = 0.7  # share of the slots in use that one replica should have
LONG_S = 1.0  # somebody has been waiting for so long: one more, whatever the load


def wanted(count: int, loads: Sequence[float], waits_s: Sequence[float]) -> int:
    """Replicas for these loads, each in shares of one replica's slots."""
    need = math.ceil(sum(loads) / FULL - 1e-9)
    if any(wait_s >= LONG_S for wait_s in waits_s):
        need = max(need, count + 1)
    return max(1, need)


def policy(context: Any) -> tuple[int, dict[str, Any]]:
    """Ray Serve's `AutoscalingContext` in, the number of replicas and no state out."""
    metrics: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
    loads, waits_s = (list(metrics.get(name, {}).values()) for name in ("load", "wait_s"))
    if not loads:
        return context.target_num_replicas, {}
    need = wanted(len(loads), loads, waits_s)
    least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
    return min(max(need, least), most), {}
