"""What is exported, what the documentation says of it, and what dashboard and rules ask for."""

import json
import re
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.fakes import FakeEngine
from tests.server.live import serving

from vivace.config import ServerConfig
from vivace.host import Readings
from vivace.meters import MARGIN_S, Counts, Meters, Stock
from vivace.server.metrics import EngineMetrics, Metrics, ShelfMetrics
from vivace.server.shelf import open_shelf
from vivace.types import Cut

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((ROOT / "deploy" / "grafana.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text(encoding="utf-8"))
NAME = re.compile(r"\b(?:vivace|process)_\w+")
BUILT_IN = {"up"}


class Told(FakeEngine):
    """An engine that has something to tell."""

    @property
    def readings(self) -> Readings:
        meters = Meters()
        meters.stepped("frame", 3, 16, 0.005)
        meters.stepped("frame", 16, 16, 2.0)
        meters.stepped("codec", 2, 16, 0.012)
        for slack_s in (-0.05, 0.015, 60.0):
            meters.margin.add(MARGIN_S, slack_s)
        stock = Stock(pages=100, pages_free=75, prefix_hits=3, prefix_misses=1, prefix_bytes=512)
        counts = Counts(steps=7, late=2, redraws=1)
        counts.cuts[Cut.LOOP] = 3
        return Readings(counts, meters, stock)


@pytest.fixture(scope="module")
def page() -> str:
    metrics = Metrics()
    metrics.registry.register(EngineMetrics(Told()))  # type: ignore[arg-type]
    with serving(Told()) as live:
        return httpx.get(f"{live.url}/metrics", timeout=30).text


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, set[str]]]:
    """Every metric by its name: its type and its labels, whether it has samples yet or not."""
    metrics = Metrics()
    found = {}
    for one in vars(metrics).values():
        if hasattr(one, "_labelnames"):
            (family,) = one.collect()
            suffix = "_total" if family.type == "counter" else ""
            found[family.name + suffix] = family.type, set(one._labelnames)
    folder = tmp_path_factory.mktemp("shelf")
    config = ServerConfig(voices_dir=folder / "voices", cache_dir=folder / "results")
    engine = EngineMetrics(Told())  # type: ignore[arg-type]
    for family in [*engine.collect(), *ShelfMetrics(open_shelf(config)).collect()]:
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        suffix = "_total" if family.type == "counter" else ""
        found[family.name + suffix] = family.type, labels
    return found


def test_the_documentation_has_every_metric_as_it_is(
    families: dict[str, tuple[str, set[str]]],
) -> None:
    told = {}
    row = re.compile(r"^\| `(vivace_\w+)` \| (\w+) \| ([\w, ]*?) ?\|", re.MULTILINE)
    for name, kind, labels in row.findall(PAGE):
        told[name] = kind, set(filter(None, labels.split(", ")))
    assert told == families


def test_every_metric_is_told_once(page: str) -> None:
    told = re.findall(r"^\| `(vivace_\w+)`", PAGE, re.MULTILINE)
    served = re.findall(r"^# TYPE (\w+)", page, re.MULTILINE)
    assert len(told) == len(set(told)) and len(served) == len(set(served)) > 20


def test_the_page_is_one_that_prometheus_reads(page: str) -> None:
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert samples["vivace_steps_total",] == 7
    assert samples["vivace_late_chunks_total",] == 2
    assert samples["vivace_guard_cuts_total", ("guard", "loop")] == 3
    assert samples["vivace_guard_cuts_total", ("guard", "cap")] == 0
    assert samples["vivace_redraws_total",] == 1
    assert samples["vivace_pages", ("state", "used")] == 25
    assert samples["vivace_prefix_cache_total", ("result", "hit")] == 3
    assert samples["vivace_step_rows_total", ("module", "frame")] == 19
    assert samples["vivace_step_room_total", ("module", "frame")] == 32
    step = "vivace_step_seconds_bucket"
    assert samples[step, ("le", "0.004"), ("module", "frame"), ("rows", "4")] == 0
    assert samples[step, ("le", "0.006"), ("module", "frame"), ("rows", "4")] == 1
    assert samples[step, ("le", "1.0"), ("module", "frame"), ("rows", "16")] == 0
    assert samples[step, ("le", "+Inf"), ("module", "frame"), ("rows", "16")] == 1
    margin = "vivace_deadline_margin_seconds_bucket"
    assert samples[margin, ("le", "-0.03")] == 1
    assert samples[margin, ("le", "0.02")] == 2
    assert samples[margin, ("le", "+Inf")] == 3
    assert ("vivace_deadline_margin_seconds_sum",) not in samples  # since it can go down
    assert samples["vivace_slots", ("state", "free")] == 4
    assert ("process_resident_memory_bytes",) in samples


def series(families: dict[str, tuple[str, set[str]]]) -> dict[str, set[str]]:
    """What a query can ask for, and the labels it may use there."""
    found = {}
    for name, (kind, labels) in families.items():
        names = [name]
        if kind == "histogram":
            names = [f"{name}_{part}" for part in ("bucket", "sum", "count")]
        found |= dict.fromkeys(names, labels | {"job", "instance"})
        found |= {n: found[n] | {"le"} for n in names if n.endswith("_bucket")}
    plain = "resident_memory_bytes", "cpu_seconds_total", "open_fds"
    return found | {f"process_{name}": {"job", "instance"} for name in plain}


PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [
    *((panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]),
    *((rule["alert"], rule["expr"]) for group in RULES["groups"] for rule in group["rules"]),
]

EACH_QUERY = pytest.mark.parametrize(("where", "query"), QUERIES)


@EACH_QUERY
def test_queries_ask_for_what_there_is(
    families: dict[str, tuple[str, set[str]]], where: str, query: str
) -> None:
    known = series(families)
    asked = NAME.findall(re.sub(r'"[^"]*"', '""', query))
    assert asked or where == "VivaceDown"
    assert set(asked) <= set(known)
    for name, inside in re.findall(r"\b((?:vivace|process)_\w+)\{([^}]*)\}", query):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside)) <= known[name], name
    groups = re.findall(r"\bby \(([^)]*)\)", query)
    by = {label for group in groups for label in re.split(r", *", group)}
    assert by <= set.union(*(known[name] for name in asked))
    assert all(query.count(left) == query.count(right) for left, right in ("()", "[]", "{}"))


@EACH_QUERY
def test_counters_are_asked_for_their_rate(where: str, query: str) -> None:
    for found in re.finditer(r"\b(?:vivace|process)_\w+(?:_total|_bucket|_count)\b", query):
        assert re.search(r"rate\($", query[: found.start()]), found.group()


def test_alerts_say_what_is_wrong_and_whom_to_call() -> None:
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"]


def test_panels_lie_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken and at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
