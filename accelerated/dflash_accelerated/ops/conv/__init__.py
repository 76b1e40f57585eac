"""The grouped dynamic convolution around a branch of a DFlash2 layer."""

from dflash_accelerated.ops.conv.torch import Prepared, convolve, finish, prepare, slots

__all__ = ["Prepared", "convolve", "finish", "prepare", "slots"]
