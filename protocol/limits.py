"""Every bound on what a stranger may send, in one place.

A receiver checks these before it allocates; a sender checks them before it sends, so that no refusal comes as a
surprise. Sizes are bytes and times are seconds, unless the name says otherwise.
"""

from __future__ import annotations

from typing import Final

PROTOCOL_MAJOR: Final = 1
PROTOCOL_MINOR: Final = 4

# Announcements
ANNOUNCEMENT_BYTES: Final = 64 * 1024
NESTING_DEPTH: Final = 8
MESSAGE_VALUES: Final = 16_384  # MessagePack values in one message: bounds the time of the check
CLOCK_WINDOW_SECONDS: Final = 300.0  # how far a message's time may lie from ours, in either direction
NAME_BYTES: Final = 64  # of a node, a task or a model; a receiver counts characters, so that it is never stricter
REASON_BYTES: Final = 200  # free text in a goodbye; shown escaped
GROUPS_PER_ADVERT: Final = 64
TASKS_PER_HEARTBEAT: Final = 64
CONNECTION_PREFIX_BYTES: Final = 4
CONNECTION_PREFIXES: Final = 32  # of a heartbeat, for pictures of the swarm
CONNECTIONS_BYTES: Final = CONNECTION_PREFIX_BYTES * CONNECTION_PREFIXES
ADDRESSES_PER_HEARTBEAT: Final = 2
TASKS_PER_MANIFEST: Final = 1024
MANIFEST_BYTES: Final = 256 * 1024

# One RPC of GossipSub: many messages, or ids of messages that a peer has or wants
GOSSIP_RPC_BYTES: Final = 1024 * 1024
GOSSIP_RPC_FIELDS: Final = 12_000  # bounds the time of the check and the objects that protobuf makes
GOSSIP_RPC_MESSAGES: Final = 512
GOSSIP_RPC_IDS: Final = 5_000
GOSSIP_RPC_CONTROLS: Final = 256
GOSSIP_RPC_SUBSCRIPTIONS: Final = 256
GOSSIP_TOPIC_CHARACTERS: Final = 256
GOSSIP_TOPICS_PER_PEER: Final = 16  # that a peer is known to listen to; further ones are ignored

# Private clusters
MEMBERS: Final = 4096  # of one cluster; also the most seats of one invitation
DOCUMENT_BYTES: Final = 1024  # an invitation, a join, a certificate, and either of the latter as a credential
REVOKED: Final = 900  # peers and invitations together, so that a list of revocations fits into an announcement
REVOCATIONS_BYTES: Final = 32 * 1024
FORMER_KEYS: Final = 4  # pre-shared keys that members still accept after a change of key
INVITE_CHARACTERS: Final = 2000  # of the text that people pass on: it fits into one chat message
INVITE_ADDRESSES: Final = 8
UNIX_SECONDS: Final = 2**37 - 1  # the latest time that a document may name; a calendar can still print it
HANDSHAKE_MESSAGE_BYTES: Final = MANIFEST_BYTES + REVOCATIONS_BYTES + 8 * DOCUMENT_BYTES
CREDENTIALS_PER_NEWS: Final = 128  # later exchanges bring the others
KNOWN_CREDENTIALS_BYTES: Final = 4 * MEMBERS * 8  # of digests, 8 bytes each
LETTER_BYTES: Final = INVITE_CHARACTERS + 16  # a sealed invite, which waits at a member for a newcomer with a code
LETTER_SECONDS: Final = 3600  # for which it waits at most
LETTER_MESSAGE_BYTES: Final = LETTER_BYTES + 128
MEMBERS_MESSAGE_BYTES: Final = CREDENTIALS_PER_NEWS * (DOCUMENT_BYTES + 8) + REVOCATIONS_BYTES + 256 * 1024

# Lists of swarms, which anybody may host
SWARM_LIST_BYTES: Final = 64 * 1024
SWARMS_PER_LIST: Final = 32

# Rollout groups
# Together they bound the decoding of one group: scripts/attacks/decompression.py shows its time and memory.
GROUP_BLOB_BYTES: Final = 1536 * 1024  # compressed
GROUP_BYTES: Final = 4 * 1024 * 1024  # decompressed
GROUP_WINDOW_BYTES: Final = GROUP_BYTES  # zstd's window: what a decompressor may allocate at once
GROUP_TOKENS: Final = 262_144  # of all completions together
GROUP_OTHER_BYTES: Final = 64 * 1024  # decompressed, beside what its tokens take: prompt, counts, fields to come
COMPLETIONS_PER_GROUP: Final = 64
COMPLETION_TOKENS: Final = 65_536
TURNS: Final = 64  # of one conversation
ACTIONS_PER_GROUP: Final = 2048  # of all conversations together: with their digests they fit into GROUP_OTHER_BYTES
COMPLETION_TEXT_BYTES: Final = 512 * 1024
TOKEN_TEXT_BYTES: Final = 255  # the longest byte string that one token may stand for
TOKEN_ID: Final = 2**24 - 1
REWARD_MAGNITUDE: Final = 1_000.0

# Tensors: sparse updates and weight diffs
TENSORS: Final = 65_536
TENSOR_ELEMENTS: Final = 2**32 - 1  # of one tensor
TENSOR_HEADER_BYTES: Final = 4 * 1024 * 1024
UPDATE_MAGNITUDE: Final = 65_536.0  # of one value of an update
STATE_DIFFS: Final = 64  # from an anchor to the announced state

# Blobs
BLOB_BYTES: Final = 1 << 40
CHUNK_BYTES: Final = 256 * 1024
BLOB_REQUEST_BYTES: Final = 64 * 1024
RANGES_PER_REQUEST: Final = 1024

# Peer exchange
PEER_MESSAGE_BYTES: Final = 32 * 1024
ADDRESS_CHARACTERS: Final = 256
ADDRESSES_PER_PEER: Final = 8
ADDRESSES_PER_ANSWER: Final = 64  # of other peers
DIAL_BACK_PORTS: Final = 2
DIAL_BACK_BYTES: Final = 256
PEERS_SOUGHT: Final = 8

# Averaging with one peer
AVERAGING_MESSAGE_BYTES: Final = 1024

# An engine in another process or on another machine
ENGINE_REQUEST_BYTES: Final = 16 * 1024 * 1024  # the prompts of one generation, and what was begun of them
ENGINE_ANSWER_BYTES: Final = 16 * 1024 * 1024
ENGINE_PROGRESS_BYTES: Final = 4 * 1024 * 1024  # of completions in one answer, unless a single one is longer
ENGINE_PART_BYTES: Final = 1024 * 1024
ENGINE_COMPLETIONS: Final = 65_536  # of one generation
ENGINE_COMPLETION_TOKENS: Final = 1_048_576
ENGINE_POLL_MILLISECONDS: Final = 60_000
ENGINE_TEMPERATURE: Final = 100.0
ENGINE_PATH_CHARACTERS: Final = 4096
ENGINE_REASON_CHARACTERS: Final = 2000

# A machine that holds layers of an owner's model
STAGE_MESSAGE_BYTES: Final = 1024 * 1024  # without tensors, which follow it
STAGE_PART_BYTES: Final = 1024 * 1024  # of a tensor, in one frame
STAGE_TENSOR_BYTES: Final = 1024 * 1024 * 1024  # of all tensors of a message
STAGE_TENSORS: Final = 2048  # of a message
STAGE_TENSOR_NAME: Final = 256  # characters
STAGE_LAYERS: Final = 4096
STAGE_ROWS: Final = 4096  # sequences in a batch, and prompts of one call
STAGE_BATCHES: Final = 16  # of rows, at a time

# Donors, which lend an engine
LEND_MESSAGE_BYTES: Final = 4096
LEND_TEXT_CHARACTERS: Final = 512
LEND_INVITATION_CHARACTERS: Final = 6000  # with up to eight addresses and an invite to a private cluster
DONORS: Final = 64  # of one owner, and invitations that are open
