"""The stages of a tiny model on the CPU: all there, with figures that can be."""

from pathlib import Path
from typing import Any

import pytest

from vivace.bench import stages
from vivace.checkpoint.synth import write_synthetic


def test_every_stage_is_timed_per_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_ENOUGH_S", 0.0)
    write_synthetic(tmp_path / "m", size="tiny", kind="custom_voice")
    told: list[str] = []
    found: Any = stages.time_stages(
        str(tmp_path / "m"), "cpu", "float32", [1, 2], [2], 10, told.append
    )
    names = ["talker", "predictor", "frame", "codec, 2 frames"]
    assert [(row["stage"], row["batch"]) for row in found["stages"]] == [
        (name, batch) for batch in (1, 2) for name in names
    ]
    assert found["copy_gb_s"] > 0
    assert found["matmul_tflop_s"]["float32"] > 0
    by_name = {(row["stage"], row["batch"]): row for row in found["stages"]}
    for row in found["stages"]:
        assert 0 < row["median_ms"] <= row["p95_ms"]
        assert row["calls"] >= 8
        assert row["gb_s"] > 0
    # Twice the rows are twice the work over the same weights: only the keys and values grow.
    flop, moved = ({key: row[name] for key, row in by_name.items()} for name in ("flop", "bytes"))
    assert flop["talker", 2] == 2 * flop["talker", 1]
    assert flop["frame", 1] == flop["talker", 1] + flop["predictor", 1]
    assert moved["talker", 1] < moved["talker", 2] < 1.2 * moved["talker", 1]
    assert moved["predictor", 2] == moved["predictor", 1]
    assert moved["frame", 1] == moved["talker", 1] + moved["predictor", 1]
    assert len(told) == 1 + len(found["stages"])
