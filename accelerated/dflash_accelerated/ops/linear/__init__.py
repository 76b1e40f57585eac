"""Matrix products with weights stored output-major."""

from dflash_accelerated.ops.linear.library import KERNEL_BYTES, filled_up, row_counts
from dflash_accelerated.ops.linear.product import Product
from dflash_accelerated.ops.linear.torch import linear

__all__ = ["KERNEL_BYTES", "Product", "filled_up", "linear", "row_counts"]
