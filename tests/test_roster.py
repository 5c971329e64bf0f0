"""Which model a request means: the table in docs/models.md, and that any wish has an answer."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runners import SPEC, Bytes

from vivace.errors import NotFound
from vivace.roster import Offer, Wish, choose, follows, several

LARGE, SMALL = replace(SPEC.talker, hidden=16), replace(SPEC.talker, hidden=8)
NONE: dict[str, int] = {}


def offer(id: str, kind: str, size: str = "1b7", speakers: dict[str, int] | None = None) -> Offer:
    talker = SMALL if size == "0b6" else LARGE
    named = (SPEC.speakers if speakers is None else speakers) if kind == "custom_voice" else NONE
    spec = replace(SPEC, kind=kind, size=size, talker=talker, speakers=named)
    return Offer(id, spec, Bytes())  # type: ignore[arg-type]


NAMED, SMALL_NAMED = offer("named", "custom_voice"), offer("small", "custom_voice", "0b6")
TUNED = offer("tuned", "custom_voice", speakers={"greta": 402, "ryan": 403})
DESIGN = offer("design", "voice_design")
BASE, SMALL_BASE = offer("base", "base"), offer("small-base", "base", "0b6")
EVERY = [SMALL_NAMED, NAMED, TUNED, DESIGN, SMALL_BASE, BASE]


@pytest.mark.parametrize(
    ("offers", "wish", "meant"),
    [
        (EVERY, Wish(), "small"),
        (EVERY[::-1], Wish(), "tuned"),
        (EVERY, Wish(model="base"), "base"),
        (EVERY, Wish(model="base", voice="ryan", instruct=True), "base"),
        (EVERY, Wish(voice="greta"), "tuned"),
        (EVERY, Wish(voice="Ryan"), "small"),
        ([TUNED, NAMED], Wish(voice="ryan"), "tuned"),
        ([TUNED, NAMED], Wish(voice="eric"), "named"),
        (EVERY, Wish(voice="ryan", instruct=True), "named"),
        ([SMALL_NAMED, DESIGN], Wish(voice="ryan", instruct=True), "small"),
        (EVERY, Wish(instruct=True), "design"),
        ([SMALL_NAMED, NAMED], Wish(instruct=True), "named"),
        ([BASE, SMALL_NAMED], Wish(instruct=True), "small"),
        (EVERY, Wish(clone=True), "small-base"),
        (EVERY, Wish(clone=True, hidden=16), "base"),
        (EVERY, Wish(clone=True, voice="ryan"), "small-base"),
        (EVERY, Wish(kind="voice_design"), "design"),
        (EVERY, Wish(kind="base", voice="ryan"), "small-base"),
        (EVERY, Wish(kind="custom_voice", instruct=True), "named"),
        # Where none fits, the one whose refusal helps most.
        ([DESIGN, NAMED], Wish(voice="nobody"), "named"),
        ([DESIGN, NAMED], Wish(voice="nobody", instruct=True), "named"),
        ([BASE, DESIGN], Wish(), "design"),
        ([NAMED, DESIGN], Wish(clone=True), "named"),
        ([BASE], Wish(voice="ryan"), "base"),
        ([NAMED], Wish(kind="base"), "named"),
    ],
)
def test_the_first_that_fits_best_is_meant(offers: list[Offer], wish: Wish, meant: str) -> None:
    assert offers[choose(offers, wish)].model_id == meant


def test_a_model_that_is_not_here_is_answered_with_those_that_are() -> None:
    with pytest.raises(NotFound, match="no model 'gpt-5'; there are named, design") as refusal:
        choose([NAMED, DESIGN], Wish(model="gpt-5"))
    assert refusal.value.param == "model"


WISHES = st.builds(
    Wish,
    kind=st.sampled_from([None, "custom_voice", "voice_design", "base"]),
    voice=st.sampled_from([None, "ryan", "greta", "nobody"]),
    instruct=st.booleans(),
    clone=st.booleans(),
    hidden=st.sampled_from([None, 8, 16]),
)


@given(st.permutations(range(len(EVERY))), st.integers(1, len(EVERY)), WISHES)
def test_whatever_can_be_served_is_served(order: list[int], count: int, wish: Wish) -> None:
    """By a model that can do all of it, if one can; its kind does not depend on the order."""
    offers = [EVERY[i] for i in order[:count]]

    def can(one: Offer) -> bool:
        spec = one.spec
        if wish.kind not in (None, spec.kind) or (spec.kind == "base") != wish.clone:
            return False
        if wish.clone and wish.hidden not in (None, spec.talker.hidden):
            return False
        named = wish.voice is None or wish.clone or wish.voice in spec.speakers
        return named and (spec.kind != "voice_design" or wish.instruct)

    found = offers[choose(offers, wish)]
    if any(map(can, offers)):
        assert can(found)
        assert offers[::-1][choose(offers[::-1], wish)].spec.kind == found.spec.kind
    assert choose([*offers, found], wish) == offers.index(found), "the first listed wins"


def test_those_that_follow_instructions() -> None:
    assert [follows(one.spec) for one in (NAMED, SMALL_NAMED, DESIGN, BASE)] == [
        True,
        False,
        True,
        False,
    ]


def test_one_name_or_several_are_a_list() -> None:
    assert several(None) == [None] and several("a") == ["a"] and several(("a", "b")) == ["a", "b"]
    assert several(()) == [None]
