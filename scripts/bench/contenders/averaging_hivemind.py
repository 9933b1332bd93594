"""A peer of ``averaging_exchange.py``'s contender, run by ``.venv-hivemind``: answers each line of input
with JSON.

``N`` prepares round N, ``go`` averages, ``check`` compares the result with the mean of all. ``averaging_weights.py``
makes the weights of a round from its number.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
from hivemind import DHT
from hivemind.averaging import DecentralizedAverager
from hivemind.compression import Float16Compression, NoCompression

from scripts.bench.common.averaging_weights import weights_of

COMPRESSIONS = {"float32": NoCompression, "float16": Float16Compression}
STEP_SECONDS = 120.0


def send(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def outcome(found: torch.Tensor, mean: torch.Tensor, number: int, peers: int, own: int) -> dict[str, object]:
    """Returns the result's largest error against the mean of all peers, and whether the exchange changed nothing."""
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
    send(addresses=[str(address) for address in dht.get_visible_maddrs()])
    number, mean = 0, weights
    for line in sys.stdin:
        if line.strip() == "check":
            with averager.get_tensors() as tensors:
                send(**outcome(tensors[0].clone(), mean, number, arguments.peers, arguments.peer))
            continue
        if line.strip() != "go":
            number = int(line)
            weights_of_all = [weights_of(number, peer, arguments.parameters) for peer in range(arguments.peers)]
            mean = torch.from_numpy(sum(weights_of_all) / arguments.peers)
            with averager.get_tensors() as tensors:
                tensors[0].copy_(torch.from_numpy(weights_of_all[arguments.peer]))
            send(ready=number)
            continue
        began = time.monotonic()
        group = averager.step(timeout=STEP_SECONDS)
        send(seconds=time.monotonic() - began, group=len(group or ()))
    averager.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    main()
