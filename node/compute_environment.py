"""Environment variables for processes that compute with torch. The user's own environment takes precedence.

GOMP_SPINCOUNT: by default torch's threads spin while they wait for each other. On a machine with other work (another
node, a browser) each then waits for a thread that has no core: rounds of the built-in model took 2 s instead of 0.1 s
on two cores with ten runnable processes. Threads that sleep at once take microseconds to wake, hundreds of times a
pass: a small model learns at half the speed. A spin of this length just bridges the gap between two operations. If
torch comes with another OpenMP than GNU's, OMP_WAIT_POLICY is the nearest equivalent.

ONEDNN_PRIMITIVE_CACHE_CAPACITY: oneDNN caches the code generated for the last 1024 shapes of matrix products, and
sampling uses nearly that many, one for each number of rows in the batch: some 200 MB. A sixteenth is as fast.

MKL_CBWR: MKL's products have the same bits with one thread as with several, which costs nothing measurable. The engine
changes its number of threads by what is faster, and a round that is repeated stays the same.

THP_MEM_ALLOC_ENABLE: tensors of 2 MiB and more use huge pages if the system has them. A new tensor of 40 MB takes 15 ms
instead of 65 (page faults of a virtual machine), which is most of the time of an outer step.

MALLOC_MMAP_THRESHOLD_: glibc raises by itself, up to 32 MiB, the size from which an allocation is a mapping of its own.
Gradients and activations of a 0.5 billion model are below that: they leave holes in a heap that cannot shrink while
moments made later lie above them, so that a learner kept gigabytes after a step, and ran out in the next round. Above
the head's blocks of 4 MiB each tensor is given back when it is freed; at 1 MiB a small model learns a third slower.

MALLOC_TRIM_THRESHOLD_: glibc gives the free end of the heap back to the system as soon as it is 128 KiB long, and every
page that a later tensor takes there costs a page fault. A step of two threads gave back and took 8,000 pages a round of
the built-in model, and was slower than a step of one thread. Up to 32 MiB at the end are kept.

GLIBC_TUNABLES: a tensor's memory is aligned. glibc takes more than asked for, cuts off the surplus at both ends, and
puts these few bytes into its caches of small blocks, where they count as used. The memory of a freed tensor lies
between two such pieces and is too short for another of the same size. So every temporary tensor below the size above
left a hole: an adapter's passes, with three for each matrix, took up to twice as much again as they keep. Without
these caches the pieces are joined with the hole. That cost no time that was measurable.

TORCHDYNAMO_DISABLE: nothing here is compiled by torch. Without this, bitsandbytes, which peft imports, asks for the
compiler when it is imported: a second and 40 MB more for every learner of an adapter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
COMPUTE_DEFAULTS: Final = {
    "GOMP_SPINCOUNT": "2000",
    "OMP_WAIT_POLICY": "PASSIVE",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "MKL_CBWR": "AUTO,STRICT",
    "THP_MEM_ALLOC_ENABLE": "1",
    "MALLOC_MMAP_THRESHOLD_": str((4 << 20) + 1),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 20),
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0",
    "TORCHDYNAMO_DISABLE": "1",
}


def compute_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns ``environment`` with our defaults for variables it lacks; torch reads it when it is imported."""
    return {**COMPUTE_DEFAULTS, **environment}


def without_compute_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns ``environment`` without our defaults: for another program that computes, which has its own. Limits of
    threads stay, since somebody set them."""
    dropped = {*COMPUTE_DEFAULTS.items()}
    return {name: value for name, value in environment.items() if (name, value) not in dropped}


def thread_limit(threads: int | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that hold torch, MKL and numba to ``threads``, or to fewer where ``environment`` says so;
    none without a limit."""
    if threads is None:
        return {}
    set_already = {name: environment.get(name, "") for name in THREAD_VARIABLES}
    return {
        name: str(min(threads, int(text)) if text.isdigit() and int(text) else threads)
        for name, text in set_already.items()
    }
