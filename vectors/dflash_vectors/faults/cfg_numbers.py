"""Faults of tap formulas, draft counts, starts and trainer configs."""

from __future__ import annotations

from typing import Any

from dflash_spec.config import taps as formulas
from dflash_spec.config.members import Members

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.cfg import NINFER, PACKAGE, unchecked

NEURON = "vLLM Neuron DFlash guide, configuration"
TRAINER = "the trainer's DFlash page, configuration"


@fault("dflash_spec.config.taps.listed", clauses=("CFG-027",), report=NINFER, effect="acceptance")
def taps_sorted(true: Function) -> Function:
    """The tap ids are sorted."""
    return lambda members: tuple(sorted(true(members)))


@fault(
    "dflash_spec.config.taps.check_distinct", clauses=("CFG-028",), effect="acceptance",
    report="https://github.com/NVIDIA/Model-Optimizer/pull/1296",
)  # fmt: skip
def tap_twice_taken(true: Function) -> Function:
    """A tap id may occur twice."""
    return unchecked


@fault(
    "dflash_spec.config.taps.check_in_range", clauses=("CFG-029",), effect="crash",
    report="https://github.com/sgl-project/sglang/issues/32204",
)  # fmt: skip
def tap_past_depth_taken(true: Function) -> Function:
    """A tap id may reach past the target."""
    return unchecked


@fault(
    "dflash_spec.config.taps.round_half_even", clauses=("CFG-030",), effect="acceptance",
    report="https://github.com/Luce-Org/lucebox-hub/commit/78aaa06",
)  # fmt: skip
def taps_truncated(true: Function) -> Function:
    """Tap positions are truncated."""
    return lambda numerator, denominator: numerator // denominator


@fault("dflash_spec.config.taps.round_half_even", clauses=("CFG-030",), report=PACKAGE, effect="acceptance")
def taps_rounded_half_up(true: Function) -> Function:
    """Tap positions are rounded half up, as most languages round."""
    return lambda numerator, denominator: (2 * numerator + denominator) // (2 * denominator)


@fault("dflash_spec.config.taps.middle_tap", clauses=("CFG-031",), report=PACKAGE, effect="acceptance")
def single_tap_is_block_one(true: Function) -> Function:
    """A single tap is where several would start."""
    return lambda target_layers: (1,)


@fault(
    "dflash_spec.config.taps.check_counts", clauses=("CFG-032",), effect="crash",
    report="https://github.com/NVIDIA/Model-Optimizer/pull/1271",
)  # fmt: skip
def no_taps_taken(true: Function) -> Function:
    """The number of taps is not compared with the target's depth."""
    return unchecked


@fault(
    "dflash_spec.config.taps.check_formula", clauses=("CFG-033",), effect="acceptance",
    report="https://github.com/NVIDIA/Model-Optimizer/pull/1296",
)  # fmt: skip
def collapsed_taps_taken(true: Function) -> Function:
    """Ids that collapse on a shallow target are taken."""
    return unchecked


@fault(
    "dflash_spec.config.taps.integer_step_taps", clauses=("CFG-034",), effect="acceptance",
    report="https://github.com/Luce-Org/lucebox-hub/commit/78aaa06",
)  # fmt: skip
def integer_step_rounded(true: Function) -> Function:
    """The other formula's rounding is taken for the integer step."""

    def wrong(target_layers: int, taps: int) -> Any:
        formula = formulas.half_even_taps if 2 <= taps < target_layers - 2 else true
        return formula(target_layers, taps)

    return wrong


@fault("dflash_spec.config.taps.check_reduced_taps", clauses=("CFG-035",),
       report="https://github.com/vllm-project/vllm-neuron", effect="acceptance")  # fmt: skip
def uneven_stand_in_taken(true: Function) -> Function:
    """Any ids stand in for those of a reduced target."""
    return unchecked


@fault("dflash_spec.config.width.free_count", clauses=("CFG-050",), report=NINFER, effect="crash", profiles=("ninfer",))
def sixteen_drafts_taken(true: Function) -> Function:
    """A block of seventeen columns is started."""
    return lambda requested: 16 if requested == 16 else true(requested)


@fault("dflash_spec.config.width.file_count", clauses=("CFG-051",), report=NEURON,
       effect="acceptance")  # fmt: skip
def anchor_slot_counted_as_draft(true: Function) -> Function:
    """A block of 16 is taken for 16 drafts."""
    return lambda block_size: true(block_size) + 1


@fault(
    "dflash_spec.config.width.override_count",
    clauses=("CFG-052",),
    report=PACKAGE,
    effect="acceptance",
    profiles=("zlab",),
)
def request_clipped_to_the_file(true: Function) -> Function:
    """A request above the trained block is clipped to it."""
    return lambda block_size, requested: (
        true(block_size, requested) if requested is None else min(true(block_size, requested), true(block_size, None))
    )


@fault("dflash_spec.config.width.matched_count", clauses=("CFG-053",), report=NEURON, effect="output")
def other_width_run(true: Function) -> Function:
    """A width that is compiled in is run at another one."""
    return lambda block_size, requested: true(block_size, None) if requested is None else requested


@fault(
    "dflash_spec.config.width.bounded_count", clauses=("CFG-054",), effect="acceptance",
    report="https://github.com/NVIDIA/TensorRT-LLM/pull/17935",
)  # fmt: skip
def wider_block_run(true: Function) -> Function:
    """A block wider than the trained one is run."""
    return lambda block_size, requested: true(block_size, None) if requested is None else requested


@fault("dflash_spec.config.start.check_concurrency", clauses=("CFG-055",), report=NINFER, effect="output")
def any_batch_started(true: Function) -> Function:
    """The number of requests is not looked at."""
    return unchecked


@fault(
    "dflash_spec.config.start.check_head_index",
    clauses=("CFG-056",),
    report=NINFER,
    effect="output",
    profiles=("ninfer",),
)
def any_shortlist_taken(true: Function) -> Function:
    """The ids of a proposal head are not looked at."""
    return unchecked


@fault("dflash_spec.config.trainer.depth", clauses=("CFG-058",), report=TRAINER, effect="acceptance")
def taps_counted_as_depth(true: Function) -> Function:
    """`num_target_layers` is taken for the target's depth, as in a published file."""
    return lambda members: true(Members({"target_num_hidden_layers": members.get("num_target_layers")}, members.file))


@fault(
    "dflash_spec.config.trainer.tap_ids",
    clauses=("CFG-059",),
    report=TRAINER,
    effect="acceptance",
)
def tap_count_not_read(true: Function) -> Function:
    """The number of taps is not compared with their list."""

    def wrong(members: Members, target_layers: int) -> Any:
        ids = members.get("target_layer_ids")
        counted = {**members.values, "num_target_layers": len(ids)} if isinstance(ids, list) and ids else members.values
        return true(Members(counted, members.file), target_layers)

    return wrong


@fault("dflash_spec.config.trainer.width", clauses=("CFG-060",), report=TRAINER, effect="crash")
def width_not_compared(true: Function) -> Function:
    """The draft's width is not compared with the target's."""
    return lambda members: true(
        Members({**members.values, "target_hidden_size": members.get("hidden_size")}, members.file)
    )
