"""Asynchronous steps, against a scheduler that knows the truth and one that guesses."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from dflash_reference import asynchronous, page
from dflash_reference.names import TokenId
from dflash_spec.errors import TensorError
from dflash_spec.registry import load_profile
from hypothesis import given, settings
from hypothesis import strategies as st

NEURON = load_profile("vllm-neuron")
VOCABULARY, K, BLOCK, MASK = 40, 3, 4, TokenId(39)
SAMPLES = st.lists(st.lists(st.integers(-1, VOCABULARY + 3), min_size=K + 1, max_size=K + 1), min_size=1, max_size=4)


def is_token(sample: int) -> bool:
    return 0 <= sample < VOCABULARY


@given(SAMPLES)
def test_valid_samples_are_counted_wherever_they_stand(sampled: list[list[int]]) -> None:
    found = asynchronous.valid(np.array(sampled), VOCABULARY, NEURON).valid.tolist()
    assert found == [sum(is_token(sample) for sample in row) for row in sampled]


@given(SAMPLES)
def test_the_bonus_is_the_last_token_or_there_is_none(sampled: list[list[int]]) -> None:
    tokens = [[sample for sample in row if is_token(sample)] for row in sampled]
    if all(tokens):
        found = asynchronous.bonus(np.array(sampled), VOCABULARY, NEURON).bonus.tolist()
        assert found == [row[-1] for row in tokens]
    else:
        with pytest.raises(TensorError, match="expected a token below 40 in each row"):
            asynchronous.bonus(np.array(sampled), VOCABULARY, NEURON)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 4))
def test_rows_belong_to_their_requests_and_padding_to_none(counts: list[int], padding: int) -> None:
    last = np.cumsum(counts) - 1
    found = asynchronous.rows(last, sum(counts) + padding, NEURON).requests.tolist()
    expected = [request for request, count in enumerate(counts) for _ in range(count)]
    assert found == expected + [-1] * padding


@pytest.mark.parametrize(("last", "rows"), [([2, 2], 5), ([3, 1], 5), ([1, 5], 5), ([-1, 2], 5)])
def test_last_rows_that_do_not_increase_within_the_batch_are_refused(last: list[int], rows: int) -> None:
    with pytest.raises(TensorError, match=r"async\.rows: last rows .*, expected increasing ones from 0 to 4"):
        asynchronous.rows(np.array(last), rows, NEURON)


@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_a_block_is_one_bonus_and_k_masks_in_a_row_for_every_request(
    requests: int, drafts: int, data: st.DataObject
) -> None:
    bonus = np.array(data.draw(st.lists(st.integers(0, 30), min_size=requests, max_size=requests)))
    lengths = np.array(data.draw(st.lists(st.integers(0, 99), min_size=requests, max_size=requests)))
    ids, positions, keep = asynchronous.block(bonus, lengths, drafts, MASK, NEURON)
    blocks = ids.reshape(requests, drafts + 1)
    assert blocks[:, 0].tolist() == bonus.tolist()
    assert (blocks[:, 1:] == MASK).all()
    assert (positions.reshape(requests, -1) - lengths[:, None] == np.arange(drafts + 1)).all()
    assert ids[keep].tolist() == [MASK] * (requests * drafts)
    assert sorted(set(range(len(ids))) - set(keep.tolist())) == [(drafts + 1) * r for r in range(requests)]
    prefixed, alone = asynchronous.outputs(bonus, positions[keep], NEURON)
    assert prefixed[:, 0].tolist() == bonus.tolist()
    assert prefixed[:, 1:].tolist() == alone.tolist()
    assert (alone - lengths[:, None] == np.arange(1, drafts + 1)).all()


class Request(NamedTuple):
    """A request in truth: its tokens so far, drafts and tokens of the step before, drafts and tokens of this one."""

    id: int
    length: int
    before: tuple[int, int]
    drafts: int
    tokens: int


@st.composite
def batches(draw: Any) -> list[Request]:
    ids = draw(st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True))
    found = []
    for id_ in ids:
        earlier = draw(st.integers(0, K))
        drafts = draw(st.integers(0, K))
        found.append(
            Request(id_, draw(st.integers(0, 12)), (earlier, draw(st.integers(1, earlier + 1))), drafts,
                    draw(st.integers(1, drafts + 1)))
        )  # fmt: skip
    return found


def sampled(tokens: int) -> list[int]:
    return [5 + at if at < tokens else -1 for at in range(K + 1)]


@settings(max_examples=60)
@given(batches(), st.data())
def test_a_step_prepared_in_ignorance_ends_where_the_truth_would_have_it(
    batch: list[Request], data: st.DataObject
) -> None:
    """The scheduler counts all drafts of the step before as accepted; rows of that step come in another order."""
    earlier = [request for request in data.draw(st.permutations(batch)) if data.draw(st.booleans())]
    strangers = [(200 + n, (K, 1)) for n in range(data.draw(st.integers(0, 2)))]
    before = data.draw(st.permutations([(request.id, request.before) for request in earlier] + strangers))
    known = dict(before)
    positions, last = [], []
    for request in batch:
        drafts, tokens = known.get(request.id, (0, 1))
        ahead = request.length + (1 + drafts - tokens)
        positions += list(range(ahead, ahead + 1 + request.drafts))
        last.append(len(positions) - 1)
    padding = data.draw(st.integers(0, 3))
    table = np.arange(1, 1 + 8 * len(batch)).reshape(len(batch), 8)
    done = asynchronous.prepare(
        np.array(positions + [0] * padding), np.array(last), np.array([sampled(r.tokens) for r in batch]),
        np.array([r.drafts for r in batch]), np.array([r.id for r in batch]),
        np.array([id_ for id_, _ in before], dtype=int),
        np.array([sampled(tokens) for _, (_, tokens) in before], dtype=int).reshape(-1, K + 1),
        np.array([drafts for _, (drafts, _) in before], dtype=int), table, BLOCK, 100, K, MASK, VOCABULARY, NEURON,
    )  # fmt: skip
    context, ids, at, slots = [], [], [], []
    for row, request in enumerate(batch):
        end = request.length + request.tokens
        for position in range(request.length, request.length + 1 + request.drafts):
            context.append(table[row, position // BLOCK] * BLOCK + position % BLOCK if position < end else -1)
        ids += [5 + request.tokens - 1] + [MASK] * K
        at += list(range(end, end + K + 1))
        slots += [table[row, position // BLOCK] * BLOCK + position % BLOCK for position in range(end, end + K + 1)]
    assert done.context_slots.tolist() == context + [-1] * padding
    assert done.block_ids.tolist() == ids
    assert done.block_positions.tolist() == at
    assert done.slots.tolist() == slots
    assert not set(slots) & set(context)
    assert done.requests.tolist() == [row for row, r in enumerate(batch) for _ in range(1 + r.drafts)] + [-1] * padding


@given(batches(), st.data())
def test_rejections_follow_the_request_through_any_reordering(batch: list[Request], data: st.DataObject) -> None:
    order = data.draw(st.permutations(batch))
    joined = [*order, Request(777, 3, (2, 1), 0, 1)]
    found = asynchronous.remap(
        np.array([r.id for r in batch]), np.array([sampled(r.before[1]) for r in batch]),
        np.array([r.before[0] for r in batch]), np.array([r.id for r in joined]), VOCABULARY, NEURON,
    ).rejected  # fmt: skip
    assert found.tolist() == [1 + r.before[0] - r.before[1] for r in order] + [0]


def test_without_counts_every_request_is_taken_to_have_k_drafts() -> None:
    rows = np.array([sampled(1), sampled(4)])
    given_ = np.array([20, 30]), rows
    none = np.array([], dtype=int)
    assert asynchronous.lengths(*given_, none, K, VOCABULARY, NEURON).verified.tolist() == [17, 30]
    assert asynchronous.lengths(*given_, np.array([0, 3]), K, VOCABULARY, NEURON).verified.tolist() == [20, 30]


def test_corrected_rows_are_those_that_a_table_of_pages_expects() -> None:
    """Two rows that lost two drafts: their slots lie two further back, the other request's do not move."""
    requests = np.array([0, 0, 1])
    at = asynchronous.positions(np.array([12, 13, 40]), requests, np.array([2, 0]), NEURON).corrected
    assert at.tolist() == [10, 11, 40]
    table = np.tile(np.arange(1, 12), (2, 1))
    assert page.slots_clamped(table, requests, at, 4, NEURON).slots.tolist() == [14, 15, 44]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: asynchronous.positions(np.array([3]), np.array([-1]), np.array([1]), NEURON),
            r"requests \[-1\], expected 0 to 0",
        ),
        (
            lambda: asynchronous.positions(np.array([3]), np.array([1]), np.array([1]), NEURON),
            r"requests \[1\], expected 0 to 0",
        ),
        (
            lambda: asynchronous.remap(np.array([4, 4]), np.zeros((2, 1)), np.array([0, 0]), np.array([4]), 9, NEURON),
            r"request ids \[4, 4\], expected each once",
        ),
        (
            lambda: asynchronous.lengths(np.array([4, 5]), np.array([[1], [2]]), np.array([0]), 0, 9, NEURON),
            "1 draft counts, expected none or 2",
        ),
        (lambda: asynchronous.block(np.array([1]), np.array([4]), 0, MASK, NEURON), "0 drafts, expected at least 1"),
        (
            lambda: asynchronous.outputs(np.array([1, 2]), np.array([3, 4, 5]), NEURON),
            "3 proposals of 2 requests, expected K of each",
        ),
        (lambda: asynchronous.outputs(np.array([]), np.array([]), NEURON), "0 proposals of 0 requests"),
    ],
)  # fmt: skip
def test_what_belongs_to_no_request_is_refused(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(TensorError, match=message):
        call()
