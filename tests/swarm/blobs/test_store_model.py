"""The content store against a plain dictionary: any order of calls, and a crash at any point of writing."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.blob_id import blob_id
from protocol.errors import StorageError
from protocol.limits import CHUNK_BYTES, GROUP_BLOB_BYTES
from swarm.blobs.incoming import BlobInbox
from swarm.blobs.store import ContentStore
from tests.swarm.blobs.stored import Clock, content, on_disk_bytes

BUDGET_BYTES = 4 << 20
GRACE_SECONDS, EXPIRE_SECONDS = 60.0, 600.0
SIZES = st.sampled_from([0, 1, 200, 3000, 40_000, CHUNK_BYTES, CHUNK_BYTES + 1, 600_000, GROUP_BLOB_BYTES + 1])


@dataclass
class Known:
    """A blob of the model."""

    content: bytes
    used_at_seconds: float
    pins: int = 0
    is_use_written: bool = True  # the time of the last use may be lost in a crash, and the blob then leaves early


class StoreAgainstDictionary(RuleBasedStateMachine):
    """``known`` has every blob that was ever stored; the store must have those in use, and no other content."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="store-"))
        self.generation = 0
        self.clock = Clock()
        self.known: dict[bytes, Known] = {}

    @initialize()
    def begin(self) -> None:
        self._open()

    @property
    def directory(self) -> Path:
        return self.folder / str(self.generation)

    def _open(self) -> None:
        self.store = ContentStore(
            self.directory,
            budget_bytes=BUDGET_BYTES,
            grace_seconds=GRACE_SECONDS,
            expire_seconds=EXPIRE_SECONDS,
            wall_clock=self.clock,
        )

    def _used(self, blob: bytes, whole: bytes) -> None:
        known = self.known.setdefault(blob, Known(whole, 0.0))
        known.used_at_seconds, known.is_use_written = self.clock.now_seconds, True

    def _is_kept(self, known: Known) -> bool:
        is_in_use = known.is_use_written and self.clock.now_seconds - known.used_at_seconds < GRACE_SECONDS
        return known.pins > 0 or is_in_use

    def _lately_used_bytes(self) -> int:
        """Returns the bytes of all blobs that the store may have to keep."""
        oldest_seconds = self.clock.now_seconds - GRACE_SECONDS
        kept = [each for each in self.known.values() if each.pins or each.used_at_seconds > oldest_seconds]
        return sum(len(each.content) for each in kept)

    @rule(size=SIZES, seed=st.integers(0, 3), fetched=st.booleans())
    def put(self, size: int, seed: int, fetched: bool) -> None:
        whole = content(size, seed)
        try:
            self.store.put_verified(blob_id(whole), whole, fetched=fetched)
        except StorageError:
            assert self._lately_used_bytes() + size > BUDGET_BYTES / 2  # there was a reason to refuse it
        else:
            self._used(blob_id(whole), whole)

    @rule(size=SIZES, seed=st.integers(0, 3))
    def hand_over(self, size: int, seed: int) -> None:
        whole = content(size, seed)
        blob, _ = BlobInbox(self.directory, wall_clock=self.clock).put(whole)
        assert self.store.take_over(blob)
        self._used(blob, whole)

    @precondition(lambda self: self.known)
    @rule(draw=st.data())
    def ask(self, draw: st.DataObject) -> None:
        blob = draw.draw(st.sampled_from(sorted(self.known)))
        way = draw.draw(st.sampled_from(["touch", "read", "path", "pin", "unpin"]))
        known = self.known[blob]
        if way == "pin":
            is_here = self.store.has(blob)
            if is_here:
                self.store.pin(blob)
                known.pins += 1
        elif way == "unpin":
            if known.pins:
                self.store.unpin(blob)
                known.pins -= 1
        elif way == "touch":
            if self.store.touch(blob):
                self._used(blob, known.content)
        elif self.store.has(blob):
            assert (self.store.path(blob).read_bytes() if way == "path" else self.store.read(blob)) == known.content
            self._used(blob, known.content)

    @rule(seconds=st.sampled_from([1.0, 50.0, 100.0, 700.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now_seconds += seconds

    @rule()
    def tend(self) -> None:
        while self.store.tend():
            pass
        for blob, known in self.known.items():
            is_old = self.clock.now_seconds - known.used_at_seconds >= EXPIRE_SECONDS
            if is_old and len(known.content) <= GROUP_BLOB_BYTES:
                assert known.pins or not self.store.has(blob)
                if known.pins:  # what is pinned when it expires counts as used then; that use need not be written
                    known.used_at_seconds, known.is_use_written = self.clock.now_seconds, False
        if self._lately_used_bytes() < BUDGET_BYTES / 2:
            assert self.store.total_bytes() <= BUDGET_BYTES

    @rule()
    def restart(self) -> None:
        self.store.close()
        self._restarted()

    @rule(cut=st.one_of(st.none(), st.floats(0.0, 1.0)))
    def crash(self, cut: float | None) -> None:
        """Goes on with a copy of the files as they are now, as after ``kill -9``.

        With ``cut`` the machine went down too, and left that share of the database and its log.
        """
        left, kept = self.directory, [blob for blob, known in self.known.items() if self._is_kept(known)]
        self.generation += 1
        shutil.copytree(left, self.directory) if left.exists() else None
        self.store.close()
        shutil.rmtree(left, ignore_errors=True)
        if cut is not None and (self.directory / "packed.db-open").exists():
            for name in ("packed.db", "packed.db-wal"):
                raw = (self.directory / name).read_bytes()
                (self.directory / name).write_bytes(raw[: int(cut * len(raw))])
            (self.directory / "packed.db-open").write_text("another boot")
            self._restarted()
            self.known = {blob: known for blob, known in self.known.items() if self.store.has(blob)}
        else:
            self._restarted()
            assert all(map(self.store.has, kept))
        for known in self.known.values():
            known.is_use_written = False

    def _restarted(self) -> None:
        self._open()
        for known in self.known.values():
            known.pins = 0

    @invariant()
    def what_is_in_use_is_here_and_whatever_is_here_is_whole(self) -> None:
        if not hasattr(self, "store"):
            return
        for blob, known in self.known.items():
            is_here = self.store.has(blob)
            assert is_here or not self._is_kept(known)
            if is_here:
                assert self.store.size(blob) == len(known.content)
        assert self.store.total_bytes() == on_disk_bytes(self.directory)

    def teardown(self) -> None:
        for blob, known in self.known.items():
            if self.store.has(blob):
                assert self.store.read(blob) == known.content
        self.store.close()
        shutil.rmtree(self.folder)


TestStoreAgainstDictionary = StoreAgainstDictionary.TestCase
TestStoreAgainstDictionary.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
