"""The engine: a target, a draft and a plan, behind one call."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import torch
from dflash_spec import checkpoint as folders
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
from dflash_spec.registry import PROFILES, Profile, load_profile
from torch import Tensor

from dflash_accelerated import weights
from dflash_accelerated.arguments import (
    check_allowed,
    check_callable,
    check_device,
    check_ids,
    check_integer,
    check_pieces,
    check_strings,
)
from dflash_accelerated.batch import Batch
from dflash_accelerated.chain import ChainOrchestrator
from dflash_accelerated.images import Checkpoint, Images
from dflash_accelerated.masks import Grammar
from dflash_accelerated.models.dflash import DFlashDraft
from dflash_accelerated.models.dflash2 import DFlash2Draft
from dflash_accelerated.models.qwen3 import Qwen3Target
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.protocols import Draft, Orchestrator, Reserving, Target
from dflash_accelerated.requests import Generation, Observer, Pieces, Request, Round
from dflash_accelerated.settings import Sampling

SEED_LIMIT = 2**64 - 1
BATCH_LIMIT = 8
CHECKPOINTS = 16
CONTEXT_LIMIT = 2**31 - 1

Ids = Sequence[int] | npt.NDArray[np.integer[Any]] | Tensor


class Options(TypedDict, total=False):
    """What a request may ask for beyond prompt and length; `Engine.request` says what each means."""

    temperature: float
    seed: int
    stop_ids: Ids | None
    prefill_chunk: int | None
    observer: Observer | None
    draft_tokens: int | None
    top_k: int
    top_p: float
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    allowed_tokens: Ids | None
    grammar: Grammar | None
    pieces: Sequence[bytes] | Pieces | None
    stop_strings: Sequence[str | bytes]
    show_stop: bool


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
        max_checkpoints: int = CHECKPOINTS,
    ) -> None:
        """An engine from adapters. `draft_tokens` is K, the most proposals of a round.

        `max_context` is how many tokens a sequence may process, `stop_ids` what ends an answer where a request names
        none, and `max_batch` how many requests share a round's forwards and how many sequences are open at once, 1 to
        8; `max_checkpoints` is how many images are held. Raises RequestError.
        """
        _check_profile(numerics.profile)
        self.draft_tokens = check_integer("draft_tokens", draft_tokens, 0, CONTEXT_LIMIT)
        self.max_context = check_integer("max_context", max_context, 1, CONTEXT_LIMIT)
        self.stop_ids = tuple(stop_ids)
        self.numerics = numerics
        self.target = target
        self.draft = draft
        self.max_batch = check_integer("max_batch", max_batch, 1, BATCH_LIMIT)
        for adapter in (target, draft):
            if isinstance(adapter, Reserving):
                adapter.reserve(self.max_batch, self.max_context + 1)
        self._speculative = ChainOrchestrator(target, draft, numerics, self.max_batch)
        self._plain = ChainOrchestrator(target, None, numerics, self.max_batch)
        self._images = Images(check_integer("max_checkpoints", max_checkpoints, 0, CONTEXT_LIMIT))
        self._submitted = Batch(self._speculative, self.max_batch, self._images)

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
        max_checkpoints: int = CHECKPOINTS,
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
        _check_profile(rules)
        target_dir, draft_dir, device = Path(target_dir), Path(draft_dir), check_device(device)
        target_config = read_target_config(target_dir)
        draft_config = read_draft_config(draft_dir, rules, target_config, "published")
        drafts = draft_count(rules, draft_config.block_size, draft_tokens)
        public = target_config.vocab_size if public_tokens is None else public_tokens
        public = check_integer("public_tokens", public, 1, target_config.vocab_size)
        index = _proposal_index(rules, target_config, draft_config, public, proposal_ids)
        target_weights = weights.load(folders.Checkpoint.open(target_dir), target_tensors(target_config))
        draft_weights = weights.load(folders.Checkpoint.open(draft_dir), draft_tensors(draft_config))
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
            max_checkpoints=max_checkpoints,
        )

    def generate(self, prompt_ids: Ids, max_new_tokens: int, **options: Unpack[Options]) -> Generation:
        """The answer to a prompt of token ids; `request` describes the options.

        At temperature 0 a draft proposes its argmax. Above it a DFlash draft does so too in profile ninfer, verified as
        a point mass, and in profile zlab draws each proposal from its own rows; a DFlash2 draft draws its path. Drawn
        proposals are verified against the very law that drew them. Either way every token keeps the target's law, with
        the request's masks, penalties and filters. Equal arguments give equal tokens.

        Raises RequestError that names the argument, and what ended the answer early: TensorError for logits that are no
        numbers, RequestError for a mask that leaves nothing to say, and whatever the grammar raises.
        """
        return Generation.of(list(self.stream(prompt_ids, max_new_tokens, **options)))

    def generate_batch(self, requests: Sequence[Request]) -> list[Generation]:
        """The answers to several requests, at most `max_batch` of them in joint forwards at a time.

        Each has its own options, and the answer that it has alone, but for near ties: a joint product may add in
        another order. Raises as `generate`, once all requests have ended; `step` gives an error to its own request
        alone.

            engine.generate_batch([engine.request(prompt, 100, seed=seed) for seed, prompt in enumerate(prompts)])
        """
        batch = Batch(self._speculative, self.max_batch, self._images)
        made: dict[int, list[Round]] = {batch.submit(request): [] for request in requests}
        while batch.busy:
            for ticket, latest in batch.step().items():
                made[ticket].append(latest)
        return [Generation.of(each) for each in made.values()]

    def submit(self, request: Request, hold: bool = False) -> int:
        """Let a request join those that `step` advances, as soon as one of `max_batch` places is free; its ticket.

        With `hold` it keeps its place after its end, for `checkpoint`, until `cancel`.
        """
        return self._submitted.submit(request, hold=hold)

    def step(self) -> dict[int, Round]:
        """One round of every submitted request, in joint forwards, by ticket; the last has a `finish_reason`.

        A request that cannot go on ends with finish reason `error` and an `error`, and the others go on.
        """
        return self._submitted.step()

    def cancel(self, ticket: int) -> None:
        """Drop a submitted request. Raises RequestError for a ticket that has left or never was."""
        self._submitted.cancel(ticket)

    def arrange(self, tickets: Sequence[int]) -> None:
        """Put the rows of the next joint round in another order. Raises RequestError unless each ticket stands once.

        No answer depends on it, but for the order in which a library's product adds.
        """
        self._submitted.arrange(tickets)

    def checkpoint(self, ticket: int) -> Checkpoint:
        """Keep what target and draft hold of a submitted request, between two steps; the request goes on as it was.

        The image covers all tokens but the last one, which no model has read yet: `Checkpoint.tokens`. Raises
        StateError where all `max_checkpoints` are held, or where the last round ended with an error; RequestError for a
        ticket that does not run and is not held.
        """
        return self._submitted.checkpoint(ticket)

    def fork(self, ticket: int, seed: int | None = None) -> int:
        """A second request that goes on from where this one stands, by another `seed` if there is one; its ticket.

        Neither sees from then on what the other writes. Raises StateError for a request that has ended, RequestError
        where no place is free.
        """
        return self._submitted.fork(ticket, None if seed is None else check_integer("seed", seed, 0, SEED_LIMIT))

    def restore(self, checkpoint: Checkpoint, request: Request, hold: bool = False) -> int:
        """Submit a request whose prompt begins with the checkpoint's tokens; these are not read again.

        Raises StateError for a checkpoint that was released or is of another text. A request that waits while its
        checkpoint is released ends with that error.
        """
        return self._submitted.submit(request, checkpoint, hold)

    def replicate(self, checkpoint: Checkpoint, device: str | torch.device = "cpu") -> Checkpoint:
        """A bit-exact copy of an image in host memory (or on a device), by a name of its own.

        Raises StateError as `release`, RequestError for a device that there is not.
        """
        return self._images.replicate(checkpoint, check_device(device))

    def release(self, checkpoint: Checkpoint) -> None:
        """Give an image back; its name is refused from then on. Raises StateError for one that was released."""
        self._images.release(checkpoint)

    def stream(self, prompt_ids: Ids, max_new_tokens: int, **options: Unpack[Options]) -> Generator[Round, None, None]:
        """The rounds of `generate`, each as it is finished; the first holds the token after the prompt alone.

        `close()` cancels the request; what it has yielded stands. Raises RequestError for a bad argument at the call,
        not at the first round, and what ends the answer early where it does.
        """
        return _rounds(self._speculative, self.request(prompt_ids, max_new_tokens, **options))

    def decode_plain(self, prompt_ids: Ids, max_new_tokens: int, **options: Unpack[Options]) -> Generation:
        """The target alone, one token a step. Greedy tokens are those of `generate`; sampled ones have the same law."""
        return Generation.of(list(_rounds(self._plain, self.request(prompt_ids, max_new_tokens, **options))))

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
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        allowed_tokens: Ids | None = None,
        grammar: Grammar | None = None,
        pieces: Sequence[bytes] | Pieces | None = None,
        stop_strings: Sequence[str | bytes] = (),
        show_stop: bool = False,
    ) -> Request:
        """The arguments of `generate`, checked, for `generate_batch` and `submit`. Raises RequestError.

        `temperature` 0 is greedy, and `seed` keys every draw. `stop_ids` None takes the target's own. The prompt is
        read `prefill_chunk` rows at a time, or whole. `observer` gets each round's stage tensors. `draft_tokens` are
        the most proposals of a round of this request, at most the engine's; None takes these.

        `top_k` keeps the best candidates: in profile zlab 0 keeps all, in profile ninfer 1 to 19 keep as many and
        every other value 20. `top_p` keeps the candidate at which the cumulative probability reaches it, and those
        before. `min_p` (profile ninfer) drops candidates below that share of the best one's probability.
        `presence_penalty` is subtracted from the logit of each token that was emitted, and `frequency_penalty` as often
        as it was (profile ninfer; below 0 they are rewards). `allowed_tokens` are the only ids that may be emitted.
        `grammar` is called with the tokens emitted so far, proposals under test included, and gives the mask, bool
        [public], of what may follow; it is never called with a text that it forbids.

        `pieces` are the bytes of each token, a list by id or a callable; with them rounds have a `text`. The first of
        `stop_strings` in it ends the answer and is cut off. A stop id's own piece is part of it only if `show_stop`.

        Numbers count by their FP32 value. Integers and numbers may be NumPy scalars.
        """
        public = self.target.vocabulary.public
        prompt = check_ids("prompt_ids", prompt_ids, public)
        if not 1 <= len(prompt) <= self.max_context:
            raise RequestError(f"prompt_ids has {len(prompt)} tokens, expected 1 to {self.max_context}")
        chunk = (
            prefill_chunk if prefill_chunk is None else check_integer("prefill_chunk", prefill_chunk, 1, CONTEXT_LIMIT)
        )
        drafts = self.draft_tokens if draft_tokens is None else draft_tokens
        sampling = (temperature, top_k, top_p, min_p, presence_penalty, frequency_penalty)
        return Request(
            prompt=prompt,
            max_new_tokens=check_integer("max_new_tokens", max_new_tokens, 1, CONTEXT_LIMIT),
            sampling=Sampling.checked(self.numerics.profile, *sampling),
            seed=check_integer("seed", seed, 0, SEED_LIMIT),
            stop_ids=frozenset(self.stop_ids if stop_ids is None else check_ids("stop_ids", stop_ids, public)),
            prefill_chunk=chunk,
            capacity=self.max_context,
            drafts=check_integer("draft_tokens", drafts, 0, self.draft_tokens),
            observer=check_callable("observer", observer),
            allowed=check_allowed(allowed_tokens, public),
            grammar=check_callable("grammar", grammar),
            pieces=check_pieces(pieces, public),
            stop_strings=check_strings(stop_strings, pieces is not None),
            show_stop=bool(show_stop),
        )


def load_draft(
    config: DraftConfig, tensors: Mapping[str, Tensor], numerics: Numerics, device: torch.device
) -> DFlashDraft:
    """The draft that a config asks for."""
    if isinstance(config, DFlash2Config):
        return DFlash2Draft(config, tensors, numerics, device)
    return DFlashDraft(config, tensors, numerics, device)


def _check_profile(profile: Profile) -> None:
    if profile.name not in PROFILES:
        raise RequestError(
            f"profile {profile.name} is stated on some ops only, expected one of {', '.join(PROFILES)} to decode with"
        )


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
        while not latest.error:
            yield latest
            if latest.finish_reason:
                return
            (latest,) = orchestrator.round([running])
        raise latest.error
    finally:
        orchestrator.close(running)
