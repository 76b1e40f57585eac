"""Several requests decoded together: they join, advance and leave round by round."""

from __future__ import annotations

from collections import deque

from dflash_spec.errors import RequestError

from dflash_accelerated.protocols import Orchestrator
from dflash_accelerated.requests import Request, Round, Running


class Batch:
    """Requests that share each round's forwards, at most `places` at a time; the others wait in order."""

    def __init__(self, orchestrator: Orchestrator, places: int) -> None:
        self._orchestrator = orchestrator
        self._places = places
        self._waiting: deque[tuple[int, Request]] = deque()
        self._running: dict[int, Running] = {}
        self._tickets = 0

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._waiting or self._running)

    def submit(self, request: Request) -> int:
        """Take a request in; its ticket names it in `step` and `cancel`."""
        ticket = self._tickets
        self._tickets += 1
        self._waiting.append((ticket, request))
        return ticket

    def step(self) -> dict[int, Round]:
        """One round of every running request, by ticket, and the first token of those that found a place.

        A request whose round has a `finish_reason` has left, and its place is free in the next step.
        """
        tickets = list(self._running)
        rounds = dict(zip(tickets, self._orchestrator.round([self._running[ticket] for ticket in tickets]), strict=True)
                      if tickets else ())  # fmt: skip
        while self._waiting and len(self._running) < self._places:
            ticket, request = self._waiting.popleft()
            self._running[ticket], rounds[ticket] = self._orchestrator.start(request)
        for ticket in [ticket for ticket, made in rounds.items() if made.finish_reason]:
            self._orchestrator.close(self._running.pop(ticket))
        return rounds

    def cancel(self, ticket: int) -> None:
        """Drop a request; what it has emitted stands. Raises RequestError for a ticket that neither waits nor runs."""
        if ticket in self._running:
            self._orchestrator.close(self._running.pop(ticket))
            return
        left = deque(each for each in self._waiting if each[0] != ticket)
        if len(left) == len(self._waiting):
            raise RequestError(f"ticket {ticket}, expected one of a request that waits or runs")
        self._waiting = left
