"""The output law of whole requests, by exact enumeration of every uniform, in rational arithmetic.

Target probabilities are FP32 values (multiples of 2^-24) taken as exact rationals, and depend on the whole history.
A uniform is continuous: between two neighbouring thresholds every u decides alike, so an inner point stands for the
interval and its length is the probability. Rounds follow rounds until a common length is reached.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise, product
from math import ceil, prod

import numpy as np
import pytest
from dflash_reference import block, law, stop
from dflash_reference.names import Position
from dflash_spec.registry import PROFILES, Profile, load_profile
from dflash_spec.tensors import Array
from dflash_vectors import inputs
from dflash_vectors.faults import Fault, all_faults, applied, patched

Tokens = tuple[int, ...]
Law = dict[Tokens, Fraction]
TICKS = 2**24
NO_STOPS = np.zeros(0, dtype=np.int64)

CASES = {
    "likely": (4, "likely"),
    "unlikely": (4, "unlikely"),
    "outside": (3, "outside"),
    "second": (3, "second"),
    "certain": (3, "likely"),
}
"""Name -> how many of five ids have probability, and which id the draft proposes after each history."""
IDS = (9, 4, 7, 2, 6)


def chance(case: str, history: Tokens) -> list[tuple[int, Fraction]]:
    """The target's support in draw order after `history`, largest first; the probabilities sum to exactly 1."""
    size = CASES[case][0]
    bits = inputs.hashes(f"law/{case}/{history}", (size,))
    cuts = sorted(int(cut) % TICKS for cut in bits[1:])
    weights = sorted((high - low for low, high in pairwise([0, *cuts, TICKS])), reverse=True)
    if case == "certain":
        weights = [TICKS - 3, 2, 1]
    turn = int(bits[0]) % size
    ids = IDS[:size][turn:] + IDS[:size][:turn]
    return [(token, Fraction(weight, TICKS)) for token, weight in zip(ids, weights, strict=True)]


def propose(case: str, history: Tokens, count: int) -> Tokens:
    """The draft's chain: each proposal follows the history and the proposals before it."""
    place = {"likely": 0, "second": 1, "unlikely": -1}
    for _ in range(count):
        policy = CASES[case][1]
        history += (IDS[-1] if policy == "outside" else chance(case, history)[place[policy]][0],)
    return history[len(history) - count :]


def plain(case: str, history: Tokens, length: int) -> Law:
    """Plain decoding: the law of the next `length` tokens."""
    found: Law = {(): Fraction(1)}
    for _ in range(length):
        found = {
            (*tokens, token): mass * p
            for tokens, mass in found.items()
            for token, p in chance(case, history + tokens)
            if p
        }
    return found


def intervals(thresholds: set[Fraction], keyed: bool) -> list[tuple[Fraction, Fraction]]:
    """Inner point and probability of each interval into which the thresholds cut [0, 1).

    `keyed` counts the multiples of 2^-24 in it, as the keyed uniforms have them, in place of its length.
    """
    cuts = sorted({Fraction(0), Fraction(1)} | {cut for cut in thresholds if 0 < cut < 1})
    if keyed:
        return [
            (Fraction(ceil(low * TICKS), TICKS), Fraction(ceil(high * TICKS) - ceil(low * TICKS), TICKS))
            for low, high in pairwise(cuts)
        ]
    return [((low + high) / 2, high - low) for low, high in pairwise(cuts)]


def exact(rows: list[list[Fraction]]) -> Array:
    held = np.empty((len(rows), len(rows[0])), dtype=object)
    for index, row in enumerate(rows):
        held[index] = row
    return held


def edges(weights: list[Fraction]) -> set[Fraction]:
    """Where a draw from these weights may change, in whatever order it takes them: every subset's share of the mass."""
    sums = {Fraction(0)}
    for weight in weights:
        sums |= {total + weight for total in sums}
    return {total / max(sums) for total in sums} if max(sums) else set()


def verdicts(
    case: str, history: Tokens, proposals: Tokens, profile: Profile, keyed: bool
) -> dict[tuple[int, Tokens], Fraction]:
    """The joint law of accepted count and licensed tokens of one verify, as the reference decides it."""
    rows = [chance(case, history + proposals[:slot]) for slot in range(len(proposals) + 1)]
    support, p = np.array([[t for t, _ in row] for row in rows]), exact([[q for _, q in row] for row in rows])
    tests = [
        intervals({dict(row).get(proposal, Fraction(0))}, keyed) for row, proposal in zip(rows, proposals, strict=False)
    ]
    found: dict[tuple[int, Tokens], Fraction] = defaultdict(Fraction)
    for coins in product(*tests):
        u_accept = np.array([coin for coin, _ in coins], dtype=object)
        mass = prod((length for _, length in coins), start=Fraction(1))

        def judge(u: Fraction, coins: Array = u_accept) -> law.Verdict:
            return law.one_hot(np.array(proposals, np.int64), support, p, coins, u, profile)

        accepted = judge(Fraction(0)).accepted if mass else 0
        row = rows[accepted]
        rejected = proposals[accepted] if accepted < len(proposals) else None
        ends = edges([q for _, q in row]) | edges([Fraction(0) if t == rejected else q for t, q in row])
        for u, length in intervals(ends, keyed) if mass else ():
            if length:
                licensed = judge(u).licensed[: accepted + 1]
                found[accepted, tuple(licensed.tolist())] += mass * length
    return dict(found)


def speculative(
    case: str, history: Tokens, length: int, drafts: int, profile: Profile, keyed: bool = False
) -> dict[tuple[int, Tokens], Fraction]:
    """The joint law of the first round's accepted count and the next `length` tokens, over rounds of `drafts`."""
    found: dict[tuple[int, Tokens], Fraction] = defaultdict(Fraction)
    extent = block.extent(drafts, length, 10**6, Position(len(history)), profile).extent
    rests: dict[Tokens, Law] = {}
    for (accepted, licensed), mass in verdicts(
        case, history, propose(case, history, extent), profile, keyed
    ).items():  # fmt: skip
        head = licensed[: stop.preview(np.array(licensed), NO_STOPS, length, profile).kept]
        if len(head) == length:
            rests[head] = {(): Fraction(1)}
        elif head not in rests:
            rests[head] = marginal(speculative(case, history + head, length - len(head), drafts, profile, keyed))
        for tokens, share in rests[head].items():
            found[accepted, head + tokens] += mass * share
    return dict(found)


def marginal(joint: dict[tuple[int, Tokens], Fraction]) -> Law:
    """The law of the tokens alone."""
    found: Law = defaultdict(Fraction)
    for (_, tokens), mass in joint.items():
        found[tokens] += mass
    return dict(found)


def closed_form(case: str, history: Tokens, length: int, drafts: int, profile: Profile) -> dict[
    tuple[int, Tokens], Fraction
]:  # fmt: skip
    """The joint law as it must be: a text of plain decoding's law goes with the count of its leading proposals."""
    extent = block.extent(drafts, length, 10**6, Position(len(history)), profile).extent
    proposals = propose(case, history, extent)
    found: dict[tuple[int, Tokens], Fraction] = defaultdict(Fraction)
    for tokens, mass in plain(case, history, max(length, extent)).items():
        same = [token == proposal for token, proposal in zip(tokens, proposals, strict=False)]
        found[[*same, False].index(False), tokens[:length]] += mass
    return dict(found)


REQUESTS = [(case, drafts, length) for case in CASES for drafts, length in ((1, 3), (2, 4), (3, 4))]


@pytest.mark.parametrize("profile", [load_profile(name) for name in PROFILES], ids=PROFILES)
@pytest.mark.parametrize(("case", "drafts", "length"), REQUESTS)
def test_tokens_have_the_law_of_plain_decoding(case: str, drafts: int, length: int, profile: Profile) -> None:
    assert marginal(speculative(case, (1,), length, drafts, profile)) == plain(case, (1,), length)


@pytest.mark.parametrize("profile", [load_profile(name) for name in PROFILES], ids=PROFILES)
@pytest.mark.parametrize(("case", "drafts", "length"), REQUESTS)
def test_the_accepted_count_goes_with_the_text_that_it_must(
    case: str, drafts: int, length: int, profile: Profile
) -> None:
    assert speculative(case, (1,), length, drafts, profile) == closed_form(case, (1,), length, drafts, profile)


@pytest.mark.parametrize("case", CASES)
def test_keyed_uniforms_move_no_probability_by_more_than_a_tick_per_draw(case: str) -> None:
    profile, length, drafts = load_profile("ninfer"), 3, 2
    found = marginal(speculative(case, (1,), length, drafts, profile, keyed=True))
    draws = length * (drafts + 1)
    for tokens, p in plain(case, (1,), length).items():
        assert abs(found.get(tokens, Fraction(0)) - p) <= Fraction(draws, TICKS)
    assert sum(found.values()) == 1


def dies_by_law(profile: Profile) -> bool:
    """Whether the enumeration notices what is wrong with the reference at the moment."""
    try:
        return any(
            speculative(case, (1,), length, drafts, profile) != closed_form(case, (1,), length, drafts, profile)
            for case, drafts, length in REQUESTS
        )
    except Exception:
        return True


GREEDY = {"LAW-001", "LAW-002"}
SPARSE = {"accepted_sparse", "covered_or_under", "fp32_product", "sparse", "sparse_correction", "under"}
"""Functions of the law module that only a proposal with its own law reaches."""
ONE_HOT = [
    fault
    for fault in all_faults()
    if fault.target.startswith("dflash_reference.law.")
    and fault.target.rpartition(".")[2] not in SPARSE
    and not GREEDY & set(fault.clauses)
]
INVISIBLE = {
    "coin-equal-to-p-accepts": "differs on a set of uniforms of length 0",
    "nothing-left-draws-from-p": "probabilities that sum to 1 leave nothing only after a rejection of probability 0",
    "nothing-left-takes-the-first": "the same",
    "nothing-left-yields-no-token": "the same",
    "rejected-proposals-stay-licensed": "only the licensed tokens are read",
    "correction-by-token-id": "another draw of the same law",
}
"""Faults of acceptance that keep the law, and why; vectors at the edges catch them."""


@pytest.mark.parametrize("fault", ONE_HOT, ids=lambda fault: fault.name)
def test_faults_of_acceptance_break_the_law_unless_a_reason_is_named(fault: Fault) -> None:
    profile = load_profile(fault.profiles[0])
    with applied(fault):
        assert dies_by_law(profile) == (fault.name not in INVISIBLE)


def test_a_round_that_throws_its_proposals_away_keeps_the_law_and_is_still_noticed() -> None:
    def lazy(true: Callable[..., law.Verdict]) -> Callable[..., law.Verdict]:
        def wrong(
            proposals: Array, support: Array, p: Array, u_accept: Array, u: Fraction, profile: Profile
        ) -> law.Verdict:
            return true(proposals[:0], support[:1], p[:1], u_accept[:0], u, profile)

        return wrong

    profile = load_profile("ninfer")
    with patched("dflash_reference.law.one_hot", lazy):
        found = speculative("likely", (1,), 3, 2, profile)
        assert marginal(found) == plain("likely", (1,), 3)
        assert found != closed_form("likely", (1,), 3, 2, profile)
