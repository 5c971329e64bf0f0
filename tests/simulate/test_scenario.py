"""`vivace bench simulate`: figures, and what it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vivace.cli import commands
from vivace.errors import CheckpointError, InvalidRequest, NotFound
from vivace.simulate.scenario import Scenario, capacity, simulate
from vivace.types import FRAME_S

SHORT = Scenario(overload=0.5, duration_s=8.0, seed=2)


def command(*options: str) -> str:
    result = CliRunner().invoke(commands, ["bench", "simulate", *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_at_three_times_capacity_no_stream_runs_dry_and_refusals_are_quick() -> None:
    result = json.loads(command("--overload", "3", "--duration", "60", "--seed", "1", "--json"))
    assert result["underrun_streams"] == 0
    assert result["goodput_of_capacity"] >= 0.9
    assert result["refusal_p99_ms"] < 50
    assert result["refused"] > result["requests"] / 2
    assert result["p95_ttfa_ms"] > result["p50_ttfa_ms"] > 0


def test_the_same_seed_prints_the_same_and_another_does_not() -> None:
    options = ["--overload", "1", "--duration", "5", "--noise", "0.2", "--json"]
    assert command(*options) == command(*options) != command(*options, "--seed", "1")


def test_the_table_names_the_figures() -> None:
    text = command("--overload", "0.5", "--duration", "5", "--slow", "0.2", "--leaving", "0.2")
    assert "underruns  0 of" in text and "TTFA       p50" in text


def test_a_promise_is_kept_at_the_rate_found_and_broken_above_it() -> None:
    slo = "p95 ttfa<500ms, underruns=0"
    found = json.loads(command("--slo", slo, "--duration", "10", "--json"))
    assert found["run"]["p95_ttfa_ms"] < 500 and found["run"]["underrun_streams"] == 0
    above = simulate(Scenario(rps=found["max_rps"] * 1.5, duration_s=10.0))
    assert above["p95_ttfa_ms"] > 500 or above["underrun_streams"]  # type: ignore[operator]


def test_capacity_is_the_slower_lane_with_its_best_batches() -> None:
    table = SHORT.table()
    config = SHORT.config(table)
    talker = 16 * FRAME_S / table.frame[16]
    codec = max(
        rows * frames * FRAME_S / table.voice_s(rows, frames)
        for rows in range(1, 17)
        for frames in range(1, 9)
    )
    assert capacity(table, config) == pytest.approx(min(talker, codec))


def test_an_idle_server_delivers_what_is_asked() -> None:
    result = simulate(SHORT)
    assert result["refused"] == 0 and result["refusal_p99_ms"] is None
    assert result["goodput_of_capacity"] == pytest.approx(result["load_of_capacity"], rel=0.3)


def test_typed_text_slow_and_leaving_callers_are_part_of_the_day() -> None:
    plain = SHORT.calls(3.0)
    mixed = replace(SHORT, tokens_s=10.0, typed=0.5, slow=0.3, leaving=0.3).calls(3.0)
    assert [call.due_s for call in plain] == [call.due_s for call in mixed]
    assert all(call.reads == float("inf") and call.leaves_s is None for call in plain)
    for part in (
        [call for call in mixed if call.tokens_s == 10.0],
        [call for call in mixed if call.reads == 0.5],
        [call for call in mixed if call.leaves_s == 0.5],
    ):
        assert 0 < len(part) < len(mixed)


@pytest.mark.parametrize(
    "wrong",
    [
        {"overload": -1.0},
        {"overload": float("nan")},
        {"overload": float("inf")},
        {"overload": 0.0},
        {"duration_s": 0.0},
        {"audio_s": -1.0},
        {"slow": 0.6, "leaving": 0.6},
        {"typed": 1.5},
        {"depth": 3},
        {"models": 0},
        {"models": 101},
        {"max_queue": -1},
        {"host_ms": float("nan")},
        {"audio_s": 1e300},
        {"max_sessions": 10**9},
        {"slow": 1.0, "slow_x": 1e300},
        {"rps": 1.0},
        {"overload": None},
        {"overload": 1e9},
        {"arrivals": "/no/such/file"},
    ],
)
def test_what_cannot_be_simulated_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        simulate(replace(SHORT, **wrong))  # type: ignore[arg-type]


def test_requests_are_spread_over_models_and_none_of_them_is_another_call() -> None:
    one, three = SHORT.calls(3.0), replace(SHORT, models=3).calls(3.0)
    assert {call.model for call in three} == {0, 1, 2}
    assert [replace(call, model=0) for call in three] == one
    result = simulate(replace(SHORT, models=3, overload=0.3))
    assert result["underrun_streams"] == 0 and result["refused"] == 0


@pytest.mark.parametrize("field", ["policy", "admission", "profile", "costs"])
def test_unknown_names_are_answered_with_the_known_ones(field: str) -> None:
    with pytest.raises(NotFound, match=r"vivace|balanced|cpu2"):
        simulate(replace(SHORT, **{field: "nope"}))  # type: ignore[arg-type]


def test_a_malformed_table_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text("{}")
    with pytest.raises(CheckpointError, match="frame_ms"):
        simulate(replace(SHORT, costs=str(path)))


def test_recorded_arrivals_bring_their_own_rate(tmp_path: Path) -> None:
    path = tmp_path / "times.txt"
    path.write_text("0.5\n1.0\n2.5\n")
    result = simulate(replace(SHORT, overload=None, arrivals=str(path)))
    assert result["requests"] == 3
