"""What a planted pair is made of: its sizes, its token cycles, and where each part of a residual row lives."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from dflash_vectors.errors import PlanError

POSITIONS = 4096
"""`max_position_embeddings` of both models."""
BACKENDS = ("dflash", "dflash2")
DTYPES = {"F32": "float32", "BF16": "bfloat16"}
"""Our name of a dtype, and the configs'."""
LEAST = {
    "drafts": 1, "hidden": 1, "code": 1, "heads": 1, "kv_heads": 1, "head_dim": 2, "intermediate": 1, "padding": 1,
    "idle": 0, "conv_taps": 1, "conv_group": 1, "rank": 2, "candidates": 1,
}  # fmt: skip
"""The least of each size. The mask's row is one of padding, and one rank of a selector is the plan's own."""
MOST = 2**20
"""The most of each."""


@dataclass(frozen=True)
class Options:
    """Sizes and choices of a planted pair. A window of 0 is a full layer, another is a local one.

    `gaps` has one row a cycle: the distances between the tokens of the cycle that the draft gets wrong. A gap g
    ends a round after g - 1 accepted proposals; a gap above K + 1 fills whole rounds first. Every row has the
    same sum, the cycles' length. `is_causal` None leaves the key out of the draft's config. `taps` are in
    recorded order, and none is the target's last layer, whose output the peers see only after the final norm.
    `twins` gives every cycle token a second id with the same code, whose logit is nearly the first's: near ties,
    at which implementations that round differently part. `idle` public ids stand in no prompt and follow no token.
    What comes after `backend` is a DFlash2 draft's.
    """

    seed: int = 0
    gaps: tuple[tuple[int, ...], ...] = ((1, 16, 2, 15), (3, 14, 4, 13), (5, 12, 6, 11), (7, 10, 8, 9))
    drafts: int = 15
    hidden: int = 72
    code: int = 60
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 44
    padding: int = 7
    idle: int = 0
    target_windows: tuple[int, ...] = (0, 0, 0)
    draft_windows: tuple[int, ...] = (36, 0, 36)
    copy_layer: int = 0
    taps: tuple[int, ...] = (1, 0)
    is_causal: bool | None = False
    tied: bool = False
    twins: bool = False
    theta: float = 10_000.0
    eps: float = 1e-6
    dtype: str = "F32"
    backend: str = "dflash"
    conv_taps: int = 2
    conv_group: int = 8
    rank: int = 12
    candidates: int = 16

    def __post_init__(self) -> None:
        """Raise PlanError for a choice with which the draft could not follow the target."""
        if self.dtype not in DTYPES:
            raise PlanError(f"dtype {self.dtype!r}, expected one of {', '.join(DTYPES)}")
        for name, least in LEAST.items():
            if not least <= getattr(self, name) <= MOST:
                raise PlanError(f"{name} {getattr(self, name)}, expected {least} to {MOST:,}")
        lengths = {sum(row) for row in self.gaps}
        if len(lengths) != 1 or min(min(row, default=0) for row in self.gaps) < 1:
            raise PlanError(f"gaps {self.gaps}: expected positive rows of one sum, found sums {sorted(lengths)}")
        if self.code + 1 > self.kv_heads * self.head_dim or self.code + 2 >= self.hidden:
            raise PlanError(f"code of {self.code} channels does not fit {self.kv_heads * self.head_dim} value channels")
        if self.drafts >= self.cycle:
            raise PlanError(f"{self.drafts} drafts, expected fewer than the cycle's {self.cycle} tokens")
        if not self.target_windows or not self.draft_windows:
            raise PlanError("a model without layers, expected the window of one at least")
        if not 0 <= self.copy_layer < len(self.draft_windows):
            raise PlanError(f"copy_layer {self.copy_layer}, expected a draft layer below {len(self.draft_windows)}")
        if 0 < self.draft_windows[self.copy_layer] <= self.distance:
            raise PlanError(f"the copying layer's window must exceed the distance {self.distance} that it copies over")
        if self.tied and 0 < self.target_windows[-1] < self.cycle:
            raise PlanError(f"the last target layer's window must reach {self.cycle - 1} tokens back")
        last = len(self.target_windows) - 1
        if not self.taps or any(not 0 <= tap < last for tap in self.taps):
            raise PlanError(f"taps {self.taps}: expected layers below the last, {last}")
        for windows in (self.target_windows, self.draft_windows):
            if min(windows) < 0:
                raise PlanError(f"windows {windows}: expected positive ones, or 0 for a full layer")
            if len({window for window in windows if window}) > 1:
                raise PlanError(f"windows {windows}: a published config has one window for all local layers")
        if self.heads % self.kv_heads or self.head_dim < 2 or self.head_dim & (self.head_dim - 1):
            raise PlanError(
                f"{self.heads} heads, {self.kv_heads} KV heads of {self.head_dim}: want a multiple, and a power of 2"
            )
        if not 1 <= self.theta < inf or not 0 < self.eps < inf:
            raise PlanError(f"theta {self.theta} and eps {self.eps}, expected finite ones, of at least 1 and above 0")
        if self.backend not in BACKENDS:
            raise PlanError(f"backend {self.backend!r}, expected one of {', '.join(BACKENDS)}")
        if self.second:
            self._check_second()

    def _check_second(self) -> None:
        if self.code + 2 > self.kv_heads * self.head_dim:
            raise PlanError(f"a code of {self.code} channels, flag and constant do not fit the value channels")
        if self.hidden % self.conv_group:
            raise PlanError(f"conv_group {self.conv_group}, expected a divisor of the hidden width {self.hidden}")
        if self.candidates > self.public:
            raise PlanError(f"{self.candidates} candidates, expected at most the {self.public} public ids")

    @property
    def second(self) -> bool:
        """Whether the draft is a DFlash2 draft."""
        return self.backend == "dflash2"

    @property
    def cycle(self) -> int:
        """Length of each token cycle."""
        return sum(self.gaps[0])

    @property
    def distance(self) -> int:
        """How far back the draft's copying layer looks.

        An untied target's head turns the code of a token into its successor, so the draft copies the code of the
        token before; with a tied head it copies the token's own code.
        """
        return self.cycle if self.tied else self.cycle + 1

    @property
    def public(self) -> int:
        """The cycles' tokens, their twins, the idle ids and the decoy."""
        return len(self.gaps) * self.cycle * (2 if self.twins else 1) + self.idle + 1

    @property
    def vocabulary(self) -> int:
        return self.public + self.padding

    @property
    def mask_id(self) -> int:
        """The first row past the public ones."""
        return self.public

    @property
    def constant(self) -> int:
        """Channel that every embedding row holds at one value."""
        return self.code

    @property
    def flag(self) -> int:
        """Channel that marks the tokens after which the draft goes wrong."""
        return self.code + 1


SMALL = Options(
    gaps=((1, 5, 3, 4),), drafts=4, hidden=32, code=24, heads=4, kv_heads=2, head_dim=16, intermediate=36,
    padding=2, target_windows=(0, 0, 0), draft_windows=(15, 0), copy_layer=0, theta=100.0,
)  # fmt: skip

TIED = Options(
    tied=True, target_windows=(0, 34, 34), draft_windows=(0, 35, 0), copy_layer=1, taps=(0, 1), is_causal=None,
)  # fmt: skip

PRESETS = {"standard": Options(), "tied": TIED, "small": SMALL}
"""standard: an untied head, taps out of order, local layers that see both ways. tied: a tied head, local target
layers, local draft layers without the `is_causal` key. small: both models in under 256 KiB as F32."""

SECOND = {"small": {"idle": 39, "padding": 12, "intermediate": 20, "rank": 10}}
"""What a preset changes for DFlash2: its candidates need a larger vocabulary."""
