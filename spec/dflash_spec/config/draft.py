"""Draft configs: what a DFlash draft is made of, and the rules that both of its schemas share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dflash_spec.config import arguments, component, dflash2, published, rules, taps
from dflash_spec.config import members as read
from dflash_spec.config.members import Members
from dflash_spec.config.target import TargetConfig
from dflash_spec.errors import SpecDataError, UnsupportedConfigError
from dflash_spec.registry import Profile

SCHEMAS = ("published", "component")
DFLASH, DFLASH2 = 1, 2
BACKENDS = {DFLASH: "DFlashDraftModel", DFLASH2: "DFlash2DraftModel"}
"""The number of a backend, and the architecture that its drafts name."""


@dataclass(frozen=True)
class DraftConfig:
    """What a draft is made of. Sizes count channels, heads, layers or tokens; `eps` and `theta` are FP32 values."""

    architecture: str
    vocab_size: int | None
    """None in the component schema, which leaves the vocabulary to the target."""
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float
    windows: tuple[int, ...]
    """The window of each layer in positions; 0 for a full layer."""
    causal: tuple[bool, ...]
    """Whether a row of the block sees only itself and rows before it, for each layer."""
    taps: tuple[int, ...]
    """Zero-based target blocks in concatenation order."""
    mask_id: int
    block_size: int | None
    """Rows of a trained block, anchor included; None where the file does not say."""
    max_positions: int
    unknown: tuple[str, ...] = ()
    """Top-level members that this reader does not know, in file order."""


@dataclass(frozen=True, kw_only=True)
class DFlash2Config(DraftConfig):
    """What a DFlash2 draft is made of: a DFlash draft, a convolution around both branches, and a selector."""

    conv_taps: int
    """Rows that a row of the convolution reads: itself and those before it."""
    conv_group: int
    """Channels that share an increment of the convolution's kernel."""
    selector_rank: int
    selector_top_k: int
    """Candidates of a slot."""
    codebook_rows: int
    """Rows of either codebook: one for each id of the target's vocabulary."""
    output_multiplier: float
    """FP32 factor of the head's scores; 1 where the draft has none."""
    softcap: float
    """FP32 limit of the head's scores, applied after the multiplier; 0 where the draft has none."""


def architecture(members: Members, backend: int | None) -> str:
    """The draft's one architecture: that of `backend`, or where None, of either.

    Clause: CFG-013. Raises UnsupportedConfigError for a draft of the other backend. A reader that ignores what it does
    not know would run DFlash2 as DFlash, without convolution and selector.
    """
    names = members.get("architectures")
    others = [name for number, name in BACKENDS.items() if backend is not None and number != backend]
    if isinstance(names, list) and len(names) == 1 and names[0] in others:
        raise members.wrong("architectures", f"[{BACKENDS[backend or DFLASH]!r}]", "CFG-013", UnsupportedConfigError)
    second = backend is None and names == [BACKENDS[DFLASH2]]
    return rules.architecture(members, BACKENDS[DFLASH2 if second else backend or DFLASH])


def mask_id(members: Members, vocab_size: int) -> int:
    """The token id that stands in the block's proposal slots.

    Clause: CFG-039 (ConfigError where absent: no pad or end id stands in).
    Clause: CFG-040 (ConfigError unless it is a row of the target's embedding table, public or not).
    """
    if not members.has("mask_token_id"):
        raise members.wrong("mask_token_id", "a token id", "CFG-039")
    token = read.index(members, "mask_token_id")
    if token >= vocab_size:
        raise members.wrong("mask_token_id", f"an id from 0 to {vocab_size - 1}", "CFG-040")
    return token


def tap_ids(members: Members, profile: Profile, target: TargetConfig, layers: int) -> tuple[int, ...]:
    """The recorded ids of `members`, or what the profile puts in their place.

    Clause: CFG-036 (profile ninfer: ConfigError where absent).
    Clause: CFG-037 (profile zlab: half-even ids, as many as the draft has layers).
    """
    if members.has(taps.KEY):
        ids = taps.listed(members)
    elif profile.axes["tap_fallback"] == "error":
        raise members.wrong(taps.KEY, "the ids", "CFG-036")
    else:
        ids = taps.half_even_taps(target.layers, layers)
    taps.check_distinct(ids)
    taps.check_in_range(ids, target.layers)
    return ids


def causality(members: Members, profile: Profile, windows: tuple[int, ...]) -> tuple[bool, ...]:
    """Whether each layer is causal inside the block, from the tri-state `is_causal`."""
    stated = read.flag(members, "is_causal")
    if profile.axes["local_causality"] == "symmetric":
        return symmetric(members, stated, len(windows))
    return local_when_absent(stated, windows)


def symmetric(members: Members, stated: bool | None, layers: int) -> tuple[bool, ...]:
    """Clause: CFG-043. No layer is causal; raises ConfigError where the file says `is_causal: true`."""
    if stated:
        raise members.wrong("is_causal", "false, or nothing", "CFG-043")
    return (False,) * layers


def local_when_absent(stated: bool | None, windows: tuple[int, ...]) -> tuple[bool, ...]:
    """Causality by layer.

    Clause: CFG-041 (`is_causal` absent: sliding layers are causal, full ones are not).
    Clause: CFG-042 (true or false in the file wins for all layers).
    """
    return tuple(window > 0 if stated is None else stated for window in windows)


def read_draft_config(
    source: bytes | Path, profile: Profile, target: TargetConfig, schema: str | None = None, backend: int | None = None
) -> DraftConfig:
    """Read the config of a draft for `target`: the JSON text itself, its file, or the draft's folder.

    A DFlash2 draft gives a DFlash2Config. `schema` is `published` (the authors' config.json) or `component` (NInfer's
    closed one); by default the profile's. Profile ninfer reads a published file by the rules of its converter.
    `backend` 1 takes DFlash drafts only, 2 DFlash2 drafts only. Raises ConfigError, and UnsupportedConfigError where
    the draft is well-formed but not executable here.
    """
    arguments.check_instance("profile", profile, Profile)
    arguments.check_instance("target", target, TargetConfig)
    chosen = profile.axes["config_schema"] if schema is None else schema
    if chosen not in SCHEMAS:
        raise SpecDataError(f"config schema {chosen!r}, expected one of {', '.join(SCHEMAS)}")
    members = read.read(source, "draft config")
    name = architecture(members, backend)
    rules.model_type(members)
    second = name == BACKENDS[DFLASH2]
    scaled = second and profile.axes["head_scalars"] == "applied"
    form = published if chosen == "published" else component
    nested = form.check(members, target, dflash2.SIZES if second else (), scaled)
    layers = read.positive_int(members, "num_hidden_layers")
    heads, kv_heads = rules.heads(members)
    types = form.layer_types(members, layers)
    windows = rules.windows(members, types)
    shared = DraftConfig(
        architecture=name,
        vocab_size=target.vocab_size if form is published else None,
        hidden_size=target.hidden_size,
        intermediate_size=read.positive_int(members, "intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=rules.head_dim(members),
        eps=read.positive_float(members, "rms_norm_eps"),
        theta=form.theta(members),
        windows=windows,
        causal=causality(members, profile, windows),
        taps=tap_ids(form.holder(members, nested, taps.KEY), profile, target, layers),
        mask_id=mask_id(form.holder(members, nested, "mask_token_id"), target.vocab_size),
        block_size=form.block_size(members, nested),
        max_positions=read.positive_int(members, "max_position_embeddings"),
        unknown=form.unknown(members),
    )
    if not second:
        dflash2.check_absent(members)
        return shared
    return _second(shared, lambda key: form.holder(members, nested, key), target, scaled)


def _second(shared: DraftConfig, holder: dflash2.Holder, target: TargetConfig, scaled: bool) -> DFlash2Config:
    """`shared` with what DFlash2 adds. Raises ConfigError."""
    sizes = dflash2.sizes(holder)
    dflash2.check_group(target.hidden_size, sizes.conv_group)
    dflash2.check_candidates(sizes.selector_top_k, target.vocab_size)
    scalars = dflash2.scalars(holder) if scaled else dflash2.Scalars()
    return DFlash2Config(
        **vars(shared),
        conv_taps=sizes.conv_taps,
        conv_group=sizes.conv_group,
        selector_rank=sizes.selector_rank,
        selector_top_k=sizes.selector_top_k,
        codebook_rows=target.vocab_size,
        output_multiplier=scalars.output_multiplier,
        softcap=scalars.softcap,
    )
