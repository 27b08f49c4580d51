"""Who is asked when: everybody once, the same for a seed, nobody for ever."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import CohortSampler, GroupSampler

seeds = st.integers(0, 2**32)
sizes = st.integers(1, 40)


def names(count: Any) -> Any:
    return [str(i) for i in range(count)]


def make(clients: int, per_round: int, seed: int = 0, **options: Any) -> CohortSampler:
    return CohortSampler(names(clients), per_round=per_round, seed=seed, **options)


def play(sampler: Any, fails: Any = lambda client: False, limit: int = 10_000) -> Any:
    """Return the sampler of all rounds, where ``fails`` says who is not counted."""
    rounds: list[Any] = []
    while not sampler.done:
        assert len(rounds) < limit
        cohort = sampler.draw()
        for client in cohort:
            if fails(client):
                sampler.fail(client, f"{client} is ill.")
            else:
                sampler.count(client)
        sampler.close_round(cohort)
        rounds.append(cohort)
    return rounds


@given(sizes, st.integers(0, 50), seeds)
def test_without_replacement_everybody_is_asked_once_in_the_fewest_rounds(
    clients: Any, per_round: Any, seed: int
) -> None:
    sampler = make(clients, per_round, seed)
    rounds = play(sampler)
    assert len(rounds) == math.ceil(clients / (per_round or clients))
    asked = [client for cohort in rounds for client in cohort]
    assert sorted(asked, key=int) == names(clients)
    assert not sampler.missing
    assert not sampler.failures


@given(sizes, st.integers(1, 10), seeds, st.booleans())
def test_a_seed_gives_the_same_cohorts_again(
    clients: Any, per_round: Any, seed: int, replace: Any
) -> None:
    one, other = (
        make(clients, per_round, seed, with_replacement=replace) for _ in range(2)
    )
    assert play(one) == play(other)


def test_another_seed_gives_other_cohorts() -> None:
    drawn = {tuple(make(40, 10, seed).draw()) for seed in range(5)}
    assert len(drawn) == 5


@given(sizes, st.integers(1, 10), seeds)
def test_with_replacement_nobody_counted_is_asked_again(
    clients: Any, per_round: Any, seed: int
) -> None:
    sampler = make(clients, per_round, seed, with_replacement=True)
    rounds = play(sampler)
    asked = [client for cohort in rounds for client in cohort]
    assert sorted(asked, key=int) == names(clients)
    assert all(len(cohort) <= per_round for cohort in rounds)


@given(sizes, st.integers(1, 10), st.integers(1, 6), seeds)
def test_with_replacement_ends_at_the_limit_or_with_everybody(
    clients: Any, per_round: Any, limit: Any, seed: int
) -> None:
    sampler = make(clients, per_round, seed, with_replacement=True, max_rounds=limit)
    rounds = play(sampler)
    assert len(rounds) <= limit
    assert len(rounds) == limit or not sampler.missing
    assert sampler.out_of_rounds == (len(rounds) == limit)


def test_with_replacement_takes_as_long_as_the_coupon_collector() -> None:
    # The design's table: 50 ± 12 rounds until 100 clients have come, 10 a round.
    lengths = [
        len(play(make(100, 10, seed, with_replacement=True))) for seed in range(200)
    ]
    assert sum(lengths) / 200 == pytest.approx(50, abs=4 * 12 / math.sqrt(200))


@given(sizes, st.integers(1, 10), st.integers(0, 3), seeds, st.booleans(), st.data())
def test_who_fails_is_asked_again_so_often_and_then_given_up_by_name(
    clients: Any, per_round: Any, retries: Any, seed: int, replace: Any, data: Any
) -> None:
    ill = data.draw(st.sets(st.sampled_from(names(clients))))
    sampler = make(
        clients, per_round, seed, max_retries=retries, with_replacement=replace
    )
    rounds = play(sampler, fails=lambda client: client in ill)
    asked = [client for cohort in rounds for client in cohort]
    for client in names(clients):
        assert asked.count(client) == (1 + retries if client in ill else 1)
    assert set(sampler.missing) == ill
    assert sampler.failures == {client: f"{client} is ill." for client in ill}


def test_who_fails_is_asked_after_those_still_in_line() -> None:
    sampler = make(4, 2, max_retries=1)
    first = sampler.draw()
    sampler.close_round(first)
    second = sampler.draw()
    assert not set(first) & set(second)
    sampler.close_round(second)
    assert sampler.draw() == first


def test_who_recovers_is_counted_and_leaves_no_failure() -> None:
    sampler = make(1, 1, max_retries=1)
    tries = iter([True, False])
    play(sampler, fails=lambda client: next(tries))
    assert sampler.counted == {"0"}
    assert not sampler.failures


def test_silence_is_a_failure() -> None:
    sampler = make(1, 1)
    sampler.close_round(sampler.draw())
    assert sampler.done
    assert sampler.failures == {"0": "no reply"}


@given(sizes, st.integers(1, 10), seeds, st.data())
def test_a_resumed_run_asks_only_the_others(
    clients: Any, per_round: Any, seed: int, data: Any
) -> None:
    counted = data.draw(st.sets(st.sampled_from(names(clients))))
    sampler = make(clients, per_round, seed, counted=counted)
    rounds = play(sampler)
    asked = {client for cohort in rounds for client in cohort}
    assert asked == set(names(clients)) - counted


@given(
    sizes,
    st.integers(1, 10),
    st.integers(0, 5),
    st.integers(0, 9),
    seeds,
    st.booleans(),
)
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(
    clients: Any, per_round: Any, done: Any, replies: Any, seed: int, replace: Any
) -> None:
    def sampler(**earlier: Any) -> Any:
        return make(
            clients,
            per_round,
            seed,
            with_replacement=replace,
            max_rounds=8 if replace else 0,
            **earlier,
        )

    whole = play(sampler())
    done = min(done, len(whole))
    counted = {client for cohort in whole[:done] for client in cohort}
    following = whole[done:]
    if following and replies < len(following[0]):  # amid the next round
        counted.update(following[0][:replies])
        following = [following[0][replies:], *following[1:]]
    resumed = sampler(counted=counted, rounds=done)
    if not replace:
        assert resumed.rounds_ahead == len(following)
    assert play(resumed) == following


@pytest.mark.parametrize("per_round", [0, 2])
def test_a_client_that_comes_later_is_asked_once(per_round: Any) -> None:
    sampler = make(3, per_round)
    play(sampler)
    sampler.add("late")
    assert sampler.missing == ("late",)
    assert play(sampler) == [["late"]]
    sampler.add("late")
    assert sampler.done


def test_a_client_that_was_given_up_and_comes_back_is_asked_again() -> None:
    sampler = make(3, 0, max_retries=1)
    play(sampler, fails=lambda client: client == "1")
    assert sampler.missing == ("1",)
    sampler.add("1")
    assert play(sampler) == [["1"]]
    assert not sampler.missing


def test_who_is_lost_to_secure_aggregation_is_left_alone_though_it_comes_back() -> None:
    sampler = GroupSampler("abcd", group_size=4, per_round=0, seed=0, max_retries=3)
    cohort = sampler.draw()
    sampler.give_up("a", "lost")
    sampler.close_round(cohort)
    for client in "abe":
        sampler.add(client)
    assert sorted(sampler.draw()) == ["b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("clients", "per_round", "rounds"), [(100, 10, 50), (100, 20, 24), (1262, 50, 191)]
)
def test_rounds_with_replacement_are_about_those_of_the_coupon_collector(
    clients: Any, per_round: Any, rounds: Any
) -> None:
    def ahead(**options: Any) -> Any:
        sampler = make(clients, per_round, with_replacement=True, **options)
        return sampler.rounds_ahead

    assert ahead() == pytest.approx(rounds, rel=0.1)
    assert ahead(max_rounds=5, rounds=2) == 3
    assert ahead(counted=names(clients)) == 0
