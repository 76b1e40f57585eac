"""Keyed uniforms. Drawn on the host: a round needs at most sixteen, and the keys are known before the logits are."""

from dflash_accelerated.ops.random.numpy import keys, uniforms

__all__ = ["keys", "uniforms"]
