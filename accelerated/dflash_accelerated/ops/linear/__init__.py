"""Matrix products with a weight stored output-major."""

from dflash_accelerated.ops.linear.torch import linear

__all__ = ["linear"]
