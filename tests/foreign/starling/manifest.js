// "The swarm and its id".
import { join, hex, sha256, utf8 } from './bytes.js'
import { array, decoded, encoded, hash16, int, name, struct } from './encoding.js'

export const MANIFEST_BYTES = 262_144
const manifest = struct(name, array(struct(name, int(0, 2 ** 31 - 1), hash16), 0, 1024))

const points = (text) => [...text].map((character) => character.codePointAt(0))
const compared = (a, b) => {
  for (let i = 0; i < Math.min(a.length, b.length); i++) if (a[i] !== b[i]) return a[i] - b[i]
  return a.length - b.length
}

export const readManifest = (raw) => decoded(raw, manifest, MANIFEST_BYTES)
export const canonical = ([title, tasks]) => encoded([
  title,
  [...tasks].sort((a, b) => compared(points(a[0]), points(b[0])) || a[1] - b[1] || Buffer.compare(a[2], b[2]))
])
export const swarmIdOf = (given) => sha256(utf8('starling/manifest/1\0'), canonical(given)).subarray(0, 16)
export const topicOf = (swarmId) => `starling/1/${hex(swarmId)}`
export const dhtDigest = (swarmId) => sha256(utf8('starling/swarm/1\0'), swarmId)
export const providerKey = (swarmId) => join(new Uint8Array([0x12, 0x20]), dhtDigest(swarmId))
