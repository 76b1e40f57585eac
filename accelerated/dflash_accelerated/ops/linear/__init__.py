"""Matrix products with weights stored output-major."""

from dflash_accelerated.ops.linear.torch import KERNEL_BYTES, Product, filled_up, linear, row_counts

__all__ = ["KERNEL_BYTES", "Product", "filled_up", "linear", "row_counts"]
