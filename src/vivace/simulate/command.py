"""`vivace bench simulate`: options in, a few lines or one JSON object out."""

import json
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated

import typer

from vivace.errors import InvalidRequest

if TYPE_CHECKING:
    from vivace.simulate.scenario import Result, Scenario

Opt = typer.Option
ENOUGH = 10  # requests in a run, for a rate to be judged by it
_LINES = (
    "load       {requests} requests, {rps} a second: {load_of_capacity} of capacity",
    "policy     {policy}, admission {admission}, on {costs}",
    "TTFA       p50 {p50_ttfa_ms} ms, p95 {p95_ttfa_ms} ms, p99 {p99_ttfa_ms} ms",
    "underruns  {underrun_streams} of {admitted} streams, the longest {longest_stall_ms} ms",
    "refused    {refused}, within {refusal_p99_ms} ms (p99), to come back in {retry_after_s} s",
    "lanes      tokens {token_lane_busy} busy, sound {sound_lane_busy}, "
    "{most_sessions} streams at most",
    "goodput    {goodput_of_capacity} of {capacity_x_realtime} x real time",
)


def simulate(
    costs: Annotated[str, Opt(help="Cost table: cpu2, h200, or a file.")] = "cpu2",
    rps: Annotated[float | None, Opt(help="Requests a second.")] = None,
    overload: Annotated[
        float | None, Opt(help="The same as a multiple of what full batches of the table make.")
    ] = None,
    duration_s: Annotated[float, Opt("--duration", help="Seconds in which requests come.")] = 60.0,
    seed: Annotated[int, Opt(help="The same seed, the same run.")] = 0,
    arrivals: Annotated[
        str, Opt(help="poisson, bursty, constant, or a file of recorded seconds.")
    ] = "poisson",
    audio_s: Annotated[float, Opt(help="Mean length of the speech, in seconds.")] = 4.08,
    tokens_s: Annotated[
        float, Opt(help="Text comes in so many tokens a second; 0: all at once.")
    ] = 0.0,
    typed: Annotated[float, Opt(help="Share of the requests whose text comes so.")] = 1.0,
    slow: Annotated[float, Opt(help="Share of readers that are slow.")] = 0.0,
    slow_x: Annotated[float, Opt(help="Seconds of sound a second that those take.")] = 0.5,
    leaving: Annotated[float, Opt(help="Share of callers that hang up early.")] = 0.0,
    leave_after_s: Annotated[float, Opt(help="Seconds after their first sound.")] = 0.5,
    policy: Annotated[str, Opt(help="vivace, round-robin or fcfs.")] = "vivace",
    admission: Annotated[str, Opt(help="vivace, or none: everybody waits.")] = "vivace",
    profile: Annotated[str, Opt(help="ttfa, balanced or throughput.")] = "balanced",
    models: Annotated[
        int, Opt(help="Models that requests are spread over, each with these costs.")
    ] = 1,
    max_sessions: Annotated[
        int, Opt(help="Streams at a time; 0: as many as one talker step takes.")
    ] = 0,
    max_queue: Annotated[int, Opt(help="Requests that may wait.")] = 64,
    slo_ttfa_ms: Annotated[float, Opt(help="Who would wait longer is refused.")] = 3000.0,
    depth: Annotated[int, Opt(help="Token steps under way at a time: 1 or 2.")] = 1,
    host_ms: Annotated[float, Opt(help="The host's time before each step.")] = 0.0,
    noise: Annotated[float, Opt(help="Steps take up to so much longer, as a share.")] = 0.0,
    buffer_ms: Annotated[float, Opt(help="What listeners hold back before they play.")] = 0.0,
    slo: Annotated[
        str | None, Opt(help='Search the largest rate with, say, "p95 ttfa<50ms, underruns=0".')
    ] = None,
    as_json: Annotated[bool, Opt("--json", help="One JSON object, alone on stdout.")] = False,
) -> None:
    """What a server would do under a load, in simulated time: no model, no card, no waiting."""
    from vivace.simulate.scenario import Scenario
    from vivace.simulate.scenario import simulate as run

    options = locals()
    scenario = Scenario(**{field.name: options[field.name] for field in fields(Scenario)})
    if slo is None:
        result, text = run(scenario), _text
    else:
        result, text = _search(scenario, slo), _found
    print(json.dumps(result, indent=1) if as_json else text(result))


def _search(scenario: "Scenario", slo: str) -> "Result":
    """The largest rate that keeps the promise, to 2 %, with the run made at it."""
    from vivace.bench.capacity import parse_slo, search
    from vivace.simulate.scenario import capacity, simulate, summary

    if scenario.rps is not None or scenario.overload is not None:
        raise InvalidRequest("--slo looks for the rate: no --rps or --overload beside it")
    clauses = parse_slo(slo)
    replace(scenario, overload=1.0).check()
    table = scenario.table()
    full = capacity(table, scenario.config(table)) / scenario.audio_s
    lowest = max(full / 64, ENOUGH / scenario.duration_s)
    results: dict[float, Result] = {}

    def probe(rps: float) -> "Result":
        results[rps] = simulate(replace(scenario, rps=rps))
        return {"summary": summary(results[rps]), "valid": True}

    best, _ = search(probe, clauses, lowest, max(2 * full, lowest), 0.02)
    return {"slo": slo, "max_rps": best, "run": results[best] if best is not None else None}


def _found(result: "Result") -> str:
    if result["max_rps"] is None:
        return f"{result['slo']}: not even at the lowest rate"
    run: Result = result["run"]  # type: ignore[assignment]
    return f"{result['slo']}: {result['max_rps']:.4g} requests a second\n{_text(run)}"


def _text(result: "Result") -> str:
    shown = {name: "-" if value is None else value for name, value in result.items()}
    return "\n".join(line.format(**shown) for line in _LINES)
