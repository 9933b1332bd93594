"""``python -m node.policy.device_probe DEVICE DTYPE``: what torch finds for a configured device and dtype, as JSON.

Run in a process of its own by ``starling doctor``, which never imports torch.
"""

from __future__ import annotations

import platform
import sys

import msgspec
import torch

from node.policy.device import choose_device, choose_dtype, device_memory_bytes
from node.policy.device_probe_result import TorchProbe
from protocol.errors import ConfigurationError

SIDE = 64  # of the matrices that are multiplied


def probe(wanted_device: str, wanted_dtype: str) -> TorchProbe:
    """Tries the device with a small product. Reports a device that does not work instead of raising."""
    failure = None
    try:
        device = choose_device(wanted_device)
    except ConfigurationError as error:
        device, failure = torch.device("cpu"), str(error)
    dtype = choose_dtype(wanted_dtype, device)
    if failure is None:
        failure = _failure_of_a_product(device, dtype)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    return TorchProbe(
        version=str(torch.__version__),
        device=device.type,
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        device_bytes=device_memory_bytes(device),
        device_free_bytes=free,
        dtype=str(dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        has_cuda=torch.version.cuda is not None,
        hip=torch.version.hip,
        failure=failure,
    )


def _failure_of_a_product(device: torch.device, dtype: torch.dtype) -> str | None:
    try:
        a = torch.ones(SIDE, SIDE, device=device, dtype=dtype, requires_grad=True)
        (gradient,) = torch.autograd.grad((a @ a).sum(), a)
        if gradient.float().sum().item() != 2.0 * SIDE**3:
            return "a small matrix product has a wrong gradient"
    except RuntimeError as error:  # of torch: an unusable driver, no kernel for this device, no memory
        return str(error).splitlines()[0]
    return None


def main() -> None:
    sys.stdout.buffer.write(msgspec.json.encode(probe(sys.argv[1], sys.argv[2])) + b"\n")


if __name__ == "__main__":
    main()
