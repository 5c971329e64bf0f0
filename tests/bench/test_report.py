"""Runs side by side: a page that needs nothing else, plots that show something, the table."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image
from typer.testing import CliRunner

from vivace.bench.command import bench
from vivace.bench.record import Record
from vivace.bench.report import page, read_runs, table
from vivace.bench.run import save
from vivace.bench.summary import cost, ranked, summarise

BLUE, ORANGE = (0x0B, 0x6E, 0x99), (0xD9, 0x48, 0x0F)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def result(label: str, rps: float, base_ms: float) -> dict[str, Any]:
    records = []
    for i in range(40):
        ttfb, audible = base_ms + i / 4, base_ms + 15 + i / 2
        stalls = [20.0] if i < (base_ms / 20 if label == "ours" else rps) else []
        records.append(
            Record(
                i, "t", 60, i / rps, warmup=False, setup_ms=2.0, ttfb_ms=ttfb, playable_ms=ttfb + 4,
                audible_ms=audible, leading_silence_ms=10.0, e2e_ms=900.0, rtf=0.2, audio_s=4.0,
                window_audio_s=80.0 / (20.0 + base_ms), stalls_ms=stalls, chunks=9,
                median_gap_ms=80.0, max_gap_ms=99.0,
            )
        )  # fmt: skip
    summary = {
        **summarise(records, 40 / rps),
        "lag_ms": ranked([1.0]),
        "loop_lag_ms": ranked([1.0]),
    }
    return {
        "format": 1, "valid": True, "faults": [], "target": "openai", "label": label, "rps": rps,
        "started": "2026-01-01T00:00:00+00:00", "command": f"vivace bench run --rps {rps}",
        "commit": None, "versions": {"python": "3"}, "config": {"duration_s": 40 / rps},
        "hardware": {"cpu": "A <fast> CPU", "cores": 2, "memory_gb": 8, "gpus": [], "system": "L"},
        "texts": {"name": "mixed", "count": 1, "mean_chars": 60, "sha256": "ab" * 32},
        "summary": summary, "gpus": [], "cost": cost(summary, 3.0),
        "requests": [record.row() for record in records],
    }  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two servers at three rates each; the last three as a search for capacity."""
    runs = [result("ours", rps, 20.0 + rps / 2) for rps in (5.0, 10.0, 20.0)]
    theirs = [result("theirs", rps, 60.0 + rps * 3) for rps in (5.0, 10.0, 20.0)]
    paths = [tmp_path / f"{i}.json" for i in range(4)]
    for path, run in zip(paths, runs, strict=False):
        save(run, path)
    save({"slo": "p95 ttfa<50ms", "rps": 5.0, "runs": theirs}, paths[3])
    return paths


def report(*words: object) -> Any:
    return CliRunner().invoke(bench, ["report", *map(str, words)])


def test_the_page_stands_alone_and_tells_everything(files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert report(*files, "--output", out, "--commit", "abc123").exit_code == 0
    text = out.read_text(encoding="utf-8")
    linked = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"'\s)>]+)""", text)
    assert all(link.startswith("#") for link in linked)
    assert "<script" not in text
    assert text.count("<svg") == 4
    assert {"ours", "theirs", "abc123"} <= set(re.findall(r"\w+", text))
    assert "A &lt;fast&gt; CPU" in text
    assert "Nari Labs&#x27; article of August 2026" in text
    for title in ("Audible TTFA", "Streams that ran dry", "Sound received", "first sound"):
        assert title in text


def test_stages_are_shown_beside_runs(files: list[Path], tmp_path: Path) -> None:
    row = {
        "stage": "talker", "batch": 4, "median_ms": 1.5, "p95_ms": 2.0, "gb_s": 800.0,
        "bandwidth_percent": 20.0, "tflop_s": 3.0, "flops_percent": 0.5,
    }  # fmt: skip
    stages, out = tmp_path / "stages.json", tmp_path / "report.html"
    stages.write_text(json.dumps({"device": "A card", "stages": [row]}))
    assert report(*files, "--output", out, "--stages", stages).exit_code == 0
    text = out.read_text(encoding="utf-8")
    assert "Stages on A card" in text
    assert "<td>talker<td>4<td>1.500" in text.replace("</td>", "")


def test_the_table_is_the_committed_format(files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "h200.json"
    assert report(*files[:3], "--table", out, "--commit", "abc123").exit_code == 0
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["hardware"] == "2 cores of A <fast> CPU"
    assert found["commit"] == "abc123"
    assert found["command"].startswith("vivace bench run")
    assert [run["rps"] for run in found["runs"]] == [5.0, 10.0, 20.0]
    assert report(*files[:3], "--table", out, "--hardware", "one card").exit_code == 0
    assert json.loads(out.read_text(encoding="utf-8"))["hardware"] == "one card"
    wanted = {
        "rps", "requests", "p50_audible_ttfa_ms", "p95_audible_ttfa_ms", "p99_audible_ttfa_ms",
        "underrun_requests", "refused", "x_realtime",
    }  # fmt: skip
    for run in found["runs"]:
        assert wanted <= run.keys()
    first = found["runs"][0]
    assert (first["requests"], first["underrun_requests"], first["refused"]) == (40, 2, 0)
    assert first["p50_audible_ttfa_ms"] == pytest.approx(22.5 + 15 + 9.5)


def near(picture: np.ndarray, color: tuple[int, int, int]) -> np.ndarray:
    """Where a picture has this color."""
    rgb = np.round(picture[..., :3] * 255)
    return np.asarray(np.abs(rgb - color).max(-1) < 24)


def test_png_plots_show_both_series(files: list[Path], tmp_path: Path) -> None:
    assert report(*files, "--png", tmp_path / "png").exit_code == 0
    names = {"ttfa", "underruns", "throughput", "waterfall"}
    assert {path.stem for path in (tmp_path / "png").iterdir()} == names
    for name in names - {"waterfall"}:
        picture = image.imread(tmp_path / "png" / f"{name}.png")
        for color in (BLUE, ORANGE):
            columns = np.flatnonzero(near(picture, color).any(0))
            assert columns.max() - columns.min() > picture.shape[1] / 2  # a line, not only a key


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
def test_a_browser_draws_the_plots(files: list[Path], tmp_path: Path) -> None:
    out, shot = tmp_path / "report.html", tmp_path / "shot.png"
    assert report(*files, "--output", out).exit_code == 0
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars "
        "--disable-background-networking --disable-component-update --disable-sync"
    )
    subprocess.run(
        [
            str(CHROMIUM), *flags.split(), f"--user-data-dir={tmp_path / 'profile'}",
            "--window-size=1200,1400", f"--screenshot={shot}", out.as_uri(),
        ],
        check=True, capture_output=True, timeout=90,
    )  # fmt: skip
    picture = image.imread(shot)
    assert picture.shape[:2] == (1400, 1200)
    for color in (BLUE, ORANGE):
        rows, columns = np.nonzero(near(picture, color))
        assert len(rows) > 500
        assert columns.min() < 600 < columns.max()  # in the left plots and in the right ones


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"target": "x"}', '{"runs": [3]}'])
def test_what_is_no_result_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(content)
    done = report(path, "--output", tmp_path / "report.html")
    assert type(done.exception).__name__ == "InvalidRequest"
    assert "odd.json" in str(done.exception)


def test_a_run_in_which_nothing_completed_can_be_shown(tmp_path: Path) -> None:
    run = result("down", 5.0, 20.0)
    run["summary"] |= summarise([], 1.0)
    run |= {"valid": False, "faults": ["the client was the limit"], "cost": None}
    save(run, tmp_path / "down.json")
    runs = read_runs([tmp_path / "down.json"])
    assert "the client was the limit" in page(runs)
    assert table(runs)["runs"][0]["p95_audible_ttfa_ms"] is None
