"""Runs the simulations of docs/scheduling.md: results, pictures, and the table in the page."""

import json
import sys
from itertools import product
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vivace.bench.machine import commit
from vivace.simulate.scenario import Result, Scenario, simulate

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "benchmarks/results/scheduling.json", ROOT / "docs/scheduling.md"
LOADS = (0.25, 0.5, 0.7, 0.9, 1.5, 3.0)
SERVERS = (
    ("vivace", "vivace", "#0b6e99", "o-"),
    ("round-robin", "none", "#d9480f", "s-"),
    ("fcfs", "none", "#5f3dc4", "D-"),
    ("round-robin", "vivace", "#d9480f", "s:"),
    ("fcfs", "vivace", "#5f3dc4", "D:"),
)
MACHINES = (
    Scenario(costs="cpu2", duration_s=60.0, seed=1),
    Scenario(costs="h200", duration_s=8.0, seed=1, depth=2, host_ms=0.3),
)
BEGIN, END = "<!-- the table: make scheduling -->\n", "<!-- its end -->"


def name_of(policy: str, admission: str) -> str:
    """As the table and the pictures call it."""
    if policy == "vivace":
        return policy
    return f"{policy}, {'vivace admission' if admission == 'vivace' else 'all let in'}"


def run_all() -> list[Result]:
    """Every server on every machine under every load."""
    results = []
    for base, (policy, admission, *_), load in product(MACHINES, SERVERS, LOADS):
        result = simulate(
            Scenario(
                costs=base.costs,
                duration_s=base.duration_s,
                seed=base.seed,
                depth=base.depth,
                host_ms=base.host_ms,
                overload=load,
                policy=policy,
                admission=admission,
            )
        )
        results.append({"overload": load, **result})
        print(base.costs, policy, admission, load, result["underrun_streams"], flush=True)
    return results


def of(results: list[Result], costs: str, policy: str, admission: str) -> list[Result]:
    """One curve, by rising load."""
    want = {"costs": costs, "policy": policy, "admission": admission}
    return [r for r in results if want.items() <= r.items()]


def draw(results: list[Result], costs: str) -> Figure:
    """First sound, underruns and timely sound against load."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    first, dry, good = figure.subplots(1, 3)
    for policy, admission, color, look in SERVERS:
        runs = of(results, costs, policy, admission)
        x = [r["overload"] for r in runs]
        label = name_of(policy, admission)
        style = {"color": color, "label": label, "markersize": 4}
        first.plot(x, [r["p95_ttfa_ms"] for r in runs], look, **style)
        shares = [100 * r["underrun_streams"] / r["admitted"] for r in runs]  # type: ignore[operator]
        dry.plot(x, shares, look, **style)
        good.plot(x, [r["goodput_of_capacity"] for r in runs], look, **style)
    first.set_yscale("log")
    label_axes(first, "p95 first sound", "ms")
    label_axes(dry, "streams that ran dry", "% of those let in")
    label_axes(good, "sound in time", "of capacity")
    first.legend(fontsize=7, frameon=False)
    return figure


def label_axes(axes: Axes, title: str, unit: str) -> None:
    """Title, units, a light grid."""
    axes.set(title=title, xlabel="load, in capacities of full batches", ylabel=unit)
    axes.grid(color="#e9ecef")
    axes.spines[["top", "right"]].set_visible(False)


def table(results: list[Result]) -> str:
    """Markdown: TTFA p50 / p95, underruns and refusals."""
    head = "| machine | server | " + " | ".join(f"{load:g} x" for load in LOADS) + " |\n"
    lines = [head, "|---|---|" + "---|" * len(LOADS) + "\n"]
    for base, (policy, admission, *_) in product(MACHINES, SERVERS):
        cells = [cell(r) for r in of(results, base.costs, policy, admission)]
        lines.append(f"| {base.costs} | {name_of(policy, admission)} | {' | '.join(cells)} |\n")
    return "".join(lines)


def cell(r: Result) -> str:
    """What one run shows."""
    share = 100 * r["underrun_streams"] / r["admitted"]  # type: ignore[operator]
    refused = 100 * r["refused"] / r["requests"]  # type: ignore[operator]
    first = f"{r['p50_ttfa_ms']:.0f} / {r['p95_ttfa_ms']:.0f} ms"
    return f"{first}, {share:.0f} %, {refused:.0f} %"


def main() -> int:
    """Run, write, draw."""
    results = run_all()
    about = {"command": "make scheduling", "commit": commit(), "runs": results}
    RESULTS.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    with mpl.rc_context({"font.size": 8}):
        for base in MACHINES:
            path = ROOT / f"docs/scheduling-{base.costs}.png"
            draw(results, base.costs).savefig(path, dpi=110)
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
