"""One typed configuration tree: flags over environment (``STARLING_…``) over ``node.toml`` over defaults.

``sections`` is the tree, with every key and its default; ``sources`` reads it. Each part of the node takes its own
section, never the whole tree. ``node.toml.example`` documents every key.
"""

from node.configuration.sections import (
    HELD_OUT_PROMPTS,
    AdvantageMethod,
    AllocationSection,
    ApiSection,
    AveragingSection,
    CheckpointSection,
    Config,
    CorrectionName,
    DivergenceEstimator,
    EngineSection,
    EvaluationSection,
    ForeignAdvantage,
    LearnerSection,
    LossName,
    ObjectiveSection,
    PolicySection,
    ResearchSection,
    SwarmSection,
    TasksSection,
    TrackerName,
)
from node.configuration.sources import known_keys, load_config

__all__ = [
    "HELD_OUT_PROMPTS",
    "AdvantageMethod",
    "AllocationSection",
    "ApiSection",
    "AveragingSection",
    "CheckpointSection",
    "Config",
    "CorrectionName",
    "DivergenceEstimator",
    "EngineSection",
    "EvaluationSection",
    "ForeignAdvantage",
    "LearnerSection",
    "LossName",
    "ObjectiveSection",
    "PolicySection",
    "ResearchSection",
    "SwarmSection",
    "TasksSection",
    "TrackerName",
    "known_keys",
    "load_config",
]
