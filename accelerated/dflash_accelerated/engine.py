"""The engine: a target, a draft and a plan, behind one call."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from functools import cache, partial
from os import PathLike
from typing import Unpack

import torch
from dflash_spec.errors import RequestError

from dflash_accelerated import planning, seams, workspace
from dflash_accelerated.arguments import (
    check_device,
    check_dtype,
    check_folder,
    check_id_set,
    check_integer,
    check_switch,
)
from dflash_accelerated.batch import Batch
from dflash_accelerated.chain import ChainOrchestrator
from dflash_accelerated.graphs import CudaCapture, Profiles, resolve_graphs
from dflash_accelerated.images import Checkpoint, Images
from dflash_accelerated.kernels import Choice, resolve_kernels
from dflash_accelerated.loading import check_profile, load_pair, read_profile
from dflash_accelerated.numerics import Kernels, Numerics
from dflash_accelerated.options import CONTEXT_LIMIT, SEED_LIMIT, Ids, IdSet, Limits, Options, read_request
from dflash_accelerated.protocols import Draft, Orchestrator, Plan, Target
from dflash_accelerated.requests import Generation, Request, Round
from dflash_accelerated.settings import Sampling
from dflash_accelerated.statistics import Statistics, Tally

BATCH_LIMIT = 8
CHECKPOINTS = 16
PREFILL_CHUNK = 512

DRAFTS_LIMIT = 1024
"""Proposals of a round, in a context that is no longer: a block names each of them, kept or not."""


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
        stop_ids: IdSet = (),
        max_batch: int = BATCH_LIMIT,
        prefill_chunk: int = PREFILL_CHUNK,
        max_checkpoints: int = CHECKPOINTS,
        graphs: bool | None = None,
        orchestrator: Plan = ChainOrchestrator,
    ) -> None:
        """An engine from adapters. `draft_tokens` is K, the most proposals of a round.

        `max_context` is how many tokens a sequence may process, `stop_ids` what ends an answer where a request names
        none, and `max_batch` how many requests share a round's forwards and how many sequences are open at once, 1 to
        8. Prompts are read `prefill_chunk` rows at a time, or fewer; `max_checkpoints` is how many images are held.
        `graphs` replays recorded rounds, as `resolve_graphs` says; None does so wherever that can be done.
        `orchestrator` makes the plan of rounds, of target, draft (None for plain decoding), numerics and `max_batch`.

        Raises RequestError: for a bad argument, and where the buffers, which are reserved here, do not fit.
        """
        seams.check_target(target)
        seams.check_draft(draft)
        seams.check_borrowed(target, draft)
        if not isinstance(numerics, Numerics):
            raise RequestError(f"numerics is {type(numerics).__name__}, expected what Numerics.of gives")
        check_profile(numerics.profile)
        if not callable(orchestrator):
            raise RequestError(f"orchestrator is {type(orchestrator).__name__}, expected a callable")
        self.max_context = check_integer("max_context", max_context, 1, CONTEXT_LIMIT)
        self.draft_tokens = check_integer("draft_tokens", draft_tokens, 0, max(self.max_context, DRAFTS_LIMIT))
        self.prefill_chunk = check_integer("prefill_chunk", prefill_chunk, 1, CONTEXT_LIMIT)
        self.stop_ids = check_id_set("stop_ids", stop_ids, CONTEXT_LIMIT)
        self.numerics = numerics
        self.target = target
        self.draft = draft
        self.max_batch = check_integer("max_batch", max_batch, 1, BATCH_LIMIT)
        planning.reserve((target, draft), self.max_batch, self.max_context + 1, target.device)
        seams.check_states(target, draft)
        self._pool: CudaCapture | None = None
        self._pool_planned = 0
        if resolve_graphs(graphs, target.device, numerics):
            self._record(graphs is True)
        widest = min(self.draft_tokens, self.max_context) + 1
        chunk = min(self.prefill_chunk, self.max_context)
        self._workspace = workspace.prepare((target, draft), self.max_batch * widest, chunk)
        self._speculative, self._plain = (
            seams.check_plan(orchestrator(target, served, numerics, self.max_batch)) for served in (draft, None)
        )
        self._images = Images(check_integer("max_checkpoints", max_checkpoints, 0, CONTEXT_LIMIT))
        self._submitted = Batch(self._speculative, self.max_batch, self._images)
        self._tally = Tally()
        _alone_in_forks()

    @staticmethod
    def from_pretrained(
        target: str | PathLike[str],
        draft: str | PathLike[str],
        *,
        draft_tokens: int | None = None,
        max_batch: int = BATCH_LIMIT,
        max_context: int | None = None,
        prefill_chunk: int = PREFILL_CHUNK,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | str | None = None,
        kernels: Choice = "auto",
        profile: str = "zlab",
        public_tokens: int | None = None,
        proposal_ids: Sequence[int] | None = None,
        max_checkpoints: int = CHECKPOINTS,
        graphs: bool | None = None,
    ) -> Engine:
        """An engine from two published folders: config.json, and model.safetensors or its shards.

        `draft_tokens` None takes the draft's trained width, in profiles that let it. `max_context` None takes what both
        configs allow; memory for `max_batch` such sequences is reserved at once. `dtype` None keeps the files' dtype;
        another one, or its name, rounds the weights once. `kernels` is auto, torch, native or triton, as
        `resolve_kernels` says. `public_tokens` is how many ids of the vocabulary the tokenizer knows (the rest is
        padding); None takes all. `proposal_ids` are the ids among which the draft proposes, in profiles that let it;
        None takes all public ones. `graphs` is whether rounds are replayed as CUDA graphs; None does so on CUDA with
        Triton's kernels, and elsewhere True is refused.

        Raises ConfigError (UnsupportedConfigError where this engine cannot run a well-formed model), CheckpointError
        for a damaged folder, RequestError for a bad argument.

            engine = Engine.from_pretrained("Qwen3-8B", "Qwen3-8B-DFlash-b16", dtype="bfloat16", max_context=4096)
            print(engine.generate(prompt_ids, max_new_tokens=200).tokens)
        """
        place = check_device(device)
        rules = read_profile(profile)
        pair = load_pair(
            check_folder("target", target), check_folder("draft", draft), rules, draft_tokens,
            check_dtype(dtype, rules), resolve_kernels(kernels, place), place, public_tokens, proposal_ids,
        )  # fmt: skip
        longest = pair.positions
        return Engine(
            pair.target,
            pair.draft,
            pair.numerics,
            draft_tokens=pair.drafts,
            max_context=check_integer("max_context", longest if max_context is None else max_context, 1, longest),
            stop_ids=pair.stop_ids,
            max_batch=max_batch,
            prefill_chunk=prefill_chunk,
            max_checkpoints=max_checkpoints,
            graphs=graphs,
        )

    def __repr__(self) -> str:
        pair = f"{type(self.target).__name__}, {type(self.draft).__name__}"
        kind = f"{self.numerics.profile.name}, {str(self.numerics.act).removeprefix('torch.')}, {self.kernels}"
        limits = f"draft_tokens={self.draft_tokens}, max_batch={self.max_batch}, max_context={self.max_context}"
        return f"<Engine of {pair}: {kind} on {self.target.device}, {limits}>"

    @property
    def kernels(self) -> Kernels:
        """Which kernels run: what `auto` came to."""
        return self.numerics.kernels

    def memory(self) -> planning.Memory:
        """Bytes of weights, caches, workspace and recordings, which the engine needs from its start on:
        `print(engine.memory())`."""
        held, pool = planning.held((self.target, self.draft)), self._pool
        graphs = max(self._pool_planned, pool.held_bytes) if pool else 0
        return held._replace(workspace=held.workspace + self._workspace, graphs=graphs)

    def statistics(self) -> Statistics:
        """What all rounds of `step` came to, since the engine was made: `print(engine.statistics())`."""
        return self._tally.read()

    def generate(self, prompt_ids: Ids, max_new_tokens: int, **options: Unpack[Options]) -> Generation:
        """The answer to a prompt of token ids; `Options` describes the options.

        At temperature 0 a draft proposes its argmax. Above it a DFlash draft does so too in profile ninfer, verified as
        a point mass, and in profile zlab draws each proposal from its own rows; a DFlash2 draft draws its path. Drawn
        proposals are verified against the very law that drew them. Either way every token keeps the target's law, with
        the request's masks, penalties and filters. Equal arguments give equal tokens.

        Raises RequestError that names the argument, and what ended the answer early: TensorError for logits that are no
        numbers, RequestError for a mask that leaves nothing to say, and whatever the grammar raises.

            answer = engine.generate([11, 3, 47], 100, temperature=0.8, seed=1)
        """
        return Generation.of(list(self.stream(prompt_ids, max_new_tokens, **options)))

    def generate_batch(self, requests: Sequence[Request]) -> list[Generation]:
        """The answers to several requests, at most `max_batch` of them in joint forwards at a time.

        Each has its own options, and the answer that it has alone, but for near ties: a joint product may add in
        another order. Raises as `generate`, once all requests have ended; `step` gives an error to its own request
        alone.

            engine.generate_batch([engine.request(prompt, 100, seed=seed) for seed, prompt in enumerate(prompts)])
        """
        if not isinstance(requests, Sequence):
            raise RequestError(f"requests is {type(requests).__name__}, expected a sequence of what `request` gave")
        batch = Batch(self._speculative, self.max_batch, self._images)
        made: dict[int, list[Round]] = {batch.submit(self._own(request)): [] for request in requests}
        while batch.busy:
            for ticket, latest in batch.step().items():
                made[ticket].append(latest)
        return [Generation.of(each) for each in made.values()]

    def submit(self, request: Request, hold: bool = False) -> int:
        """Let a request join those that `step` advances, as soon as one of `max_batch` places is free; its ticket.

        With `hold` it keeps its place after its end, for `checkpoint`, until `cancel`.

            ticket = engine.submit(engine.request(prompt_ids, 100, seed=2))
        """
        return self._submitted.submit(self._own(request), hold=check_switch("hold", hold))

    def step(self) -> dict[int, Round]:
        """One round of every submitted request, in joint forwards, by ticket; the last has a `finish_reason`.

        A request that cannot go on ends with finish reason `error` and an `error`, and the others go on.

        Where all places are held it is empty, and those that wait are `waiting`. Raises RequestError where a step is
        under way already, in another thread or in whatever calls this.

            while rounds := engine.step():
                print({ticket: latest.tokens for ticket, latest in rounds.items()})
        """
        rounds = self._submitted.step()
        for latest in rounds.values():
            self._tally.add(latest)
        return rounds

    @property
    def waiting(self) -> int:
        """How many submitted requests have found no place yet."""
        return self._submitted.waiting

    def cancel(self, ticket: int) -> None:
        """Drop a submitted request, after the step that is under way if one is.

        Raises RequestError for a ticket that has left or never was.
        """
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

        It keeps its place after its end if this one does, until it is cancelled. Neither sees from then on what the
        other writes. Raises StateError for a request that has ended, RequestError where no place is free.
        """
        return self._submitted.fork(ticket, None if seed is None else check_integer("seed", seed, 0, SEED_LIMIT))

    def restore(self, checkpoint: Checkpoint, request: Request, hold: bool = False) -> int:
        """Submit a request whose prompt begins with the checkpoint's tokens; these are not read again.

        Raises StateError for a checkpoint that was released or is of another text. A request that waits while its
        checkpoint is released ends with that error.
        """
        return self._submitted.submit(self._own(request), checkpoint, check_switch("hold", hold))

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

            for latest in engine.stream(prompt_ids, 100):
                print(latest.tokens)
        """
        return _rounds(self._speculative, self.request(prompt_ids, max_new_tokens, **options))

    def decode_plain(self, prompt_ids: Ids, max_new_tokens: int, **options: Unpack[Options]) -> Generation:
        """The target alone, one token a step. Greedy tokens are those of `generate`; sampled ones have the same law."""
        return Generation.of(list(_rounds(self._plain, self.request(prompt_ids, max_new_tokens, **options))))

    def request(self, prompt_ids: Ids, max_new_tokens: int, **options: Unpack[Options]) -> Request:
        """The arguments of `generate`, checked, for `generate_batch` and `submit`. Raises RequestError."""
        for name in options.keys() - Options.__annotations__.keys():
            raise RequestError(f"option {name!r}, expected one of {', '.join(Options.__annotations__)}")
        limits = Limits(
            self.numerics.profile, self.target.vocabulary.public, self.max_context, self.draft_tokens,
            self.prefill_chunk, self.stop_ids,
        )  # fmt: skip
        return read_request(limits, prompt_ids, max_new_tokens, **options)

    def _record(self, asked: bool) -> None:
        """Have rounds recorded where both adapters can. Raises RequestError where it is `asked` for and one cannot."""
        adapters, pool = (self.target, self.draft), CudaCapture(self.target.device)
        profiles = Profiles(self.max_batch, self.draft_tokens + 1, self.draft.taps, pool)
        if planning.record(adapters, profiles, asked):
            self._pool, self._pool_planned = pool, planning.pool_bytes(adapters, profiles.rows, self.numerics.act)

    def _own(self, request: Request) -> Request:
        """The request, if it can be this engine's. Raises RequestError for another engine's that asks for more, or for
        settings that this engine's profile has not."""
        if isinstance(request, Request):
            ids = (*request.prompt, *(request.allowed or ()))
            held = (max(ids, default=0) + 1, request.capacity, request.drafts, request.prefill_chunk or 1)
            limits = (self.target.vocabulary.public, self.max_context, self.draft_tokens, self.prefill_chunk)
            if any(one > other for one, other in zip(held, limits, strict=True)):
                raise RequestError(
                    f"a request with ids, capacity, drafts and chunk up to {held}, expected at most {limits}: another "
                    "engine made it"
                )
            own = request.sampling
            Sampling.checked(
                self.numerics.profile, own.temperature, own.top_k, own.top_p, own.min_p, own.presence, own.frequency
            )
        return request


@cache
def _alone_in_forks() -> None:
    """Have every process that is forked from now on compute on one thread.

    OpenMP's other threads are not forked, and a child that shares out work waits for them for ever.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


def _rounds(orchestrator: Orchestrator, request: Request) -> Generator[Round, None, None]:
    running, latest = orchestrator.start(request)
    try:
        while not latest.error:
            ended = latest.finish_reason is not None  # before a reader has the round, and may change it
            yield latest
            if ended:
                return
            (latest,) = orchestrator.round([running])
        raise latest.error
    finally:
        orchestrator.close(running)
