"""Writes the test vectors under tests/vectors: values beside the bytes that stand for them on the wire.

Another implementation is right if it makes these bytes of these values, these values of these bytes, and refuses what
is listed as refused for the reason given. In the JSON, byte strings are hexadecimal, and integers beyond 2⁵³ - 1 are
decimal strings. zstd frames, in a group and in a weight diff, are the one part that need not be equal: their
decompressed content must be.

Run it after an intended change of the protocol: ``python -m scripts.make_vectors``; ``--check`` only compares.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from node.tasks.default_swarm import DEFAULT_TASKS
from node.tasks.reasoning_sets import SAPO_TASKS
from node.tasks.registry import default_manifest_tasks
from node.tasks.split import part_of
from node.tasks.task import SPLIT, canonical_json
from protocol import limits
from protocol.blob_id import blob_id, chunk_hashes
from protocol.identity import NodeKey
from protocol.manifest import Manifest
from protocol.meeting_points import dht_key, gossip_topic
from protocol.streams.manifest_messages import manifest_frame
from protocol.wire import ANNOUNCEMENT_DOMAIN
from scripts.vectors.announcement_vectors import (
    announcements,
    conversations,
    gossip_messages,
    groups,
    refused_announcements,
    refused_groups,
)
from scripts.vectors.cluster_vectors import membership
from scripts.vectors.engine_vectors import engine_messages
from scripts.vectors.fingerprint_vectors import fingerprints
from scripts.vectors.lend_vectors import donor_invitations, lend_messages
from scripts.vectors.plain_values import SEED, Json, pattern, plain
from scripts.vectors.stage_vectors import stage_messages
from scripts.vectors.stream_vectors import (
    averaging_messages,
    blob_messages,
    handshake_messages,
    letter_messages,
    member_messages,
    peer_messages,
    refused_stream_messages,
)
from scripts.vectors.swarm_list_vectors import swarm_lists
from scripts.vectors.tensor_vectors import compressed_weights, dense_weights, sparse_updates, weight_diffs

PROMPT_SEEDS = (0, 1, 2, 3, 17, 2**31 - 1)
WRONG = ("", "?", "0x", " 1")
SHA2_256 = bytes([0x12, 32])  # before a digest: its multihash
FOLDER = Path(__file__).resolve().parent.parent / "tests" / "vectors"


def identities() -> list[Json]:
    """Keys, their peer ids, and one signature each."""
    vectors = []
    for seed in (SEED, bytes(32), b"\xff" * 32):
        key = NodeKey(seed)
        message = b"what is signed"
        vectors.append(
            {
                "seed": seed.hex(),
                "public_key": key.public_bytes.hex(),
                "peer_id": key.peer_id,
                "domain": ANNOUNCEMENT_DOMAIN.decode(),
                "message": message.hex(),
                "signature": key.sign(ANNOUNCEMENT_DOMAIN, message).hex(),
            }
        )
    return vectors


def blob_ids() -> list[Json]:
    """Ids of blobs around the borders of chunks."""
    sizes = (0, 1, limits.CHUNK_BYTES - 1, limits.CHUNK_BYTES, limits.CHUNK_BYTES + 1, 3 * limits.CHUNK_BYTES)
    return [
        {
            "size": size,
            "content": "byte i is i modulo 251",
            "chunk_hashes": plain(chunk_hashes(pattern(size))),
            "id": blob_id(pattern(size)).hex(),
        }
        for size in sizes
    ]


def manifests() -> list[Json]:
    """Manifests, their canonical bytes, swarm ids, the names under which members meet, and the frame that is given to
    who asks. The last one is that of the swarm that a node joins unless it is told otherwise."""
    examples = (
        Manifest("starling", ()),
        Manifest("starling", (("chain_sum", 1, b"\x01" * 16), ("basic_arithmetic", 200, b"\x02" * 16))),
        Manifest("стая", (("chain_sum", 1, b"\x01" * 16),)),
        Manifest("starling", default_manifest_tasks()),
    )
    return [
        {
            "manifest": plain(manifest),
            "canonical": manifest.encode().hex(),
            "swarm_id": manifest.swarm_id.hex(),
            "gossip_topic": gossip_topic(manifest.swarm_id),
            "dht_key": dht_key(manifest.swarm_id).hex(),
            "provider_key": (SHA2_256 + dht_key(manifest.swarm_id)).hex(),
            "frame": manifest_frame(manifest).hex(),
        }
        for manifest in examples
    ]


def tasks() -> list[Json]:
    """The default swarm's tasks and two with worded questions, as entries of a manifest and as they are configured."""
    return [
        {
            "task": task.name,
            "version": task.version,
            "seeds": task.seeds,
            "max_new_tokens": task.max_new_tokens,
            "configuration": canonical_json({**task.shape, "split": SPLIT}),
            "config_hash": task.config_hash.hex(),
        }
        for task in (*DEFAULT_TASKS, *SAPO_TASKS[:2])
    ]


def prompts() -> list[Json]:
    """Prompt references of the default swarm, the text that each stands for and whether it teaches, its right answer,
    and rewards."""
    vectors = []
    for task in DEFAULT_TASKS:
        for seed in PROMPT_SEEDS:
            prompt = task.prompt(task.ref(seed))
            answers = [str(prompt.answer), *WRONG]
            rewards = dict(zip(answers, task.rewards(prompt, answers), strict=True))
            vectors.append(
                {
                    "prompt": plain(prompt.ref),
                    "text": prompt.text,
                    "part": part_of(prompt).value,
                    "answer": prompt.answer,
                    "rewards": rewards,
                }
            )
    return vectors


def all_vectors() -> dict[str, list[Json]]:
    """Every file of vectors by its name."""
    return {
        "identities.json": identities(),
        "blob_ids.json": blob_ids(),
        "manifests.json": manifests(),
        "tasks.json": tasks(),
        "prompts.json": prompts(),
        "fingerprints.json": fingerprints(),
        "gossip_messages.json": gossip_messages(),
        "groups.json": groups(),
        "conversations.json": conversations(),
        "refused_groups.json": refused_groups(),
        "announcements.json": announcements(),
        "refused_announcements.json": refused_announcements(),
        "membership.json": membership(),
        "swarm_lists.json": swarm_lists(),
        "sparse_updates.json": sparse_updates(),
        "compressed_weights.json": compressed_weights(),
        "weight_diffs.json": weight_diffs(),
        "dense_weights.json": dense_weights(),
        "averaging_messages.json": averaging_messages(),
        "blob_messages.json": blob_messages(),
        "peer_messages.json": peer_messages(),
        "handshake_messages.json": handshake_messages(),
        "member_messages.json": member_messages(),
        "letter_messages.json": letter_messages(),
        "engine_messages.json": engine_messages(),
        "lend_messages.json": lend_messages(),
        "stage_messages.json": stage_messages(),
        "donor_invitations.json": donor_invitations(),
        "refused_stream_messages.json": refused_stream_messages(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file differs")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    different = []
    for name, vectors in all_vectors().items():
        text = json.dumps(vectors, indent=1, ensure_ascii=False) + "\n"
        path = FOLDER / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            different.append(name)
            if not options.check:
                path.write_text(text, encoding="utf-8")
    print(f"{'differ' if options.check else 'written'}: {', '.join(different) or 'none'}")
    return 1 if options.check and different else 0


if __name__ == "__main__":
    sys.exit(main())
