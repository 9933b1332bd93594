"""One typed configuration tree: flags over environment (``STARLING_…``) over ``node.toml`` over what the data directory
remembers of its run over defaults.

``sections`` is the tree, with every key and its default; ``sources`` reads it, and is imported by its own name, since
processes that are given the tree do without it. Each part of the node takes its own section, never the whole tree.
``node.toml.example`` documents every key.
"""

from node.configuration.devices import DevicesFault, devices_faults, stages_faults
from node.configuration.machine import MachineSection, PauseCondition
from node.configuration.remembered import RememberedRun, remembered_run, with_whole_paths
from node.configuration.sections import (
    DEFAULT_BATCH_TOKENS,
    DEFAULT_HOST,
    DEFAULT_ROWS,
    DEFAULT_STORE_BYTES,
    AdvantageMethod,
    ApiSection,
    Auto,
    AveragingSection,
    BackendName,
    ChatMode,
    CheckpointSection,
    Config,
    CorrectionName,
    DtypeName,
    EngineSection,
    EvaluationSection,
    ForeignAdvantage,
    LearnerSection,
    LossName,
    ObjectiveSection,
    OptimizerName,
    PolicySection,
    ResearchSection,
    SwarmSection,
    TasksSection,
    TrackerName,
    chosen,
)

__all__ = [
    "DEFAULT_BATCH_TOKENS",
    "DEFAULT_HOST",
    "DEFAULT_ROWS",
    "DEFAULT_STORE_BYTES",
    "AdvantageMethod",
    "ApiSection",
    "Auto",
    "AveragingSection",
    "BackendName",
    "ChatMode",
    "CheckpointSection",
    "Config",
    "CorrectionName",
    "DevicesFault",
    "DtypeName",
    "EngineSection",
    "EvaluationSection",
    "ForeignAdvantage",
    "LearnerSection",
    "LossName",
    "MachineSection",
    "ObjectiveSection",
    "OptimizerName",
    "PauseCondition",
    "PolicySection",
    "RememberedRun",
    "ResearchSection",
    "SwarmSection",
    "TasksSection",
    "TrackerName",
    "chosen",
    "devices_faults",
    "remembered_run",
    "stages_faults",
    "with_whole_paths",
]
