"""The pictures of a report, drawn with matplotlib: SVG for the page, PNG beside it."""

import io
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

_COLORS = ("#0b6e99", "#d9480f", "#5f3dc4", "#2b8a3e", "#c2255c", "#846000", "#495057")
_LOOKS = [{"color": c, "marker": m} for c, m in zip(_COLORS, "osD^vPX", strict=True)]
_STAGES = (
    ("connect", "#ced4da"),
    ("first byte", "#74c0fc"),
    ("first sample", "#f59f00"),
    ("first audible sample", "#1864ab"),
)
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e9ecef",
    "axes.edgecolor": "#868e96",
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "legend.frameon": False,
}

Series = dict[str, list[dict[str, Any]]]
"""Label -> its runs by rising rate; a run has `rps` and `summary`."""


def draw(series: Series) -> dict[str, Figure]:
    """Every picture, by the name of its file."""
    with mpl.rc_context(_STYLE):
        return {
            "ttfa": _against_load(series, "Audible TTFA against load", "ms", _ttfa),
            "underruns": _against_load(series, "Streams that ran dry", "% of streams", _underruns),
            "throughput": _against_load(series, "Sound received", "x real time", _throughput),
            "waterfall": _waterfall(series),
        }


def svg(figure: Figure) -> str:
    """The element alone, to stand inside a page."""
    text = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


Curve = Callable[[Axes, str, Sequence[dict[str, Any]], dict[str, Any]], None]


def _against_load(series: Series, title: str, unit: str, curve: Curve) -> Figure:
    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    axes = figure.add_subplot()
    for (label, runs), look in zip(series.items(), cycle(_LOOKS), strict=False):
        curve(axes, label, runs, look)
    axes.set(title=title, xlabel="requests a second", ylabel=unit)
    axes.set_xlim(left=0)
    axes.legend(fontsize=9)
    return figure


def _ttfa(axes: Axes, label: str, runs: Sequence[dict[str, Any]], look: dict[str, Any]) -> None:
    """p95 as a line, p50 to p99 as a band."""
    known = [run for run in runs if run["summary"]["audible_ttfa_ms"]["p50"] is not None]
    rates = [run["rps"] for run in known]
    p50, p95, p99 = (
        [run["summary"]["audible_ttfa_ms"][rank] for run in known] for rank in ("p50", "p95", "p99")
    )
    axes.fill_between(rates, p50, p99, color=look["color"], alpha=0.15, linewidth=0)
    axes.vlines(rates, p50, p99, color=look["color"], alpha=0.5, linewidth=1)
    axes.plot(rates, p95, label=f"{label}: p95, and p50 to p99", **look)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())


def _underruns(
    axes: Axes, label: str, runs: Sequence[dict[str, Any]], look: dict[str, Any]
) -> None:
    rates = [run["rps"] for run in runs]
    for key, style, name in (
        ("underrun_requests", "-", "no buffer"),
        ("underrun_requests_100ms", ":", "100 ms buffer"),
    ):
        shares = [100 * run["summary"][key] / max(run["summary"]["completed"], 1) for run in runs]
        axes.plot(rates, shares, linestyle=style, label=f"{label}: {name}", **look)
    axes.set_ylim(-2, 102)


def _throughput(
    axes: Axes, label: str, runs: Sequence[dict[str, Any]], look: dict[str, Any]
) -> None:
    rates = [run["rps"] for run in runs]
    asked = [run["rps"] * (run["summary"]["mean_audio_s"] or 0) for run in runs]
    axes.plot(rates, [run["summary"]["x_realtime"] for run in runs], label=label, **look)
    axes.plot(rates, asked, "--", color=look["color"], linewidth=1, label=f"{label}: asked for")
    axes.set_ylim(bottom=0)


def _waterfall(series: Series) -> Figure:
    """Where the time to the first sound goes: medians, one bar a run."""
    bars = [(f"{label}, {run['rps']:g} rps", run) for label, runs in series.items() for run in runs]
    figure = Figure(figsize=(7.2, max(3.8, 1.4 + 0.32 * len(bars))), layout="constrained")
    axes = figure.add_subplot()
    ends = [_medians(run["summary"]) for _, run in bars]
    left = [0.0] * len(bars)
    for stage, (name, color) in enumerate(_STAGES):
        right = [max(end[stage], start) for end, start in zip(ends, left, strict=True)]
        widths = [end - start for end, start in zip(right, left, strict=True)]
        axes.barh(range(len(bars)), widths, left=left, color=color, label=name, height=0.6)
        left = right
    axes.set_yticks(range(len(bars)), [name for name, _ in bars])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set(title="The way to the first sound, medians", xlabel="ms")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8.5, frameon=False)
    return figure


def _medians(summary: dict[str, Any]) -> list[float]:
    """The ends of the stages in ms since connecting began; what is missing takes no time."""
    setup = summary["setup_ms"]["p50"] or 0.0
    names = ("ttfb_ms", "playable_ms", "audible_ttfa_ms")
    return [setup, *(setup + (summary[name]["p50"] or 0.0) for name in names)]
