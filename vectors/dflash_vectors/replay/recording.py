"""The reference recorded as any engine is: what it does is watched from outside, whatever is patched into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from dflash_reference import draft, draft2, engine
from dflash_reference.request import Request, Settings
from dflash_spec.files import canonical_json
from dflash_spec.tensors import Array, Tensor

from dflash_vectors.faults import Function, patched
from dflash_vectors.replay.compare import dtype_of
from dflash_vectors.replay.lanes import Pair
from dflash_vectors.trace import Recorder


class Watcher:
    """Hands each round of the reference's engine to a recorder. `rounds` counts those that have ended."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.rounds = recorder, 0
        self.state: Request | None = None
        self._captured: Array = np.zeros((0, 0))
        self._logits: Array = np.zeros((0, 0))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the engine while the block runs."""
        with ExitStack() as stack:
            for target, maker in (
                ("dflash_reference.target.captured", self._keeping("_captured")),
                ("dflash_reference.engine.logits_of", self._keeping("_logits")),
                ("dflash_reference.engine.first_token", self._first),
                ("dflash_reference.engine.play_round", self._round),
            ):
                stack.enter_context(patched(target, maker))
            yield

    def _keeping(self, name: str) -> Any:
        def maker(true: Function) -> Function:
            def kept(*given: Any, **named: Any) -> Any:
                setattr(self, name, true(*given, **named))
                return getattr(self, name)

            return kept

        return maker

    def _first(self, true: Function) -> Function:
        def watched(state: Request, taps: Any) -> Any:
            features = true(state, taps)
            self.state = state
            stages = {"target.features": features, "target.logits": self._logits}
            frontiers = {"execution": state.frontier, "kv": state.cache.length, "context": 0}
            self.recorder.prefill(int(state.anchor), stages=self._held(stages), frontiers=frontiers)
            return features

        return watched

    def _round(self, true: Function) -> Function:
        def watched(state: Request, model: Any, rows: Any, pending: Any, drafts: int) -> Any:
            round_, after = true(state, model, rows, pending, drafts)
            proposal = round_.proposal
            stages = {"features": round_.features, "c": round_.c, **_drafted(proposal)}
            stages |= {"target.features": self._captured, "target.logits": round_.target_logits}
            self.recorder.round(
                frontier=int(round_.frontier), anchor=int(round_.anchor), extent=int(round_.extent),
                proposals=np.zeros(0, np.int64) if proposal is None else proposal.proposals[: round_.extent],
                accepted=int(round_.accepted), licensed=round_.licensed, kept=int(round_.kept),
                stages=self._held(stages),
                frontiers={"execution": state.frontier, "kv": state.cache.length, "context": rows.length},
            )  # fmt: skip
            self.rounds += 1
            return round_, after

        return watched

    def _held(self, stages: Mapping[str, Array]) -> dict[str, Tensor]:
        rules = self.recorder.configuration.rules
        return {
            name: Tensor.of("I64" if name == "candidates" else dtype_of(name, rules), values, name)
            for name, values in stages.items()
        }


def _drafted(proposal: Any) -> dict[str, Array]:
    """The stages of a proposal of either kind."""
    if proposal is None:
        return {}
    layers = {f"layer.{index}": rows for index, rows in enumerate(proposal.layers)}
    if isinstance(proposal, draft2.Proposal):
        names: tuple[str, ...] = ("candidates", "unary", "g", "scores", "q")
    else:
        names = ("logits",) if isinstance(proposal, draft.Proposal) else ("logits", "q")
    return {**layers, "hidden": proposal.hidden, **{name: getattr(proposal, name) for name in names}}


def record_reference(
    folder: Path, pair: Pair, texts: tuple[Mapping[str, Any], Mapping[str, Any]], prompt: list[int], settings: Settings,
    name: str = "reference", spoil: Callable[[Watcher], AbstractContextManager[Any]] = lambda watcher: nullcontext(),
) -> Watcher:  # fmt: skip
    """Serve a request by the reference and record it in `folder`. `texts` are both configs as mappings.

    What `spoil` returns holds meanwhile: a fault, say, that begins once the watcher has seen so many rounds.
    """
    sampling = {key: getattr(settings, key) for key in ("top_k", "top_p", "min_p", "presence", "frequency")}
    plain = Settings(1, 1)
    recorder = Recorder(
        folder, name=name, version="0", profile=pair.profile.name,
        target=canonical_json(texts[0]).encode(), draft=canonical_json(texts[1]).encode(), prompt=prompt,
        drafts=settings.drafts or 0, max_new=settings.max_new, stop_ids=settings.stop_ids, public=settings.public,
        temperature=settings.temperature, seed=settings.seed, chunks=settings.chunks,
        sampling={key: value for key, value in sampling.items() if value != getattr(plain, key)},
        allowed=None if settings.allowed is None else np.asarray(settings.allowed).astype(np.uint8).tobytes(),
    )  # fmt: skip
    watcher = Watcher(recorder)
    with spoil(watcher), watcher.watching():
        done = engine.generate(pair.target, pair.draft, prompt, settings, pair.profile)
    assert watcher.state is not None
    recorder.end(_reason(watcher.state), done.tokens)
    return watcher


def _reason(state: Request) -> str:
    """Why the engine itself says that it ended."""
    if state.remaining > 0 or state.tokens[-1] in state.settings.stop_ids:
        return "stop"
    return "length" if len(state.tokens) == state.settings.max_new else "capacity"
