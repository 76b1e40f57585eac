"""One folder per op, its implementations side by side: `torch.py`, and kernels beside it where there are any.

The rest of the engine imports an op from its folder (`from dflash_accelerated.ops import attention`), never from a file
in it, so that the folder alone decides which implementation runs.
"""
