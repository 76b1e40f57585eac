"""Faults of DFlash2 configs, of folders, and of starts: what is guessed, dropped, or taken for the other backend."""

from __future__ import annotations

from math import prod
from typing import Any

from dflash_spec.config.dflash2 import Scalars, Sizes
from dflash_spec.config.draft import DFlash2Config, DraftConfig

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.cfg import NINFER, PACKAGE, unchecked

LOAD = "https://github.com/Wallawalla47/Infernix/blob/4f0950184f/src/models/qwen3_5/load/dflash2.cpp"
AUTOMODEL = "https://github.com/NVIDIA-NeMo/Automodel/pull/3605"
PORT = "https://github.com/natpate/ninfer-windows/pull/4"
START = "NInfer docs/maintainer/dflash.md, startup"


@fault("dflash_spec.config.dflash2.sizes", clauses=("CFG-061",), report=PORT, effect="acceptance")
def taps_and_group_exchanged(true: Function) -> Function:
    """The convolution's taps and the channels of a group change places."""

    def wrong(*args: Any) -> Sizes:
        taps, group, rank, top_k = true(*args)
        return Sizes(group, taps, rank, top_k)

    return wrong


@fault("dflash_spec.config.dflash2.sizes", clauses=("CFG-061", "CFG-004"), report=LOAD, effect="acceptance")
def only_the_official_sizes(true: Function) -> Function:
    """The sizes of the official draft stand in for those of the file."""
    return lambda holder: Sizes(2, 16, 256, 16)


@fault("dflash_spec.config.dflash2.check_absent", clauses=("CFG-062",), report=PACKAGE, effect="acceptance")
def second_members_ignored(true: Function) -> Function:
    """Members of DFlash2 at the top level of a DFlash config are ignored as unknown ones."""
    return unchecked


@fault("dflash_spec.config.dflash2.check_group", clauses=("CFG-063",), report=NINFER, effect="crash")
def group_need_not_divide(true: Function) -> Function:
    """Whatever is left over of the hidden width gets no group."""
    return unchecked


@fault("dflash_spec.config.dflash2.check_candidates", clauses=("CFG-064",), report=NINFER, effect="crash")
def candidates_not_counted(true: Function) -> Function:
    """A slot may have more candidates than there are rows."""
    return unchecked


@fault("dflash_spec.config.dflash2.check_candidates", clauses=("CFG-064",), report=NINFER, effect="crash")
def fewer_candidates_than_rows(true: Function) -> Function:
    """As many candidates as rows are refused."""
    return lambda top_k, domain: true(top_k + 1, domain)


@fault(
    "dflash_spec.config.dflash2.scalars", clauses=("CFG-065",), effect="acceptance", profiles=("zlab",),
    report="https://github.com/vllm-project/vllm/pull/41703",
)  # fmt: skip
def head_scalars_lost(true: Function) -> Function:
    """The head's multiplier and soft-cap are not looked at."""
    return lambda holder: Scalars()


@fault("dflash_spec.config.dflash2.scalars", clauses=("CFG-065",), report=PACKAGE, effect="output", profiles=("zlab",))
def absent_cap_is_one(true: Function) -> Function:
    """Without a soft-cap the scores are capped at 1."""
    return lambda holder: true(holder)._replace(softcap=true(holder).softcap or 1.0)


@fault("dflash_spec.config.start.executable", clauses=("CFG-066",), report=LOAD, effect="crash", profiles=("ninfer",))
def every_draft_has_kernels(true: Function) -> Function:
    """Whatever can be read is run."""
    return lambda config: True


@fault("dflash_spec.config.start.executable", clauses=("CFG-066",), report=LOAD, effect="output", profiles=("ninfer",))
def full_layer_on_a_ring(true: Function) -> Function:
    """The layers' kinds are not looked at, and a full layer loses all but its last window."""
    return lambda config: true(DFlash2Config(**{**vars(config), "windows": (1,) * config.layers}))


@fault("dflash_spec.config.folder.check_complete", clauses=("CFG-067",), report=AUTOMODEL, effect="acceptance")
def missing_tensor_left_random(true: Function) -> Function:
    """What the folder lacks keeps the values that it was made with."""
    return unchecked


@fault(
    "dflash_spec.config.folder.check_closed", clauses=("CFG-068",), effect="acceptance",
    report="https://github.com/z-lab/dflash",
)  # fmt: skip
def stray_tensor_dropped(true: Function) -> Function:
    """Tensors that the model does not ask for are dropped: a convolution, a selector."""
    return unchecked


@fault("dflash_spec.config.folder.check_shape", clauses=("CFG-069",), report=PORT, effect="acceptance")
def shape_by_its_size(true: Function) -> Function:
    """A tensor fits that has as many values, whatever the order of its axes."""

    def wrong(name: str, expected: tuple[int, ...], found: Any, where: Any) -> None:
        if prod(expected) != prod(found.shape):
            true(name, expected, found, where)

    return wrong


@fault("dflash_spec.config.folder.check_dtype", clauses=("CFG-070",), report=LOAD, effect="output")
def quantised_bytes_cast(true: Function) -> Function:
    """Any dtype is cast to the weights'."""
    return unchecked


@fault("dflash_spec.config.inventory.backbone", clauses=("CFG-071",), report=PACKAGE, effect="crash")
def projection_of_as_many_taps_as_layers(true: Function) -> Function:
    """The feature projection is taken to have a tap for each draft layer."""

    def wrong(config: DraftConfig) -> Any:
        width = config.hidden_size
        return {**true(config), "fc.weight": (width, config.layers * width)}

    return wrong


@fault("dflash_spec.config.inventory.convolutions", clauses=("CFG-072",), report=PORT, effect="acceptance")
def convolution_of_attention_alone(true: Function) -> Function:
    """Only the attention branch has a convolution."""
    return lambda config: {name: shape for name, shape in true(config).items() if ".mlp_conv." not in name}


@fault("dflash_spec.config.inventory.convolutions", clauses=("CFG-072",), report=PORT, effect="acceptance")
def kernel_by_tap_then_side(true: Function) -> Function:
    """The base kernel's axes are taps, sides, channels."""

    def wrong(config: DFlash2Config) -> Any:
        shapes = true(config)
        turned = {name: (shape[1], shape[0], shape[2]) for name, shape in shapes.items() if len(shape) == 3}
        return {**shapes, **turned}

    return wrong


@fault("dflash_spec.config.inventory.selector", clauses=("CFG-073",), report=AUTOMODEL, effect="crash")
def codebook_named_as_an_embedding(true: Function) -> Function:
    """A codebook is looked for under the name that its module gives it, with `.weight`."""
    return lambda config: {
        f"{name}.weight" if name.endswith("codebook") else name: shape for name, shape in true(config).items()
    }


@fault("dflash_spec.config.start.known_backend", clauses=("CFG-074",), report=START, effect="acceptance")
def unknown_backend_is_dflash(true: Function) -> Function:
    """A number that is no backend's starts DFlash."""
    return lambda backend: backend if backend == 2 else 1


@fault("dflash_spec.config.start.proposal_rows", clauses=("CFG-075",), report=START, effect="output")
def any_head_taken(true: Function) -> Function:
    """Public rows and index are taken as they come."""
    return lambda profile, vocab_size, public, indexed: indexed or public or vocab_size
