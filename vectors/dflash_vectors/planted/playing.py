"""Whether a planted pair goes as planned: the reference plays it."""

from __future__ import annotations

import json
from itertools import zip_longest

from dflash_reference.engine import generate
from dflash_reference.models import Target, draft_of
from dflash_reference.request import Settings
from dflash_spec.config import read_draft_config, read_target_config
from dflash_spec.registry import load_profile

from dflash_vectors.errors import PlanError
from dflash_vectors.planted.pair import Planted


def play(planted: Planted, count: int) -> None:
    """Have the reference decode `count` new tokens after every prompt.

    Raises PlanError for the first prompt whose rounds do not accept what is planned: a short code drowns in the noise
    of some seeds, and twins come as their near ties fall.
    """
    profile, drafts = load_profile("zlab"), planted.options.drafts
    config = read_target_config(json.dumps(planted.target_config).encode())
    target = Target(config, planted.target)
    draft = draft_of(read_draft_config(json.dumps(planted.draft_config).encode(), profile, config), planted.draft)
    for number, prompt in enumerate(planted.prompts, 1):
        done = generate(target, draft, prompt, Settings(drafts, count, public=planted.public), profile)
        for round_, (found, planned) in enumerate(
            zip_longest(done.accepted, planted.expected_accepted(prompt, drafts, count), fillvalue=0), 1
        ):
            if found != planned:
                raise PlanError(f"prompt {number}, round {round_} accepts {found}, planned {planned}")
