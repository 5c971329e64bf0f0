"""Arrivals and texts: seeded, open loop, the same however many processes send them."""

import json
import statistics
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from vivace.bench.arrivals import arrivals
from vivace.bench.load import Load
from vivace.bench.run import schedule
from vivace.bench.texts import load_texts, pick, words
from vivace.errors import InvalidRequest


def test_poisson_has_the_rate_and_the_spread_of_its_kind() -> None:
    times = arrivals("poisson", 50.0, 200.0, 0)
    gaps = [later - sooner for sooner, later in pairwise(times)]
    assert len(times) == pytest.approx(10_000, rel=0.03)
    assert statistics.mean(gaps) == pytest.approx(0.02, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.02, rel=0.05)  # as its mean
    assert max(times) < 200.0


def test_bursts_have_the_same_rate_in_a_quarter_of_the_time() -> None:
    times = arrivals("bursty", 50.0, 200.0, 0)
    assert times == sorted(times) != arrivals("bursty", 50.0, 200.0, 1)
    assert len(times) == pytest.approx(10_000, rel=0.03)
    assert max(t % 4.0 for t in times) < 1.0


def test_constant_is_even_and_a_seed_decides_the_rest() -> None:
    assert arrivals("constant", 4.0, 1.0, 0) == [0.0, 0.25, 0.5, 0.75]
    assert arrivals("poisson", 9.0, 9.0, 1) == arrivals("poisson", 9.0, 9.0, 1)
    assert arrivals("poisson", 9.0, 9.0, 1) != arrivals("poisson", 9.0, 9.0, 2)


def test_recorded_times_come_from_lines_or_from_an_earlier_run(tmp_path: Path) -> None:
    lines, run = tmp_path / "times.txt", tmp_path / "run.json"
    lines.write_text("0.5\n0.1\n7\n")
    run.write_text(json.dumps({"requests": [{"due_s": 0.25}, {"due_s": 0.75}]}))
    assert arrivals(str(lines), 1.0, 5.0, 0) == [0.1, 0.5]
    assert arrivals(str(run), 1.0, 5.0, 0) == [0.25, 0.75]
    lines.write_text("soon\n")
    for name in (str(lines), str(tmp_path / "none")):
        with pytest.raises(InvalidRequest, match="poisson, bursty, constant"):
            arrivals(name, 1.0, 5.0, 0)


def test_the_built_in_texts_are_what_the_docs_say() -> None:
    mixed, english, chinese = (load_texts(name) for name in ("mixed", "en", "zh"))
    assert 55 <= statistics.mean(len(text.text) for text in mixed.texts) <= 65
    assert {*english.texts, *chinese.texts} == set(mixed.texts)
    assert all(text.chinese for text in chinese.texts)
    assert not any(text.chinese for text in english.texts)
    assert len({text.text for text in mixed.texts}) == len({t.id for t in mixed.texts}) == 78
    lengths = sorted(len(text.text) for text in english.texts)
    assert lengths[0] < 20
    assert lengths[-1] > 100
    page = (Path(__file__).parents[2] / "docs" / "benchmark.md").read_text(encoding="utf-8")
    assert str(mixed.describe()["sha256"]) in page  # results over other texts do not compare


def test_texts_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("One.\n\nTwo.\n", encoding="utf-8")
    assert [(t.id, t.text) for t in load_texts(str(file)).texts] == [
        ("line-1", "One."),
        ("line-3", "Two."),
    ]
    file.write_text("\n")
    for name in (str(file), str(tmp_path / "none")):
        with pytest.raises(InvalidRequest):
            load_texts(name)


def test_every_text_is_used_as_often_as_the_others() -> None:
    texts = load_texts("mixed").texts
    picked = pick(texts, 3 * len(texts), 4)
    assert all(picked.count(text) == 3 for text in texts)
    assert picked == pick(texts, 3 * len(texts), 4)


def test_words_join_to_the_text() -> None:
    for text in load_texts("mixed").texts:
        assert "".join(words(text.text)) == text.text
    assert words("A b,  c.") == ["A ", "b,  ", "c."]
    assert words("您好，请问") == ["您好，", "请问"]


def test_a_schedule_has_its_warm_up_manners_and_kept_sounds() -> None:
    load = Load(rps=40.0, duration_s=20.0, warmup_s=5.0, slow=0.25, leaving=0.25)
    texts = load_texts("mixed").texts
    jobs = schedule(load, texts, keep=10)
    assert jobs == schedule(load, texts, keep=10)
    assert [job.warmup for job in jobs] == [job.due_s < 5.0 for job in jobs]
    counts = {name: sum(job.client == name for job in jobs) for name in ("slow", "leaving")}
    assert all(count == pytest.approx(len(jobs) / 4, rel=0.15) for count in counts.values())
    kept = [job for job in jobs if job.keep]
    assert len(kept) == 10
    assert not any(job.warmup for job in kept)


@pytest.mark.parametrize(
    "wrong", [{"rps": 0}, {"duration_s": 0}, {"slow": 0.7, "leaving": 0.7}, {"leaving": -0.1}]
)
def test_numbers_that_make_no_load_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest):
        replace(Load(rps=1.0), **wrong).check()
