"""Where requests go, without any replica."""

import heapq
import random

import pytest

from vivace.cluster.board import SILENT_S, Board
from vivace.cluster.choose import FORGIVEN, Crowd, Replica, Report, Wish
from vivace.cluster.scale import wanted
from vivace.errors import Unavailable


def report(url: str, count: int = 1, **fields: object) -> Report:
    known = {"ready": True, "slots": 16, "active": 0, "waiting": 0, "models": ("one",)}
    return Report(url, count, **{**known, "spoken": {}, **fields})  # type: ignore[arg-type]


def crowd(*reports: Report, lean: int = 4) -> Crowd:
    crowd = Crowd(lean)
    crowd.refresh(reports)
    return crowd


def test_the_idlest_gets_it_by_its_size() -> None:
    there = crowd(report("a", slots=4), report("b", slots=8))
    for _ in range(12):
        there.begun(there.choose(Wish()), Wish())
    assert {url: r.load for url, r in there.replicas.items()} == {"a": 4, "b": 8}


def test_equal_ones_take_turns() -> None:
    there = crowd(report("a"), report("b"), report("c"))
    urls = []
    for _ in range(6):
        replica = there.choose(Wish())
        there.begun(replica, Wish())
        there.over(replica)
        urls.append(replica.url)
    assert urls[:3] == urls[3:] and set(urls) == {"a", "b", "c"}


def test_a_voice_goes_where_it_is_known_until_that_one_is_busy() -> None:
    there = crowd(report("a"), report("b", spoken={"ryan": 1}), lean=3)
    wish, urls = Wish(voice="ryan"), []
    for _ in range(4):
        replica = there.choose(wish)
        there.begun(replica, wish)
        urls.append(replica.url)
    assert urls == ["b", "b", "b", "a"]
    assert there.choose(wish).url == "a", "it has learned it meanwhile"


def test_nobody_is_sent_where_others_wait_for_the_sake_of_a_voice() -> None:
    there = crowd(report("a"), report("b", spoken={"ryan": 1}, waiting=1))
    assert there.choose(Wish(voice="ryan")).url == "a"


def test_a_model_goes_to_those_that_have_it_and_an_unknown_one_anywhere() -> None:
    there = crowd(report("a"), report("b", models=("two",)))
    assert there.choose(Wish(model="two")).url == "b"
    assert there.choose(Wish(model="three")).url in "ab"


def test_who_was_not_reached_is_left_alone_unless_it_goes_on_to_report() -> None:
    there = crowd(report("a", 7))
    there.unreachable(there.replicas["a"])
    with pytest.raises(Unavailable) as refused:
        there.choose(Wish())
    assert refused.value.retry_after_s
    there.refresh([report("a", 7 + FORGIVEN)])
    assert there.choose(Wish()).url == "a"


def test_who_was_tried_or_is_not_ready_or_gone_is_not_chosen() -> None:
    there = crowd(report("a"), report("b"), report("c", ready=False))
    assert there.choose(Wish(), ["a"]).url == "b"
    there.refresh([report("a"), report("c", ready=False)])
    assert there.choose(Wish()).url == "a"
    with pytest.raises(Unavailable):
        there.choose(Wish(), ["a"])
    assert not crowd(report("c", ready=False)).ready


def test_loads_come_back_to_nothing_whatever_the_order() -> None:
    dice, there, open_ = random.Random(1), crowd(*(report(u) for u in "abc")), []
    for _ in range(2_000):
        if open_ and dice.random() < 0.5:
            there.over(open_.pop(dice.randrange(len(open_))))
        else:
            wish = Wish(voice=dice.choice(["ryan", "eric", None]))
            open_.append(there.choose(wish))
            there.begun(open_[-1], wish)
        there.refresh([report(url, spoken={"ryan": 1}) for url in "abc"])
    for replica in open_:
        there.over(replica)
    assert [r.load for r in there.replicas.values()] == [0, 0, 0]


def test_the_board_forgets_who_is_silent() -> None:
    now = 0.0
    board = Board(lambda: now)
    board.tell(report("a"))
    board.tell(report("b"))
    now = SILENT_S
    board.tell(report("a", 2))
    board.leave("b")
    assert [r.count for r in board.read()] == [2]
    now = 2 * SILENT_S + 0.1
    assert board.read() == []


@pytest.mark.parametrize(
    ("count", "loads", "waits_s", "need"),
    [
        (1, [0.0], [0.0], 1),
        (1, [0.7], [0.0], 1),
        (1, [0.8], [0.0], 2),
        (2, [0.9, 0.9], [0.0, 0.0], 3),
        (2, [0.1, 0.2], [0.0, 0.0], 1),
        (2, [0.1, 0.2], [0.0, 1.5], 3),
        (2, [1.0, 4.0], [0.0, 0.5], 8),
    ],
)
def test_replicas_by_load_and_by_who_waits(
    count: int, loads: list[float], waits_s: list[float], need: int
) -> None:
    assert wanted(count, loads, waits_s) == need


@pytest.mark.parametrize("gates", [2, 4])
def test_gates_that_know_of_their_own_requests_alone_share_them_out_evenly(gates: int) -> None:
    """300 requests a second of 3 to 5 s, each at any of them; reports come 4 times a second."""
    dice, now_s, reports = random.Random(gates), 0.0, 0
    there = [crowd(report("a"), report("b"), lean=8 // gates) for _ in range(gates)]
    ends: list[tuple[float, int, Crowd, Replica]] = []
    apart = list[int]()
    for number in range(6_000):
        now_s += dice.expovariate(300)
        while ends and ends[0][0] <= now_s:
            _, _, one, replica = heapq.heappop(ends)
            one.over(replica)
        if now_s > reports / 4:
            reports += 1
            for one in there:
                one.refresh([report("a", reports, spoken={"ryan": 1}), report("b", reports)])
        one, wish = dice.choice(there), Wish(voice=dice.choice(["ryan", "eric", None]))
        replica = one.choose(wish)
        one.begun(replica, wish)
        heapq.heappush(ends, (now_s + dice.uniform(3, 5), number, one, replica))
        loads = [sum(one.replicas[url].load for one in there) for url in "ab"]
        apart.append(abs(loads[0] - loads[1]))
    assert sum(loads) > 1_000 and max(apart) <= 16 and sorted(apart)[len(apart) // 2] <= 3


@pytest.mark.parametrize("gates", [2, 4])
def test_gates_that_are_idle_send_a_voice_where_it_is_known(gates: int) -> None:
    there = [crowd(report("a"), report("b", spoken={"ryan": 1}), lean=2) for _ in range(gates)]
    for one in there * 2:
        replica = one.choose(Wish(voice="ryan"))
        one.begun(replica, Wish(voice="ryan"))
        assert replica.url == "b"
