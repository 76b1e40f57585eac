"""The tensor type: what it takes, what it refuses, and that no code is lost on the way to a file and back."""

import numpy as np
import pytest
from dflash_spec.errors import TensorError
from dflash_spec.tensors import STORED, Tensor
from hypothesis import given
from hypothesis import strategies as st

EVERY_CODE = np.arange(2**16, dtype=np.uint16).tobytes()
INTEGERS = [name for name, held in STORED.items() if held.kind in "iu" and name != "BF16"]


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_short_float_code_survives_decoding_and_encoding(dtype: str) -> None:
    tensor = Tensor.decode(dtype, (256, 256), EVERY_CODE)
    assert tensor.values.dtype == np.float32
    assert tensor.encode() == EVERY_CODE


def test_bf16_decoding_gives_the_values_of_the_upper_half_of_fp32() -> None:
    codes = np.array([0x3F80, 0xC000, 0x0001, 0x7F80], dtype="<u2")
    values = Tensor.decode("BF16", (4,), codes.tobytes()).values
    assert values.tolist() == [1.0, -2.0, 2.0**-133, float("inf")]


@pytest.mark.parametrize("dtype", list(STORED))
def test_a_scalar_is_an_array_of_no_axes_after_decoding(dtype: str) -> None:
    tensor = Tensor.decode(dtype, (), bytes(STORED[dtype].itemsize))
    assert isinstance(tensor.values, np.ndarray)
    assert tensor.shape == ()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("BF16", 1 + 2**-8), ("F16", 65519.0), ("F16", 1 + 2**-11), ("F32", 1 + 2**-24), ("F32", 2**24 + 1),
        ("F32", 1e39), ("U8", 256), ("U8", -1), ("I32", 2**31), ("U32", -1), ("I64", 2**63), ("U64", -1),
        ("F32", 2**63 - 1),
    ],
)  # fmt: skip
def test_a_value_that_the_dtype_cannot_hold_is_refused(dtype: str, value: float) -> None:
    with pytest.raises(TensorError, match=rf"here: a value is not representable in {dtype}"):
        Tensor.of(dtype, np.array([value]), "here")


@pytest.mark.parametrize(("dtype", "value"), [("I32", 1.0), ("F32", "1"), ("U8", None), ("F32", 1j)])
def test_values_of_another_kind_are_refused(dtype: str, value: object) -> None:
    with pytest.raises(TensorError, match=f"expected {dtype}"):
        Tensor.of(dtype, value)


def test_a_dtype_that_no_file_holds_is_refused() -> None:
    with pytest.raises(TensorError, match="dtype 'F64', expected one of BF16"):
        Tensor.of("F64", 1.0)


@given(st.sampled_from(INTEGERS), st.data())
def test_every_integer_of_a_type_is_taken_as_it_is(dtype: str, data: st.DataObject) -> None:
    bounds = np.iinfo(STORED[dtype])
    value = data.draw(st.integers(int(bounds.min), int(bounds.max)))
    assert int(Tensor.of(dtype, np.array(value, STORED[dtype])).values) == value


@given(st.floats(width=32))
def test_every_fp32_value_is_taken_as_it_is(value: float) -> None:
    kept = Tensor.of("F32", value).values
    assert np.array_equal(kept, np.float32(value), equal_nan=True)
    assert np.signbit(kept) == np.signbit(value)
