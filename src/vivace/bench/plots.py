"""The pictures of a report, drawn with matplotlib: SVG for the page, PNG beside it."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLORS = ("#0b6e99", "#d9480f", "#5f3dc4", "#2b8a3e", "#c2255c", "#846000", "#1864ab", "#495057")
_STAGES = (
    ("connect", "#adb5bd"),
    ("to the first byte", "#74c0fc"),
    ("to the first sample", "#4dabf7"),
    ("to the first audible sample", "#1971c2"),
)
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
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
            "waterfall": _waterfall(series),
            "throughput": _against_load(series, "Sound received", "x real time", _throughput),
        }


def svg(figure: Figure) -> str:
    """The element alone, to stand inside a page."""
    text = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(text, format="svg", metadata={"Date": None})
    found = text.getvalue()
    return found[found.index("<svg") :]


def save_png(figure: Figure, path: Path) -> None:
    """The same as a picture for elsewhere."""
    figure.savefig(path, dpi=144)


def _figure(height: float = 3.6) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.2, height), layout="constrained")
    return figure, figure.add_subplot()


def _against_load(series: Series, title: str, unit: str, curve: Any) -> Figure:
    figure, axes = _figure()
    for (label, runs), color in zip(series.items(), COLORS * len(series), strict=False):
        curve(axes, label, runs, color)
    axes.set(title=title, xlabel="requests a second", ylabel=unit)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=9)
    return figure


def _ttfa(axes: Axes, label: str, runs: Sequence[dict[str, Any]], color: str) -> None:
    """p95 as a line, p50 to p99 as a band; a logarithmic axis once it spans a factor of 30."""
    known = [run for run in runs if run["summary"]["audible_ttfa_ms"]["p50"] is not None]
    rates = [run["rps"] for run in known]
    ranks = {
        rank: [run["summary"]["audible_ttfa_ms"][rank] for run in known]
        for rank in ("p50", "p95", "p99")
    }
    axes.fill_between(rates, ranks["p50"], ranks["p99"], color=color, alpha=0.16, linewidth=0)
    axes.plot(rates, ranks["p50"], color=color, linewidth=1, linestyle=":")
    axes.plot(rates, ranks["p95"], color=color, marker="o", label=f"{label}: p95 (band p50-p99)")


def _underruns(axes: Axes, label: str, runs: Sequence[dict[str, Any]], color: str) -> None:
    rates = [run["rps"] for run in runs]
    for key, style, name in (
        ("underrun_requests", "-", "no buffer"),
        ("underrun_requests_100ms", ":", "100 ms buffer"),
    ):
        shares = [100 * run["summary"][key] / max(run["summary"]["completed"], 1) for run in runs]
        axes.plot(rates, shares, style, color=color, marker="o", label=f"{label}: {name}")


def _throughput(axes: Axes, label: str, runs: Sequence[dict[str, Any]], color: str) -> None:
    rates = [run["rps"] for run in runs]
    axes.plot(
        rates, [run["summary"]["x_realtime"] for run in runs], color=color, marker="o", label=label
    )
    offered = [run["rps"] * (run["summary"]["mean_audio_s"] or 0) for run in runs]
    axes.plot(rates, offered, color=color, linewidth=1, linestyle="--", label=f"{label}: asked for")


def _waterfall(series: Series) -> Figure:
    """Where the time to the first sound goes: medians, one bar a run."""
    bars = [(f"{label}, {run['rps']:g} rps", run) for label, runs in series.items() for run in runs]
    figure, axes = _figure(1.4 + 0.34 * len(bars))
    left = [0.0] * len(bars)
    points = [_medians(run["summary"]) for _, run in bars]
    for stage, (name, color) in enumerate(_STAGES):
        widths = [max(at[stage] - start, 0.0) for at, start in zip(points, left, strict=True)]
        axes.barh(range(len(bars)), widths, left=left, color=color, label=name, height=0.62)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(bars)), [name for name, _ in bars])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set(title="The way to the first sound (medians)", xlabel="ms")
    figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return figure


def _medians(summary: dict[str, Any]) -> list[float]:
    """The ends of the stages in ms since connecting began; what is missing takes no time."""
    setup = summary["setup_ms"]["p50"] or 0.0
    names = ("ttfb_ms", "playable_ms", "audible_ttfa_ms")
    return [setup, *(setup + (summary[name]["p50"] or 0.0) for name in names)]
