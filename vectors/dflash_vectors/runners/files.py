"""Files mode: the implementation has already run, and left one tensor file per vector in a folder."""

from __future__ import annotations

import os
from pathlib import Path

from dflash_spec.errors import ImplementationError, TensorFileError, UnsupportedError

from dflash_vectors.cases import GoldenCase, inside, read_json
from dflash_vectors.runners.protocol import Answer, Description, read_answer, read_description
from dflash_vectors.style import printable

DECLARATION = "implementation.json"


class FilesRunner:
    """Answers lie at `folder/<id>.safetensors` or `folder/<chapter>/<id>.safetensors`."""

    def __init__(self, spec: str, folder: Path) -> None:
        self.spec = spec
        self._folder = folder

    def start(self, profile: str) -> Description:
        """What `implementation.json` declares; without one, an implementation that owes every vector.

        Raises ImplementationError if the folder or the declaration cannot be read, UnsupportedError if the
        declaration is for another profile.
        """
        if not os.path.isdir(self._folder):
            raise ImplementationError(f"{self._folder}: not a folder, expected one with <id>.safetensors in it")
        path = self._folder / DECLARATION
        if not os.path.lexists(path):
            return Description(printable(self._folder.resolve().name), "", profile)
        try:
            value = read_json(inside(self._folder, path))
        except TensorFileError as error:
            raise ImplementationError(str(error)) from error
        description = read_description(value, str(path))
        if description.profile != profile:
            raise UnsupportedError(f"{path} declares profile {description.profile}")
        return description

    def run(self, case: GoldenCase) -> Answer:
        """The answer that lies in the folder. Raises ImplementationError if there is none, or two, or a damaged one."""
        name = f"{case.entry.id}.safetensors"
        places = [self._folder / name, self._folder / case.entry.chapter.lower() / name]
        found = [path for path in places if os.path.lexists(path)]
        if len(found) > 1:
            raise ImplementationError(f"two answers: {found[0]} and {found[1]}")
        return read_answer(found[0] if found else places[0], self._folder)

    def close(self) -> None:
        """Nothing to let go of."""
