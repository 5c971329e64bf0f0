"""What must hold in any world. `make simulate-fuzz` looks at thousands more."""

import random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.simulate.worlds import ENOUGH, World, world

from vivace.simulate.caller import Heard
from vivace.simulate.scenario import Scenario, simulate

BRIEFLY = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # a smaller seed is no smaller world
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def admitted(there: World) -> list[Heard]:
    return [h for h in there.run() if h.refused_s is None]


@pytest.mark.parametrize("models", [1, 2, 4])
@BRIEFLY
@given(seed=st.integers(0, 1 << 30))
def test_no_stream_runs_dry_while_the_card_has_something_left(models: int, seed: int) -> None:
    there = world(random.Random(seed), load=(0.1, 0.8), most_calls=80, models=models)
    if there.able and there.utilisation < ENOUGH:
        assert not [h for h in admitted(there) if h.stalls]


@pytest.mark.parametrize("models", [1, 2, 4])
@BRIEFLY
@given(seed=st.integers(0, 1 << 30))
def test_nobody_starves(models: int, seed: int) -> None:
    """Whoever is let in hears something and comes to an end; whoever is not is told soon."""
    there = world(random.Random(seed), load=(0.5, 6.0), most_calls=80, models=models)
    heard = there.run()
    assert len(heard) == len(there.calls)
    slo_s = there.simulation.config.slo_ttfa_s
    for h in heard:
        assert h.ended_s is not None
        if h.refused_s is not None:
            assert h.first_s is None and h.retry_after_s > 0.0
        elif h.first_s is not None:
            assert h.ended_s >= h.first_s > h.due_s
    assert not there.simulation.loop.turns and not there.simulation.loop.waiting
    waits = [h.refused_s - h.due_s for h in heard if h.refused_s is not None]
    assert max(waits, default=0.0) < 2 * slo_s + there.simulation.clock.now / 2


@pytest.mark.parametrize("arrivals", ["poisson", "bursty"])
@pytest.mark.parametrize("overload", [1.0, 2.0, 5.0])
@pytest.mark.parametrize("costs", ["cpu2", "h200"])
def test_at_any_overload_no_stream_runs_dry(costs: str, overload: float, arrivals: str) -> None:
    duration_s = 30.0 if costs == "cpu2" else 1.5
    result = simulate(
        Scenario(costs=costs, overload=overload, arrivals=arrivals, duration_s=duration_s)
    )
    assert result["underrun_streams"] == 0
    assert result["refused"] or overload == 1.0
