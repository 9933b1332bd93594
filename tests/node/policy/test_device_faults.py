"""What torch's messages mean: less memory may do, a new process may do, or it is a bug."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from node.configuration import PolicySection
from node.policy import loading
from node.policy.device_faults import accelerator_error, is_out_of_memory
from node.policy.policy import Policy
from protocol.errors import AcceleratorError

# As torch 2.13 and its libraries word them.
OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 7.79 GiB of which 1.2 GiB is free.",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
    "HIP out of memory. Tried to allocate 20.00 MiB",
    "MPS backend out of memory (MPS allocated: 17.9 GB, other allocations: 1.1 GB, max allowed: 18.1 GB)",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "Triton Error [CUDA]: out of memory",
    "unable to mmap 988097824 bytes from file </models/model.safetensors>: Cannot allocate memory (12)",
    "[enforce fail at alloc_cpu.cpp:127] data. DefaultCPUAllocator: not enough memory: you tried to allocate 64 bytes",
)
FAILURES = (
    "CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronously reported",
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: device-side assert triggered",
    "CUDA error: uncorrectable ECC error encountered",
    "CUDA error: the launch timed out and was terminated",
    "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle)`",
    "CUDA driver error: device not ready",
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    "No CUDA GPUs are available",
    "HIP error: invalid device function",
    "Triton Error [CUDA]: an illegal memory access was encountered",
    "cuDNN Frontend error: [cudnn_frontend] Error: No valid execution plans built.",
)
OTHERS = (
    "mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)",
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    "element 0 of tensors does not require grad and does not have a grad_fn",
)


@pytest.mark.parametrize("message", OUT_OF_MEMORY)
def test_lack_of_memory_is_told_from_a_failing_gpu(message: str) -> None:
    assert is_out_of_memory(RuntimeError(message))
    assert accelerator_error(RuntimeError(message)) is None


@pytest.mark.parametrize("message", FAILURES)
def test_failing_gpu_is_reported_with_its_first_line_and_what_to_do(message: str) -> None:
    assert not is_out_of_memory(RuntimeError(message))
    error = accelerator_error(RuntimeError(message))
    assert error is not None
    assert message.splitlines()[0] in str(error)
    assert "\n" not in str(error)
    assert 'policy.device = "cpu"' in str(error)


@pytest.mark.parametrize("message", OTHERS)
def test_any_other_error_of_torch_is_neither(message: str) -> None:
    assert not is_out_of_memory(RuntimeError(message))
    assert accelerator_error(RuntimeError(message)) is None


def test_what_this_machine_itself_says_when_memory_is_refused_is_understood(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as of_torch:
        torch.empty(1 << 60, dtype=torch.uint8)
    with pytest.raises((OSError, OverflowError, MemoryError)) as of_the_system:
        mmap.mmap(-1, 1 << 60)
    with pytest.raises(MemoryError) as of_python:
        bytearray(1 << 60)
    for caught in (of_torch, of_the_system, of_python):
        assert is_out_of_memory(caught.value)


def test_gpu_that_fails_while_a_model_is_loaded_is_no_fault_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.AcceleratorError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(loading, "_from_pretrained", fail)
    with pytest.raises(AcceleratorError, match="unspecified launch failure"):
        Policy.load(PolicySection(model="builtin:wren", device="cpu"))
