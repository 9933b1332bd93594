"""Sparse updates with error feedback: bytes and time, against templar's method in plain torch, in the same run.

    python -m scripts.bench.sparse_update [--repeats 3] [--json]

The tensors are those of a transformer with 125 M parameters. Ours is everything from residual and delta to the bytes
sent and the remaining residual (``node.kernels.sparse_update_kernels``). The contender accumulates, takes
``torch.topk`` of the magnitudes of the same chunks, quantises to two bits by the authors' rule, and subtracts what is
sent from the residual; it neither sorts nor packs. Both use ``--threads`` threads, in turn, best of ``--repeats``.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from node.kernels.sparse_update_kernels import encode_update_fast, scatter_mean_fast, sparsify_fast
from protocol.weights.sparse_update import decode_update
from protocol.weights.sparsify import CHUNK_ELEMENTS, SparseTensor
from protocol.weights.tensor_layout import TensorLayout
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.common.timing import best_seconds

WIDTH, LAYERS, VOCABULARY = 640, 12, 32_768
DECAY = 0.95
PEERS = 4


def shapes() -> dict[str, tuple[int, ...]]:
    """Returns names and shapes of the tensors, 125 M elements in all."""
    tensors: dict[str, tuple[int, ...]] = {"embedding": (VOCABULARY, WIDTH), "norm": (WIDTH,)}
    for layer in range(LAYERS):
        tensors |= {f"{layer}.{name}": (WIDTH, WIDTH) for name in ("query", "key", "value", "output")}
        tensors |= {f"{layer}.{name}": (WIDTH, 6 * WIDTH + 144) for name in ("gate", "up")}
        tensors |= {f"{layer}.down": (6 * WIDTH + 144, WIDTH // 4 * 3), f"{layer}.norm": (WIDTH,)}
    return tensors


def plain_torch(residual: Tensor, delta: Tensor, kept: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns indices, codes and codebook as the authors do, for a tensor whose size is a multiple of the chunk's."""
    residual.mul_(DECAY).add_(delta)
    chunks = residual.view(-1, CHUNK_ELEMENTS)
    indices = torch.topk(chunks.abs(), kept, dim=1, sorted=False).indices
    values = chunks.gather(1, indices)
    codes, codebook = published_codes(values)
    chunks.scatter_add_(1, indices, -codebook[codes.long()])
    return indices, codes, codebook


def published_codes(values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns two-bit codes of templar's compressor, and the codebook with the mean added."""
    centred = values - values.mean()
    scale = 6 * centred.std() / 4
    codes = (centred / scale + 2).round().clamp(0, 3).to(torch.uint8)
    means = [values[codes == code].mean() if (codes == code).any() else values.new_zeros(()) for code in range(4)]
    return codes, torch.stack(means)


def lost(values: Tensor, sent: Tensor) -> float:
    """Returns the share of the energy of ``values`` that two bits lose."""
    return float((values - sent).square().sum() / values.square().sum())


def quantisation_losses(sparse: SparseTensor, accumulated: Tensor) -> tuple[float, float]:
    """Returns the losses of our rule and of the authors' rule on the same chosen values."""
    values = accumulated[torch.from_numpy(sparse.positions)]
    codes, codebook = published_codes(values)
    return lost(values, torch.from_numpy(sparse.values)), lost(values, codebook[codes.long()])


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kept", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    layout = TensorLayout.of(shapes())
    elements = sum(layout.sizes)
    # Rows of different scale, as in updates of a transformer.
    deltas = [
        (torch.randn(shape) * torch.exp(0.5 * torch.randn(shape[0], *(1 for _ in shape[1:]))) * 1e-3).flatten()
        for _, shape in layout.tensors
    ]
    residuals = [torch.zeros(size) for size in layout.sizes]
    whole = [
        (r[: n // CHUNK_ELEMENTS * CHUNK_ELEMENTS], d[: n // CHUNK_ELEMENTS * CHUNK_ELEMENTS])
        for r, d, n in zip([torch.zeros(n) for n in layout.sizes], deltas, layout.sizes, strict=True)
    ]
    source, copy = torch.cat(deltas), torch.empty(elements)
    blobs: list[bytes] = []

    def ours() -> None:
        blobs.append(encode_update_fast(layout, residuals, deltas, decay=DECAY, kept=options.kept))

    def theirs() -> None:
        for residual, delta in whole:
            if len(residual):
                plain_torch(residual, delta, options.kept)

    encode_seconds, torch_seconds, copy_seconds = best_seconds(
        options.repeats, ours, theirs, lambda: copy.copy_(source)
    )
    blob = blobs[-1]
    tensors = decode_update(blob, layout)
    decode_seconds, mean_seconds = best_seconds(
        options.repeats,
        lambda: decode_update(blob, layout),
        lambda: [scatter_mean_fast([tensor] * PEERS) for tensor in tensors],
    )
    largest = max(range(len(layout.sizes)), key=lambda index: layout.sizes[index])
    losses = quantisation_losses(
        sparsify_fast(torch.zeros_like(deltas[largest]), deltas[largest], decay=DECAY, kept=options.kept),
        deltas[largest],
    )
    sent = int(np.sum([len(tensor.indices) for tensor in tensors]))
    ratio_bar = "≥ 146 at 64 kept" if options.kept == 64 else None
    figures = [
        Figure("elements", elements, "", "higher"),
        Figure("bytes against float32", 4 * elements / len(blob), "×", "higher", ratio_bar),
        Figure("bits a value sent", 8 * len(blob) / sent, "bits", "lower"),
        Figure("encode with error feedback", 4 * elements / encode_seconds / 1e9, "GB/s", "higher"),
        Figure("torch.topk and quantise", 4 * elements / torch_seconds / 1e9, "GB/s", "higher"),
        Figure("encode against torch", torch_seconds / encode_seconds, "×", "higher", "≥ 3"),
        Figure("encode against copying the delta", copy_seconds / encode_seconds, "of copy", "higher", "aim 0.25"),
        Figure("decode", 4 * elements / decode_seconds / 1e9, "GB/s", "higher"),
        Figure(f"mean of {PEERS} peers", 4 * elements / mean_seconds / 1e9, "GB/s", "higher"),
        Figure("energy lost by two bits", losses[0], "", "lower"),
        Figure("the same by the authors' rule", losses[1], "", "lower"),
    ]
    report("sparse_update", figures, as_json=options.json)


if __name__ == "__main__":
    main()
