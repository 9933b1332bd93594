// "Announcements": what is signed, in which order it is checked, and the four kinds.
import { Refused } from './bytes.js'
import { array, bin, checkStructure, counter, decoded, encoded, firstValues, float, hash16, hash32, int, name, str, struct, union, value, withDefault } from './encoding.js'
import { peerIdOf, verify } from './identity.js'

export const ANNOUNCEMENT_BYTES = 65536
const WINDOW_MS = 300_000
const DOMAIN = 'starling/announcement/1'

export const promptRef = struct(name, int(0, 2 ** 31 - 1), hash16, counter)
const taskSuccess = struct(name, float(0, 1), counter)
const stateBlob = struct(hash32, int(1, 2 ** 40), hash32)
const advertFields = struct(
  hash32, int(1, 1_572_864), promptRef,
  array(float(-1000, 1000), 1, 64), array(int(0, 65536), 1, 64), array(float(-1e4, 0), 1, 64)
)
const advert = (given) => {
  const fields = advertFields(given)
  if (new Set([fields[3].length, fields[4].length, fields[5].length]).size !== 1) throw new Refused('malformed', 'lengths')
  return fields
}

export const body = union({
  heartbeat: struct(
    name, name, name, hash16, hash16, counter, counter, name, float(0, 1e12), counter, counter,
    array(taskSuccess, 0, 64), withDefault(bin(0, 128), new Uint8Array()),
    withDefault(array(str(256), 0, 2), [])
  ),
  rollouts: struct(hash16, hash16, counter, array(advert, 1, 64)),
  state: struct(hash16, hash16, counter, counter, array(taskSuccess, 0, 64), stateBlob, array(stateBlob, 0, 64)),
  goodbye: struct(str(200))
}, 'unknown_kind')

const u16 = int(0, 65535)
const version = struct(u16, u16)
const header = struct(u16, u16, hash16, counter, counter, hash32)
const envelope = struct(bin(0, ANNOUNCEMENT_BYTES), bin(64))

export function seal (key, swarmId, sequence, timeMs, content) {
  const payload = encoded([1, 4, swarmId, sequence, timeMs, key.public, content])
  return encoded([payload, key.sign(DOMAIN, payload)])
}

// Checks in the page's order; replay and rates need memory, which is the caller's.
export function open (raw, swarmId, nowMs) {
  const parts = decoded(raw, (given) => {
    if (!Array.isArray(given) || given.length !== 2) throw new Refused('malformed', 'an envelope has two elements')
    return envelope(given)
  }, ANNOUNCEMENT_BYTES)
  const [payload, signature] = parts
  if (version(firstValues(payload, 2))[0] !== 1) throw new Refused('version')
  const [, , theirs, sequence, timeMs, publicKey] = header(firstValues(payload, 6))
  if (Buffer.compare(theirs, swarmId) !== 0) throw new Refused('wrong_swarm')
  if (Math.abs(Number(timeMs) - nowMs) > WINDOW_MS) throw new Refused('clock')
  if (!verify(publicKey, DOMAIN, payload, signature)) throw new Refused('signature')
  checkStructure(payload)
  return { sender: peerIdOf(publicKey), sequence, timeMs, body: body(value(payload)[6]), payload, signature }
}
