"""Which errors mean that memory ran out, and what a failed attempt gives back."""

from __future__ import annotations

import errno
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch

from node.learner.memory.errors import completed, forget
from node.policy.device_faults import MAX_DETAIL_CHARACTERS, detail_of, is_out_of_memory
from protocol.errors import HalfWrittenError

EVERYTHING = 1 << 60  # bytes; no machine has them


def caught(work: Callable[[], object]) -> Exception:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - what kind it is, is the question
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    "work",
    [
        lambda: torch.empty(EVERYTHING, dtype=torch.uint8),
        lambda: torch.zeros(EVERYTHING // 8, dtype=torch.float64),
        lambda: np.zeros(EVERYTHING, np.uint8),
        lambda: bytearray(EVERYTHING),
    ],
)
def test_what_torch_numpy_and_python_raise_here_is_recognised(work: Callable[[], object]) -> None:
    assert is_out_of_memory(caught(work))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)"),
        RuntimeError("unable to mmap 123 bytes from file <x>: Cannot allocate memory (12)"),
        RuntimeError("could not create a primitive"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_what_accelerators_and_the_system_raise_is_recognised(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError("out of memory"),
        KeyError("memory"),
    ],
)
def test_other_errors_are_not_taken_for_it(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_the_detail_is_one_bounded_line() -> None:
    assert detail_of(RuntimeError("\nfirst\nsecond")) == "first"
    assert detail_of(MemoryError()) == "MemoryError"
    assert len(detail_of(RuntimeError("x" * 10_000))) == MAX_DETAIL_CHARACTERS


def test_tensors_in_the_frames_of_a_failed_attempt_are_given_back_while_the_error_lives() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def attempt() -> None:
        activations = torch.zeros(8)
        held.append(weakref.ref(activations))
        try:
            raise torch.OutOfMemoryError("inner")
        except torch.OutOfMemoryError as inner:
            raise MemoryError from inner

    error = caught(attempt)
    assert held[0]() is not None
    forget(error)
    assert held[0]() is None


def test_writes_that_must_be_completed_are_done_again_once_and_other_errors_pass() -> None:
    tried: list[int] = []

    def fails(times: int, error: Exception) -> Callable[[], None]:
        tried.clear()

        def work() -> None:
            tried.append(1)
            if len(tried) <= times:
                raise error

        return work

    completed(fails(1, MemoryError()))
    assert len(tried) == 2
    with pytest.raises(HalfWrittenError):  # no phase is repeated after this one
        completed(fails(2, MemoryError()))
    with pytest.raises(ValueError, match="bug"):
        completed(fails(1, ValueError("bug")))
    assert len(tried) == 1
