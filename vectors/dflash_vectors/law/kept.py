"""Faults of the modules that decide which tokens come out, and that keep every law: each has its reason.

The enumeration must find that they keep both laws, that of the tokens and that of the accepted counts; vectors on the
edges catch them. A fault that is not here must move a law.
"""

from __future__ import annotations

REASONS: dict[str, tuple[str, ...]] = {
    "it differs where a uniform lies on a threshold, and that has probability 0": (
        "coin-equal-to-p-accepts", "coin-equal-to-the-ratio-accepts", "covered-proposals-accepted",
        "covered-proposals-tested", "rank-at-equality", "uniform-of-0-takes-the-first-id",
    ),
    "exact products are not rounded": ("product-with-the-coin-exact",),
    "no enumerated request is as cold as 1e-5": ("temperature-kept-above-a-hundred-thousandth",),
    "exact probabilities add up to 1, and no uniform is left over": (
        "fall-back-to-the-first-rank", "fall-back-to-the-last-slot",
    ),
    "probabilities that add up to 1 leave nothing only after a rejection of probability 0": (
        "nothing-left-draws-from-p", "nothing-left-takes-the-first", "nothing-left-yields-no-token",
    ),
    "the same weights in another order have the same law, from other uniforms": (
        "correction-by-token-id", "residual-in-the-order-of-ids",
    ),
    "another key, which no other draw of the request has": (
        "accept-test-keyed-at-the-input", "bonus-keyed-as-a-correction", "decode-keyed-at-the-emitted-token",
        "empty-round-keyed-as-plain-decode", "first-token-keyed-at-the-last-prompt-row", "proposal-keyed-at-its-token",
        "proposal-keyed-by-sub-index", "terminal-keyed-at-the-last-accepted",
    ),
    "another hash, which tells the keys of a request apart as well": (
        "mixing-constant-added-outside", "mixing-constant-left-out", "position-sign-extended", "purpose-of-three-bits",
        "purpose-shifted-in-32-bits", "purpose-sign-extended", "seed-cut-to-32-bits", "seed-ignored",
        "sub-index-ignored", "sub-index-of-16-bits",
    ),
    "uniforms are continuous here, and nobody asks what number a key becomes": (
        "uniform-from-23-bits", "uniform-from-low-bits", "uniform-never-zero", "uniform-rounds-up-to-one",
    ),
    "a request is alone here, without a batch": (
        "dead-columns-drawn", "first-seed-serves-the-batch", "one-uniform-in-all-slots", "ragged-rows-packed",
        "streams-restart-in-every-row", "terminals-of-the-neighbour", "uniforms-depend-on-the-age-of-the-engine",
        "uniforms-depend-on-the-row", "uniforms-depend-on-the-width",
    ),
    "finite logits make no NaN and no infinity": (
        "broken-rows-sampled", "nan-cleaned-to-0", "nan-of-the-law-cleaned-to-0", "nan-probability-accepts",
        "nan-ratio-accepts", "nan-ratio-accepts-where-covered", "nan-taken-for-minus-infinity",
        "nothing-finite-yields-a-token", "only-the-first-rank-looked-at", "plus-infinity-taken-for-the-winner",
        "rows-with-nan-drawn-from",
    ),
    "nothing reads what stands after the licensed tokens": ("rejected-proposals-stay-licensed",),
    "counts differ only after a round that was cut, and a cut ends the request": (
        "certain-round-counts-what-is-kept", "dropped-tokens-counted",
    ),
    "with these penalties and logits every difference is exact in FP32": (
        "frequency-before-presence", "penalties-added-up-first",
    ),
    "the weight is 0 either way": ("forbidden-lowered-by-a-number",),
    "the engine's mask forbids the padding too": ("padding-rows-sampled", "target-padding-masked-with-a-number"),
    "no logit is -0": ("support-tells-zeros-apart",),
    "no request here is long enough, or asks for as much": (
        "counts-held-in-a-byte", "top-k-above-the-vocabulary-fails", "top-k-not-cut-at-twenty",
    ),
    "no weight stands exactly on the limit": ("min-p-drops-what-is-on-the-limit",),
}  # fmt: skip
"""Why a law is kept -> the faults that keep it for this reason."""

UNREADABLE: dict[str, tuple[str, ...]] = {
    "it looks for a NaN in the way of floats, which Fractions do not have": (
        "unread-nan-ends-a-drawn-round", "unread-nan-ends-the-round",
    ),
}  # fmt: skip
"""Why a fault cannot be enumerated -> its names."""


def reason(name: str) -> str:
    """Why a fault keeps the law, or is not enumerated; empty if it is neither."""
    return next((why for why, names in (REASONS | UNREADABLE).items() if name in names), "")
