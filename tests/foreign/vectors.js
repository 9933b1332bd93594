// Decodes every vector of tests/vectors, by the page alone. `node vectors.js` prints how many of each file agree.
import { createHash } from 'node:crypto'
import { readFileSync, readdirSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import * as announcements from './starling/announcements.js'
import * as blobs from './starling/blobs.js'
import { Refused, equal, hex, join, sha256, u32, u64, unbase58, unhex, utf8 } from './starling/bytes.js'
import * as cluster from './starling/cluster.js'
import { encoded, frameLength, value } from './starling/encoding.js'
import * as gossip from './starling/gossip.js'
import * as groups from './starling/groups.js'
import { Key, peerIdOf, verify } from './starling/identity.js'
import { openList } from './starling/lists.js'
import * as manifest from './starling/manifest.js'
import * as prompts from './starling/prompts.js'
import * as streams from './starling/streams.js'
import * as weights from './starling/weights.js'

const FOLDER = new URL('../vectors/', import.meta.url)
// Of an objective; between a learner and its own engine or a stage: not between peers that learn.
const OTHERS = new Set(['trl_losses.json', 'engine_messages.json', 'stage_messages.json'])

class Disagreement extends Error {}
const holds = (condition, what) => { if (!condition) throw new Disagreement(what) }

// Whether a decoded value is what the JSON says: objects are fields in their order.
export function agrees (found, wanted) {
  if (found instanceof Uint8Array) return typeof wanted === 'string' && hex(found) === wanted
  if (typeof found === 'bigint') return String(found) === wanted
  if (Array.isArray(found)) {
    const items = Array.isArray(wanted) ? wanted : Object.values(wanted)
    return items.length === found.length && found.every((item, i) => agrees(item, items[i]))
  }
  return found === wanted
}

function refusal (act) {
  try { act() } catch (error) {
    if (error instanceof Refused) return error.reason
    throw error
  }
  return 'nothing'
}

const pattern = (size) => Uint8Array.from({ length: size }, (_, i) => i % 251)
const bodyOf = (frame, most = 2 ** 20) => {
  const length = frameLength(frame.subarray(0, 4), most)
  holds(frame.length === 4 + length, 'a frame of another length')
  return frame.subarray(4)
}

function group (vector) {
  const found = groups.readGroup(unhex(vector.blob))
  holds(hex(found.content) === vector.content, 'content')
  const wanted = vector.group
  holds(agrees([found.prompt, found.family, found.tokenizer, found.policyVersion],
    [wanted.prompt, wanted.family, wanted.tokenizer, wanted.policy_version]), 'header')
  found.completions.forEach((c, i) => {
    const w = wanted.completions[i]
    holds(agrees([c.text, c.ids, c.tokenBytes, c.logps.map((logp) => logp + 0), c.reward], [w.text, w.token_ids, w.token_bytes, w.logps.map((logp) => logp + 0), w.reward]), `completion ${i}`)
    holds((w.finish === 'stop') === c.stop, 'finish')
    holds(agrees(c.actions.map((a) => [a.tokens, a.stop, a.digest]), w.actions), 'actions')
  })
  holds(hex(found.beginning) === wanted.beginning, 'beginning')
  holds(hex(groups.encodeContent(found)) === vector.content, 'encoded again')
  const again = groups.groupBlob(found.content)
  holds(hex(groups.readGroup(again).content) === vector.content, 'our own frame')
  const advert = groups.advertOf(found, unhex(vector.blob), unhex(vector.advert.blob))
  holds(hex(blobs.blobId(unhex(vector.blob))) === vector.advert.blob, 'blob id')
  holds(agrees(advert, vector.advert), 'advert')
}

async function blobMessage (vector) {
  const content = pattern(655)
  const ranges = blobs.readRequest(bodyOf(unhex(vector.frame)))
  holds(agrees(ranges, vector.ranges), 'ranges')
  for (const [i, range] of ranges.entries()) {
    const raw = unhex(vector.answers[i])
    const ours = join(...blobs.answer(range, (id) => equal(id, blobs.blobId(content)) ? content : undefined))
    holds(hex(ours) === vector.answers[i], 'our answer')
    let at = 0
    const read = async (bytes) => raw.subarray(at, at += bytes)
    const found = await blobs.readAnswer(read, range, blobs.chunkHashes(content))
    holds(at === raw.length && (found.status === 0) === (raw[0] === 0), 'what was read')
    holds(unhex(vector.answers_if_busy[i])[0] === 2, 'busy')
  }
}

const CHECKS = {
  identities (v) {
    const key = new Key(unhex(v.seed))
    holds(hex(key.public) === v.public_key && key.peerId === v.peer_id, 'key')
    holds(hex(key.sign(v.domain, unhex(v.message))) === v.signature, 'signature')
    holds(verify(key.public, v.domain, unhex(v.message), unhex(v.signature)), 'verified')
  },
  blob_ids (v) {
    holds(agrees(blobs.chunkHashes(pattern(v.size)), v.chunk_hashes), 'chunks')
    holds(hex(blobs.blobId(pattern(v.size))) === v.id, 'id')
  },
  manifests (v) {
    const found = manifest.readManifest(bodyOf(unhex(v.frame)))
    holds(hex(manifest.canonical(found)) === v.canonical && hex(manifest.swarmIdOf(found)) === v.swarm_id, 'id')
    const swarmId = unhex(v.swarm_id)
    holds(manifest.topicOf(swarmId) === v.gossip_topic && hex(manifest.dhtDigest(swarmId)) === v.dht_key, 'names')
    holds(hex(manifest.providerKey(swarmId)) === v.provider_key, 'provider key')
  },
  tasks (v) { holds(hex(prompts.configHash(v.configuration)) === v.config_hash, 'hash') },
  prompts (v) {
    holds(v.rewards[v.answer] === 1, 'reward')
    holds(prompts.partOf(v.text) === v.part, 'part')
    if (!prompts.canMake(v.prompt.task)) return
    const [text, answer] = prompts.prompt(v.prompt.task, v.prompt.seed)
    holds(text === v.text && answer === v.answer, `${text} ${answer}`)
  },
  fingerprints (v) {
    const found = v.name === 'tokenizer'
      ? sha256(utf8('starling/tokenizer/1\0'), ...v.tokens.map(unhex).flatMap((token) => [u32(token.length), token]), utf8(v.shaping), ...v.end_ids.map(u64))
      : sha256(utf8('starling/family/1\0'), utf8(v.identity))
    holds(hex(found.subarray(0, 16)) === (v.fingerprint ?? v.family), 'hash')
    if (v.first_factor === undefined) return
    const [rank, inputs] = v.shape
    const drawn = createHash('shake256', { outputLength: 3 * rank * inputs })
      .update('starling/first-factor/1\0').update(unhex(v.family)).update(v.first_factor).digest()
    const scale = Math.fround(2 ** -23 / Math.sqrt(inputs))
    const values = new Float32Array(rank * inputs).map((_, at) => (drawn.readUIntLE(3 * at, 3) - 2 ** 23) * scale)
    holds(hex(new Uint8Array(values.buffer)) === v.values, 'first factor')
  },
  gossip_messages (v) {
    const message = gossip.readMessage(unhex(v.message))
    const id = gossip.messageId(message.topic, message.data)
    holds(message.topic === v.topic && Buffer.from(id).toString() === v.message_id, 'id')
    holds(gossip.isSigned(message) && !gossip.isSigned({ ...message, seqno: u64(99) }), 'signature')
    const ours = new Key(unhex(v.seed)).signPlain(gossip.signedPart(message))
    holds(equal(ours, message.signature), 'our signature')
  },
  announcements (v) {
    const found = announcements.open(unhex(v.announcement), unhex(v.swarm_id), v.time_milliseconds)
    holds(agrees(found.body, [v.kind, ...Object.values(v.body)]), 'body')
    const key = new Key(unhex(v.seed))
    holds(found.sender === key.peerId && found.sequence === v.sequence && found.timeMs === v.time_milliseconds, 'header')
    holds(hex(encoded([found.payload, key.sign('starling/announcement/1', found.payload)])) === v.announcement, 'sealed again')
  },
  refused_announcements (v) {
    const found = refusal(() => announcements.open(unhex(v.announcement), unhex(v.swarm_id), v.now_milliseconds))
    holds(found === v.reason, found)
  },
  groups: group,
  refused_groups (v) {
    const found = refusal(() => groups.readGroup(unhex(v.blob), v.tokens))
    holds(found === v.reason, found)
  },
  conversations (v) {
    let digest = groups.beginningDigest(Object.values(v.prompt).map((each, i) => i === 2 ? unhex(each) : each), v.first_text, v.first_reward)
    holds(hex(digest) === v.beginning, 'beginning')
    for (const turn of v.turns) {
      digest = groups.turnDigest(digest, turn.action, turn.observation, turn.reward, turn.done)
      holds(hex(digest) === turn.digest, turn.action)
    }
  },
  blob_messages: blobMessage,
  ...Object.fromEntries(['averaging', 'peer', 'handshake', 'member', 'lend', 'letter'].map((protocol) => [`${protocol}_messages`, (v) => {
    const found = streams.read(protocol, v.kind, bodyOf(unhex(v.frame)))
    const tag = { averaging: v.kind, lend: v.kind, letter: { request: 'letter', hold: 'hold', ask: 'ask' }[v.kind] }[protocol]
    const wanted = tag ? [tag, ...Object.values(v.fields)] : v.fields
    holds(agrees(found, wanted), 'fields')
    holds(hex(encoded(value(bodyOf(unhex(v.frame))))) === v.frame.slice(8), 'encoded again')
  }])),
  donor_invitations (v) {
    const raw = unbase58(v.text.replace('starling-lend://1', ''))
    const body = raw.subarray(0, -4)
    holds(hex(sha256(utf8('starling/lend/1\0'), body).subarray(0, 4)) === hex(raw.subarray(-4)), 'checksum')
    holds(agrees(value(body), Object.values(v.fields)), 'fields')
    holds(hex(sha256(utf8('starling/lend/secret/1\0'), unhex(v.fields.secret))) === v.secret_hash, 'hash of the secret')
  },
  refused_stream_messages (v) {
    if (v.protocol === 'engines' || v.protocol === 'stages') return // as engine_messages
    const found = refusal(() => {
      const raw = unhex(v.frame)
      frameLength(raw.subarray(0, 4), streams.MOST_BYTES[v.protocol])
      if (v.protocol === 'blobs') blobs.readRequest(raw.subarray(4))
      else streams.read(v.protocol.replace(/s$/, ''), v.expected, raw.subarray(4))
    })
    holds(found === v.reason, found)
  },
  sparse_updates: (v) => weights.checkSparse(v, holds),
  compressed_weights: (v) => weights.checkCompressed(v, holds),
  weight_diffs: (v) => weights.checkDiff(v, holds),
  dense_weights: (v) => weights.checkDense(v, holds),
  swarm_lists (v) {
    const { answer } = v
    if (typeof answer === 'string') {
      const found = refusal(() => openList(unhex(v.document), v.now_seconds))
      return holds(found === answer, found)
    }
    const { body, swarms } = openList(unhex(v.document), v.now_seconds)
    const { swarms: entries, ...header } = answer.content
    holds(agrees(body, [...Object.values(header), entries.map((each) => Object.values(each))]), 'content')
    holds(agrees(swarms.map((each) => each.id), answer.swarm_ids), 'ids')
    holds(agrees(swarms.map((each) => each.name), answer.names), 'names')
  },
  membership: (v) => cluster.checkMembership(v, holds, agrees)
}

export async function checkVectors (say = () => {}) {
  let agreed = 0
  const wrong = []
  for (const file of readdirSync(FOLDER).sort()) {
    if (OTHERS.has(file)) continue
    const check = CHECKS[file.replace('.json', '')]
    const vectors = JSON.parse(readFileSync(new URL(file, FOLDER), 'utf8'))
    const before = agreed
    for (const [i, vector] of vectors.entries()) {
      const which = `${file} ${i} ${vector.name ?? vector.kind ?? ''}`
      try {
        if (check === undefined) throw new Disagreement('a file that this client does not know')
        await check(vector)
        agreed++
      } catch (error) {
        wrong.push(`${which}: ${error instanceof Disagreement || error instanceof Refused ? error.message : error.stack}`)
      }
    }
    say(`${file}: ${agreed - before} of ${vectors.length}`)
  }
  return { agreed, wrong }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { agreed, wrong } = await checkVectors(console.log)
  for (const each of wrong) console.log(`WRONG ${each}`)
  console.log(`${agreed} agree, ${wrong.length} do not`)
  process.exit(wrong.length ? 1 : 0)
}
