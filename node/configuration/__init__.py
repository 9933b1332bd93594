"""One typed configuration tree: flags over environment (``STARLING_…``) over ``node.toml`` over defaults.

``sections`` is the tree, with every key and its default; ``sources`` reads it. Each part of the node takes its own
section, never the whole tree. ``node.toml.example`` documents every key.
"""

from node.configuration.sections import (
    DEFAULT_BATCH_TOKENS,
    DEFAULT_ROWS,
    DEFAULT_STORE_BYTES,
    AdvantageMethod,
    AllocationSection,
    ApiSection,
    Auto,
    AveragingSection,
    CheckpointSection,
    Config,
    CorrectionName,
    DivergenceEstimator,
    DtypeName,
    EngineSection,
    ForeignAdvantage,
    LearnerSection,
    LossName,
    ObjectiveSection,
    OptimizerName,
    PolicySection,
    ResearchSection,
    SwarmSection,
    TasksSection,
    chosen,
)
from node.configuration.sources import known_keys, load_config

__all__ = [
    "DEFAULT_BATCH_TOKENS",
    "DEFAULT_ROWS",
    "DEFAULT_STORE_BYTES",
    "AdvantageMethod",
    "AllocationSection",
    "ApiSection",
    "Auto",
    "AveragingSection",
    "CheckpointSection",
    "Config",
    "CorrectionName",
    "DivergenceEstimator",
    "DtypeName",
    "EngineSection",
    "ForeignAdvantage",
    "LearnerSection",
    "LossName",
    "ObjectiveSection",
    "OptimizerName",
    "PolicySection",
    "ResearchSection",
    "SwarmSection",
    "TasksSection",
    "chosen",
    "known_keys",
    "load_config",
]
