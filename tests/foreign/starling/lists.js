// "Lists of swarms": a document that anybody may host.
import { Refused } from './bytes.js'
import { openManifest } from './cluster.js'
import { array, bin, checkStructure, decoded, hash32, int, name, oneOf, str, struct, value } from './encoding.js'
import { verify } from './identity.js'
import { readManifest, swarmIdOf } from './manifest.js'

const MOST = 65_536
const time = int(0, 137_438_953_471)
const door = (given) => /^(\/[A-Za-z0-9.:_-]+)+\/p2p\/[1-9A-HJ-NP-Za-km-z]+$/.test(str(256)(given)) ? given : refuse('malformed')
const entry = struct(oneOf('open', 'private'), bin(0, 262_144), array(door, 0, 8), str(200))
const list = struct(hash32, name, time, time, array(entry, 0, 32))
const refuse = (reason) => { throw new Refused(reason) }

// The list and the id and name of each swarm in it, as a reader with this clock takes it.
export function openList (raw, now) {
  const [payload, signature] = decoded(raw, struct(bin(0, MOST), bin(64)), MOST)
  checkStructure(payload)
  const given = value(payload)
  if (!Array.isArray(given) || given.length < 3) refuse('malformed')
  if (given[0] !== 1) refuse('version')
  const body = list(given[2])
  if (!verify(body[0], 'starling/swarm-list/1', payload, signature)) refuse('signature')
  if (body[2] - now > 300 || now >= body[3]) refuse('clock')
  return { body, swarms: body[4].map(([kind, manifest]) => kind === 'open' ? openSwarm(manifest) : privateSwarm(manifest)) }
}

function openSwarm (raw) {
  const manifest = readManifest(raw)
  return { name: manifest[0] || refuse('malformed'), id: swarmIdOf(manifest) }
}

function privateSwarm (raw) {
  try {
    const { body, swarmId } = openManifest(raw)
    return { name: body[0], id: swarmId }
  } catch (error) {
    if (!(error instanceof Refused)) throw error
    return refuse({ damaged: 'malformed', wrong_key: 'signature' }[error.reason] ?? error.reason)
  }
}
