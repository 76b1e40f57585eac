"""Matrix products with weights stored output-major."""

from dflash_accelerated.ops.linear.torch import Product, linear

__all__ = ["Product", "linear"]
