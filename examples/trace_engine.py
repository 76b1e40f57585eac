#!/usr/bin/env python3
"""Record what an engine does, round by round: the accelerated engine, through its observer. Start here for yours.

python examples/trace_engine.py build/traced
dflash-check-trace build/traced/trace --target build/traced/pair/target --draft build/traced/pair/draft
"""

import sys
from pathlib import Path
from unittest import mock

from dflash_accelerated import Engine
from dflash_vectors import planted
from dflash_vectors.trace import Recorder


def decode(folder, engine, pair, prompt, max_new, profile="zlab", **options):
    """The answer to `prompt` of an engine for the folders pair/target and pair/draft, recorded in `folder`.

    The engine yields a round's tokens after its observer has seen the round's tensors. Its observer does not tell how
    many rows the target holds afterwards; the state that the target opens for the request does.
    """
    stop_ids = list(engine.stop_ids)
    recorder = Recorder(
        folder, name="dflash-accelerated", version="0.1.0", profile=profile, target=pair / "target",
        draft=pair / "draft", prompt=prompt, drafts=engine.draft_tokens, max_new=max_new, stop_ids=stop_ids,
        public=engine.target.vocabulary.public, temperature=options.get("temperature", 0.0),
        seed=options.get("seed", 0),
    )  # fmt: skip
    seen, states, answer = [], [], []
    opened = engine.target.open
    with mock.patch.object(engine.target, "open", lambda rows: states.append(opened(rows)) or states[-1]):
        for step in engine.stream(prompt, max_new, observer=seen.append, **options):
            answer += step.tokens
            if step.accepted is None:  # the prompt's round
                recorder.prefill(step.tokens[0], frontiers={"kv": len(prompt)})
                continue
            trace = seen.pop()
            recorder.round(
                frontier=trace.frontier, anchor=trace.anchor, proposals=step.proposals, accepted=step.accepted,
                licensed=step.tokens, kept=len(step.tokens), stages=trace.stages, frontiers={"kv": states[0].length},
            )  # fmt: skip
    recorder.end(step.finish_reason, answer)
    return answer


def main(folder):
    """Make a planted pair, decode with it, and record that."""
    pair = planted.pair("small", backend="dflash2")
    planted.write(folder / "pair", pair)
    engine = Engine.from_pretrained(folder / "pair/target", folder / "pair/draft", public_tokens=pair.public)
    answer = decode(folder / "trace", engine, folder / "pair", pair.prompts[0], 60)
    print(f"{len(answer)} tokens; now run\n  dflash-check-trace {folder}/trace --target {folder}/pair/target "
          f"--draft {folder}/pair/draft")  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
