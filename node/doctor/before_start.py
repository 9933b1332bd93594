"""The one check of everything that a start needs and that can be known before a process starts and without torch.

``starling up``, ``config validate`` and ``doctor`` share it. It reads small files, binds ports for a moment, and tells
all that it found at once; what is fine has no finding. It changes nothing and raises nothing for what it finds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from node.api.own_port import ports_to_try
from node.configuration import Config, devices_faults, stages_faults
from node.configuration.sources import NO_OPTIONS, ResolvedConfig, resolve
from node.doctor import network, network_facts
from node.doctor.addresses import DEFAULT_PORT, EVERYWHERE, judge_listen, judge_peer
from node.doctor.configured_model import judge_model, judge_same_run
from node.doctor.findings import Finding, Severity, error
from node.doctor.machine import judge_room
from node.doctor.machine_facts import disk_facts, nearest_existing
from node.doctor.task_check import TaskFault, faults_of
from node.home import Home, how_to_write, is_locked, socket_path_fault
from node.printable import printable
from node.trackers.writers import check_installed
from protocol.errors import ConfigurationError
from protocol.limits import NAME_BYTES
from swarm.exit_codes import ExitCode
from swarm.hosts.go.daemon_process import find_daemon
from swarm.hosts.network_interfaces import machine_ips

MESSAGE_CHARACTERS = 600
PORT_CHECKS = frozenset({"port", "api"})
RELAY_LISTEN = f"/ip4/{EVERYWHERE[4]}/tcp/{DEFAULT_PORT}"


@dataclass(frozen=True, slots=True)
class StartCheck:
    """What a start in one data directory would meet."""

    resolved: ResolvedConfig
    findings: tuple[Finding, ...]  # warnings and errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(each for each in self.findings if each.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(each for each in self.findings if each.severity is Severity.WARNING)

    @property
    def exit_code(self) -> ExitCode:
        """The code of a start that is refused for this: a port that is taken may be free later."""
        if not self.errors:
            return ExitCode.DONE
        only_ports = all(each.check in PORT_CHECKS for each in self.errors)
        return ExitCode.UNREACHABLE if only_ports else ExitCode.BAD_CONFIGURATION


def check_start(
    home: Home,
    environment: Mapping[str, str],
    flags: Mapping[str, str],
    options: Mapping[str, str] = NO_OPTIONS,
    resumed: Path | None = None,
) -> StartCheck:
    """Examines a start in ``home``. Ports are left alone while a node runs there. ``options`` and ``resumed`` are as
    for ``resolve``."""
    resolved = resolve(home.path, environment, flags, options, resumed)
    findings = [*configuration_findings(home, resolved, environment)]
    if not any(each.check == "home" for each in findings):
        findings += [] if is_locked(home) else _ports(home, resolved.config)
        findings += _wrong(judge_room(disk_facts(home, resolved.config)))
    return StartCheck(resolved, tuple(findings))


def check_relay(
    home: Home, environment: Mapping[str, str], flags: Mapping[str, str], options: Mapping[str, str] = NO_OPTIONS
) -> StartCheck:
    """Examines a start of ``starling relay`` in ``home``, which needs less. Where no address to listen on was chosen,
    it is ``RELAY_LISTEN``: others write it down."""
    resolved = resolve(home.path, environment, flags, options)
    if "swarm.listen" not in resolved.spelling:
        section = resolved.config.swarm.model_copy(update={"listen": RELAY_LISTEN})
        resolved = replace(resolved, config=resolved.config.model_copy(update={"swarm": section}))
    config = resolved.config
    findings = [*_problems(resolved), *_home(home), *_names(config), *_addresses(config)]
    if not config.swarm.relay:
        findings.append(error("swarm.relay", "is false", "leave it out: a relay relays"))
    if config.swarm.host == "go":
        findings.append(error("swarm.host", 'is "go", which starling relay does not use', 'write "py" or leave it out'))
    if not any(each.check == "home" for each in findings) and not is_locked(home):
        findings += _listening(config)
    return StartCheck(resolved, tuple(findings))


def configuration_findings(home: Home, resolved: ResolvedConfig, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yields what is wrong with the settings, one finding for each."""
    config = resolved.config
    yield from _problems(resolved)
    yield from _home(home)
    yield from _names(config)
    yield from _addresses(config)
    model = judge_model(config.policy.model, environment)
    if model is not None:
        yield model
    yield from judge_same_run(config, resolved.run, resolved.spelling, home.path)
    yield from (
        error(fault.key, fault.found, fault.remedy) for fault in (*devices_faults(config), *stages_faults(config))
    )
    yield from map(_task_finding, faults_of(config.tasks))
    try:
        check_installed(config.trackers)
    except ConfigurationError as failure:
        yield error("trackers", str(failure), "install it, or leave it out of trackers")
    if config.swarm.host == "go":
        try:
            find_daemon()
        except ConfigurationError as failure:
            yield error("swarm.host", str(failure), 'install the extra "go", or set swarm.host = "py"')


def _problems(resolved: ResolvedConfig) -> Iterator[Finding]:
    for problem in resolved.problems:
        yield error(
            "configuration",
            printable(problem, MESSAGE_CHARACTERS),
            "correct or remove it; node.toml.example explains each key",
        )


def _addresses(config: Config) -> Iterator[Finding]:
    yield from filter(None, [judge_listen(config.swarm.listen, machine_ips()), *map(judge_peer, config.swarm.peers)])


def _home(home: Home) -> Iterator[Finding]:
    too_long = socket_path_fault(home)
    if too_long is not None:
        yield error("home", too_long, "choose a shorter directory with --home or STARLING_HOME")
    existing = nearest_existing(home.path)
    if not existing.is_dir():
        yield error("home", f"{existing} is a file, not a directory", "choose another directory with --home")
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield error("home", f"{existing} cannot be written", how_to_write(existing))


def _names(config: Config) -> Iterator[Finding]:
    for key, name in (("name", config.name), ("swarm.name", config.swarm.name)):
        length_bytes = len(name.encode(errors="replace"))
        if length_bytes > NAME_BYTES:
            yield error(
                key,
                f"{printable(name, 80)} has {length_bytes} bytes, at most {NAME_BYTES} are sent",
                "write a shorter one",
            )
        elif printable(name) != name:
            yield error(key, f"{printable(name)} holds characters that do not show", "write it without them")
    if not config.swarm.name:
        yield error("swarm.name", "is empty", 'write a name, such as the default "starling"')


def _task_finding(fault: TaskFault) -> Finding:
    message = (
        fault.message.removeprefix(f"{fault.key}: ")
        .removeprefix(f"{fault.key}.")
        .partition(", and starling tasks lists all")[0]
    )
    message = printable(message, MESSAGE_CHARACTERS)
    if fault.broken > 1:
        numbers = ", ".join(map(str, fault.broken_lines)) + (", …" if fault.broken > len(fault.broken_lines) else "")
        message += f" ({fault.broken} lines are broken: {numbers})"
    return error(fault.key, message, _task_remedy(fault))


def _task_remedy(fault: TaskFault) -> str:
    match fault.key:
        case "tasks.jsonl" if fault.broken:
            return 'write one JSON object on each line, such as {"question": "1+1", "answer": "2"}'
        case "tasks.jsonl":
            return 'name a file with one JSON object a line, such as {"question": "1+1", "answer": "2"}'
        case "tasks.jsonl_reward" if fault.in_file:
            return "correct the file, or write another FILE.py:FUNCTION; docs/tasks.md has an example"
        case "tasks.jsonl_reward":
            return 'write "auto", "exact", "final", "math", FILE.py:FUNCTION, or the name of a reward that is installed'
        case "tasks.names" if fault.in_file:
            return "correct the file, or write another FILE.py:TASK; docs/environments.md has an example"
        case "tasks.names":
            return "starling tasks lists the names that there are"
        case _:  # a generator's table
            return (
                "correct the table; docs/tasks.md has an example, and starling tasks reasoning_gym:NAME the parameters"
            )


def _ports(home: Home, config: Config) -> Iterator[Finding]:
    yield from _listening(config)
    ports = ports_to_try(config.api, home.api_port)
    yield from _wrong(network.judge_api(network_facts.api_facts(ports, home.api_token, running=False)))


def _listening(config: Config) -> Iterator[Finding]:
    if judge_listen(config.swarm.listen, ()) is None:
        yield from _wrong(network.judge_listening(network_facts.listen_facts(config.swarm.listen, None)))


def _wrong(finding: Finding) -> Iterator[Finding]:
    if finding.severity is not Severity.OK:
        yield finding
