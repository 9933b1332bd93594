"""What several machines compute of a pass, against one that holds the model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from node.configuration import ObjectiveSection
from node.learner.objective.batch import RaggedSpans
from node.learner.objective.forward import MicroBatch, Network, PassSettings, completion_logps, plan_micro_batches
from node.learner.objective.loss import BatchTotals, objective_loss
from node.policy.policy import Policy
from node.stages.link import Call
from node.stages.policy import StagedPolicy, network_of
from protocol.errors import ConfigurationError, StageLostError
from tests.node.learner.objective.tiny_networks import groups
from tests.node.stages.machines import ARCHITECTURES, Machine, gradients, owner, saved, section_of, whole, worker

Folder = Callable[[str], Path]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = saved(name, tmp_path_factory.mktemp(name))
        return made[name]

    return of


def learnt(
    network: Network, policy: Policy, passes: PassSettings, seed: int = 0
) -> tuple[list[float], dict[str, Tensor]]:
    """Returns losses and gradients over several micro-batches, with the learner's own pass and loss."""
    learnt_from = groups(seed, prompts=6)
    micro_batches = plan_micro_batches(learnt_from, batch_tokens=40, pads_prompts=network.pads_prompts)
    assert len(micro_batches) > 5  # more than are under way at once
    tokens = sum(group.tokens for group in learnt_from)

    def one(micro_batch: MicroBatch) -> float:
        logps, entropies = completion_logps(network, micro_batch, passes)
        spans = RaggedSpans.of(micro_batch.completions)
        loss, _ = objective_loss(logps, entropies, spans, ObjectiveSection(), BatchTotals(tokens, 1, 1))
        network.backward(loss)
        return float(loss.detach())

    return network.each(one, micro_batches), gradients(policy)


WHOLE = PassSettings(8192)
IN_PIECES = PassSettings(8192, recompute=True, chunk_tokens=8)


@pytest.mark.parametrize(("passes", "cuts"), [(WHOLE, (2,)), (IN_PIECES, (1, 3))], ids=["whole", "in pieces"])
@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "neox"])
def test_machines_together_have_the_losses_and_gradients_of_one(
    folder: Folder, architecture: str, passes: PassSettings, cuts: tuple[int, ...]
) -> None:
    alone = whole(folder(architecture), torch.float64)
    losses, expected = learnt(network_of(alone), alone, passes)
    policy, _ = owner(folder(architecture), cuts, torch.float64)
    staged_losses, found = learnt(network_of(policy), policy, passes)
    assert staged_losses == pytest.approx(losses, rel=1e-9)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        most = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-9 * most)


def test_in_float32_they_differ_by_rounding_and_equal_passes_give_equal_bits(folder: Folder) -> None:
    alone = whole(folder("qwen2"))
    losses, expected = learnt(network_of(alone), alone, WHOLE)
    bits = set()
    steps = [owner(folder("qwen2"))[0] for _ in range(2)]
    for policy in (*steps, steps[-1]):  # the last takes a second step
        policy.model.zero_grad(set_to_none=True)
        staged_losses, found = learnt(network_of(policy), policy, WHOLE)
        assert staged_losses == pytest.approx(losses, rel=1e-5)
        for name, gradient in expected.items():
            torch.testing.assert_close(
                found[name], gradient, rtol=1e-3, atol=1e-6 * max(1, float(gradient.abs().max()))
            )
        bits.add(hash_of(found))
    assert len(bits) == 1


def hash_of(tensors: dict[str, Tensor]) -> str:
    return hashlib.sha256(b"".join(tensors[name].detach().numpy().tobytes() for name in sorted(tensors))).hexdigest()


@pytest.fixture(scope="session")
def undisturbed(folder: Folder) -> tuple[list[float], str]:
    """Losses, and the hash of the gradients, where no machine is lost."""
    policy, _ = owner(folder("llama"))
    losses, found = learnt(network_of(policy), policy, IN_PIECES)
    return losses, hash_of(found)


# In the middle of passes each machine is lost, and before and after them one or the other.
@pytest.mark.parametrize(
    ("which", "dies_at", "survives"),
    [
        (0, "load", 0),
        (1, "forward", 0),
        (0, "forward", 3),
        (1, "forward", 3),
        (0, "backward", 0),
        (0, "backward", 3),
        (1, "backward", 3),
        (1, "gradients", 0),
    ],
)
def test_a_machine_that_is_lost_drops_the_step_and_another_repeats_it_to_the_bit(
    folder: Folder, undisturbed: tuple[list[float], str], which: int, dies_at: str, survives: int
) -> None:
    policy, machines = owner(folder("llama"))
    before = hash_of(dict(policy.trainable()))
    machines[which].dies_at, machines[which].survives = dies_at, survives
    network = network_of(policy)
    with pytest.raises(StageLostError, match="plug"):
        learnt(network, policy, IN_PIECES)
    policy.model.zero_grad(set_to_none=True)  # as the optimizer's accumulator does
    assert hash_of(dict(policy.trainable())) == before
    assert policy.stages.empty == [which]
    with pytest.raises(StageLostError, match="no machine holds layer"):
        learnt(network, policy, IN_PIECES)
    policy.stages.fill(which, Machine(worker(folder("llama"))))
    policy.model.zero_grad(set_to_none=True)
    losses, found = learnt(network, policy, IN_PIECES)
    assert (losses, hash_of(found)) == undisturbed


def test_every_call_to_a_place_without_a_machine_says_how_the_machine_was_lost_until_another_is_there(
    folder: Folder,
) -> None:
    policy, machines = owner(folder("llama"))
    machines[0].dies_at, machines[0].runs_out = "forward", True
    for _ in range(3):  # in the first several threads ask, of which one may come after the one that found it lost
        with pytest.raises(StageLostError, match=r"its plug was pulled$") as told:
            learnt(network_of(policy), policy, WHOLE)
        assert told.value.ran_out
    policy.stages.fill(0, Machine(worker(folder("llama"))))
    policy.stages.lose(0, "it computed something else")
    with pytest.raises(StageLostError, match=r"now: it computed something else$") as told:
        learnt(network_of(policy), policy, WHOLE)
    assert not told.value.ran_out


class Noting:
    """A machine's link that notes when calls are asked for, and when their answers are waited for."""

    def __init__(self, link: Any, notes: list[tuple[str, Call]]) -> None:
        self._link, self._notes = link, notes

    def __getattr__(self, name: str) -> Any:
        def ask(call: Call, *given: Any) -> Any:
            self._notes.append((f"{name} asked", call))
            answer = getattr(self._link, name)(call, *given)

            def waited() -> Any:
                self._notes.append((f"{name} waited", call))
                return answer()

            return waited

        return ask if name in ("forward", "backward") else getattr(self._link, name)


def test_all_calls_of_a_micro_batch_are_asked_for_before_the_first_answer_is_waited_for(folder: Folder) -> None:
    policy, _ = owner(folder("llama"))
    notes: list[list[tuple[str, Call]]] = [[], []]
    for place, noted in zip(policy.stages.places, notes, strict=True):
        place.link = Noting(place.link, noted)
    learnt(network_of(policy), policy, WHOLE)
    first, last = notes
    second = [call for what, call in first if what == "forward asked" and call.number == 1]
    assert second
    for call in second:
        prompts = Call(call.micro_batch, 0)
        for noted in notes:
            asked = [noted.index((f"{name} asked", each)) for name, each in (("forward", call), ("backward", prompts))]
            waited = [
                noted.index((f"{name} waited", each)) for name, each in (("forward", prompts), ("backward", call))
            ]
            assert asked[0] < waited[0] or noted is last
            assert asked[1] < waited[1] or noted is first
    for noted in notes:
        back = [call.micro_batch for what, call in noted if what == "backward asked" and call.number == 0]
        assert back == sorted(back)


def test_what_fails_at_the_owner_ends_every_micro_batch_and_leaves_nothing_at_the_machines(folder: Folder) -> None:
    policy, machines = owner(folder("qwen3"))
    expected = learnt(network_of(policy), policy, WHOLE)
    network = network_of(policy)
    done = []

    def failing(number: int) -> int:
        logps, _ = completion_logps(network, plan_micro_batches(groups(1, 1), batch_tokens=60)[0])
        if number == 2:
            raise MemoryError("no room")
        network.backward(logps.sum())
        done.append(number)
        return number

    with pytest.raises(MemoryError):
        network.each(failing, range(20))
    assert len(done) < 20
    policy.model.zero_grad(set_to_none=True)
    assert all(not machine.worker.gradients() for machine in machines)
    losses, found = learnt(network, policy, WHOLE)
    assert losses == expected[0]
    assert hash_of(found) == hash_of(expected[1])


def test_passes_without_gradients_follow_the_factors_as_they_are(folder: Folder) -> None:
    alone = whole(folder("gemma3"))
    policy, _ = owner(folder("gemma3"))
    micro_batch = plan_micro_batches(groups(), batch_tokens=500, pads_prompts=False)[0]
    for scale in (1.0, 0.5):
        for each in (alone, policy):
            with torch.no_grad():
                for parameter in each.trainable().values():
                    parameter.mul_(scale)
        with torch.no_grad():
            expected, _ = completion_logps(network_of(alone), micro_batch)
            found, _ = completion_logps(network_of(policy), micro_batch)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_an_owner_has_family_names_and_factors_of_the_whole_and_no_base_weights_of_others(folder: Folder) -> None:
    alone = Policy.load(section_of(folder("qwen2")))
    policy, machines = owner(folder("qwen2"))
    assert policy.family == alone.family
    assert [(name, p.shape) for name, p in policy.trainable().items()] == [
        (name, p.shape) for name, p in alone.trainable().items()
    ]
    parts = [policy, *(machine.worker.policy for machine in machines)]
    held = [{n for n, p in part.model.named_parameters() if not p.is_meta} for part in parts]
    everything = {name for name, _ in alone.model.named_parameters()}
    assert set.union(*held) == everything
    trained = set(policy.trainable())
    assert trained <= held[0]
    base = [each - trained for each in held]
    assert sum(map(len, base)) == len(everything - trained)


def test_a_model_whose_files_have_other_names_is_refused(folder: Folder) -> None:
    with pytest.raises(ConfigurationError, match=r"lack lm_head\.weight.*another name"):
        owner(folder("neox"))


def test_a_machine_may_hold_other_layers_later(folder: Folder) -> None:
    _, (machine,) = owner(folder("llama"), (2,))
    other, _ = owner(folder("llama"), (1,))
    assert isinstance(other, StagedPolicy)
    held = machine.worker.held_bytes
    other.stages.fill(0, machine)
    assert machine.worker.layers == range(1, 4)
    assert machine.worker.held_bytes == pytest.approx(1.5 * held)
    alone = whole(folder("llama"))
    losses, _ = learnt(network_of(alone), alone, WHOLE)
    assert learnt(network_of(other), other, WHOLE)[0] == pytest.approx(losses, rel=1e-5)
