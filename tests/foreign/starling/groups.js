// "Rollout groups": columns, blob, advert; the digests of conversations.
import { decompress } from 'fzstd'
import { Refused, join, sha256, u32, utf8, equal } from './bytes.js'
import { promptRef } from './announcements.js'
import { array, bin, counter, decoded, encoded, hash16, int, struct, withDefault } from './encoding.js'

const MAGIC = utf8('SLG1')
const GROUP_BLOB_BYTES = 1_572_864
const GROUP_TOKENS = 262_144
const TURNS = 64
const ACTIONS_PER_GROUP = 2048
const STEPS = 2048
const malformed = (why) => { throw new Refused('malformed', why) }
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0)

const columns = struct(
  promptRef, hash16, hash16, counter, bin(1, 64), bin(4, 256),
  array(int(0, 65536), 1, 64), array(int(0, 524288), 1, 64), bin(0, 4 << 20), bin(0, 4 << 20), bin(0, 4 << 20), bin(0, 4 << 20),
  withDefault(bin(0, 64), new Uint8Array()), withDefault(array(int(1, 65536), 0, ACTIONS_PER_GROUP), []),
  withDefault(bin(0, ACTIONS_PER_GROUP), new Uint8Array()), withDefault(bin(0, 16 * (1 + ACTIONS_PER_GROUP)), new Uint8Array())
)

// A zstd frame of uncompressed blocks (RFC 8878): the sender chooses how to compress.
export function zstdFrame (content) {
  const head = Buffer.alloc(9)
  head.writeUInt32LE(0xfd2fb528, 0)
  head[4] = 0xa0 // one segment, a content size of four bytes
  head.writeUInt32LE(content.length, 5)
  const parts = [head]
  for (let at = 0; at === 0 || at < content.length; at += 131072) {
    const block = content.subarray(at, at + 131072)
    const header = Buffer.alloc(3)
    header.writeUIntLE(block.length << 3 | (at + block.length >= content.length ? 1 : 0), 0, 3)
    parts.push(header, block)
  }
  return join(...parts)
}

export function planes (numbers, width) {
  const bytes = new Uint8Array(numbers.length * width)
  numbers.forEach((number, i) => {
    for (let plane = 0; plane < width; plane++) bytes[plane * numbers.length + i] = (number >>> (8 * plane)) & 0xff
  })
  return bytes
}

export function fromPlanes (bytes, count, widths) {
  if (count === 0) return bytes.length === 0 ? [] : malformed('a column of no numbers')
  const width = bytes.length / count
  if (!widths.includes(width)) malformed(`a column of ${bytes.length} bytes for ${count} numbers`)
  return Array.from({ length: count }, (_, i) => {
    let number = 0
    for (let plane = width - 1; plane >= 0; plane--) number = number * 256 + bytes[plane * count + i]
    return number
  })
}

const halfEven = (x) => {
  const floor = Math.floor(x)
  const rest = x - floor
  return rest > 0.5 || (rest === 0.5 && floor % 2) ? floor + 1 : floor
}
const logpSteps = (logp) => Math.min(65535, halfEven(-logp * STEPS))

const float32 = (value) => { const raw = Buffer.alloc(4); raw.writeFloatLE(value); return raw }

// d_0 of a conversation, and d_t from the one before.
export const beginningDigest = (prompt, text, reward) =>
  sha256(utf8('starling/conversation/1\0'), encoded(prompt), float32(reward), utf8(text)).subarray(0, 16)
export const turnDigest = (before, action, observation, reward, done) =>
  sha256(before, u32(utf8(action).length), utf8(action), new Uint8Array([Number(done)]), float32(reward),
    utf8(observation)).subarray(0, 16)

// completion = { text: bytes, ids, tokenBytes, logps, stop, reward, actions: [{ tokens, stop, digest }] }
export function encodeContent ({ prompt, family, tokenizer, policyVersion, completions, beginning = [] }) {
  const ids = completions.flatMap((c) => c.ids)
  const highest = Math.max(0, ...ids)
  const rewards = Buffer.alloc(4 * completions.length)
  completions.forEach((c, i) => rewards.writeFloatLE(c.reward, 4 * i))
  const actions = completions.flatMap((c) => c.actions ?? [])
  return encoded([
    prompt, family, tokenizer, policyVersion,
    new Uint8Array(completions.map((c) => c.stop ? 0 : 1)), new Uint8Array(rewards),
    completions.map((c) => c.ids.length), completions.map((c) => c.text.length),
    join(...completions.map((c) => c.text)),
    planes(ids, highest < 256 ? 1 : highest < 65536 ? 2 : 3),
    new Uint8Array(completions.flatMap((c) => c.tokenBytes)),
    planes(completions.flatMap((c) => c.logps.map(logpSteps)), 2),
    ...(actions.length
      ? [
          new Uint8Array(completions.map((c) => c.actions.length)), actions.map((a) => a.tokens),
          new Uint8Array(actions.map((a) => a.stop ? 0 : 1)), join(beginning, ...actions.map((a) => a.digest))
        ]
      : [])
  ])
}

export const groupBlob = (content) => join(MAGIC, zstdFrame(content))

export function decompressed (blob, tokens) {
  const most = 65536 + 261 * tokens
  if (tokens > GROUP_TOKENS || blob.length > GROUP_BLOB_BYTES) throw new Refused('oversized')
  if (!equal(blob.subarray(0, 4), MAGIC)) malformed('no group')
  const content = decompress(blob.subarray(4))
  if (content.length > most) throw new Refused('oversized', `${content.length} bytes for ${tokens} tokens`)
  return content
}

export function readGroup (blob, tokens = GROUP_TOKENS) {
  const content = decompressed(blob, tokens)
  const [
    prompt, family, tokenizer, policyVersion, finish, rewards, lengths, textLengths, text, ids, tokenBytes, logps,
    turns, actionLengths, actionFinish, digests
  ] = decoded(content, columns, 4 << 20)
  const count = finish.length
  const n = sum(lengths)
  if (n > tokens) throw new Refused('oversized', `${n} tokens`)
  if (lengths.length !== count || textLengths.length !== count || rewards.length !== 4 * count) malformed('counts disagree')
  if (sum(textLengths) !== text.length || tokenBytes.length !== n) malformed('lengths disagree')
  const allIds = fromPlanes(ids, n, [1, 2, 3])
  const steps = fromPlanes(logps, n, [2])
  const actions = readActions(count, turns, actionLengths, actionFinish, digests)
  let token = 0
  let byte = 0
  const completions = lengths.map((length, i) => {
    const span = [token, token + length]
    const completion = {
      text: text.subarray(byte, byte + textLengths[i]),
      ids: allIds.slice(...span),
      tokenBytes: [...tokenBytes.subarray(...span)],
      logps: steps.slice(...span).map((q) => q === 0 ? 0 : -q / STEPS),
      stop: finish[i] === 0 || (finish[i] !== 1 && malformed('a finish')),
      reward: Buffer.from(rewards).readFloatLE(4 * i),
      actions: actions[i]
    }
    if (!(Math.abs(completion.reward) <= 1000)) malformed('a reward')
    if (sum(completion.tokenBytes) !== completion.text.length) malformed('tokens do not stand for the text')
    if (completion.stop && (length === 0 || completion.tokenBytes[length - 1] !== 0)) malformed('stopped without a token')
    if (actions[i].length) checkActions(completion, length)
    token += length
    byte += textLengths[i]
    return completion
  })
  return { prompt, family, tokenizer, policyVersion, completions, content, beginning: digests.subarray(0, 16) }
}

function readActions (count, turns, lengths, finish, digests) {
  if (!turns.length && !lengths.length && !finish.length && !digests.length) return Array(count).fill([])
  if (turns.length !== count || !turns.every((n) => n >= 1 && n <= TURNS)) malformed('turns')
  if (sum([...turns]) !== lengths.length || finish.length !== lengths.length) malformed('turns and actions disagree')
  if (digests.length !== 16 * (1 + lengths.length)) malformed('digests')
  const actions = lengths.map((tokens, i) => ({
    tokens,
    stop: finish[i] === 0 || (finish[i] !== 1 && malformed('a finish')),
    digest: digests.subarray(16 * (i + 1), 16 * (i + 2))
  }))
  return [...turns].map((n) => actions.splice(0, n))
}

function checkActions ({ actions, tokenBytes, stop }, length) {
  let end = 0
  for (const action of actions) {
    end += action.tokens
    if (end > length || (action.stop && tokenBytes[end - 1] !== 0)) malformed('an action')
  }
  if (end !== length || actions.at(-1).stop !== stop) malformed('actions and completion disagree')
}

export function advertOf ({ prompt, completions }, blob, id) {
  const mean = (logps) => logps.length ? 0 - sum(logps.map(logpSteps)) / logps.length / STEPS : 0
  return [
    id, blob.length, prompt, completions.map((c) => c.reward), completions.map((c) => c.ids.length),
    completions.map((c) => mean(c.logps))
  ]
}
