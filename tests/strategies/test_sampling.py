"""Who is asked when: everybody once, the same for a seed, nobody for ever."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import Cohorts, SecureCohorts

seeds = st.integers(0, 2**32)
sizes = st.integers(1, 40)


def names(count):
    return [str(i) for i in range(count)]


def play(cohorts, fails=lambda client: False, limit=10_000):
    """Return the cohorts of all rounds, where ``fails`` says who is not counted."""
    rounds = []
    while not cohorts.done:
        assert len(rounds) < limit
        cohort = cohorts.draw()
        for client in cohort:
            if fails(client):
                cohorts.fail(client, f"{client} is ill.")
            else:
                cohorts.count(client)
        cohorts.close_round(cohort)
        rounds.append(cohort)
    return rounds


@given(sizes, st.integers(0, 50), seeds)
def test_without_replacement_everybody_is_asked_once_in_the_fewest_rounds(
    clients, per_round, seed
):
    cohorts = Cohorts(names(clients), per_round=per_round, seed=seed)
    rounds = play(cohorts)
    assert len(rounds) == math.ceil(clients / (per_round or clients))
    asked = [client for cohort in rounds for client in cohort]
    assert sorted(asked, key=int) == names(clients)
    assert not cohorts.missing
    assert not cohorts.failures


@given(sizes, st.integers(1, 10), seeds, st.booleans())
def test_a_seed_gives_the_same_cohorts_again(clients, per_round, seed, replace):
    one, other = (
        Cohorts(
            names(clients), per_round=per_round, seed=seed, with_replacement=replace
        )
        for _ in range(2)
    )
    assert play(one) == play(other)


def test_another_seed_gives_other_cohorts():
    drawn = {
        tuple(Cohorts(names(40), per_round=10, seed=seed).draw()) for seed in range(5)
    }
    assert len(drawn) == 5


@given(sizes, st.integers(1, 10), seeds)
def test_with_replacement_nobody_counted_is_asked_again(clients, per_round, seed):
    cohorts = Cohorts(
        names(clients), per_round=per_round, seed=seed, with_replacement=True
    )
    rounds = play(cohorts)
    asked = [client for cohort in rounds for client in cohort]
    assert sorted(asked, key=int) == names(clients)
    assert all(len(cohort) <= per_round for cohort in rounds)


@given(sizes, st.integers(1, 10), st.integers(1, 6), seeds)
def test_with_replacement_ends_at_the_limit_or_with_everybody(
    clients, per_round, limit, seed
):
    cohorts = Cohorts(
        names(clients),
        per_round=per_round,
        seed=seed,
        with_replacement=True,
        max_rounds=limit,
    )
    rounds = play(cohorts)
    assert len(rounds) <= limit
    assert len(rounds) == limit or not cohorts.missing
    assert cohorts.out_of_rounds == (len(rounds) == limit)


def test_with_replacement_takes_as_long_as_the_coupon_collector():
    # The design's table: 50 ± 12 rounds until 100 clients have come, 10 a round.
    lengths = [
        len(play(Cohorts(names(100), per_round=10, seed=seed, with_replacement=True)))
        for seed in range(200)
    ]
    assert sum(lengths) / 200 == pytest.approx(50, abs=4 * 12 / math.sqrt(200))


@given(sizes, st.integers(1, 10), st.integers(0, 3), seeds, st.booleans(), st.data())
def test_who_fails_is_asked_again_so_often_and_then_given_up_by_name(
    clients, per_round, retries, seed, replace, data
):
    ill = data.draw(st.sets(st.sampled_from(names(clients))))
    cohorts = Cohorts(
        names(clients),
        per_round=per_round,
        seed=seed,
        max_retries=retries,
        with_replacement=replace,
    )
    rounds = play(cohorts, fails=lambda client: client in ill)
    asked = [client for cohort in rounds for client in cohort]
    for client in names(clients):
        assert asked.count(client) == (1 + retries if client in ill else 1)
    assert set(cohorts.missing) == ill
    assert cohorts.failures == {client: f"{client} is ill." for client in ill}


def test_who_fails_is_asked_after_those_still_in_line():
    cohorts = Cohorts(names(4), per_round=2, seed=0, max_retries=1)
    first = cohorts.draw()
    cohorts.close_round(first)
    second = cohorts.draw()
    assert not set(first) & set(second)
    cohorts.close_round(second)
    assert cohorts.draw() == first


def test_who_recovers_is_counted_and_leaves_no_failure():
    cohorts = Cohorts(names(1), per_round=1, seed=0, max_retries=1)
    tries = iter([True, False])
    play(cohorts, fails=lambda client: next(tries))
    assert cohorts.counted == {"0"}
    assert not cohorts.failures


def test_silence_is_a_failure():
    cohorts = Cohorts(names(1), per_round=1, seed=0)
    cohorts.close_round(cohorts.draw())
    assert cohorts.done
    assert cohorts.failures == {"0": "no reply"}


@given(sizes, st.integers(1, 10), seeds, st.data())
def test_a_resumed_run_asks_only_the_others(clients, per_round, seed, data):
    counted = data.draw(st.sets(st.sampled_from(names(clients))))
    cohorts = Cohorts(names(clients), per_round=per_round, seed=seed, counted=counted)
    rounds = play(cohorts)
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
    clients, per_round, done, replies, seed, replace
):
    def cohorts(**earlier):
        return Cohorts(
            names(clients),
            per_round=per_round,
            seed=seed,
            with_replacement=replace,
            max_rounds=8 if replace else 0,
            **earlier,
        )

    whole = play(cohorts())
    done = min(done, len(whole))
    counted = {client for cohort in whole[:done] for client in cohort}
    following = whole[done:]
    if following and replies < len(following[0]):  # amid the next round
        counted.update(following[0][:replies])
        following = [following[0][replies:], *following[1:]]
    resumed = cohorts(counted=counted, rounds=done)
    if not replace:
        assert resumed.rounds_ahead == len(following)
    assert play(resumed) == following


@pytest.mark.parametrize("per_round", [0, 2])
def test_a_client_that_comes_later_is_asked_once(per_round):
    cohorts = Cohorts(names(3), per_round=per_round, seed=0)
    play(cohorts)
    cohorts.add("late")
    assert cohorts.missing == ("late",)
    assert play(cohorts) == [["late"]]
    cohorts.add("late")
    assert cohorts.done


def test_a_client_that_was_given_up_and_comes_back_is_asked_again():
    cohorts = Cohorts(names(3), per_round=0, seed=0, max_retries=1)
    play(cohorts, fails=lambda client: client == "1")
    assert cohorts.missing == ("1",)
    cohorts.add("1")
    assert play(cohorts) == [["1"]]
    assert not cohorts.missing


def test_who_is_lost_to_secure_aggregation_is_left_alone_though_it_comes_back():
    cohorts = SecureCohorts("abcd", group_size=4, per_round=0, seed=0, max_retries=3)
    cohort = cohorts.draw()
    cohorts.give_up("a", "lost")
    cohorts.close_round(cohort)
    for client in "abe":
        cohorts.add(client)
    assert sorted(cohorts.draw()) == ["b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("clients", "per_round", "rounds"), [(100, 10, 50), (100, 20, 24), (1262, 50, 191)]
)
def test_rounds_with_replacement_are_about_those_of_the_coupon_collector(
    clients, per_round, rounds
):
    def ahead(**options):
        cohorts = Cohorts(
            names(clients),
            per_round=per_round,
            seed=0,
            with_replacement=True,
            **options,
        )
        return cohorts.rounds_ahead

    assert ahead() == pytest.approx(rounds, rel=0.1)
    assert ahead(max_rounds=5, rounds=2) == 3
    assert ahead(counted=names(clients)) == 0
