"""Properties that are found at the first look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Found = TypeVar("Found")


class once(Generic[Found]):
    """A property that keeps its first value, as `functools.cached_property` does, without a lock.

    Until Python 3.12 that one holds a lock for all objects of a class, for which a process that is forked meanwhile
    waits for ever. Here two threads may both find the value, and one of them is kept.
    """

    def __init__(self, find: Callable[[Any], Found]) -> None:
        self._find, self.__doc__ = find, find.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> once[Found]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Found: ...
    def __get__(self, instance: object | None, owner: type) -> once[Found] | Found:
        if instance is None:
            return self
        found = instance.__dict__[self._name] = self._find(instance)
        return found
