"""The authors' `dflash_generate` recorded: hooks on its modules, and its loop's own variables, round by round.

Nothing is computed here but an order: the package asks for an unsorted top-k, and candidates are recorded best first.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import dflash.model as package
import numpy as np
import torch
from dflash_spec.tensors import Array
from torch import Tensor

from dflash_vectors.peers.authors_dflash2 import best_first, ranking
from dflash_vectors.peers.modules import array
from dflash_vectors.trace import Recorder


class Watcher:
    """Hands each round of the package's loop to a recorder. `rounds` counts those that have ended."""

    def __init__(self, recorder: Recorder, model: Any, target: Any) -> None:
        self.recorder, self.model, self.target = recorder, model, target
        self.rounds = 0
        self._stages: dict[str, Array] = {}
        self._output: Any = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the package while the block runs."""
        with ExitStack() as stack:
            for handle in self._hooks():
                stack.callback(handle.remove)
            stack.enter_context(mock.patch.object(package, "_crop_to", self._cropping(package._crop_to)))
            take = package.extract_context_feature
            stack.enter_context(mock.patch.object(package, "extract_context_feature", self._noting(take)))
            if isinstance(self.model, package.DFlash2DraftModel):
                select = self.model.candidate_selector.select
                stack.enter_context(mock.patch.object(self.model.candidate_selector, "select", self._walking(select)))
            else:
                logits = self.model.compute_logits
                stack.enter_context(mock.patch.object(self.model, "compute_logits", self._scoring(logits)))
                stack.enter_context(mock.patch.object(package, "_sampling_probs", self._softening()))
            yield

    def _hooks(self) -> Iterator[Any]:
        model = self.model
        yield model.fc.register_forward_pre_hook(lambda _module, given: self._keep("features", given[0]))
        outputs = {"c": model.hidden_norm, **{f"layer.{index}": layer for index, layer in enumerate(model.layers)}}
        for name, module in outputs.items():
            yield module.register_forward_hook(self._output_hook(name))
        yield model.norm.register_forward_hook(lambda _module, _given, rows: self._keep("hidden", rows[:, 1:]))
        if isinstance(model, package.DFlash2DraftModel):
            yield model.candidate_selector.hidden_projection.register_forward_hook(self._output_hook("g"))
        yield self.target.register_forward_hook(self._keep_output)

    def _output_hook(self, name: str) -> Callable[..., None]:
        return lambda _module, _given, rows: self._keep(name, rows[0] if isinstance(rows, tuple) else rows)

    def _keep(self, name: str, rows: Tensor) -> None:
        self._stages[name] = array(rows).copy()

    def _keep_output(self, _module: Any, _given: Any, output: Any) -> None:
        self._output = output
        self._keep("target.logits", output.logits)

    def _noting(self, take: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """What the package extracts: of the prompt, and of each verify pass."""

        def extract(*given: Any, **named: Any) -> Tensor:
            features = take(*given, **named)
            self._keep("target.features", features)
            return features

        return extract

    def _scoring(self, logits: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def compute(*given: Any, **named: Any) -> Tensor:
            rows: Tensor = logits(*given, **named)
            self._keep("logits", rows)
            self._drafting = True
            return rows

        return compute

    def _softening(self) -> Callable[..., Tensor]:
        """A sampled DFlash round softens the draft's logits first, and the target's then."""
        soften = package._sampling_probs

        def probabilities(*given: Any, **named: Any) -> Tensor:
            law: Tensor = soften(*given, **named)
            if self.__dict__.pop("_drafting", False):
                self._keep("q", law)
            return law

        return probabilities

    def _walking(self, select: Callable[..., Any]) -> Callable[..., Any]:
        """A walk: its top-k, and the scores of which it takes the largest, or which it softens."""

        def walk(hidden: Tensor, logits: Tensor, anchor: Tensor, temperature: float) -> Any:
            scores: list[Tensor] = []
            pick, soften = torch.argmax, package._sampling_probs

            def picked(values: Tensor, **named: Any) -> Tensor:
                scores.append(values)
                return pick(values, **named)

            def softened(values: Tensor, temperature: float) -> Any:
                scores.append(values[:, 0])
                return soften(values, temperature)

            with (
                ranking() as ranked,
                mock.patch.object(torch, "argmax", picked),
                mock.patch.object(package, "_sampling_probs", softened),
            ):
                path, candidates, q = select(hidden, logits, anchor, temperature)
            unary = array(ranked[0][0])
            order = np.argsort(-unary, axis=1, kind="stable")
            self._stages["candidates"], self._stages["unary"] = best_first(ranked[0])
            for name, rows in (("scores", torch.stack(scores, dim=1)), ("q", q)):
                if rows is not None:
                    self._stages[name] = np.take_along_axis(array(rows), order, axis=1)
            return path, candidates, q

        return walk

    def _cropping(self, crop: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        """The loop cuts the target's cache when a round has ended, and when the prompt has been read."""

        def cropping(cache: Any, length: int) -> None:
            crop(cache, length)
            loop: dict[str, Any] = sys._getframe(1).f_locals
            if cache is loop["past_key_values_target"]:
                self._ended(loop, int(cache.get_seq_length()))

        return cropping

    def _ended(self, loop: dict[str, Any], rows: int) -> None:
        start, context = int(loop["start"]) if "start" in loop else 0, loop["past_key_values_draft"]
        ids = loop["output_ids"][0]
        if "produced" not in loop:
            length = int(loop["num_input_tokens"])
            stages = {"target.logits": self._stages["target.logits"][-1:]}
            if "target.features" in self._stages:
                stages["target.features"] = self._stages["target.features"]
            self.recorder.prefill(
                int(ids[length]), stages=stages, frontiers={"execution": length, "kv": rows, "context": 0}
            )  # fmt: skip
        else:
            self._round(loop, start, rows, int(context.get_seq_length()))
        self._stages = {}

    def _round(self, loop: dict[str, Any], start: int, rows: int, context: int) -> None:
        block, accepted, kept = array(loop["block_output_ids"]), int(loop["acceptance_length"]), int(loop["produced"])
        if loop["verify_size"] > 1:
            features = package.extract_context_feature(self._output.hidden_states, self.model.target_layer_ids)
            self._keep("target.features", features)
        self.recorder.round(
            frontier=start - kept, anchor=int(block[0]), proposals=block[1:], accepted=accepted,
            licensed=[*block[1 : accepted + 1].tolist(), int(loop["bonus"])], kept=kept, stages=self._stages,
            frontiers={"execution": start, "kv": rows, "context": context},
        )  # fmt: skip
        self.rounds += 1


def generate(
    folder: Path, model: Any, target: Any, texts: tuple[Path, Path], prompt: Sequence[int], max_new: int,
    stop_ids: Sequence[int] = (), drafts: int | None = None, temperature: float = 0.0, public: int | None = None,
    spoil: Callable[[Watcher], AbstractContextManager[Any]] = lambda watcher: nullcontext(),
) -> list[int]:  # fmt: skip
    """Run the package's loop on `prompt` and record it in `folder`; its answer. `texts` are both models' folders.

    What `spoil` returns holds meanwhile: a fault, say, that begins once the watcher has seen so many rounds.
    """
    block_size = int(model.block_size) if drafts is None else drafts + 1
    recorder = Recorder(
        folder, name="dflash", version=version("dflash"), profile="zlab", target=texts[0], draft=texts[1],
        prompt=prompt, drafts=block_size - 1, max_new=max_new, stop_ids=stop_ids, temperature=temperature,
        public=public, draws="opaque",
    )  # fmt: skip
    watcher = Watcher(recorder, model, target)
    with spoil(watcher), watcher.watching(), warnings.catch_warnings():
        # The package, written for an older transformers, passes its cache under the name used then.
        warnings.filterwarnings("ignore", "`past_key_values` is deprecated", FutureWarning)
        ids = package.dflash_generate(
            model, target, torch.as_tensor(prompt, dtype=torch.long)[None], max_new, list(stop_ids) or None,
            temperature=temperature, block_size=block_size,
        )  # fmt: skip
    tokens: list[int] = ids[0, len(prompt) :].tolist()
    recorder.end("stop" if tokens[-1] in stop_ids else "length", tokens)
    return tokens
