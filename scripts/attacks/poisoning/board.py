"""One learner's view of a swarm in which others announce groups: real groups, really encoded and fetched from files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from protocol.messages import Heartbeat
from protocol.rollouts import Group, advert_of, encode_group
from swarm.api import Fetched, Judgement, PeerStatus, SeenGroup, SwarmStatus, Wanted

KEPT_GROUPS = 4096  # as many as a swarm process keeps


class Board:
    """Does for one learner in this process what its swarm process does. ``now_seconds`` is set by the caller."""

    def __init__(self, folder: Path) -> None:
        self.now_seconds = 1_700_000_000.0
        self.shared: list[Group] = []  # by the learner itself, since last taken
        self.judged: Counter[tuple[str, Judgement]] = Counter()
        self._folder, self._seen, self._cursor = folder, list[SeenGroup](), 0
        folder.mkdir(parents=True, exist_ok=True)

    def announce(self, peer: str, group: Group) -> None:
        content = encode_group(group)
        advert = advert_of(group, content)
        (self._folder / advert.blob.hex()).write_bytes(content)
        self._cursor += 1
        self._seen.append(
            SeenGroup(self._cursor, peer, self.now_seconds, group.family, group.tokenizer, group.policy_version, advert)
        )
        del self._seen[:-KEPT_GROUPS]

    def take_shared(self) -> list[Group]:
        taken, self.shared = self.shared, []
        return taken

    # ``node.learner.foreign.swarm_calls.Swarm``

    def status(self) -> SwarmStatus:
        return SwarmStatus(
            "victim", "test", "", (), 0.0, len({each.peer for each in self._seen}), None, 0, 0, 0, {}, {}
        )

    def peers(self) -> list[PeerStatus]:
        return []

    def share(self, groups: Sequence[Group]) -> None:
        self.shared += groups

    def seen_groups(self, after: int, limit: int) -> list[SeenGroup]:
        return [seen for seen in self._seen if seen.cursor > after][:limit]

    def fetch(self, wanted: Sequence[Wanted], *, deadline_seconds: float) -> list[Fetched]:
        return [Fetched(each.blob, str(self._folder / each.blob.hex()), None) for each in wanted]

    def beat(self, heartbeat: Heartbeat) -> None:
        pass

    def judge(self, peer: str, blob: bytes, judgement: Judgement, detail: str = "") -> None:
        self.judged[peer, judgement] += 1
