"""vLLM's side of ``scripts.try_export``, run by the Python of its own environment with ``JOB.json`` as argument.

Writes the greedy answers to the job's prompts, with the log-probability of each token, beside the job.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest


def main() -> None:
    path = Path(sys.argv[1])
    job: dict[str, Any] = json.loads(path.read_text())
    adapter = LoRARequest("exported", 1, job["adapter"]) if job["adapter"] else None
    lora = {"enable_lora": True, "max_lora_rank": job["rank"]} if adapter else {}
    model = LLM(model=job["model"], dtype="float32", max_model_len=job["context"], enforce_eager=True, seed=0, **lora)
    outputs = model.generate(
        [{"prompt_token_ids": prompt} for prompt in job["prompts"]],
        SamplingParams(temperature=0.0, max_tokens=job["max_new_tokens"], logprobs=0),
        lora_request=adapter,
        use_tqdm=False,
    )
    completions = [output.outputs[0] for output in outputs]
    answers = [list(each.token_ids) for each in completions]
    logps = [[next(iter(step.values())).logprob for step in each.logprobs] for each in completions]
    path.with_suffix(".answers.json").write_text(json.dumps({"answers": answers, "logps": logps}))


if __name__ == "__main__":  # vLLM starts its engine in a process that imports this module again
    main()
