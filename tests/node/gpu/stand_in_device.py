"""A GPU that is not there: tensors that say they are on it, and keep their numbers in main memory.

``install("cuda")`` or ``install("mps")`` makes this process believe that torch was built for that device and found one.
A ``DeviceTensor`` is on it, also for C++ (``is_cuda``, autograd's threads), and holds a CPU tensor. Each operator on
such tensors passes ``Trace``, which runs it on what they hold, so that results are real, and writes down what a GPU
would mind. Triton's kernels run in its interpreter.

What is not seen: operators that a GPU's kernel calls inside of itself, and what a CPU's kernel accepts but a GPU's does
not. Attention, which torch divides by device in C++, is one operator here.

torch asks a device for guards and hooks by two tables of C++ objects. Both get an entry whose virtual functions are
those of the device "meta", or of a missing GPU, but for a few; the order of the functions is read from torch's headers.
A process can do this once, before its first backward pass, and is to end afterwards.
"""

from __future__ import annotations

import concurrent.futures.thread
import ctypes
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

TORCH: Final = Path(torch.__path__[0])
ROOT: Final = Path(__file__).resolve().parents[3]
NUMBERS: Final = {"cuda": 1, "mps": 13, "meta": 14}  # of c10's DeviceType
ALIGNMENT: Final = 16  # bytes: what memory-efficient attention reads masks, keys and values by
WAITING: Final = frozenset(  # a GPU's kernel of these reads a number of its own back before it returns
    {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_consecutive"}
    | {"unique_dim", "bincount", "_coalesce", "histc"}
)
ABSENT_ON_CPUS: Final = {torch.ops.aten.mm.dtype: lambda a, b, dtype: a.to(dtype) @ b.to(dtype)}
UNCOUNTED: Final = frozenset({"detach", "alias", "lift_fresh", "_unsafe_view", "empty", "empty_like", "empty_strided"})
_kept: list[object] = []  # C++ reads these as long as the process lives


class DeviceTensor(Tensor):
    """Says that it is on the device; ``held`` has the numbers."""

    held: Tensor
    device_name: str = "cuda:0"

    @staticmethod
    def __new__(cls, held: Tensor) -> DeviceTensor:
        layout: dict[str, Any] = {"layout": held.layout}
        if held.layout == torch.strided:
            layout |= {"strides": held.stride(), "storage_offset": held.storage_offset()}
        device = torch.device(DeviceTensor.device_name)
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            dtype=held.dtype,
            device=device,
            requires_grad=False,
            **layout,
        )
        made.held = held
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.held!r})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What does not reach the dispatcher as a GPU would see it. Also in threads of the backward pass."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func is Tensor.tolist:
                _found().waits[f"{_place()} tolist"] += 1
                return args[0].held.tolist()
            if func is torch.nn.functional.scaled_dot_product_attention:
                return _attention(*args, **kwargs)
            if func is torch.nn.functional.rms_norm:  # one kernel in each direction
                return _fused_norm(*args, **kwargs)
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, args, kwargs or {})


@dataclass(slots=True)
class Found:
    """What one path did on the device."""

    launches: Counter[str] = field(default_factory=Counter)  # by operator or Triton kernel, views and allocations apart
    waits: Counter[str] = field(default_factory=Counter)  # "file:function operator" of where the host waits
    mixed: Counter[str] = field(default_factory=Counter)  # operators with tensors of several devices
    misaligned: Counter[str] = field(default_factory=Counter)  # attention on masks that begin between two steps
    float64: Counter[str] = field(default_factory=Counter)  # operators that made a double on the device
    operators: Counter[str] = field(default_factory=Counter)  # by the schema's name, "add.Tensor"

    def columns(self) -> dict[str, Counter[str]]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def add(self, other: Found) -> None:
        for name, counts in other.columns().items():
            getattr(self, name).update(counts)


class Trace(TorchDispatchMode):
    """What runs within ``traced``; ``found`` has what happened."""

    def __init__(self) -> None:
        super().__init__()
        self.found = Found()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Without autograd operators that are made of others come here whole.
        if func._can_decompose() and (_is_here(args, kwargs) or _is_here(args, {})):
            with self:
                return func.decompose(*args, **kwargs)
        return _run(func, args, kwargs)

    @contextmanager
    def counting(self) -> Iterator[Found]:
        """Yields what is found within the context alone."""
        before, self.found = self.found, Found()
        try:
            yield self.found
        finally:
            self.found = before


_traces: list[Trace] = []  # that are in use, the newest last


@contextmanager
def traced() -> Iterator[Trace]:
    """Within the context, what is made on the device is a ``DeviceTensor``."""
    with Trace() as trace:
        _traces.append(trace)
        try:
            yield trace
        finally:
            _traces.pop()


def _found() -> Found:
    return _traces[-1].found if _traces else Found()


def _attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, **how: Any) -> Tensor:
    grouped, causal, scale = how.get("enable_gqa", False), how.get("is_causal", False), how.get("scale")
    if grouped and query.shape[1] != key.shape[1]:
        repeat = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(repeat, 1) for each in (key, value))
    if isinstance(attn_mask, DeviceTensor) and attn_mask.dtype != torch.bool:
        held = attn_mask.held
        steps = (held.data_ptr(), *(stride * held.element_size() for stride in held.stride()[:-1] if stride > 1))
        if any(step % ALIGNMENT for step in steps) or held.stride(-1) != 1:
            _found().misaligned[_place()] += 1
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, -torch.inf)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    result: Tensor = attend(query, key, value, dropout_p, causal, attn_mask=attn_mask, scale=scale)[0]
    return result


def _fused_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    return _FusedNorm.apply(x, shape, weight, eps)


class _FusedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, shape: Any, weight: Any, epsilon: float | None) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.shape, ctx.epsilon = shape, epsilon
        _count_norm("_fused_rms_norm")
        with torch._C._DisableTorchDispatch():
            return _wrapped(torch.nn.functional.rms_norm(_held(x), shape, _held(weight), epsilon))

    @staticmethod
    def backward(ctx: Any, slope: Any) -> Any:
        _count_norm("_fused_rms_norm_backward")
        with torch._C._DisableTorchDispatch(), torch.enable_grad():
            inputs = [_held(each).detach().requires_grad_() for each in ctx.saved_tensors if each is not None]
            weight = inputs[1] if len(inputs) > 1 else None
            normed = torch.nn.functional.rms_norm(inputs[0], ctx.shape, weight, ctx.epsilon)
            of_x, *of_weight = torch.autograd.grad(normed, inputs, _held(slope))
        return _wrapped(of_x), None, *(map(_wrapped, of_weight) if of_weight else (None,)), None


def _count_norm(name: str) -> None:
    found = _found()
    found.launches[name] += 1
    found.operators[name] += 1


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
    on_device = [each for each in tensors if isinstance(each, DeviceTensor)]
    here = _is_here(tensors, kwargs)
    if not on_device and not here:
        return func(*args, **kwargs)
    found = _found()
    _note(found, func, args, kwargs, tensors, here=here)
    changed = {key: ("cpu" if key == "device" and value is not None else _held(value)) for key, value in kwargs.items()}
    out = ABSENT_ON_CPUS.get(func, func)(*tree_map(_held, args), **changed)
    if func.overloadpacket.__name__ == "copy_":
        return args[0]
    if not here:
        return out
    out = tree_map(_wrapped, out)
    if any(_is_double(each) for each in tree_flatten(out)[0]):
        found.float64[f"{_place()} {func}"] += 1
    return return_and_correct_aliasing(func, args, kwargs, out) if on_device else out


def _note(found: Found, func: Any, args: Any, kwargs: dict[str, Any], tensors: list[Tensor], *, here: bool) -> None:
    name = func.overloadpacket.__name__
    found.operators[str(func).removeprefix("aten.").removesuffix(".default")] += 1
    on_device = [isinstance(each, DeviceTensor) for each in tensors]
    if name in ("_to_copy", "copy_"):
        source, to_here = (args[1], on_device[0]) if name == "copy_" else (args[0], here)
        from_here = isinstance(source, DeviceTensor)
        if from_here != to_here:
            asynchronous = bool(args[2:] or kwargs.get("non_blocking")) and to_here
            by_value = name == "copy_" and source.dim() == 0  # passed as an argument of the kernel
            if not (asynchronous or (by_value and to_here)):
                found.waits[f"{_place()} {'to device' if to_here else 'to host'}"] += 1
            return
    elif any(on_device) and any(not there and each.dim() for each, there in zip(tensors, on_device, strict=True)):
        found.mixed[f"{_place()} {func}"] += 1
    by_mask = name in ("index", "index_put_", "index_put") and any(
        isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in args[1]
    )
    if name in WAITING or by_mask or (name == "repeat_interleave" and len(args) == 1):
        found.waits[f"{_place()} {name}{' by mask' if by_mask else ''}"] += 1
    if not func.is_view and name not in UNCOUNTED:
        found.launches[name] += 1


def _is_here(args: Any, kwargs: dict[str, Any]) -> bool:
    """Returns whether the operator's result is on the device."""
    wanted = kwargs.get("device")
    if wanted is not None:
        return torch.device(wanted).type == _kind()
    return any(isinstance(each, DeviceTensor) for each in tree_flatten((args, kwargs))[0])


def _place() -> str:
    """Returns file and function of the project's code that is running, "autograd" in a thread of the backward pass."""
    frame = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT / "node"):
            return f"{path.relative_to(ROOT)}:{frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "autograd"


def _held(value: Any) -> Any:
    return value.held if isinstance(value, DeviceTensor) else value


def _wrapped(value: Any) -> Any:
    return DeviceTensor(value) if isinstance(value, Tensor) and not isinstance(value, DeviceTensor) else value


def _is_double(value: Any) -> bool:
    return isinstance(value, DeviceTensor) and value.dtype in (torch.float64, torch.complex128)


def _kind() -> str:
    return DeviceTensor.device_name.partition(":")[0]


def install(kind: str) -> None:
    """From now on this process has a device of this kind: "cuda" or "mps"."""
    DeviceTensor.device_name = f"{kind}:0"
    _add_guard(NUMBERS[kind])
    _replace_hooks(kind)
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a tensor of ours cannot be put into another kind
    torch._C._set_only_lift_cpu_tensors(True)  # ``torch.tensor(…, device=…)`` makes it in main memory, and copies it
    _let_backward_passes_call_functions()
    _trace_in_pools()
    properties = SimpleNamespace(multi_processor_count=8, total_memory=80 << 30, major=9, minor=0)
    answers: Mapping[str, object] = {
        "_lazy_init": None,
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "mem_get_info": (48 << 30, 80 << 30),
        "memory_reserved": 0,
        "max_memory_reserved": 0,
        "get_per_process_memory_fraction": 1.0,
        "get_device_properties": properties,
        "is_bf16_supported": True,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
    }
    if kind == "cuda":
        for name, answer in answers.items():
            setattr(torch.cuda, name, lambda *_, _answer=answer, **__: _answer)
        _interpret_kernels()
    else:
        torch.backends.mps.is_available = lambda: True  # type: ignore[assignment]
        torch.mps.empty_cache = lambda: _found().launches.update(["empty_cache"])
        torch.mps.driver_allocated_memory = lambda: 1 << 30
        torch.mps.recommended_max_memory = lambda: 12 << 30


def _let_backward_passes_call_functions() -> None:
    """``backward`` is a function of a ``DeviceTensor`` too, within which others would not be asked for."""
    autograd: Any = torch.autograd
    run = autograd._engine_run_backward

    def running(*args: Any, **kwargs: Any) -> Any:
        with torch._C._EnableTorchFunction():
            return run(*args, **kwargs)

    autograd._engine_run_backward = running


def _trace_in_pools() -> None:
    """What a pool's thread makes on the device is traced like the rest."""
    work: Any = concurrent.futures.thread._WorkItem
    run = work.run

    def running(item: Any) -> None:
        with Trace() if _traces else nullcontext():
            run(item)

    work.run = running


def _add_guard(number: int) -> None:
    library = ctypes.CDLL(str(TORCH / "lib/libc10.so"))
    registry = (ctypes.c_void_p * 24).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    # A Device is two bytes, kind and number; a Stream begins with its Device and has a number, which is not looked at.
    device, stream = _function(ctypes.c_int16, number), _function(ctypes.c_int64, number)
    replacing = {
        "type": _function(ctypes.c_int8, number),
        "exchangeDevice": device,
        "getDevice": device,
        "getStream": stream,
        "exchangeStream": stream,
        "record": _function(None, None),
        "block": _function(None, None),
    }
    order = _virtual_functions("c10/core/impl/DeviceGuardImplInterface.h")
    guard = (ctypes.c_void_p * 1)(_table_of(registry[NUMBERS["meta"]], order, replacing))
    _kept.append(guard)
    registry[number] = ctypes.addressof(guard)


def _replace_hooks(kind: str) -> None:
    hooks_of = getattr(ctypes.CDLL(str(TORCH / "lib/libtorch_cpu.so")), f"_ZN2at6detail{_mangled(kind)}Ev")
    hooks_of.restype, hooks_of.argtypes = ctypes.c_void_p, []
    true = _function(ctypes.c_int8, 1)
    replacing = dict.fromkeys(["isBuilt", "isAvailable", "hasPrimaryContext", f"has{kind.upper()}"], true)
    own = f"ATen/detail/{kind.upper()}HooksInterface.h"
    order = _virtual_functions("ATen/detail/AcceleratorHooksInterface.h", own)
    hooks = hooks_of()
    # Pinned memory is memory.
    memory = ctypes.CDLL(str(TORCH / "lib/libc10.so"))._ZN3c1015GetCPUAllocatorEv
    table = _table_of(hooks, order, replacing | {"init": _function(None, None), "getPinnedMemoryAllocator": memory})
    ctypes.cast(hooks, ctypes.POINTER(ctypes.c_void_p))[0] = table


def _mangled(kind: str) -> str:
    name = f"get{kind.upper()}Hooks"
    return f"{len(name)}{name}"


def _function(result: Any, value: object) -> Any:
    """Returns a C function of any arguments."""
    return ctypes.CFUNCTYPE(result, ctypes.c_void_p)(lambda _: value)


def _virtual_functions(*headers: str) -> list[str]:
    """Returns the names of the virtual functions that the headers declare, in their order; a destructor is two."""
    pattern = re.compile(r"^\s*virtual\s+(?:[^;{(]*?[\s*&])?(~?\w+)\(", re.MULTILINE)
    names = [name for header in headers for name in pattern.findall((TORCH / "include" / header).read_text())]
    return [part for name in names for part in ([name, name] if name.startswith("~") else [name])]


def _table_of(entry: int | None, order: list[str], replacing: Mapping[str, Any]) -> int:
    """Returns the address of a copy of the virtual functions of the object at ``entry``, some of them replaced."""
    assert entry is not None
    functions = ctypes.cast(entry, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p)))[0]
    table = (ctypes.c_void_p * len(order))(*(functions[place] for place in range(len(order))))
    for name, function in replacing.items():
        table[order.index(name)] = ctypes.cast(function, ctypes.c_void_p).value
    _kept.extend((table, replacing))
    return ctypes.addressof(table)


def _interpret_kernels() -> None:
    """A Triton kernel gets what tensors hold, and is written down as one launch."""
    from triton.runtime.interpreter import GridExecutor

    launch = GridExecutor.__call__

    def launched(executor: Any, *args: Any, **kwargs: Any) -> None:
        _found().launches[executor.fn.__name__] += 1
        with torch._C._DisableTorchDispatch():
            launch(executor, *map(_held, args), **{name: _held(value) for name, value in kwargs.items()})

    GridExecutor.__call__ = launched
