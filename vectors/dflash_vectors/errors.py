"""What the vector builder raises on purpose."""

from dflash_spec.errors import DFlashError


class BuildError(DFlashError):
    """A case cannot become a vector: its inputs, margins, size or exactness break a rule."""


class ModelError(BuildError):
    """An error model does not describe what the reference computes."""


class LedgerError(DFlashError):
    """A vector's content changed under an id that is frozen."""


class PlanError(DFlashError, ValueError):
    """The options of a planted pair contradict each other, or its draft could not follow the plan with them."""
