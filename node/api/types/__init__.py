"""Every answer of the HTTP API: plain structs, the same for the command line, for pages and for programs.

``node/api/openapi.py`` describes the API from these. A value that is not known yet is null. Strings received from a
peer are escaped (``node.printable``): they move no cursor and fake no line; a page must still treat them as text, not
as markup. Lists are bounded, whatever strangers announce. Times are Unix seconds by this node's clock.
"""

from node.api.types.gains import GainsAnswer, Loss, PeerGain, PeerShare, TaskGain
from node.api.types.history import HistoryAnswer, Mark, Series, Timeline
from node.api.types.links import Link, LinkNode, LinksAnswer
from node.api.types.owner import ErrorAnswer, Note, PauseAnswer, SettingsAnswer, StopAnswer
from node.api.types.peers import HeartbeatView, PeersAnswer, PeerView
from node.api.types.rollouts import GroupSeen, RolloutsAnswer, RoundRollouts, WhyNot
from node.api.types.samples import SampleAnswer, SampleGroup, SamplesAnswer, SamplesNews
from node.api.types.status import ChildStatus, HealthAnswer, JoinLine, NodeState, NodeStatus, Paused
from node.api.types.swarm import ModelView, SwarmAnswer, TaskView

__all__ = [
    "ChildStatus",
    "ErrorAnswer",
    "GainsAnswer",
    "GroupSeen",
    "HealthAnswer",
    "HeartbeatView",
    "HistoryAnswer",
    "JoinLine",
    "Link",
    "LinkNode",
    "LinksAnswer",
    "Loss",
    "Mark",
    "ModelView",
    "NodeState",
    "NodeStatus",
    "Note",
    "PauseAnswer",
    "Paused",
    "PeerGain",
    "PeerShare",
    "PeerView",
    "PeersAnswer",
    "RolloutsAnswer",
    "RoundRollouts",
    "SampleAnswer",
    "SampleGroup",
    "SamplesAnswer",
    "SamplesNews",
    "Series",
    "SettingsAnswer",
    "StopAnswer",
    "SwarmAnswer",
    "TaskGain",
    "TaskView",
    "Timeline",
    "WhyNot",
]
