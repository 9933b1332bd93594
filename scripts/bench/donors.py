"""Groups a second of a learner with two donors, against the learner alone. Linux and root only.

    python -m scripts.bench.donors
    python -m scripts.bench.donors --cores .3,.3,.15 --rounds 6 --json

Three machines, each a network namespace with a link of 50 Mbit/s and a control group with its share of CPU time, so
that three of them fit on two cores. On the first `starling up` trains a random model on a task that is hardly ever
solved: nearly all time goes into generation, as with long answers to hard questions. Its rounds are timed alone; then
`starling donor invite` prints two invitations, `starling lend` takes them on the other machines, and once both have
their share, rounds are timed again. Weights change after each round in which an answer was right, and reach the donors
over the slow links.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from node.configuration import PolicySection, TasksSection
from node.engines.donors.logp_checks import BIAS, DRIFT, MEAN, MOST, CheckedSoFar
from node.engines.donors.logp_checks import measure as check_measure
from node.engines.engine import GenerationRequest, Sampling
from node.engines.torch import TorchEngine
from node.policy.policy import Policy
from node.tasks.registry import load_tasks
from scripts.bench.common.model_shapes import whole_vocabulary
from scripts.bench.common.processor_share import ProcessorShare, processor_shares
from scripts.bench.common.reporting import Figure, add_json_flag, report
from scripts.bench.common.slow_network import NoSlowNetworkError, SlowPeer, slow_network

MEGABITS: Final = 50.0
BAR: Final = 2.0
PORT: Final = 4001
ANSWER_TOKENS: Final = 48
GROUPS: Final = 24
COMPLETIONS: Final = 48
ONE_RIGHT_OF: Final = 2000
WARM_STEPS: Final = 2  # optimizer steps before anything is timed: the first ones compile
SETTLED_ROUNDS: Final = 6  # in a row with both donors, before rounds are timed
WAIT_SECONDS: Final = 900.0
ENVIRONMENT: Final = {
    "STARLING_SWARM__LAN_DISCOVERY": "false",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}
REWARD: Final = f"""
import hashlib

def hardly_ever(prompts, completions, answer, **columns):
    drawn = (hashlib.sha256((str(a) + c).encode()).digest()[:4] for a, c in zip(answer, completions))
    return [float(int.from_bytes(each, "big") % {ONE_RIGHT_OF} == 0) for each in drawn]
"""

Event = dict[str, Any]


class Machine:
    """Commands of ``starling`` in one namespace and control group."""

    def __init__(self, place: SlowPeer, share: ProcessorShare) -> None:
        self.place, self.share = place, share

    def command(self, *arguments: str) -> list[str]:
        return self.share.command(self.place.command([sys.executable, "-m", "node.cli.main", *arguments]))

    def start(self, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
        with log.open("wb") as out:
            return subprocess.Popen(
                self.command(*arguments), stdout=out, stderr=subprocess.STDOUT, env=os.environ | ENVIRONMENT
            )

    def says(self, *arguments: str) -> str:
        done = subprocess.run(
            self.command(*arguments), check=True, capture_output=True, text=True, env=os.environ | ENVIRONMENT
        )
        return done.stdout.strip()


class Record:
    """The events of a node, as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def of(self, kind: str) -> list[Event]:
        if not self._path.exists():
            return []
        lines = self._path.read_text(encoding="utf-8").splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]


def write_model(folder: Path) -> None:
    """Writes a random model of two million weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    whole_vocabulary(1024).save_pretrained(folder)


def write_task(folder: Path) -> list[str]:
    """Writes questions and their reward; returns the settings."""
    (folder / "reward.py").write_text(REWARD)
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps({"prompt": f"Riddle {n}: ", "answer": str(n)}) + "\n" for n in range(2000)))
    settings = {
        "tasks.jsonl": questions,
        "tasks.jsonl_reward": f"{folder / 'reward.py'}:hardly_ever",
        "tasks.jsonl_max_new_tokens": ANSWER_TOKENS,
        "learner.own_groups": GROUPS,
        "learner.completions": COMPLETIONS,
        "learner.learning_rate": 1e-5,
        "averaging.every_rounds": 0,
        "api.port": 0,
    }
    return [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]


def wait_for(what: str, found: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not found():
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"no {what} within {WAIT_SECONDS:g} s, or it ended: {log.read_text()[-2000:]}")
        time.sleep(0.5)


def timed(rounds: Sequence[Event]) -> dict[str, float]:
    """Returns what the rounds after the first of these did, from its end on."""
    first, *rest = rounds
    seconds = rest[-1]["time_seconds"] - first["time_seconds"]
    generating, learning = (sum(each["phases"][phase] for each in rest) for phase in ("generate", "learn"))
    return {
        "groups_per_second": GROUPS * len(rest) / seconds,
        "tokens_per_second": sum(each["tokens_generated"] for each in rest) / seconds,
        "generating": generating / seconds,
        "learning": learning / seconds,
    }


def measure(machines: Sequence[Machine], folder: Path, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Returns what ``timed`` says of the learner alone and with its donors, with what donors did."""
    write_model(folder / "model")
    owner_home, owner, model = folder / "owner", machines[0], str(folder / "model")
    record, log = Record(owner_home / "metrics.jsonl"), folder / "owner.log"
    with ExitStack() as stack:
        settings = write_task(folder)
        up = owner.start(
            log, "up", "--json", "--home", str(owner_home), "--model", model,
            "--listen", f"/ip4/0.0.0.0/tcp/{PORT}", *settings,
        )  # fmt: skip
        stack.callback(_end, up)
        wait_for("steps", lambda: sum(each["tokens_trained"] > 0 for each in record.of("round")) >= WARM_STEPS, up, log)
        begin = len(record.of("round"))
        wait_for("rounds", lambda: len(record.of("round")) > begin + rounds, up, log)
        alone = timed(record.of("round")[begin : begin + rounds + 1])
        for number, machine in enumerate(machines[1:]):
            home, lent_log = folder / f"donor{number}", folder / f"donor{number}.log"
            invitation = owner.says("donor", "invite", "--home", str(owner_home), "--for", f"donor{number}")
            lend = machine.start(lent_log, "lend", "--home", str(home), "--to", invitation, "--model", model)
            stack.callback(_end, lend)
            wait_for("a donor that is taken", lambda at=lent_log: "Lending" in at.read_text(), lend, lent_log)  # type: ignore[misc]

        def settled() -> bool:
            told = record.of("donors")[-SETTLED_ROUNDS:]
            return len(told) == SETTLED_ROUNDS and all(
                [each["state"] for each in event["donors"]] == ["generated"] * (len(machines) - 1) for event in told
            )

        wait_for("a share of both donors", settled, up, log)
        before, sent_before = len(record.of("round")), owner.place.traffic()
        wait_for("rounds with donors", lambda: len(record.of("round")) > before + rounds, up, log)
        sent = owner.place.traffic()
        together = timed(record.of("round")[before : before + rounds + 1])
        shared = record.of("donors")[-rounds:]
    tokens = sum(event["tokens"] for event in shared)
    for number in range(len(machines) - 1):
        of_donor = sum(d["tokens"] for event in shared for d in event["donors"] if d["name"] == f"donor{number}")
        together[f"share{number}"] = of_donor / tokens
    together["sent_bytes"] = (sent.sent_bytes - sent_before.sent_bytes) / rounds
    together["received_bytes"] = (sent.received_bytes - sent_before.received_bytes) / rounds
    return alone, together


def rounding(prompts: int = 64) -> dict[str, float]:
    """Returns by how much the log-probabilities of an honest donor differ from those that its owner computes: the
    owner in float32, the donor in bfloat16, which rounds weights and every product."""
    model = "builtin:wren"
    owner = Policy.load(PolicySection(model=model, device="cpu", dtype="float32"))
    donor = TorchEngine(Policy.load(PolicySection(model=model, device="cpu", dtype="bfloat16")), rows=64, seed=0)
    task = load_tasks(TasksSection(names=("number_sorting",)))["number_sorting"]
    asked = [
        GenerationRequest(tuple(owner.tokens.prompt_ids(task.prompt(task.ref(seed)).text)), 8, task.max_new_tokens)
        for seed in range(prompts)
    ]
    off, checked = list[float](), CheckedSoFar()
    for request, samples in zip(asked, donor.generate(asked, Sampling(seed=1)), strict=True):
        for sample in samples:
            (measured,) = check_measure(owner, [(request.prompt_ids, sample.token_ids.tolist())], 1.0)
            checked = checked.with_one(sample.logps, measured)
            off += abs(sample.logps - measured.logps).tolist()
    return {
        "mean": sum(off) / len(off),
        "most": max(off),
        "bias": abs(checked.claimed_above) / checked.tokens,
        "drift": abs(checked.drift) / checked.tokens,
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", default=".3,.3,.3", help="CPU time of the learner's machine, and of each donor's")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that are timed, alone and with donors")
    parser.add_argument("--megabits", type=float, default=MEGABITS)
    parser.add_argument("--only-rounding", action="store_true", help="only what honest donors' claims are off by")
    add_json_flag(parser)
    options = parser.parse_args()
    off = rounding()
    rounding_figures = [
        Figure("claims of an honest donor in bfloat16, mean off", off["mean"], "nats", "lower", f"≤ {MEAN:g}"),
        Figure("claims of an honest donor in bfloat16, most off", off["most"], "nats", "lower", f"≤ {MOST:g}"),
        Figure("claims of an honest donor in bfloat16, bias", off["bias"], "nats", "lower", f"≤ {BIAS:g}"),
        Figure("draws of an honest donor in bfloat16, drift", off["drift"], "nats", "lower", f"≤ {DRIFT:g}"),
    ]
    if options.only_rounding:
        report("donors", rounding_figures, as_json=options.json)
        return 0
    cores = [float(each) for each in options.cores.split(",")]
    try:
        with (
            tempfile.TemporaryDirectory(prefix="st-") as folder,
            slow_network(len(cores), options.megabits) as places,
            processor_shares(cores) as shares,
        ):
            machines = [Machine(place, share) for place, share in zip(places, shares, strict=True)]
            alone, together = measure(machines, Path(folder), options.rounds)
    except NoSlowNetworkError as error:
        print(f"not measured: {error}")
        return 1
    ratio = together["groups_per_second"] / alone["groups_per_second"]
    figures = [
        Figure("groups a second, alone", alone["groups_per_second"], "/s", "higher"),
        Figure("share of the time in generation, alone", 100 * alone["generating"], "%", "higher"),
        Figure("share of the time in learning, alone", 100 * alone["learning"], "%", "lower"),
        Figure("groups a second, with donors", together["groups_per_second"], "/s", "higher"),
        Figure("with donors against alone", ratio, "×", "higher", f"≥ {BAR:g}"),
        Figure("share of the time in generation, with donors", 100 * together["generating"], "%", "lower"),
        *(
            Figure(f"tokens by donor {number + 1}", 100 * together[f"share{number}"], "%", "higher")
            for number in range(len(cores) - 1)
        ),
        Figure("sent by the owner a round", together["sent_bytes"] / 1e6, "MB", "lower"),
        Figure("received by the owner a round", together["received_bytes"] / 1e6, "MB", "lower"),
    ]
    report("donors", [*figures, *rounding_figures], as_json=options.json)
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
