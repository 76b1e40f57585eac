"""Inputs are keyed, representable, and tell places apart."""

import numpy as np
import pytest
from dflash_spec.tensors import Tensor
from dflash_vectors import inputs


def test_hashes_are_splitmix64():
    # The seed is the key's hash; the stream is checked by undoing it: state i is seed + (i + 1) * the golden constant.
    first = inputs.hashes("a key", (5,))
    again = inputs.hashes("a key", (3,))
    assert first.dtype == np.uint64
    assert np.array_equal(first[:3], again)
    assert not np.array_equal(first, inputs.hashes("another key", (5,)))
    # SHA-256 of the empty key starts with e3b0c44298fc1c14, little-endian seed 141cfc9842c4b0e3.
    seed, mask = 0x141CFC9842C4B0E3, (1 << 64) - 1
    z = (seed + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    assert int(inputs.hashes("", (1,))[0]) == z ^ (z >> 31)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize(
    "make",
    [
        lambda dtype: inputs.uniform("u", (7, 5), -1.7, 1.3, dtype),
        lambda dtype: inputs.normal_like("n", (7, 5), 0.3, dtype),
        lambda dtype: inputs.telling("t", (7, 5), dtype),
        lambda dtype: inputs.weights("w", (7, 5), dtype),
        lambda dtype: inputs.norm_weights("g", (7,), dtype),
    ],
)
def test_values_are_representable_in_the_dtype_asked_for(make, dtype):
    Tensor.of(dtype, make(dtype))


def test_represent_goes_to_the_nearest_value_and_to_even_on_ties():
    # BF16 has 7 fraction bits: 1 + 2^-8 is a tie between 1 and 1 + 2^-7, 1 + 3 * 2^-8 between 1 + 2^-7 and 1 + 2^-6.
    assert inputs.represent(np.array([1 + 2**-8, 1 + 3 * 2**-8]), "BF16").tolist() == [1.0, 1 + 2**-6]
    assert inputs.represent(1 + 2**-8 + 2**-20, "BF16").tolist() == 1 + 2**-7
    with pytest.raises(ValueError, match="I32"):
        inputs.represent(1.0, "I32")


def test_lattice_values_are_multiples_of_the_step_within_the_limit():
    values = inputs.lattice("l", (400,), 0.25, 1.5)
    assert set(values.tolist()) == {k * 0.25 for k in range(-6, 7)}


def test_bell_shaped_values_have_the_scale_asked_for():
    values = inputs.normal_like("b", (20_000,), 0.5, "F32")
    # Four standard errors of mean and deviation of 20,000 draws.
    assert abs(values.mean()) < 4 * 0.5 / np.sqrt(20_000)
    assert abs(values.std() - 0.5) < 4 * 0.5 / np.sqrt(2 * 20_000)
    assert np.abs(values).max() < 3.5 * 0.5


def test_telling_slices_differ_along_every_axis():
    values = inputs.telling("t", (4, 6, 5), "BF16")
    for axis in range(3):
        rows = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
        assert len({row.tobytes() for row in rows}) == values.shape[axis]


def test_tokens_are_in_range_and_never_repeat_at_once():
    ids = inputs.tokens("t", 300, 3)
    assert set(ids.tolist()) == {0, 1, 2}
    assert (np.diff(ids) != 0).all()


def test_text_gives_the_bytes_of_a_text_or_of_canonical_json():
    assert inputs.text({"b": 1, "a": [2]}).tobytes() == b'{"a":[2],"b":1}'
    assert inputs.text("ä").tolist() == [0xC3, 0xA4]
