"""A peer of ``averaging_exchange.py``'s contender, run by ``.venv-hivemind``: answers each line of input with JSON.

``N`` prepares round N, ``go`` averages. The weights of a round follow from the seed, as in ``averaging_weights.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
from averaging_weights import weights_of
from hivemind import DHT
from hivemind.averaging import DecentralizedAverager
from hivemind.compression import Float16Compression, NoCompression

COMPRESSIONS = {"float32": NoCompression, "float16": Float16Compression}
STEP_SECONDS = 120.0


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def outcome(found: torch.Tensor, mean: torch.Tensor, number: int, peers: int, own: int) -> dict[str, object]:
    """How far the result is from the mean of all, and from what it was before."""
    unmoved = torch.equal(found, torch.from_numpy(weights_of(number, own, len(found))))
    return {"error": float((found - mean).abs().max()), "unmoved": unmoved, "peers": peers}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--peer", type=int, required=True)
    parser.add_argument("--peers", type=int, required=True)
    parser.add_argument("--parameters", type=int, required=True)
    parser.add_argument("--compression", choices=COMPRESSIONS, required=True)
    parser.add_argument("--initial", nargs="*", default=[])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    weights = torch.zeros(arguments.parameters)
    dht = DHT(arguments.initial, start=True, host_maddrs=[f"/ip4/{arguments.address}/tcp/0"])
    averager = DecentralizedAverager(
        [weights],
        dht,
        start=True,
        prefix="bench",
        target_group_size=arguments.peers,
        compression=COMPRESSIONS[arguments.compression](),
    )
    say(addresses=[str(address) for address in dht.get_visible_maddrs()])
    number, mean = 0, weights
    for line in sys.stdin:
        if line.strip() != "go":
            number = int(line)
            everybody = [weights_of(number, peer, arguments.parameters) for peer in range(arguments.peers)]
            mean = torch.from_numpy(sum(everybody) / arguments.peers)
            with averager.get_tensors() as tensors:
                tensors[0].copy_(torch.from_numpy(everybody[arguments.peer]))
            say(ready=number)
            continue
        began = time.monotonic()
        group = averager.step(timeout=STEP_SECONDS)
        say(seconds=time.monotonic() - began, group=len(group or ()))
        with averager.get_tensors() as tensors:
            say(**outcome(tensors[0].clone(), mean, number, arguments.peers, arguments.peer))
    averager.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    main()
