"""How kernels are compiled: the options of every launch."""

from __future__ import annotations

from typing import Any

OPTIONS: dict[str, Any] = {"enable_fp_fusion": False}
"""A sum and a product stay two roundings. Triton's default changes between releases."""
