"""vLLM as a process hosts it.

vLLM keeps weights in forms of its own: fused, packed for the processor, spread over cards. New weights are therefore
loaded as vLLM loads a checkpoint, into the tensors that it has (``reload_weights``), and an adapter is handed over as
one. What a diff refers to is a copy in bf16 in host memory, as the learner sent it. vLLM gets new weights only after
their hash was verified there; an error after that leaves nobody knowing what vLLM holds, and ends the process.

Log-probabilities are those of the distribution that was sampled from, temperature and vocabulary included. They are
vLLM's own and differ by rounding from the learner's, who corrects for it as for any other behaviour policy.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file
from torch import nn
from vllm import LLMEngine, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind

from node.engines.encoded_weights import EncodedWeights, load_encoded
from node.engines.process.hosted_engine import checked_starts
from node.engines.resumption import SamplingStart
from node.engines.turns import BatchConversations
from node.engines.vllm_backend.requests import Completions
from node.engines.vllm_backend.vllm_setup import VllmSetup
from node.kernels.weight_diff_kernels import weights_hash_fast
from protocol.streams.engine_batches import HandOver, Sampled, SamplingBatch
from protocol.weights.tensor_layout import TensorLayout

ADAPTER: Final = "adapter"  # the name of each one, and of its folder


class HostedVllm:
    """``HostedEngine`` over ``engine``, which was started for ``setup``."""

    backend = "vllm"
    converses = False  # its cache of prefixes has what an earlier turn computed

    def __init__(self, engine: LLMEngine, setup: VllmSetup) -> None:
        self._engine, self._setup = engine, setup
        self._layout = TensorLayout.of(dict(setup.trained))
        self._trained = {name: torch.empty(shape, dtype=torch.bfloat16) for name, shape in self._layout.tensors}
        self._hash: bytes | None = None
        self._adapter: LoRARequest | None = None
        self._sleeps = torch.cuda.is_available()
        self._asleep = False

    @property
    def family(self) -> bytes:
        return bytes.fromhex(self._setup.family)

    @property
    def layout(self) -> bytes:
        return self._layout.digest

    @property
    def vocabulary(self) -> int:
        return self._setup.vocabulary

    @property
    def context(self) -> int:
        return int(self._engine.model_config.max_model_len)

    def load(self, version: int, weights: EncodedWeights) -> None:
        load_encoded(weights, self._trained, self._hash)
        self._hash = None
        self.wake()
        if self._setup.adapter is None:
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(self._trained.items())})
            self._engine.apply_model(_pack_the_head)
        else:
            self._replace_adapter(self._setup.adapter)
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM kept keys and values of earlier weights")
        self._hash = weights.target

    def sample(
        self,
        batch: SamplingBatch,
        enough: Callable[[int], bool],
        hand_over: HandOver,
        conversations: BatchConversations | None = None,
    ) -> list[Sampled]:
        assert conversations is None
        starts = checked_starts(batch, vocabulary=self._setup.width, context=self.context)
        completions = Completions(starts, batch.groups, hand_over)
        self.wake()
        torch.manual_seed(batch.seed)
        try:
            while not completions.done and not enough(completions.complete_groups):
                for number, start in completions.begin(min(batch.rows, self._setup.rows)):
                    self._add(number, start, batch.temperature)
                for output in self._engine.step():
                    assert isinstance(output, RequestOutput)
                    _take(completions, output)
        finally:
            if running := completions.running:
                self._engine.abort_request([str(number) for number in running])
        return completions.rest()

    def measured_hash(self) -> bytes:
        """Of the copy that diffs refer to: vLLM's own tensors have other forms."""
        return weights_hash_fast(self._layout, [self._trained[name] for name in self._layout.names])

    def sleep(self) -> None:
        """Gives the card back, keys, values and weights. Without a card nothing is given."""
        if self._sleeps and not self._asleep:
            self._engine.sleep(level=1)
            self._asleep = True

    def wake(self) -> None:
        if self._asleep:
            self._engine.wake_up()
            self._asleep = False

    def _add(self, number: int, start: SamplingStart, temperature: float) -> None:
        self._engine.add_request(
            str(number),
            {"prompt_token_ids": list(start.prefix_ids)},
            SamplingParams(
                temperature=temperature,
                max_tokens=start.limit,
                stop_token_ids=list(self._setup.end_ids),
                ignore_eos=True,  # the policy's ends count, not those that vLLM read in the folder
                logprobs=0,  # of the sampled token alone
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            ),
            lora_request=self._adapter,
        )

    def _replace_adapter(self, configuration: dict[str, object]) -> None:
        """vLLM reads adapters from folders, and knows each by a number that it has never had before."""
        number = self._adapter.lora_int_id + 1 if self._adapter is not None else 1
        folder = Path(self._setup.files) / ADAPTER
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        tensors = {name.replace(".default.", "."): tensor for name, tensor in self._trained.items()}
        save_file(tensors, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(configuration))
        adapter = LoRARequest(f"{ADAPTER}-{number}", number, str(folder))
        self._engine.add_lora(adapter)
        if self._adapter is not None:
            self._engine.remove_lora(self._adapter.lora_int_id)
        self._adapter = adapter


def _pack_the_head(model: nn.Module) -> None:
    """On a CPU vLLM computes with packed copies of matrices, and makes new ones as it loads each; but that of a head
    whose matrix is the embedding's it makes at its start alone (vLLM 0.32)."""
    head = getattr(model, "lm_head", None)
    if head is not None and head.weight.device.type == "cpu":
        head.quant_method.process_weights_after_loading(head)


def _take(completions: Completions, output: RequestOutput) -> None:
    (sampled,) = output.outputs
    token_ids = list(sampled.token_ids)
    assert sampled.logprobs is not None
    logps = [of_token[token].logprob for of_token, token in zip(sampled.logprobs, token_ids, strict=True)]
    completions.sampled(int(output.request_id), token_ids, logps, ended=output.finished)
