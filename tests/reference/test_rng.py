"""The keyed hash against SplitMix64's published output and the twelve values derived from its formula."""

import numpy as np
import pytest
from dflash_reference import rng
from dflash_spec.registry import load_profile
from hypothesis import given
from hypothesis import strategies as st

PROFILE = load_profile("ninfer")

DERIVED = [
    (0, 0, 0, 0, 0xA706DD2F4D197E6F, 10946269),
    (0, 0, 1, 0, 0xF80C906B32804646, 16256144),
    (1, 0, 0, 0, 0x5E41AB087439611E, 6177195),
    (42, 100, 1, 0, 0x8699EDA4CB17AACF, 8821229),
    (42, 100, 5, 0, 0x3C42A6BD37DD75DA, 3949222),
    (123456789, 262143, 2, 0, 0x51437D87B7B4BE4D, 5325693),
    (42, 101, 2, 0, 0xB5FB9AE5FD85C51A, 11926426),
    (42, 101, 2, 1, 0x8C9E3944D297D99E, 9215545),
    (42, 101, 3, 0, 0x6590DBDF8B64B74E, 6656219),
    (42, 101, 4, 0, 0x6E7640A9B6660F7F, 7239232),
    (42, 103, 5, 257, 0xF58928C1B8877D8A, 16091432),
    (2**64 - 1, 2**31 - 1, 4, 0, 0xE7C0075372C8584B, 15187975),
]
"""seed, position, purpose, sub-index, key, top 24 bits."""


def test_mixing_zero_gives_the_first_published_output_of_splitmix64() -> None:
    assert rng.mix(np.array([0], np.uint64)).tolist() == [0xE220A8397B1DCDAF]


@pytest.mark.parametrize(("seed", "position", "purpose", "sub", "key", "top"), DERIVED)
def test_a_derived_key_and_its_uniform(seed: int, position: int, purpose: int, sub: int, key: int, top: int) -> None:
    got = rng.uniform(seed, position, purpose, sub, PROFILE)
    assert got.key.tolist() == [key]
    assert got.u.tolist() == [top / 2**24]
    assert rng.draw(seed, position, purpose, sub) == top / 2**24


def test_draws_of_a_batch_are_those_of_single_calls() -> None:
    seed, position, purpose, sub, key, _ = (np.array(column, np.uint64) for column in zip(*DERIVED, strict=True))
    got = rng.uniform(seed, position, purpose, sub, PROFILE)
    assert got.key.tolist() == key.tolist()


def test_position_and_purpose_are_extended_with_zeros() -> None:
    signed = rng.draw_key(7, np.array([-1], np.int32), np.array([-2], np.int32), 0)
    assert signed.tolist() == rng.draw_key(7, 2**32 - 1, 2**32 - 2, 0).tolist()


def test_the_uniform_reaches_zero_and_never_one() -> None:
    ends = np.array([2**40 - 1, 2**64 - 1], np.uint64)
    assert rng.to_uniform(ends).tolist() == [0.0, 1 - 2.0**-24]


@pytest.mark.parametrize(
    ("extent", "accepted", "accept", "terminal"),
    [
        (3, 1, [[8, 2, 0], [9, 2, 0], [10, 2, 0]], [9, 3, 0]),
        (3, 3, [[8, 2, 0], [9, 2, 0], [10, 2, 0]], [11, 4, 0]),
        (0, 0, [], [8, 4, 0]),
    ],
)
def test_the_keys_of_a_round_at_frontier_seven(
    extent: int, accepted: int, accept: list[list[int]], terminal: list[int]
) -> None:
    got = rng.round_keys(7, extent, accepted, PROFILE)
    assert got.accept.shape == (extent, 3)
    assert got.accept.tolist() == accept
    assert got.terminal.tolist() == terminal


def test_the_keys_of_plain_decoding() -> None:
    got = rng.plain_keys(5, 9, PROFILE)
    assert got.prefill.tolist() == [5, 0, 0]
    assert got.decode.tolist() == [9, 1, 0]


def test_a_proposals_draws_are_keyed_one_position_before_their_tokens() -> None:
    assert rng.proposal_keys(7, 3, PROFILE).keys.tolist() == [[7, 5, 0], [8, 5, 0], [9, 5, 0]]
    assert rng.proposal_keys(7, 0, PROFILE).keys.shape == (0, 3)


REQUEST = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**18), st.integers(0, 7)).flatmap(
    lambda fixed: st.tuples(*map(st.just, fixed), st.integers(0, fixed[2]))
)
"""seed, frontier, extent, accepted."""


@given(
    requests=st.lists(REQUEST, min_size=1, max_size=5), width=st.integers(7, 9), drawn=st.integers(0, 2**31 - 1),
    data=st.data(),
)  # fmt: skip
def test_a_requests_uniforms_are_its_own_in_any_batch_of_any_width_at_any_age(
    requests: list[tuple[int, int, int, int]], width: int, drawn: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(requests))))
    shuffled = [requests[place] for place in order]
    seeds = np.array([request[0] for request in shuffled], np.uint64)
    frontiers, extents, kept = (np.array([request[place] for request in shuffled]) for place in (1, 2, 3))
    got = rng.batch_uniforms(seeds, frontiers, extents, kept, width, drawn, PROFILE)
    assert got.accept.shape == (len(requests), width)
    for row, (seed, frontier, extent, accepted) in enumerate(shuffled):
        purpose = rng.CORRECTION if accepted < extent else rng.BONUS
        tests = [rng.draw(seed, frontier + slot + 1, rng.ACCEPT) for slot in range(extent)]
        assert got.accept[row].tolist() == tests + [0.0] * (width - extent)
        assert got.terminal[row] == rng.draw(seed, frontier + accepted + 1, purpose)
