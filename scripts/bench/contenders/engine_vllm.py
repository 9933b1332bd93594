"""vLLM's side of ``engine.py``, run by the Python of its own environment with ``JOB.json`` as argument.

Appends a line to the results file once the model is loaded and compiled, then one line for each line on standard input:
the seconds of one generation of the whole workload, and the tokens of every completion.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams


def main() -> None:
    job: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    model = LLM(model=job["model"], dtype="float32", max_model_len=512, max_num_seqs=256, seed=0)
    prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
    settings = [
        SamplingParams(
            n=job["completions"],
            temperature=1.0,
            max_tokens=limit,
            logprobs=0,  # of the sampled token alone
            ignore_eos=job["ignore_eos"],
            detokenize=False,
        )
        for limit in job["limits"]
    ]
    with Path(job["results"]).open("a") as results:

        def write(result: dict[str, Any]) -> None:
            results.write(json.dumps(result) + "\n")
            results.flush()

        write({"ready": True})
        for _ in sys.stdin:
            began = time.perf_counter()
            outputs = model.generate(prompts, settings, use_tqdm=False)
            seconds = time.perf_counter() - began
            write({"seconds": seconds, "tokens": [list(c.token_ids) for o in outputs for c in o.outputs]})


if __name__ == "__main__":
    main()
