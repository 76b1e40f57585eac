"""From ids to scores in one call beside the ops one by one: the same bits, and nothing given is written again."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from dflash_accelerated.native import available
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import head
from dflash_accelerated.ops.attention import Spans
from dflash_accelerated.ops.decoder import Decoder, Ends, Wanted
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.ops.rows import RowRange
from dflash_spec.errors import TensorError

from tests.accelerated.native.toy import (
    CPU,
    HIDDEN,
    LANES,
    SENSES,
    STARTS,
    check_same,
    context,
    drawn,
    ends,
    held,
    spans,
    stores,
    turns,
)

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")

KNOWN, PUBLIC = 71, 67
IDS = [3, 70, 0, 12, 12, 66, 9, 41, 5]


@pytest.mark.parametrize(("taps", "wanted"), [((), "proposing"), ((1,), "last"), ((2, 0, 1), "all"), ((0,), "none")])
@pytest.mark.parametrize("convolved", [True, False])
@pytest.mark.parametrize("numerics", SENSES.values(), ids=SENSES)
def test_a_pass_has_the_bits_of_its_parts(
    numerics: Numerics, convolved: bool, taps: tuple[int, ...], wanted: Wanted
) -> None:
    made, vocabulary, table = held(convolved, True, numerics), ends(numerics), turns(numerics)
    whole, parted = stores(numerics), stores(numerics)
    together = made.scored(IDS, vocabulary, whole, table, spans(), taps, wanted, wanted != "none")
    apart = Decoder.scored(made, torch.tensor(IDS), vocabulary, parted, table, spans(), taps, wanted)
    assert torch.equal(together.features, apart.features)
    check_same(whole, parted)
    if together.logits is None or apart.logits is None:
        assert (together.logits, apart.logits, together.chosen) == (None, None, None)
        return
    assert torch.equal(together.logits, apart.logits)
    assert together.chosen == head.chosen(apart.logits, PUBLIC, numerics)
    best = made.best(IDS, vocabulary, stores(numerics), table, spans(), wanted)
    assert best == together.chosen == apart.logits[:, :PUBLIC].float().argmax(dim=1).tolist()


def test_what_a_pass_gave_stays_as_it_is() -> None:
    """Rows that a sequence keeps are its own, whatever passes follow, of more rows or fewer."""
    numerics = SENSES["zlab-bf16"]
    made, vocabulary, table = held(False, True, numerics), ends(numerics), turns(numerics)
    first = made.scored(IDS, vocabulary, stores(numerics), table, spans(), (1, 0), "all", True)
    given = [part for part in (first.logits, first.features) if part is not None]
    before, chosen = [part.clone() for part in given], list(first.chosen or ())
    alone = Spans([0], [2], [1], CPU)
    for ids, own in ((IDS[::-1], spans()), ([33], alone), (IDS, spans())):
        made.scored(ids, vocabulary, stores(numerics), table, own, (2, 1), "all", True)
        made.best(ids, vocabulary, stores(numerics), table, own, "all")
    assert len(given) == 2
    assert all(map(torch.equal, given, before))
    assert first.chosen == chosen


@pytest.mark.parametrize("bad", [KNOWN, -1])
def test_an_id_without_a_row_is_refused_before_anything_is_written(bad: int) -> None:
    numerics = SENSES["zlab"]
    made, after, before = held(False, True, numerics), stores(numerics), stores(numerics)
    with pytest.raises(IndexError, match=rf"expected 0 to {KNOWN - 1}, rows of the table"):
        made.scored([*IDS[:-1], bad], ends(numerics), after, turns(numerics), spans(), (), "all")
    check_same(after, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 65, 131])
def test_a_row_whose_best_is_no_finite_number_chooses_nothing(rows: int, dtype: torch.dtype) -> None:
    numerics = SENSES["zlab"]
    scores = drawn(rows, rows, 90).to(dtype)
    scores[:, 80] = torch.inf  # not public
    expected = scores[:, :80].float().argmax(dim=1).tolist()
    for row, value in ((0, torch.nan), (rows // 2, torch.inf), (rows - 1, -torch.inf)):
        scores[row, slice(0, 80) if value == -torch.inf else slice(7, 8)] = value
        expected[row] = -1
    assert head.chosen(scores, 80, numerics) == expected
    assert head.torch.chosen(scores, 80, Numerics.of(numerics.profile)) == expected


@pytest.mark.parametrize("numerics", SENSES.values(), ids=SENSES)
def test_context_rows_are_taken_wherever_they_lie(numerics: Numerics) -> None:
    counts = [5, 13, 1]
    made, table, own = (
        context(numerics),
        turns(numerics),
        Spans(LANES, STARTS, counts, CPU),
    )
    features = numerics.activation(drawn(5, 19, 2 * HIDDEN))
    wide = torch.cat((features, features), dim=1)[:, : 2 * HIDDEN]
    one, two, three = features.split(counts)
    apart = torch.cat((features[:3], one, features[:2], two))
    ways = {
        "one after another": [RowRange(features, 0, 5), RowRange(features, 5, 13), RowRange(features, 18, 1)],
        "with gaps": [RowRange(apart, 3, 5), RowRange(apart, 10, 13), RowRange.of(three)],
        "in rows with a stride": [RowRange(wide, 0, 5), RowRange(wide, 5, 13), RowRange(wide, 18, 1)],
    }
    truth = stores(numerics)
    made(features, truth, table, own)
    for way, parts in ways.items():
        taken = stores(numerics)
        made.take(parts, taken, table, own)
        check_same(taken, truth)
        assert [len(part) for part in parts] == counts, way


@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_features_of_another_width_or_dtype_are_named(kernels: Any) -> None:
    numerics = replace(SENSES["zlab-bf16"], kernels=kernels)
    made = context(numerics)
    width = made.weights.fc.inputs
    for features in (torch.ones(5, width - 1).bfloat16(), torch.ones(5, width)):
        found = f"{features.dtype} [.., {features.shape[1]}], expected torch.bfloat16 [.., {width}]"
        message = re.escape(f"context: features {found}")
        with pytest.raises(TensorError, match=message):
            made(features, [], turns(numerics), spans())
        with pytest.raises(TensorError, match=message):
            made.take([RowRange.of(features)], [], turns(numerics), spans())


def test_a_pass_that_was_interrupted_leaves_nothing_half_written() -> None:
    """Ctrl-C between two addresses of a vocabulary: the next pass with it writes all of them."""
    numerics = SENSES["zlab-bf16"]
    made, one, table = held(False, True, numerics), ends(numerics), turns(numerics)
    other = Ends(one.table.flip(0), Product([numerics.weight(drawn(10, KNOWN, HIDDEN))], numerics), PUBLIC)

    class Once:
        table, public, interrupted = other.table, PUBLIC, False

        @property
        def head(self) -> Product:
            if not self.interrupted:
                self.interrupted = True
                raise KeyboardInterrupt
            return other.head

    def best(vocabulary: Any) -> list[int]:
        return made.best(IDS, vocabulary, stores(numerics), table, spans(), "all")

    wanted, once = best(other), Once()
    assert best(one) != wanted
    with pytest.raises(KeyboardInterrupt):
        made.scored(IDS, once, stores(numerics), table, spans(), (), "none")  # type: ignore[arg-type]
    assert best(once) == wanted
