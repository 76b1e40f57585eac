"""Several requests decoded together: they join, advance and leave round by round."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

from dflash_spec.errors import RequestError, StateError

from dflash_accelerated.arguments import check_ids, check_integer
from dflash_accelerated.images import Checkpoint, Images, left_to_feed
from dflash_accelerated.protocols import Orchestrator
from dflash_accelerated.requests import Request, Round, Running

TICKETS = 2**63


class Waiting(NamedTuple):
    """A request that has no place yet."""

    ticket: int
    request: Request
    start: Checkpoint | None
    hold: bool


class Batch:
    """Requests that share each round's forwards, at most `places` at a time; the others wait in order."""

    def __init__(self, orchestrator: Orchestrator, places: int, images: Images) -> None:
        self._orchestrator = orchestrator
        self._places = places
        self._images = images
        self._waiting: deque[Waiting] = deque()
        self._running: dict[int, Running] = {}
        self._held: dict[int, Running] = {}
        self._holds: set[int] = set()
        self._tickets = 0
        self._stepping = Lock()
        self._dropped: set[int] = set()
        """Cancelled in the midst of a step, which may be reading their sequences."""

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._waiting or self._running)

    @property
    def waiting(self) -> int:
        """How many requests have no place yet."""
        return len(self._waiting)

    def submit(self, request: Request, start: Checkpoint | None = None, hold: bool = False) -> int:
        """Take a request in; its ticket names it from then on.

        It begins at the checkpoint `start`, if there is one. With `hold` it keeps its place when it has ended, so that
        it can be kept, until it is cancelled. Raises StateError where the checkpoint is not one of this prompt,
        RequestError for what is no request.
        """
        if not isinstance(request, Request):
            raise RequestError(f"a request is {type(request).__name__}, expected what `request` gave")
        if start is not None:
            image = self._images.get(start)
            left_to_feed(request.prompt, image.tokens, *image.covered)
        ticket = self._ticket()
        self._waiting.append(Waiting(ticket, request, start, hold))
        return ticket

    def step(self) -> dict[int, Round]:
        """One round of every running request, by ticket, and the first token of those that found a place.

        A request whose round has a `finish_reason` has left, and its place is free in the next step. Where what is no
        request's own ends a step, as Ctrl-C does, all running requests leave: what is stored of them may be half of a
        round, and this round's tokens are lost. What closing them raises is noted on what ended the step.

        Raises RequestError in the midst of another step, of which nothing is lost.
        """
        if not self._stepping.acquire(blocking=False):
            raise RequestError(
                "step in the midst of a step, expected one at a time: from one thread, and not from within"
            )
        try:
            return self._step()
        except BaseException as error:
            for ticket in list(self._running):
                try:
                    self._drop(ticket)
                except BaseException as another:  # what ended the step is told, and no request may stay half way
                    error.add_note(f"and ticket {ticket} was closed with {type(another).__name__}: {another}")
            raise
        finally:
            self._stepping.release()

    def _step(self) -> dict[int, Round]:
        self._drop_cancelled()
        served = dict(self._running)
        made = self._orchestrator.round(list(served.values())) if served else ()
        rounds = dict(zip(served, made, strict=True))
        while self._waiting and self._taken < self._places:
            waiting = self._waiting.popleft()
            rounds[waiting.ticket] = self._start(waiting)
        for ticket in [ticket for ticket, each in rounds.items() if each.finish_reason and ticket in self._running]:
            running = self._running.pop(ticket)
            if ticket in self._holds:
                self._held[ticket] = running
            else:
                self._orchestrator.close(running)
        self._drop_cancelled()
        return rounds

    def _drop_cancelled(self) -> None:
        while self._dropped:
            self._drop(self._dropped.pop())

    def cancel(self, ticket: int) -> None:
        """Drop a request, in the midst of a step after it; what it has emitted stands.

        Raises RequestError for a ticket that has left or never was.
        """
        _check(ticket)
        if ticket in self._running and self._stepping.locked():
            self._dropped.add(ticket)
            return
        if ticket in self._running or ticket in self._held:
            self._drop(ticket)
            return
        left = deque(each for each in self._waiting if each.ticket != ticket)
        if len(left) == len(self._waiting):
            raise RequestError(f"ticket {ticket}, expected one of a request that waits, runs or is held")
        self._waiting = left

    def _drop(self, ticket: int) -> None:
        """Close a sequence, unless it has left."""
        self._holds.discard(ticket)
        for places in (self._running, self._held):
            if ticket in places:
                self._orchestrator.close(places.pop(ticket))

    def arrange(self, tickets: Sequence[int]) -> None:
        """The rows of the next round, in this order. Raises RequestError unless it names each running request once."""
        order = check_ids("tickets", tickets, TICKETS, "tickets")
        if sorted(order) != sorted(self._running):
            raise RequestError(f"tickets {list(order)}, expected {list(self._running)} in some order")
        self._running = {ticket: self._running[ticket] for ticket in order}

    def checkpoint(self, ticket: int) -> Checkpoint:
        """Keep an image of a request, which goes on as it was. Raises StateError, and RequestError as `_own`."""
        return self._images.put(self._orchestrator.keep(self._own(ticket)).copied())

    def fork(self, ticket: int, seed: int | None) -> int:
        """A second request that goes on from where this one stands: its ticket, in the next row.

        Where the first is held after its end, so is this one. Raises StateError for one that has ended or cannot be
        forked, RequestError where there is no place.
        """
        running = self._own(ticket)
        if ticket in self._held:
            raise StateError(f"ticket {ticket} has ended, expected a request that goes on, to be forked")
        if self._taken >= self._places:
            raise RequestError(f"{self._taken} places are taken, expected fewer than {self._places}, for a fork")
        other = self._orchestrator.fork(running, seed)
        new = self._ticket()
        self._running[new] = other
        if ticket in self._holds:
            self._holds.add(new)
        return new

    @property
    def _taken(self) -> int:
        return len(self._running) + len(self._held)

    def _ticket(self) -> int:
        self._tickets += 1
        return self._tickets - 1

    def _own(self, ticket: int) -> Running:
        """The sequence of a ticket. Raises RequestError for one that has none."""
        _check(ticket)
        running = self._running.get(ticket) or self._held.get(ticket)
        if running is None:
            raise RequestError(f"ticket {ticket}, expected one of a request that runs or is held")
        return running

    def _start(self, waiting: Waiting) -> Round:
        """The first round of a request: an error without a free lane, once its checkpoint is released, or where
        something of the request's own raises."""
        try:
            image = self._images.get(waiting.start) if waiting.start else None
            running, first = self._orchestrator.start(waiting.request, image)
        except Exception as error:
            return Round((), finish_reason="error", error=error)
        self._running[waiting.ticket] = running
        if waiting.hold:
            self._holds.add(waiting.ticket)
        return first


def _check(ticket: object) -> None:
    """Raise RequestError for what is no ticket at all."""
    check_integer("ticket", ticket, 0, TICKETS - 1)
