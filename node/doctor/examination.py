"""The whole examination of one data directory and its configuration, in the order of the printed lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from platform import python_version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from node.api.node_client import ask_peers, ask_status
from node.api.own_port import ports_to_try
from node.api.types import PeerView, SettingsAnswer
from node.configuration import DEFAULT_STORE_BYTES, Config, chosen
from node.configuration.sources import ResolvedConfig, resolve
from node.doctor import data_directory, machine, machine_facts, network, network_facts
from node.doctor.addresses import judge_listen
from node.doctor.before_start import configuration_findings
from node.doctor.data_directory import RunningFacts, judge_engine
from node.doctor.findings import Finding, Report, error, ok, report_of
from node.doctor.settings_in_use import differing_keys, running_settings, some_of
from node.engines.backend_choice import EngineFacts
from node.engines.vllm_backend.environment import Installed, environment_at
from node.fit.machine_probe import machine_of
from node.fit.table import FitReport
from node.home import Home, is_locked
from node.policy.device_probe_result import TorchProbe
from node.printable import printable
from node.supervision.reporting import METRICS_BYTES
from node.supervision.supervisor import LOG_BYTES
from node.supervision.watching.swarm_watch import FRESH_HEARTBEAT_SECONDS
from protocol.errors import ConfigurationError, TransportError
from swarm.blobs.room import store_disk_bytes
from swarm.hosts.network_interfaces import machine_ips

PACKAGE = Path(__file__).parents[1]
LOGS_BYTES = 2 * LOG_BYTES + METRICS_BYTES


def examine(home: Home, environment: Mapping[str, str], flags: Mapping[str, str]) -> Report:
    """Returns the findings of every check. Takes seconds, most of them for torch. Changes nothing and raises nothing
    for what it finds: an invalid configuration is a finding too, and the rest is then examined with the defaults."""
    resolved = resolve(home.path, environment, flags)
    wrong = tuple(configuration_findings(home, resolved, environment))
    began = machine_facts.clock_reading()
    running, peers = _ask(home)
    used = running_settings(home)[0] if not flags else None
    config = resolved.config if used is None else Config.model_validate(used.config)
    torch = machine_facts.torch_facts(config.policy.device, config.policy.dtype)
    vllm = environment_at(environment).installed()
    fit = _fit(home, config, torch.probe, vllm, wrong)
    findings = [*_configured(home, resolved, used, wrong), *_computing(torch, running, fit, config.policy.stages)]
    on_card = torch.probe is not None and torch.probe.device == "cuda"
    parameters = 0 if isinstance(fit, str) else fit.parameters
    four_bit, in_shards = config.policy.four_bit is True, config.learner.devices > 1
    engine = EngineFacts(vllm, on_card, four_bit, parameters, in_shards)
    findings.append(judge_engine(config, running, engine))
    findings += [*_network(home, config, running, peers), *_data(home, config, running, fit)]
    findings.append(machine.judge_clock(_clock(home, began, running, peers)))
    return report_of(tuple(findings))


def _configured(
    home: Home, resolved: ResolvedConfig, used: SettingsAnswer | None, wrong: Sequence[Finding]
) -> Iterator[Finding]:
    """Yields whose settings are examined, and what is wrong with those of the next start."""
    if used is not None:
        message = f"examined as the node that runs here uses it (process {used.pid})"
        other = list(differing_keys(used.config, resolved.config.model_dump(mode="json")))
        yield ok("settings", message + (f"; a start from this shell would differ in {some_of(other)}" if other else ""))
    yield from wrong
    if not any(finding.check == "configuration" for finding in wrong):
        file = home.path / "node.toml"
        remembered = f", and the run of {resolved.run.path.name}" if resolved.run is not None else ""
        shown = str(file) if file.exists() else f"defaults, because there is no {file}"
        yield ok("configuration", printable(shown + remembered, 400))


def _ask(home: Home) -> tuple[RunningFacts, tuple[PeerView, ...]]:
    """Returns the facts of the node that runs in ``home``, and its peers."""
    if not is_locked(home):
        return RunningFacts(False, None, None), ()
    try:
        return RunningFacts(True, ask_status(home), None), ask_peers(home).peers
    except TransportError as failure:
        return RunningFacts(True, None, str(failure)), ()


def _computing(
    torch: machine_facts.TorchFacts, running: RunningFacts, fit: FitReport | str, stages: int
) -> Iterator[Finding]:
    try:
        wanted = machine_facts.requirements(PACKAGE)
    except metadata.PackageNotFoundError:
        yield error("packages", "starling is not installed in this Python", "run ./scripts/start.sh")
    else:
        names = [canonicalize_name(Requirement(text).name) for text in wanted.packages]
        yield machine.judge_python(python_version(), wanted.python)
        yield machine.judge_packages(wanted.packages, {name: machine_facts.installed_version(name) for name in names})
    yield machine.judge_torch(torch)
    yield machine.judge_power(machine_facts.power_facts(), torch.probe)
    yield machine.judge_memory(machine_facts.memory_facts(), running.locked, fit, stages)


def _fit(
    home: Home, config: Config, probe: TorchProbe | None, vllm: Installed | None, wrong: Sequence[Finding]
) -> FitReport | str:
    """Returns the plan that a start would make, or why there is none."""
    first = [finding.check for finding in wrong if finding.check.startswith(("policy.", "tasks."))]
    if first:
        return f"what a node needs can be planned once {first[0]} is corrected"
    if probe is None:
        return "what a node needs is not known without torch"
    try:
        here = machine_of(probe, home, max_memory_bytes=config.machine.max_memory_bytes)
        return machine_facts.fit_facts(home, config, here, vllm)
    except ConfigurationError as failure:
        return str(failure)


def _network(home: Home, config: Config, running: RunningFacts, peers: tuple[PeerView, ...]) -> Iterator[Finding]:
    section, status = config.swarm, running.status
    swarm = status.swarm if status is not None else None
    addresses = (swarm.addresses if swarm is not None else ()) if running.locked else None
    listening = network_facts.listen_facts(section.listen, addresses)
    if running.locked or judge_listen(section.listen, ()) is None:  # otherwise it is among the wrong settings
        yield network.judge_listening(listening)
    ports = ports_to_try(config.api, home.api_port)
    api = network_facts.api_facts(ports, home.api_token, running=running.locked)
    yield network.judge_api(api)
    if swarm is not None and network.is_reach_known(swarm.reach):
        yield network.judge_reach(swarm.reach)
    else:
        yield network.judge_addresses(machine_ips(), listening.endpoint, dials_out=bool(section.peers))
    connected = frozenset(peer.peer for peer in peers if peer.connected)
    failures = network_facts.dial_failures(section.peers, connected)
    yield network.judge_peers(failures, lan_discovery=section.lan_discovery, connected=len(connected))
    ourselves = status.peer if status is not None else ""
    yield network.judge_lan(network_facts.lan_facts(section.lan_discovery, ourselves))


def _data(home: Home, config: Config, running: RunningFacts, fit: FitReport | str) -> Iterator[Finding]:
    yield machine.judge_disk(
        machine_facts.disk_facts(home, config),
        blob_bytes=store_disk_bytes(home.path / "blobs"),
        store_bytes=_store_bytes(config, fit),
        checkpoints_kept=config.checkpoint.keep,
        log_bytes=LOGS_BYTES,
    )
    yield data_directory.judge_key(home)
    yield data_directory.judge_checkpoints(data_directory.checkpoint_facts(home))
    yield data_directory.judge_running(running)


def _store_bytes(config: Config, fit: FitReport | str) -> int:
    """Returns the planned size of the store; where nothing fits, the one that the swarm process starts with."""
    planned = None if isinstance(fit, str) else fit.settings
    return chosen(config.swarm.store_bytes, DEFAULT_STORE_BYTES) if planned is None else planned.store_bytes


def _clock(
    home: Home, began: machine_facts.ClockReading, running: RunningFacts, peers: tuple[PeerView, ...]
) -> machine_facts.ClockFacts:
    swarm = running.status.swarm if running.status is not None else None
    fresh = [peer for peer in peers if (peer.heartbeat_age_seconds or 0.0) < FRESH_HEARTBEAT_SECONDS and peer.connected]
    return machine_facts.ClockFacts(
        began=began,
        ended=machine_facts.clock_reading(),
        steps_back=machine_facts.monotonic_steps_back(),
        newest_file_seconds=machine_facts.newest_file_seconds(home.path),
        peer_offsets_seconds=tuple(p.clock_offset_seconds for p in fresh if p.clock_offset_seconds is not None),
        refused_for_clock=swarm.rejected.get("clock", 0) if swarm is not None else 0,
    )
