"""The engine: a target, a draft and a plan, behind one call."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from dflash_spec.checkpoint import Checkpoint
from dflash_spec.config import (
    DFlash2Config,
    DraftConfig,
    TargetConfig,
    check_head_index,
    draft_count,
    draft_tensors,
    read_draft_config,
    read_target_config,
    target_tensors,
)
from dflash_spec.config.dflash2 import check_candidates
from dflash_spec.config.start import proposal_rows
from dflash_spec.errors import RequestError
from dflash_spec.registry import Profile, load_profile
from torch import Tensor

from dflash_accelerated import weights
from dflash_accelerated.batch import Batch
from dflash_accelerated.chain import ChainOrchestrator
from dflash_accelerated.models.dflash import DFlashDraft
from dflash_accelerated.models.dflash2 import DFlash2Draft
from dflash_accelerated.models.qwen3 import Qwen3Target
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.protocols import Draft, Orchestrator, Target
from dflash_accelerated.requests import (
    Generation,
    Observer,
    Request,
    Round,
    check_ids,
    check_integer,
    check_temperature,
)

SEED_LIMIT = 2**64 - 1
BATCH_LIMIT = 8
CONTEXT_LIMIT = 2**31 - 1

Ids = Sequence[int] | npt.NDArray[np.integer[Any]] | Tensor


class Engine:
    """Speculative decoding of one target with one draft.

    Several streams of one engine may be read in turns; `generate_batch` and `submit` decode requests together.
    """

    def __init__(
        self,
        target: Target,
        draft: Draft,
        numerics: Numerics,
        *,
        draft_tokens: int,
        max_context: int,
        stop_ids: Sequence[int] = (),
        max_batch: int = BATCH_LIMIT,
    ) -> None:
        """An engine from adapters. `draft_tokens` is K, the most proposals of a round.

        `max_context` is how many tokens a sequence may process, `stop_ids` what ends an answer where a request names
        none, and `max_batch` how many requests share a round's forwards, 1 to 8. Raises RequestError.
        """
        self.draft_tokens = check_integer("draft_tokens", draft_tokens, 0, CONTEXT_LIMIT)
        self.max_context = check_integer("max_context", max_context, 1, CONTEXT_LIMIT)
        self.stop_ids = tuple(stop_ids)
        self.numerics = numerics
        self.target = target
        self.draft = draft
        self.max_batch = check_integer("max_batch", max_batch, 1, BATCH_LIMIT)
        self._speculative = ChainOrchestrator(target, draft, numerics)
        self._plain = ChainOrchestrator(target, None, numerics)
        self._submitted = Batch(self._speculative, self.max_batch)

    @staticmethod
    def from_pretrained(
        target_dir: str | Path,
        draft_dir: str | Path,
        dtype: torch.dtype | None = None,
        profile: str = "zlab",
        draft_tokens: int | None = None,
        device: str | torch.device = "cpu",
        max_context: int | None = None,
        public_tokens: int | None = None,
        proposal_ids: Sequence[int] | None = None,
        max_batch: int = BATCH_LIMIT,
    ) -> Engine:
        """An engine from two published folders: config.json, and model.safetensors or its shards.

        `dtype` None keeps the files' dtype; another one rounds the weights once. `draft_tokens` None takes the draft's
        trained width, in profiles that let it. `public_tokens` is how many ids of the vocabulary the tokenizer knows
        (the rest is padding); None takes all. `proposal_ids` are the ids among which the draft proposes, in profiles
        that let it; None takes all public ones. `max_context` None takes what both configs allow.

        Raises ConfigError (UnsupportedConfigError where this engine cannot run a well-formed model), CheckpointError
        for a damaged folder, SpecDataError for an unknown profile, RequestError for a bad argument.

            engine = Engine.from_pretrained("Qwen3-8B", "Qwen3-8B-DFlash-b16")
            print(engine.generate(prompt_ids, max_new_tokens=200).tokens)
        """
        rules = load_profile(profile)
        target_dir, draft_dir, device = Path(target_dir), Path(draft_dir), torch.device(device)
        target_config = read_target_config(target_dir)
        draft_config = read_draft_config(draft_dir, rules, target_config, "published")
        drafts = draft_count(rules, draft_config.block_size, draft_tokens)
        public = target_config.vocab_size if public_tokens is None else public_tokens
        public = check_integer("public_tokens", public, 1, target_config.vocab_size)
        index = _proposal_index(rules, target_config, draft_config, public, proposal_ids)
        target_weights = weights.load(Checkpoint.open(target_dir), target_tensors(target_config))
        draft_weights = weights.load(Checkpoint.open(draft_dir), draft_tensors(draft_config))
        if dtype is None:
            dtype = weights.common_dtype(target_weights["model.embed_tokens.weight"], draft_weights["fc.weight"])
        numerics = Numerics.of(rules, dtype)
        longest = min(target_config.max_positions, draft_config.max_positions)
        return Engine(
            Qwen3Target(target_config, target_weights, public, numerics, device, index),
            load_draft(draft_config, draft_weights, numerics, device),
            numerics,
            draft_tokens=drafts,
            max_context=check_integer("max_context", longest if max_context is None else max_context, 1, longest),
            stop_ids=target_config.stop_ids,
            max_batch=max_batch,
        )

    def generate(
        self,
        prompt_ids: Ids,
        max_new_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        stop_ids: Ids | None = None,
        prefill_chunk: int | None = None,
        observer: Observer | None = None,
        draft_tokens: int | None = None,
    ) -> Generation:
        """The answer to a prompt of token ids.

        A DFlash draft proposes its argmax, verified as a point mass above temperature 0; a DFlash2 draft then draws its
        proposals, verified against the law that drew them. Either way every token keeps the target's law. Equal
        arguments give equal tokens. `stop_ids` None takes the target's own. The prompt is read `prefill_chunk` rows at
        a time, or whole. `observer` gets each round's stage tensors. `draft_tokens` are the most proposals of a round
        of this request, at most the engine's; None takes these. The temperature
        counts by its FP32 value, which is 0 or normal. Integers and the temperature may be NumPy scalars.

        Raises RequestError that names the argument.
        """
        arguments = (prompt_ids, max_new_tokens, temperature, seed, stop_ids, prefill_chunk, observer, draft_tokens)
        return Generation.of(list(self.stream(*arguments)))

    def generate_batch(self, requests: Sequence[Request]) -> list[Generation]:
        """The answers to several requests, at most `max_batch` of them in joint forwards at a time.

        Each has its own temperature, seed, stops, budget and draft count, and the answer that it has alone, but for
        near ties: a joint product may add in another order.

            engine.generate_batch([engine.request(prompt, 100, seed=seed) for seed, prompt in enumerate(prompts)])
        """
        batch = Batch(self._speculative, self.max_batch)
        made: dict[int, list[Round]] = {batch.submit(request): [] for request in requests}
        while batch.busy:
            for ticket, latest in batch.step().items():
                made[ticket].append(latest)
        return [Generation.of(each) for each in made.values()]

    def submit(self, request: Request) -> int:
        """Let a request join those that `step` advances, as soon as one of `max_batch` places is free; its ticket."""
        return self._submitted.submit(request)

    def step(self) -> dict[int, Round]:
        """One round of every submitted request, in joint forwards, by ticket; the last has a `finish_reason`."""
        return self._submitted.step()

    def cancel(self, ticket: int) -> None:
        """Drop a submitted request. Raises RequestError for a ticket that has ended or never was."""
        self._submitted.cancel(ticket)

    def stream(
        self,
        prompt_ids: Ids,
        max_new_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        stop_ids: Ids | None = None,
        prefill_chunk: int | None = None,
        observer: Observer | None = None,
        draft_tokens: int | None = None,
    ) -> Generator[Round, None, None]:
        """The rounds of `generate`, each as it is finished; the first holds the token after the prompt alone.

        `close()` cancels the request; what it has yielded stands. Raises RequestError at the call, not at the first
        round.
        """
        arguments = (prompt_ids, max_new_tokens, temperature, seed, stop_ids, prefill_chunk, observer, draft_tokens)
        return _rounds(self._speculative, self.request(*arguments))

    def decode_plain(
        self,
        prompt_ids: Ids,
        max_new_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        stop_ids: Ids | None = None,
        prefill_chunk: int | None = None,
    ) -> Generation:
        """The target alone, one token a step. Greedy tokens are those of `generate`; sampled ones have the same law."""
        request = self.request(prompt_ids, max_new_tokens, temperature, seed, stop_ids, prefill_chunk)
        return Generation.of(list(_rounds(self._plain, request)))

    def request(
        self,
        prompt_ids: Ids,
        max_new_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        stop_ids: Ids | None = None,
        prefill_chunk: int | None = None,
        observer: Observer | None = None,
        draft_tokens: int | None = None,
    ) -> Request:
        """The arguments of `generate`, checked, for `generate_batch` and `submit`. Raises RequestError."""
        public = self.target.vocabulary.public
        prompt = check_ids("prompt_ids", prompt_ids, public)
        if not 1 <= len(prompt) <= self.max_context:
            raise RequestError(f"prompt_ids has {len(prompt)} tokens, expected 1 to {self.max_context}")
        return Request(
            prompt=prompt,
            max_new_tokens=check_integer("max_new_tokens", max_new_tokens, 1, CONTEXT_LIMIT),
            temperature=check_temperature(temperature),
            seed=check_integer("seed", seed, 0, SEED_LIMIT),
            stop_ids=frozenset(self.stop_ids if stop_ids is None else check_ids("stop_ids", stop_ids, public)),
            prefill_chunk=None
            if prefill_chunk is None
            else check_integer("prefill_chunk", prefill_chunk, 1, CONTEXT_LIMIT),
            capacity=self.max_context,
            drafts=self.draft_tokens
            if draft_tokens is None
            else check_integer("draft_tokens", draft_tokens, 0, self.draft_tokens),
            observer=observer,
        )


def load_draft(
    config: DraftConfig, tensors: Mapping[str, Tensor], numerics: Numerics, device: torch.device
) -> DFlashDraft:
    """The draft that a config asks for."""
    if isinstance(config, DFlash2Config):
        return DFlash2Draft(config, tensors, numerics, device)
    return DFlashDraft(config, tensors, numerics, device)


def _proposal_index(
    profile: Profile, target: TargetConfig, draft: DraftConfig, public: int, ids: Sequence[int] | None
) -> tuple[int, ...] | None:
    """The rows of an indexed proposal head. Raises ConfigError, and RequestError where `ids` are no token ids."""
    index = None if ids is None else check_ids("proposal_ids", ids, target.vocab_size)
    if index is not None:
        if not index:
            raise RequestError("proposal_ids has 0 ids, expected at least 1")
        check_head_index(index, public)
    rows = proposal_rows(profile, target.vocab_size, public, len(index or ()))
    if isinstance(draft, DFlash2Config):
        check_candidates(draft.selector_top_k, rows)
    return index


def _rounds(orchestrator: Orchestrator, request: Request) -> Generator[Round, None, None]:
    running, latest = orchestrator.start(request)
    try:
        yield latest
        while latest.finish_reason is None:
            (latest,) = orchestrator.round([running])
            yield latest
    finally:
        orchestrator.close(running)
