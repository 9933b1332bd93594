// "Encoding": the structure of MessagePack is checked before anything is built from it, then the schema.
import { decode, encode } from '@msgpack/msgpack'
import { Refused } from './bytes.js'

const NESTING_DEPTH = 8
const MESSAGE_VALUES = 16384

const malformed = (why) => { throw new Refused('malformed', why) }
const oversized = (why) => { throw new Refused('oversized', why) }

// Walks so many values without recursion; returns where they end. Nothing may follow the one value of a message.
export function checkStructure (raw, { values: wanted = 1 } = {}) {
  const view = new DataView(raw.buffer, raw.byteOffset, raw.byteLength)
  let at = 0
  let values = 0
  const left = [wanted] // values that are still to come, by depth
  const need = (bytes) => { if (bytes > raw.length - at) malformed('a length beyond the end') }
  const number = (bytes) => {
    need(bytes)
    const value = bytes === 1 ? view.getUint8(at) : bytes === 2 ? view.getUint16(at) : view.getUint32(at)
    at += bytes
    return value
  }
  const skip = (bytes) => { need(bytes); at += bytes }
  const container = (count, each) => {
    need(count * each)
    if (left.length > NESTING_DEPTH) oversized('nested too deeply')
    left.push(count * each)
  }
  while (left.length > 0) {
    if (left[left.length - 1] === 0) { left.pop(); continue }
    left[left.length - 1]--
    if (++values > MESSAGE_VALUES) oversized('too many values')
    const byte = number(1)
    if (byte <= 0x7f || byte >= 0xe0) continue
    else if (byte <= 0x8f) container(byte & 0x0f, 2)
    else if (byte <= 0x9f) container(byte & 0x0f, 1)
    else if (byte <= 0xbf) skip(byte & 0x1f)
    else if (byte === 0xc0 || byte === 0xc2 || byte === 0xc3) continue
    else if (byte === 0xc4 || byte === 0xd9) skip(number(1))
    else if (byte === 0xc5 || byte === 0xda) skip(number(2))
    else if (byte === 0xc6 || byte === 0xdb) skip(number(4))
    else if (byte === 0xca) { need(4); if (!Number.isFinite(view.getFloat32(at))) malformed('no number'); at += 4 }
    else if (byte === 0xcb) { need(8); if (!Number.isFinite(view.getFloat64(at))) malformed('no number'); at += 8 }
    else if (byte >= 0xcc && byte <= 0xcf) skip(1 << (byte - 0xcc))
    else if (byte >= 0xd0 && byte <= 0xd3) skip(1 << (byte - 0xd0))
    else if (byte === 0xdc) container(number(2), 1)
    else if (byte === 0xdd) container(number(4), 1)
    else if (byte === 0xde) container(number(2), 2)
    else if (byte === 0xdf) container(number(4), 2)
    else malformed(`byte ${byte.toString(16)}`)
  }
  if (wanted === 1 && at !== raw.length) malformed('bytes after the end')
  return at
}

// A value of this type, of at most so many bytes.
export function decoded (raw, type, maxBytes) {
  if (raw.length > maxBytes) oversized(`${raw.length} bytes`)
  checkStructure(raw)
  return type(value(raw))
}

// The first values of an array, whatever follows them: enough of an announcement to see who sent it.
export function firstValues (raw, count) {
  const wide = raw[0] === 0xdc ? 2 : raw[0] === 0xdd ? 4 : 0
  const length = wide ? Buffer.from(raw).readUIntBE(1, wide) : (raw[0] & 0xf0) === 0x90 ? raw[0] & 0x0f : -1
  if (length < count) malformed('too few values')
  const end = checkStructure(raw.subarray(1 + wide), { values: count })
  return value(new Uint8Array([0x90 | count, ...raw.subarray(1 + wide, 1 + wide + end)]))
}

export const value = (raw) => decode(raw, { useBigInt64: true })
// The library writes integers from 2³² on as floats unless they are BigInt.
const exact = (content) => Array.isArray(content)
  ? content.map(exact)
  : Number.isInteger(content) && Math.abs(content) >= 2 ** 32 ? BigInt(content) : content
export const encoded = (content) => encode(exact(content), { useBigInt64: true })

// Types: each returns the value that it takes, or refuses it.
export const int = (least, most) => (given) => {
  const number = typeof given === 'bigint' ? given : Number.isInteger(given) ? BigInt(given) : malformed('no integer')
  if (number < BigInt(least) || number > BigInt(most)) malformed(`${number} is out of range`)
  return number <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(number) : number
}
export const float = (least = -Infinity, most = Infinity) => (given) => {
  const number = typeof given === 'bigint' ? Number(given) : given
  if (typeof number !== 'number' || !(number >= least && number <= most)) malformed('no number in its range')
  return number
}
export const bool = (given) => typeof given === 'boolean' ? given : malformed('no boolean')
export const str = (most) => (given) =>
  typeof given === 'string' && [...given].length <= most ? given : malformed('no text, or too long')
export const oneOf = (...known) => (given) => known.includes(given) ? given : malformed(`${given} is unknown`)
export const bin = (least, most = least) => (given) =>
  given instanceof Uint8Array && given.length >= least && given.length <= most ? given : malformed('no bytes')
export const array = (type, least = 0, most = Infinity) => (given) => {
  if (!Array.isArray(given) || given.length < least || given.length > most) malformed('no array, or its length')
  return given.map(type)
}
export const optional = (type) => (given) => given === null || given === undefined ? null : type(given)
export const withDefault = (type, usual) => Object.assign((given) => given === undefined ? usual : type(given), { usual })

// Fields in their order; later minor versions may append more.
export const struct = (...types) => (given) => {
  if (!Array.isArray(given)) malformed('no array')
  return types.map((type, place) => {
    if (place >= given.length && !('usual' in type)) malformed('too few fields')
    return type(given[place])
  })
}
// The name of a kind, then its fields.
export const union = (kinds, unknown = 'malformed') => (given) => {
  if (!Array.isArray(given) || typeof given[0] !== 'string') malformed('no kind')
  if (!(given[0] in kinds)) throw new Refused(unknown, given[0])
  return [given[0], ...kinds[given[0]](given.slice(1))]
}

export const hash16 = bin(16)
export const hash32 = bin(32)
export const name = str(64)
export const counter = int(0, 2n ** 63n - 1n)

export function frame (content) {
  const body = encoded(content)
  const head = Buffer.alloc(4)
  head.writeUInt32BE(body.length)
  return new Uint8Array(Buffer.concat([head, body]))
}

// The length in the first four bytes of a frame.
export function frameLength (head, maxBytes) {
  const length = Buffer.from(head).readUInt32BE()
  if (length > maxBytes) oversized(`a frame of ${length} bytes`)
  return length
}
