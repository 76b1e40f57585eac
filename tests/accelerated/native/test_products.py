"""Products in C against float64: in tiles, in pairs of BF16 and in FP32, as this and smaller machines multiply."""

from __future__ import annotations

import ctypes
import math
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from dflash_accelerated.native import CODES, available, kernels
from dflash_accelerated.ops.linear import native
from dflash_accelerated.ops.linear.native import BareProducts, PackedWeight, multiply
from dflash_spec.errors import TensorError
from torch import Tensor

from tests.accelerated.native.compiled import compiled

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")
F32, BF16 = torch.float32, torch.bfloat16
X86 = platform.machine() == "x86_64"
MACHINES = ("here", "without-tiles", "x86-64-v4", "x86-64-v3", "x86-64")
NEEDED = {"x86-64-v4": " avx512f ", "x86-64-v3": " avx2 "}
HEADERS = ("vectors", "threads", "tiles", "products")
SHAPES = [(1, 1), (17, 33), (34, 37), (70, 1056), (130, 64), (20, 2080), (3, 4200)]
ROWS = [1, 3, 5, 9, 16, 23, 48, 100, 260]


class Sense(NamedTuple):
    """The dtypes of weight, rows, result and residual."""

    weight: torch.dtype
    x: torch.dtype
    out: torch.dtype
    residual: torch.dtype | None


SENSES = [
    Sense(BF16, BF16, BF16, None),
    Sense(BF16, BF16, BF16, BF16),
    Sense(BF16, BF16, F32, F32),
    Sense(BF16, F32, BF16, None),
    Sense(F32, BF16, F32, None),
    Sense(F32, BF16, BF16, BF16),
    Sense(F32, F32, F32, F32),
]


@pytest.fixture(scope="module")
def built_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ctypes.CDLL]:
    """The products alone, compiled for another machine, once."""
    made: dict[str, ctypes.CDLL] = {}

    def found(machine: str) -> ctypes.CDLL:
        if machine not in made:
            library = compiled(tmp_path_factory.mktemp(machine), machine, HEADERS, ("pack", "product", "products"))
            library.packed_bytes.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_int]
            library.packed_bytes.restype = ctypes.c_int64
            made[machine] = library
        return made[machine]

    return found


@pytest.fixture(params=MACHINES)
def machine(
    request: pytest.FixtureRequest, built_for: Callable[[str], ctypes.CDLL], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Products as another machine multiplies them, where this one can."""
    name: str = request.param
    if name.startswith("x86"):
        if not X86 or NEEDED.get(name, "") not in Path("/proc/cpuinfo").read_text("utf-8"):
            pytest.skip(f"no {name} here")
        library = built_for(name)
        monkeypatch.setattr(native, "kernels", lambda: library)
    if name == "without-tiles":
        kernels().use_tiles(0)
    yield name
    kernels().use_tiles(1)


def drawn(*shape: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_product(made: Tensor, x: Tensor, weight: Tensor, residual: Tensor | None = None) -> None:
    """Each of n products and n sums rounds to FP32 at most once, the residual's sum too: together not more than
    (2n + 1) · 2⁻²⁴ of the sum of magnitudes. BF16 then rounds by half a step, 2⁻⁸ of the value at most."""
    exact, spread = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
    if residual is not None:
        exact, spread = exact + residual.double(), spread + residual.double().abs()
    allowed = (2 * x.shape[1] + 1) * 2.0**-24 * spread
    if made.dtype == BF16:
        allowed += (exact.abs() + allowed) * 2.0**-8
    assert made.shape == exact.shape
    assert bool(((made.double() - exact).abs() <= allowed).all())


@pytest.mark.parametrize("sense", SENSES, ids=lambda sense: "-".join(str(part).split(".")[-1] for part in sense))
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
def test_products_are_right_and_no_row_depends_on_its_neighbours(
    machine: str, shape: tuple[int, int], sense: Sense
) -> None:
    """Rows on both sides of what tiles, register blocks and tasks take; each again on its own, bit for bit."""
    weight = drawn(*shape, dtype=sense.weight)
    packed = PackedWeight(weight, BF16)
    x = drawn(max(ROWS), shape[1], dtype=sense.x, seed=2)
    residual = None if sense.residual is None else drawn(max(ROWS), shape[0], dtype=sense.residual, seed=3)

    def product(low: int, high: int) -> Tensor:
        return multiply(packed.reference, x[low:high], sense.out, None if residual is None else residual[low:high])

    whole = product(0, max(ROWS))
    assert_product(whole, x, weight, residual)
    for rows in ROWS:
        assert torch.equal(product(0, rows), whole[:rows])
        assert torch.equal(product(max(ROWS) - rows, max(ROWS)), whole[-rows:])
    for row in range(7):
        assert torch.equal(product(row, row + 1), whole[row : row + 1])


@pytest.mark.parametrize("sense", [SENSES[0], SENSES[3], SENSES[6]], ids=["pairs", "wide", "floats"])
def test_threads_and_other_outputs_change_nothing(machine: str, sense: Sense) -> None:
    """Large enough to be shared; the first outputs alone have other blocks, tasks and last lanes."""
    weight, x = drawn(530, 300, dtype=sense.weight), drawn(37, 300, dtype=sense.x, seed=2)
    packed, few = PackedWeight(weight, BF16), PackedWeight(weight[:37], BF16)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        whole = multiply(packed.reference, x, sense.out)
        assert torch.equal(multiply(few.reference, x, sense.out), whole[:, :37])
        torch.set_num_threads(1)
        assert torch.equal(multiply(packed.reference, x, sense.out), whole)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("sense", [SENSES[0], SENSES[3], SENSES[4], SENSES[6]])
@pytest.mark.parametrize("shape", [(17, 33), (35, 64), (64, 31)])
@pytest.mark.parametrize("rows", [1, 7, 16, 19, 33])
def test_nothing_is_read_or_written_beside_the_rows(
    machine: str, rows: int, shape: tuple[int, int], sense: Sense
) -> None:
    """NaN lies before and after the rows; what lies around the output stays as it was."""
    outputs, inputs = shape
    packed = PackedWeight(drawn(outputs, inputs, dtype=sense.weight), BF16)
    x = torch.full((rows + 2, inputs), math.nan, dtype=sense.x)
    x[1:-1] = drawn(rows, inputs, dtype=sense.x, seed=2)
    out = torch.full((rows * outputs + 64,), 7.0, dtype=sense.out)
    vars(native)["kernels"]().product(
        ctypes.byref(packed.reference), x[1:].data_ptr(), CODES[sense.x], rows, None, 0,
        out[32:].data_ptr(), CODES[sense.out], 1,
    )  # fmt: skip
    assert bool((out[:32] == 7).all() and (out[-32:] == 7).all())
    assert torch.equal(out[32:-32].view(rows, outputs), multiply(packed.reference, x[1:-1], sense.out))
    assert bool(out.isfinite().all())


@pytest.mark.parametrize("sense", [SENSES[0], SENSES[3], SENSES[6]], ids=["pairs", "wide", "floats"])
def test_what_is_no_number_stays_in_its_own_row_and_output(machine: str, sense: Sense) -> None:
    weight, x = drawn(40, 50, dtype=sense.weight), drawn(20, 50, dtype=sense.x, seed=2)
    packed = PackedWeight(weight, BF16)
    clean = multiply(packed.reference, x, sense.out)
    weight[33, 49], x[18, 2] = math.nan, math.inf
    packed = PackedWeight(weight, BF16)
    made = multiply(packed.reference, x, sense.out)
    touched = torch.zeros(20, 40, dtype=torch.bool)
    touched[:, 33] = touched[18] = True
    assert torch.equal(made.isfinite(), ~touched)
    assert torch.equal(made[~touched], clean[~touched])
    assert bool(made[:, 33].isnan().all())


def test_subnormal_numbers_are_kept_or_count_as_zero(machine: str) -> None:
    """Tiles and pairs take them for 0, as the instructions do; FP32 keeps them, and so does BF16 in FP32."""
    x, huge = torch.full((3, 5), 2.0**-130), torch.full((2, 5), 2.0**30)
    wanted = torch.full((3, 2), 5 * 2.0**-100)
    packed = PackedWeight(huge, F32)
    assert torch.equal(multiply(packed.reference, x, F32), wanted)
    packed = PackedWeight(huge.bfloat16(), BF16)
    assert torch.equal(multiply(packed.reference, x, F32), wanted)
    made = multiply(packed.reference, x.bfloat16(), F32)
    assert torch.equal(made, wanted) or not made.any()
    if machine.startswith("x86"):
        assert torch.equal(made, wanted)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1), (16, 32), (17, 33), (50, 95)])
def test_a_weight_comes_back_bit_for_bit(machine: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = drawn(*shape, dtype=dtype)
    weight[weight > 1.5] = math.nan
    packed = PackedWeight(weight, BF16)
    assert weight.nbytes <= packed.held_bytes <= (shape[0] + 15) * (shape[1] + 31) * weight.itemsize
    bits = torch.int32 if dtype == F32 else torch.int16
    assert torch.equal(packed.dense.view(bits), weight.view(bits))


def test_sums_of_nothing(machine: str) -> None:
    for dtype in (F32, BF16):
        residual = drawn(3, 5, dtype=dtype)
        packed = PackedWeight(torch.empty(5, 0, dtype=dtype), BF16)
        assert torch.equal(multiply(packed.reference, torch.empty(3, 0, dtype=dtype), dtype, residual), residual)
        assert not multiply(packed.reference, torch.empty(3, 0, dtype=dtype), dtype).any()
        packed = PackedWeight(drawn(5, 7, dtype=dtype), BF16)
        assert multiply(packed.reference, torch.empty(0, 7, dtype=dtype), dtype).shape == (0, 5)
        packed = PackedWeight(torch.empty(0, 0, dtype=dtype), BF16)
        assert multiply(packed.reference, torch.empty(4, 0, dtype=dtype), dtype).shape == (4, 0)


def test_rows_of_another_width_are_refused_by_name() -> None:
    packed = PackedWeight(torch.zeros(5, 7), BF16)
    with pytest.raises(TensorError, match=r"rows of shape \(3, 8\), expected \[R, 7\]"):
        packed.multiply(torch.zeros(3, 8))
    with pytest.raises(TensorError, match=r"a residual \(3, 6\), expected \(3, 5\)"):
        packed.multiply_and_add(torch.zeros(3, 7), torch.zeros(3, 6))
    with pytest.raises(TensorError, match=r"a weight of dtype torch.float16, expected one of"):
        PackedWeight(torch.zeros(5, 7).half(), BF16)


def test_bare_products_multiply_what_they_are_given() -> None:
    """All write to one place: the last one's results are what stays."""
    first, last = PackedWeight(drawn(40, 9, dtype=BF16), BF16), PackedWeight(drawn(6, 30, dtype=F32), BF16)
    bare = BareProducts([(first.reference, 3), (last.reference, 2)])
    bare.x.fill_(0.5)
    bare()
    assert torch.equal(bare.out[:12].view(2, 6), last.multiply(torch.full((2, 30), 0.5)))
    BareProducts([])()
