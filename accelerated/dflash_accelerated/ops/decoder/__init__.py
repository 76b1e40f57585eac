"""All layers of a model, from embedded rows to its last residual rows."""

from collections.abc import Sequence

from torch import Tensor

from dflash_accelerated.layers import LayerWeights
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.attention import Seat
from dflash_accelerated.ops.decoder.torch import Decoded, Decoder, Ends, Scored, Wanted, concat_taps

__all__ = ["Decoded", "Decoder", "Ends", "Scored", "Wanted", "concat_taps", "decoder"]


def decoder(
    layers: Sequence[LayerWeights], norm: Tensor, seats: Sequence[Seat], keep: bool, eps: float, numerics: Numerics
) -> Decoder:
    """The decoder of `layers` with the kernels that `numerics` names: as `Decoder` says."""
    if numerics.kernels == "native":
        from dflash_accelerated.ops.decoder.native import NativeDecoder

        return NativeDecoder(layers, norm, seats, keep, eps, numerics)
    return Decoder(layers, norm, seats, keep, eps, numerics)
