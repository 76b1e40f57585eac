"""Calling the kernels: addresses, dtypes and counts as plain integers."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from dflash_spec.errors import UnsupportedError
from torch import Tensor

from dflash_accelerated.native.build import build

CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The kernels' names of dtypes."""

SIGNATURES = {
    "pack": "pp ll i i l",
    "product": "pp i l p i p i l",
    "products": "pp l pp l",
    "rms_norm": "ppp lll iii f l",
    "norm_rope": "ppppp lllll iiii f l",
    "gated": "pp ll ii l",
    "convolve": "pppppp lllll ii l",
    "store_context": "pppppppp llllllllll iiiii f l",
    "greatest": "ppp lll i l",
    "exponentials": "pp l",
    "top": "pppp llll i f l",
    "walk": "ppppppppppp lllllll iii l",
    "distribution": "pppppppp lllll i l",
    "draw": "pppp llll i l",
    "verdict": "ppppppppppppp llllllll ii l",
    "choose": "pp lll ii l",
    "gather": "pp l p",
}
"""Of each kernel: p an address, l a count or stride in elements, i a dtype or switch, f a number."""

TYPES = {"p": ctypes.c_void_p, "l": ctypes.c_int64, "i": ctypes.c_int, "f": ctypes.c_float}


class Packed(ctypes.Structure):
    """`struct product` of products.h: the address of a packed weight [outputs, inputs], and its dtype's code."""

    _fields_ = [("weight", ctypes.c_void_p), ("outputs", ctypes.c_int64), ("inputs", ctypes.c_int64),
                ("type", ctypes.c_int)]  # fmt: skip


class Attention(ctypes.Structure):
    """`struct attention` of attention.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "keys", "values", "out", "workspace", "spans")),
        *((name, ctypes.c_int64) for name in ("rows", "requests", "query_heads", "kv_heads", "dim", "slots")),
        *((name, ctypes.c_int64) for name in ("lane_stride", "head_stride", "q_stride", "k_stride", "v_stride")),
        ("window", ctypes.c_int64),
        *((name, ctypes.c_int) for name in ("causal", "keep", "act", "given", "held")),
        ("threads", ctypes.c_int64),
    ]


class Layer(ctypes.Structure):
    """`struct layer` of decoder.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("input_norm", "head_norm", "post_norm", "outer_base", "inner_base")),
        *((name, Packed) for name in ("qkv", "o_proj", "gate_up", "down_proj", "outer", "inner")),
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
        *((name, ctypes.c_int64) for name in ("slots", "lane_stride", "head_stride", "window")),
        *((name, ctypes.c_int) for name in ("causal", "held")),
    ]


class Forward(ctypes.Structure):
    """`struct forward` of decoder.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("layers", "norm", "x", "cosine", "sine", "spans", "taps")),
        *((name, ctypes.c_void_p) for name in ("out", "features", "workspace")),
        *((name, ctypes.c_int64) for name in ("count", "rows", "requests", "tapped", "hidden", "query_heads")),
        *((name, ctypes.c_int64) for name in ("kv_heads", "dim", "conv_taps", "groups", "threads")),
        *((name, ctypes.c_int) for name in ("keep", "staged", "act", "compute", "wanted")),
        ("eps", ctypes.c_float),
    ]


class Intake(ctypes.Structure):
    """`struct intake` of context.h."""

    _fields_ = [
        ("layers", ctypes.c_void_p),
        *((name, Packed) for name in ("fc", "projection")),
        *((name, ctypes.c_void_p) for name in ("hidden_norm", "norms", "features", "cosine", "sine", "spans")),
        *((name, ctypes.c_void_p) for name in ("c", "workspace")),
        *((name, ctypes.c_int64) for name in ("count", "rows", "requests", "kv_heads", "dim", "threads")),
        *((name, ctypes.c_int) for name in ("staged", "act", "compute")),
        ("eps", ctypes.c_float),
    ]


class Pass(ctypes.Structure):
    """`struct pass` of passes.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("forward", "table", "ids")),
        ("head", Packed),
        *((name, ctypes.c_void_p) for name in ("scores", "best")),
        *((name, ctypes.c_int64) for name in ("known", "scored", "public")),
        ("finite", ctypes.c_int),
    ]


@cache
def kernels() -> ctypes.CDLL:
    """The library, built at the first call. Raises UnsupportedError where it cannot be."""
    library = build()
    for name, signature in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes = [TYPES[letter] for letter in signature.replace(" ", "")]
        function.restype = None
    library.packed_bytes.argtypes, library.packed_bytes.restype = (
        [ctypes.c_int64, ctypes.c_int64, ctypes.c_int],
        ctypes.c_int64,
    )
    for name, struct, restype in (
        ("attend", Attention, None), ("attention_bytes", Attention, ctypes.c_int64),
        ("forward", Forward, None), ("forward_bytes", Forward, ctypes.c_int64),
        ("intake", Intake, None), ("intake_bytes", Intake, ctypes.c_int64),
        ("run_pass", Pass, ctypes.c_int),
    ):  # fmt: skip
        function = getattr(library, name)
        function.argtypes, function.restype = [ctypes.POINTER(struct)], restype
    library.walk.restype = ctypes.c_int
    library.use_pool.argtypes, library.use_pool.restype = [ctypes.c_void_p], None
    library.use_pool(_pool())
    library.use_tiles(1)
    return library


def available() -> bool:
    """Whether the kernels can be run here; builds them."""
    try:
        kernels()
    except UnsupportedError:
        return False
    return True


def _pool() -> int | None:
    """The address of GOMP_parallel in the OpenMP library that PyTorch has loaded; None where it has none such."""
    root = Path(torch.__file__).parent
    for path in (*root.glob("lib/lib*omp*.so*"), *root.parent.glob("torch.libs/lib*omp*.so*")):
        try:
            loaded = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            return ctypes.cast(loaded.GOMP_parallel, ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None


def empty(shape: int | Sequence[int], dtype: torch.dtype) -> Tensor:
    """A buffer for a kernel's result, whatever PyTorch's default device is."""
    # Sizes one by one, on a tensor that has dtype and device: half the time of torch.empty.
    return _nothing(dtype).new_empty(*((shape,) if isinstance(shape, int) else shape))


@cache
def _nothing(dtype: torch.dtype) -> Tensor:
    return torch.empty(0, dtype=dtype, device="cpu")


def rows_of(x: Tensor) -> Tensor:
    """`x` with all axes but the first contiguous, which may have any stride: x itself where it is so."""
    if x.is_contiguous() or x[:1].is_contiguous():
        return x
    return x.contiguous()
