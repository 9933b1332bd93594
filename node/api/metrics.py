"""A node's figures in Prometheus's text format, version 0.0.4: names hold units, names of totals end in ``_total``.

https://prometheus.io/docs/instrumenting/exposition_formats/

Labels take few values: tasks of this node, phases, processes, and reasons that this program defines. Peers are counted
and never become labels, because strangers choose their ids and names. A figure that is not known yet is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from node.api.gains_words import won_turns
from node.api.types import GainsAnswer, NodeState, NodeStatus, PeersAnswer
from node.events import Averaged, CheckpointSaved, Evaluated, RoundDone, Usage
from swarm.api import SwarmStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_LABEL_VALUES = 128  # of one metric; the first ones in alphabetical order


def metrics_text(status: NodeStatus, peers: PeersAnswer, gains: GainsAnswer | None = None) -> str:
    """Returns every figure that is known now."""
    metrics = [*_of_node(status), *_of_peers(peers)]
    if status.swarm is not None:
        metrics += _of_swarm(status.swarm)
    if status.round is not None:
        metrics += _of_round(status.round)
    if status.offered is not None:
        metrics += _of_averaging(status.offered, status.averaged)
    if status.checkpoint is not None:
        metrics += _of_checkpoint(status.checkpoint)
    if status.evaluated is not None:
        metrics += _of_evaluation(status.evaluated)
    if status.usage is not None:
        metrics += _of_usage(status.usage)
    if gains is not None and gains.rounds:
        metrics += _of_gains(gains)
    return "".join(metrics)


def _of_node(status: NodeStatus) -> Iterator[str]:
    yield _labelled("build_info", "gauge", "Always 1; the version is its label", "version", {status.version: 1})
    yield _gauge("uptime_seconds", "Time since the node was started", status.uptime_seconds)
    states = {state.value: float(status.state is state) for state in NodeState}
    yield _labelled("state", "gauge", "1 for the state that the node is in", "state", states)
    processes = {"learner": status.learner_process, "swarm": status.swarm_process}
    running = {name: float(child.pid is not None) for name, child in processes.items()}
    yield _labelled("process_running", "gauge", "1 while the process runs", "process", running)
    restarts = {name: child.restarts for name, child in processes.items()}
    yield _labelled("process_restarts_total", "counter", "Times that the process ended unasked", "process", restarts)


def _of_peers(answer: PeersAnswer) -> Iterator[str]:
    peers = answer.peers
    yield _gauge("peers_known", "Peers that are connected, announced or banned", len(peers))
    yield _gauge("peers_banned", "Peers that are banned now", sum(peer.banned_because is not None for peer in peers))


def _of_swarm(swarm: SwarmStatus) -> Iterator[str]:
    yield _gauge("peers_connected", "Peers connected now", swarm.connected_peers)
    yield _gauge("alone", "1 while no peer is connected", swarm.alone_because is not None)
    yield _counter("sent_bytes_total", "Bytes sent to peers", swarm.sent_bytes)
    yield _counter("received_bytes_total", "Bytes received from peers", swarm.received_bytes)
    yield _counter("groups_announced_total", "Own groups announced to a peer at least", swarm.groups_announced)
    yield _counter("groups_fetched_total", "Own groups that a peer has fetched", swarm.groups_fetched)
    help_text = "Adverts of own groups not sent, to keep pace with a large swarm"
    yield _counter("adverts_held_back_total", help_text, swarm.adverts_held_back)
    yield _gauge("blob_store_bytes", "Size on disk of the content store", swarm.store_bytes)
    accepted, rejected = "Announcements of peers accepted, by kind", "Announcements of peers rejected, by reason"
    yield _labelled("announcements_accepted_total", "counter", accepted, "kind", swarm.accepted)
    yield _labelled("announcements_rejected_total", "counter", rejected, "reason", swarm.rejected)


def _of_round(done: RoundDone) -> Iterator[str]:
    """Figures of the newest round, and totals over all rounds."""
    yield _counter("rounds_total", "Rounds done", done.round)
    yield _gauge("policy_version", "Version of the weights in training", done.policy_version)
    yield _gauge("round_seconds", "Duration of the last round", done.seconds)
    phases = msgspec.structs.asdict(done.phases)
    yield _labelled("round_phase_seconds", "gauge", "Duration of the last round's phases", "phase", phases)
    yield _gauge("reward", "Mean over own completions of the last round", done.reward)
    yield _labelled("task_reward", "gauge", "Mean over own completions by task", "task", done.reward_by_task)
    yield _labelled("task_success", "gauge", "Running mean reward by task, 0 to 1", "task", done.success_by_task)
    means = {task: won_turns(used) for task, used in done.turns_by_task.items()}
    turns = {task: mean for task, mean in means.items() if mean is not None}
    yield _labelled("task_won_turns", "gauge", "Mean turns of own conversations that were won", "task", turns)
    yield _counter("generated_tokens_total", "Tokens generated", done.tokens_generated_total)
    yield _gauge("generated_tokens_per_second", "Mean over the last round", done.tokens_per_second)
    yield _gauge("trained_tokens", "Completion tokens with an advantage, in the last round", done.tokens_trained)
    yield _gauge("foreign_groups_waiting", "Foreign groups kept for later rounds", done.foreign_waiting)
    yield _counter("groups_offered_total", "Own groups that peers may fetch", done.groups_offered_total)
    yield _counter("foreign_groups_used_total", "Groups of peers trained on", done.foreign_groups_used_total)
    yield _counter("foreign_fetched_bytes_total", "Size of the groups fetched from peers", done.bytes_fetched_total)
    rejected, help_text = done.foreign_rejected, "Foreign groups not used in the last round, by reason"
    yield _labelled("foreign_groups_rejected", "gauge", help_text, "reason", rejected)
    yield _gauge("scoring_failures", "Completions without a reward, in the last round", done.scoring_failures)
    help_text = "Steps skipped because a gradient was not finite"
    yield _counter("optimizer_steps_skipped_total", help_text, done.steps_skipped_total)
    yield _gauge("loss", "Loss of the last step", done.loss)
    yield _gauge("gradient_norm", "Norm before clipping", done.gradient_norm)
    yield _gauge("learning_rate", "Of the next whole step", done.learning_rate)
    yield _gauge("step_kl_nats", "How far the last step moved the policy, a token, where it was measured", done.step_kl)
    yield _gauge("effective_sample_ratio", "Effective sample size over samples, 0 to 1", done.effective_sample_share)
    yield _gauge("staleness_versions", "Mean age of the oldest weights of own completions", done.staleness_mean)
    yield _gauge("entropy_nats", "Mean over trained tokens", done.entropy)
    help_text = "KL of the learner from the engine, a token of the last round's own samples"
    yield _gauge("engine_kl_nats", help_text, done.engine_kl)
    yield _gauge("engine_logp_gap_nats", "Mean difference of log-probabilities, of the same tokens", done.engine_gap)


def _of_averaging(offered: Averaged, averaged: Averaged | None) -> Iterator[str]:
    """Totals up to the last offer of weights, and figures of the last outer step."""
    sent, received = "Weights sent by this learner process", "Weights received by this learner process"
    yield _counter("outer_steps_total", "Times that weights were averaged with a peer", offered.outer_steps)
    yield _counter("averaging_sent_bytes_total", sent, offered.sent_bytes_total)
    yield _counter("averaging_received_bytes_total", received, offered.received_bytes_total)
    if averaged is not None:
        yield _gauge("averaging_timestamp_seconds", "Unix time of the last outer step", averaged.time_seconds)
        yield _gauge("averaging_seconds", "Time from the offer of weights to the last outer step", averaged.seconds)
        help_text = "Distance to the last partner's weights, over the norm of our weights"
        yield _gauge("replica_distance_ratio", help_text, averaged.distance)


def _of_checkpoint(saved: CheckpointSaved) -> Iterator[str]:
    yield _gauge("checkpoint_round", "Round of the newest checkpoint", saved.round)
    yield _gauge("checkpoint_bytes", "Size of the newest checkpoint", saved.size_bytes)
    yield _gauge("checkpoint_timestamp_seconds", "Unix time of the newest checkpoint", saved.time_seconds)


def _of_evaluation(measured: Evaluated) -> Iterator[str]:
    yield _gauge("evaluation_round", "Round of the last evaluation", measured.round)
    yield _gauge("evaluation_reward", "Mean reward on held-out prompts", measured.reward)
    help_text = "Mean reward on held-out prompts by task"
    yield _labelled("evaluation_task_reward", "gauge", help_text, "task", measured.reward_by_task)
    yield _gauge("evaluation_best_reward", "Mean reward of the best checkpoint", measured.best_reward)
    yield _gauge("evaluation_seconds", "Duration of the last evaluation", measured.seconds)


def _of_usage(usage: Usage) -> Iterator[str]:
    held = {"supervisor": usage.supervisor_bytes, "learner": usage.learner_bytes, "swarm": usage.swarm_bytes}
    known = {process: float(size) for process, size in held.items() if size is not None}
    help_text = "Resident memory of a process and all that it started"
    yield _labelled("memory_bytes", "gauge", help_text, "process", known)
    device = usage.device
    if device is not None:
        help_text = "Memory of the GPU that is in use, by every program"
        yield _gauge("device_memory_used_bytes", help_text, device.memory_used_bytes)
        yield _gauge("device_memory_total_bytes", "Memory of the GPU", device.memory_total_bytes)
        help_text = "Time in which a kernel ran on the GPU, 0 to 1"
        yield _gauge("device_utilization_ratio", help_text, device.utilization_share)
        yield _gauge("device_power_watts", "Power that the GPU draws", device.power_watts)


def _of_gains(gains: GainsAnswer) -> Iterator[str]:
    """What is counted to others, an attribution (docs/api.md), and what was lost."""
    help_text = "Change of mean reward that is counted to groups of peers, since the first of them"
    yield _gauge("gained_from_others", help_text, gains.from_others)
    by_task = {task.task: task.from_others for task in gains.tasks}
    help_text = "Change of reward that is counted to groups of peers, by task"
    yield _labelled("task_gain_from_others", "gauge", help_text, "task", by_task)
    best = {task.task: task.best for task in gains.tasks}
    yield _labelled("task_success_best", "gauge", "Greatest smoothed reward so far by task", "task", best)
    lost = {loss.task: loss.fall for loss in gains.losses}
    fallen = {task.task: lost.get(task.task, 0.0) for task in gains.tasks}
    yield _labelled("task_lost", "gauge", "Fall of reward below the best that was held, 0 if none", "task", fallen)
    yield _gauge("tasks_lost", "Tasks on which success has fallen by more than noise", len(gains.losses))


def _gauge(name: str, help_text: str, value: float | None) -> str:
    """Returns nothing of a value that is not known."""
    return "" if value is None else _exposed(name, "gauge", help_text, {"": value})


def _counter(name: str, help_text: str, value: float) -> str:
    return _exposed(name, "counter", help_text, {"": value})


def _labelled(name: str, kind: str, help_text: str, label: str, values: Mapping[str, float]) -> str:
    kept = sorted(values.items())[:MAX_LABEL_VALUES]
    return _exposed(name, kind, help_text, {f'{{{label}="{_escaped(text)}"}}': value for text, value in kept})


def _exposed(name: str, kind: str, help_text: str, samples: Mapping[str, float]) -> str:
    """``samples``: values by their labels as the format has them."""
    head = f"# HELP starling_{name} {help_text}.\n# TYPE starling_{name} {kind}\n"
    return head + "".join(f"starling_{name}{labels} {float(value)!r}\n" for labels, value in samples.items())


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
