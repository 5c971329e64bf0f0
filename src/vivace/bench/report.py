"""Several runs side by side: a page that needs nothing else, its pictures, a table as JSON."""

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vivace.errors import InvalidRequest

Runs = Sequence[dict[str, Any]]

_CSS = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1240px;margin:2em auto;padding:0 1em;color:#222}
h1{font-size:1.6em;margin-bottom:.1em} h2{font-size:1.15em;margin-top:2em} .quiet{color:#6c757d}
table{border-collapse:collapse;font-size:.84em;font-variant-numeric:tabular-nums}
th,td{padding:.3em .5em;text-align:right;border-bottom:1px solid #dee2e6} th{background:#f8f9fa}
th:first-child,td:first-child{text-align:left;white-space:nowrap} .wide{overflow-x:auto}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(460px,1fr));gap:1.2em}
figure{margin:0} .plots svg{width:100%;height:auto} .bad{color:#c92a2a;font-weight:600}
code{font-size:.86em}
"""
_COLUMNS = (
    ("rps", lambda r, s: f"{r['rps']:g}"),
    ("requests", lambda r, s: s["requests"]),
    ("TTFB p95", lambda r, s: _ms(s["ttfb_ms"]["p95"])),
    ("audible p50", lambda r, s: _ms(s["audible_ttfa_ms"]["p50"])),
    ("audible p95", lambda r, s: _ms(s["audible_ttfa_ms"]["p95"])),
    ("audible p99", lambda r, s: _ms(s["audible_ttfa_ms"]["p99"])),
    ("underruns", lambda r, s: s["underrun_requests"]),
    ("with 100 ms", lambda r, s: s["underrun_requests_100ms"]),
    ("refused", lambda r, s: s["refused"]),
    ("failed", lambda r, s: s["failed"]),
    ("E2E p95", lambda r, s: _ms(s["e2e_ms"]["p95"])),
    ("RTF p95", lambda r, s: _number(s["rtf"]["p95"])),
    ("x real time", lambda r, s: f"{s['x_realtime']:.1f}"),
    ("lag p99", lambda r, s: _ms(s["lag_ms"]["p99"])),
    ("WER %", lambda r, s: _number(r["wer"]["wer_percent"] if r.get("wer") else None)),
    ("runaway", lambda r, s: s["runaway_requests"]),
    ("silent", lambda r, s: s["silent_requests"]),
    ("gaps > 1 s", lambda r, s: s["long_silence_requests"]),
)


def read_runs(paths: Sequence[Path], commit: str | None = None) -> list[dict[str, Any]]:
    """Results of `run` and `capacity`; a capacity search counts as its runs.

    `commit` is for those that were made outside of a checkout.
    """
    runs: list[dict[str, Any]] = []
    for path in paths:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            for run in found.get("runs", [found]):
                label = run.get("label") or run["target"]
                origin = {"file": path.name, "commit": run["commit"] or commit}
                runs.append(run | origin | {"label": label, "summary": run["summary"]})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidRequest(f"{path} is no result of a run: {error!r}") from None
    return sorted(runs, key=lambda run: (run["label"], run["rps"]))


def series(runs: Runs) -> dict[str, list[dict[str, Any]]]:
    """Runs by label, each by rising rate."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        found.setdefault(run["label"], []).append(run)
    return found


def save_plots(runs: Runs, folder: Path) -> None:
    """The pictures as PNG files."""
    from vivace.bench.plots import draw

    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in draw(series(runs)).items():
        figure.savefig(folder / f"{name}.png", dpi=144)


def page(runs: Runs, stages: dict[str, Any] | None = None) -> str:
    """One HTML file: no script, nothing to fetch."""
    from vivace.bench.plots import draw, svg

    pictures = "".join(f"<figure>{svg(f)}</figure>" for f in draw(series(runs)).values())
    faults = [f"{run['file']}: {fault}" for run in runs for fault in run["faults"]]
    bodies = [
        "<h1>Speech under load</h1>",
        f"<p class=quiet>{len(runs)} runs, open loop. Latencies in ms after the first body byte "
        "was sent. Underruns are streams that ran dry, with no buffer and with one of 100 ms.</p>",
        *(f"<p class=bad>{_text(fault)}</p>" for fault in faults),
        f"<div class=plots>{pictures}</div>",
        f"<h2>Runs</h2><div class=wide>{_table(runs)}</div>",
        _costs(runs),
        _stages(stages) if stages else "",
        f"<h2>How they were made</h2>{_origins(runs)}",
    ]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>vivace bench</title>"
        f"<style>{_CSS}</style><body>{''.join(bodies)}</body></html>\n"
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _text(value: object) -> str:
    return html.escape(str(value))


def _rows(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    top = "".join(f"<th>{_text(name)}" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{_text(v)}" for v in row) for row in rows)
    return f"<table><tr>{top}{body}</table>"


def _table(runs: Runs) -> str:
    rows = [[run["label"], *(cell(run, run["summary"]) for _, cell in _COLUMNS)] for run in runs]
    return _rows(["", *(name for name, _ in _COLUMNS)], rows)


def _costs(runs: Runs) -> str:
    priced = [run for run in runs if run.get("cost")]
    if not priced:
        return ""
    rows: list[list[object]] = []
    for run in priced:
        cost, name = run["cost"], f"{run['label']}, {run['rps']:g} rps"
        a_million = _number(cost["dollars_per_million_characters"])
        rows.append([name, a_million, _number(cost["dollars_per_audio_hour"])])
    last = priced[-1]["cost"]
    for name, price in last["list_dollars_per_million_characters"].items():
        rows.append([f"{name} *", price, _number(last["list_dollars_per_audio_hour"][name])])
    head = ["dollars", "a million characters", "an hour of sound"]
    note = f"<p class=quiet>* {_text(last['list_prices_from'])}</p>"
    return f"<h2>Cost</h2>{_rows(head, rows)}{note}"


def _stages(stages: dict[str, Any]) -> str:
    head = ["stage", "batch", "median ms", "p95 ms", "GB/s", "% of copy", "TFLOP/s", "% of matmul"]
    rows = [
        [
            s["stage"], s["batch"], f"{s['median_ms']:.3f}", f"{s['p95_ms']:.3f}",
            f"{s['gb_s']:.1f}", f"{s['bandwidth_percent']:.1f}",
            f"{s['tflop_s']:.3g}", f"{s['flops_percent']:.1f}",
        ]
        for s in stages["stages"]
    ]  # fmt: skip
    return f"<h2>Stages on {_text(stages['device'])}</h2><div class=wide>{_rows(head, rows)}</div>"


def _origins(runs: Runs) -> str:
    rows = [
        [
            f"{run['label']}, {run['rps']:g} rps",
            run["started"],
            (run["commit"] or "unknown")[:12],
            f"{run['hardware']['cpu']} x {run['hardware']['cores']}",
            ", ".join(gpu["name"] for gpu in run["gpus"]) or "-",
            f"{run['texts']['name']} {run['texts']['sha256'][:12]}",
        ]
        for run in runs
    ]
    commands = "".join(f"<p><code>{_text(run['command'])}</code></p>" for run in runs)
    head = ["", "started", "commit", "client", "GPU", "texts"]
    return f"<div class=wide>{_rows(head, rows)}</div>{commands}"


def table(runs: Runs, hardware: str | None = None) -> dict[str, Any]:
    """The few figures that are compared across releases, as benchmarks/results/ keeps them."""
    first = runs[0]
    gpus = ", ".join(gpu["name"] for gpu in first["gpus"])
    kept = ("requests", "underrun_requests", "refused", "failed", "x_realtime")
    return {
        "hardware": hardware
        or gpus
        or f"{first['hardware']['cores']} cores of {first['hardware']['cpu']}",
        "commit": first["commit"],
        "command": first["command"],
        "runs": [
            {
                "rps": run["rps"],
                "target": run["target"],
                **{
                    f"{rank}_audible_ttfa_ms": run["summary"]["audible_ttfa_ms"][rank]
                    for rank in ("p50", "p95", "p99")
                },
                **{key: run["summary"][key] for key in kept},
                "p95_ttfb_ms": run["summary"]["ttfb_ms"]["p95"],
                "p99_lag_ms": run["summary"]["lag_ms"]["p99"],
                "duration_s": run["config"]["duration_s"],
                "valid": run["valid"],
                "command": run["command"],
            }
            for run in runs
        ],
    }
