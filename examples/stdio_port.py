#!/usr/bin/env python3
"""A whole stdio implementation in one file, with the standard library alone: start here for your own.

It answers three ops in either profile, and imports nothing of this project: what it does in Python, a port does in its
own language. From the root of the repository:

    dflash-check-vectors --implementation 'stdio:python examples/stdio_port.py'
"""

import json
import math
import struct
import sys

CODES = {"BF16": "H", "F16": "H", "F32": "f", "U8": "B", "U32": "I", "U64": "Q", "I32": "i", "I64": "q"}


def read(path):
    """name -> (dtype, shape, flat list of values); BF16 and F16 values stay codes."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            count = math.prod(entry["shape"])
            values = struct.unpack(f"<{count}{CODES[entry['dtype']]}", data[start:end])
            tensors[name] = (entry["dtype"], entry["shape"], list(values))
    return tensors


def write(path, tensors):
    """The inverse of read."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        packed = struct.pack(f"<{len(values)}{CODES[dtype]}", *values)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def scalar(value):
    return ("I32", [], [value])


def row(values):
    return ("I32", [len(values)], values)


def law_greedy(take, profile):
    proposals, target = take("proposals"), take("target")
    accepted = 0
    while accepted < len(proposals) and proposals[accepted] == target[accepted]:
        accepted += 1
    unused = [0] * (len(target) - accepted - 1)
    return {"licensed": row([*target[: accepted + 1], *unused]), "accepted": scalar(accepted)}


def stop_preview(take, profile):
    licensed, stops, (remaining,) = take("licensed"), take("stop_ids"), take("remaining")
    kept = licensed[:remaining]
    hits = [index for index, token in enumerate(kept) if token in stops]
    count = hits[0] + 1 if hits else len(kept)
    return {"kept": scalar(count), "terminal": scalar(int(bool(hits) or count == remaining))}


def block_verify_inputs(take, profile):
    (anchor,), proposals, (frontier,), (extent,) = map(take, ("anchor", "proposals", "frontier", "extent"))
    ids = [anchor, *proposals[:extent]]
    positions = [frontier + i for i in range(extent + 1)]
    if profile == "ninfer":
        dead = len(proposals) - extent
        ids, positions = ids + [anchor] * dead, positions + positions[-1:] * dead
    return {"ids": row(ids), "positions": row(positions)}


OPS = {"law.greedy": law_greedy, "stop.preview": stop_preview, "block.verify_inputs": block_verify_inputs}


def answer(message, profile):
    tensors = read(message["inputs"])
    if message["cmd"] == "smoke":
        results = {name.removeprefix("in."): tensor for name, tensor in tensors.items()}
    else:
        results = OPS[message["op"]](lambda name: tensors[f"in.{name}"][2], profile)
    write(message["outputs"], {f"out.{name}": tensor for name, tensor in results.items()})
    return {"seq": message["seq"], "ok": True}


def main():
    profile = ""
    for line in sys.stdin:
        message = json.loads(line)
        if message["cmd"] == "stop":
            break
        if message["cmd"] == "start":
            profile = message["profile"]
            reply = {"protocol": 1, "name": "stdio example", "version": "1", "profile": profile, "ops": sorted(OPS)}
        else:
            try:
                reply = answer(message, profile)
            except Exception as error:
                reply = {"seq": message["seq"], "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)


main()
