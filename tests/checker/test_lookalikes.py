"""A wrong output is given the name of the known fault that it looks like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dflash_spec.tensors import Tensor
from dflash_vectors.commands.checking import fault_namer
from dflash_vectors.lookalikes import Guesser
from dflash_vectors.runners.protocol import Answer

EDGE = "ninfer-mask-draft-key-at-the-windows-edge"


def visible(*row: int) -> Tensor:
    return Tensor.of("U8", np.array([row]))


@pytest.fixture
def edge(vectors: Any) -> Any:
    """A row at position 4 with a window of 3 sees positions 2 and 3, and itself."""
    tensors = {
        "in.context_positions": vectors.i32([0, 1, 2, 3]),
        "in.context_length": vectors.i32(4),
        "in.positions": vectors.i32([4]),
        "in.window": vectors.i32(3),
        "in.causal": vectors.i32(0),
        "out.visible": visible(0, 0, 1, 1, 1),
    }
    vectors.add(EDGE, "mask.draft", ("MASK-002",), tensors)
    return vectors.case(EDGE)


def test_a_window_one_too_wide_is_named(edge: Any) -> None:
    (guess,) = Guesser()(edge, Answer({"out.visible": visible(0, 1, 1, 1, 1)}))
    assert guess.text.startswith("window-includes-distance-s: ")
    assert guess.text.endswith(")")


def test_the_right_output_and_one_that_no_fault_gives_are_given_no_name(edge: Any) -> None:
    assert Guesser()(edge, Answer({"out.visible": visible(0, 0, 1, 1, 1)})) == []
    assert Guesser()(edge, Answer({"out.visible": visible(1, 0, 1, 0, 1)})) == []
    assert Guesser()(edge, Answer({"out.visible": Tensor.of("U8", np.ones((2, 5), np.uint8))})) == []


def test_guessing_gives_up_when_its_patience_is_over(edge: Any) -> None:
    assert Guesser(-1.0)(edge, Answer({"out.visible": visible(0, 1, 1, 1, 1)})) == []


def test_the_command_names_faults_where_the_reference_is_installed() -> None:
    assert isinstance(fault_namer(), Guesser)
