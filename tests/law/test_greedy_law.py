"""Greedy requests, over every proposal chain that a draft could make."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from dflash_reference import block, law, stop
from dflash_reference.names import Position
from dflash_spec.registry import PROFILES, Profile, load_profile
from dflash_vectors import inputs
from dflash_vectors.faults import Fault, all_faults, applied

Tokens = tuple[int, ...]
VOCABULARY = 3
NO_STOPS = np.zeros(0, dtype=np.int64)
WHOLE = [load_profile(name) for name in PROFILES]


def said(history: Tokens) -> int:
    """The target's token after a history."""
    return int(inputs.hashes(f"greedy/{history}", (1,))[0] % np.uint64(VOCABULARY))


def plain(history: Tokens, length: int) -> Tokens:
    """Plain decoding: the next `length` tokens."""
    for _ in range(length):
        history += (said(history),)
    return history[len(history) - length :]


def round_of(history: Tokens, proposals: Tokens, remaining: int, profile: Profile) -> tuple[int, Tokens]:
    """The accepted count, and the tokens that a round keeps."""
    target = [said(history + proposals[:slot]) for slot in range(len(proposals) + 1)]
    accepted, licensed = law.greedy(np.array(proposals, np.int64), np.array(target), profile)
    kept = stop.preview(licensed[: accepted + 1], NO_STOPS, remaining, profile).kept
    return accepted, tuple(licensed[:kept].tolist())


def mistakes(profile: Profile, length: int = 6, drafts: int = 3) -> int:
    """How many chains, of all first rounds and every choice of a later one, do not end in plain decoding's text."""
    wrong = 0
    extent = block.extent(drafts, length, 10**6, Position(1), profile).extent
    for first, later in product(product(range(VOCABULARY), repeat=extent), repeat=2):
        history: Tokens = (1,)
        chain, expected = first, plain((1,), length)
        counts_right = True
        while len(history) <= length:
            remaining = length + 1 - len(history)
            width = block.extent(drafts, remaining, 10**6, Position(len(history)), profile).extent
            agree = [a == b for a, b in zip(chain[:width], plain(history, width), strict=True)]
            accepted, kept = round_of(history, chain[:width], remaining, profile)
            counts_right &= accepted == [*agree, False].index(False)
            history += kept
            chain = later
        wrong += history[1:] != expected or not counts_right
    return wrong


@pytest.mark.parametrize("profile", WHOLE, ids=PROFILES)
def test_every_chain_of_proposals_ends_in_the_text_of_plain_decoding(profile: Profile) -> None:
    assert mistakes(profile) == 0


GREEDY = [fault for fault in all_faults() if fault.clauses[0] in ("LAW-001", "LAW-002")]


@pytest.mark.parametrize("fault", GREEDY, ids=lambda fault: fault.name)
def test_faults_of_greedy_acceptance_are_seen_in_some_chain(fault: Fault) -> None:
    with applied(fault):
        assert mistakes(WHOLE[0]) > 0
