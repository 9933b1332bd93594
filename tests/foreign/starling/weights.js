// "Tensors", "Sparse updates", "Compressed weights", "Weight diffs", "Dense weights": decoding, and what the vectors say.
import { decompress } from 'fzstd'
import { Refused, equal, hex, join, sha256, unhex, utf8 } from './bytes.js'
import { bin, decoded, encoded, hash16, hash32, int, struct } from './encoding.js'
import { fromPlanes } from './groups.js'

const CHUNK = 4096
const malformed = (why) => { throw new Refused('malformed', why) }
const integrity = (why) => { throw new Refused('integrity', why) }
const sizeOf = ([, shape]) => shape.reduce((a, b) => a * b, 1)
const floats = (bytes) => {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length)
  return Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true))
}
const floatBytes = (numbers) => {
  const bytes = Buffer.alloc(4 * numbers.length)
  numbers.forEach((number, i) => bytes.writeFloatLE(number, 4 * i))
  return bytes
}
const u32s = (bytes) => Array.from({ length: bytes.length / 4 }, (_, i) => Buffer.from(bytes).readUInt32LE(4 * i))
const u64s = (bytes) => Array.from({ length: bytes.length / 8 }, (_, i) => Number(Buffer.from(bytes).readBigUInt64LE(8 * i)))

export const layoutDigest = (layout) => sha256(utf8('starling/layout/1\0'), encoded(layout)).subarray(0, 16)

// The header of a blob, and a reader of its sections, which must end where the blob does.
function opened (blob, magic, type, layout) {
  if (!equal(blob.subarray(0, 4), utf8(magic))) malformed(`no ${magic}`)
  const length = Buffer.from(blob).readUInt32BE(4)
  const header = decoded(blob.subarray(8, 8 + length), type, 4 << 20)
  if (!equal(header[0], layoutDigest(layout))) integrity('another layout')
  let at = 8 + length
  const take = (bytes) => {
    if (at + bytes > blob.length) malformed('a section beyond the end')
    return blob.subarray(at, at += bytes)
  }
  return { header, take, atEnd: () => at === blob.length }
}

// N gaps with parameter b.
function rice (bytes, n, b) {
  const plane = Math.ceil(n / 8)
  const low = Array.from({ length: n }, (_, i) => {
    let number = 0
    for (let p = 0; p < b; p++) number += ((bytes[p * plane + (i >> 3)] >> (i & 7)) & 1) * 2 ** p
    return number
  })
  const unary = bytes.subarray(b * plane)
  const gaps = []
  let zeros = 0
  for (let bit = 0; bit < 8 * unary.length; bit++) {
    if ((unary[bit >> 3] >> (bit & 7)) & 1) {
      if (gaps.length === n) malformed('more gaps than changes')
      gaps.push(zeros * 2 ** b + low[gaps.length])
      zeros = 0
    } else zeros++
  }
  if (gaps.length !== n || zeros > 7) malformed('gaps')
  return gaps
}

const bitPlanes = (bytes, n, bits) => {
  const plane = Math.ceil(n / 8)
  if (bytes.length !== bits * plane) malformed('planes')
  return Array.from({ length: n }, (_, i) => {
    let code = 0
    for (let p = 0; p < bits; p++) code |= ((bytes[p * plane + (i >> 3)] >> (i & 7)) & 1) << p
    return code
  })
}

const entries = (size, kept) => {
  const counts = Array(Math.floor(size / CHUNK)).fill(kept)
  if (size % CHUNK) counts.push(Math.ceil(kept * (size % CHUNK) / CHUNK))
  return counts
}

function plainIndices (bytes, n) {
  return Array.from({ length: n }, (_, i) => {
    const at = (i >> 1) * 3
    return i % 2 === 0 ? bytes[at] | (bytes[at + 1] & 0x0f) << 8 : bytes[at + 1] >> 4 | bytes[at + 2] << 4
  })
}

export function readUpdate (blob, layout) {
  const t = layout.length
  const type = struct(hash16, int(1, CHUNK), bin(t), bin(4 * t), bin(16 * t))
  const { header: [, kept, codings, lengths, codebooks], take, atEnd } = opened(blob, 'SLU1', type, layout)
  const tensors = layout.map((tensor, i) => {
    const counts = entries(sizeOf(tensor), kept)
    const n = counts.reduce((a, b) => a + b, 0)
    const raw = take(u32s(lengths)[i])
    if (codings[i] > 12) malformed('a coding')
    const numbers = codings[i] === 12 ? plainIndices(raw, n) : rice(raw, n, codings[i])
    const positions = []
    counts.forEach((count, chunk) => {
      let index = -1
      for (let k = 0; k < count; k++) {
        const number = numbers[positions.length]
        index = codings[i] === 12 ? number : index + 1 + number
        if (index >= CHUNK) malformed('an index outside its chunk')
        positions.push(chunk * CHUNK + index)
      }
    })
    const packed = take(Math.ceil(n / 4))
    const codes = positions.map((_, k) => (packed[k >> 2] >> (2 * (k & 3))) & 3)
    return { positions, codes, codebook: floats(codebooks.subarray(16 * i, 16 * i + 16)) }
  })
  if (!atEnd()) malformed('bytes after the sections')
  return tensors
}

export function readCompressed (blob, layout) {
  const type = struct(hash16, int(1, 2 ** 40), int(1, 65535), int(0, 65534), int(1, 8), bin(4 * layout.length))
  const { header: [, update, stride, phase, bits, steps], take, atEnd } = opened(blob, 'SLC1', type, layout)
  const total = layout.reduce((sum, tensor) => sum + sizeOf(tensor), 0)
  const n = Math.max(0, Math.ceil((total - phase) / stride))
  const tensors = readUpdate(take(update), layout)
  const codes = bitPlanes(take(bits * Math.ceil(n / 8)), n, bits)
  if (!atEnd()) malformed('bytes after the sections')
  return { tensors, stride, phase, bits, steps: floats(steps), codes }
}

const rint = (x) => {
  const floor = Math.floor(x)
  const rest = x - floor
  return rest > 0.5 || (rest === 0.5 && floor % 2 !== 0) ? floor + 1 : floor
}

// What a receiver with its own weights reads of the slice, less its own weights.
export function sliceDifferences ({ stride, phase, bits, steps, codes }, layout, own) {
  const ends = []
  layout.reduce((sum, tensor) => { ends.push(sum + sizeOf(tensor)); return sum + sizeOf(tensor) }, 0)
  return codes.map((code, i) => {
    const number = phase + i * stride
    const tensor = ends.findIndex((end) => number < end)
    const y = own[tensor][number - (ends[tensor - 1] ?? 0)]
    const step = steps[tensor]
    return step * (code + 2 ** bits * rint((y / step - code) / 2 ** bits)) - y
  })
}

const patterns = (bytes) => Array.from({ length: bytes.length / 2 }, (_, i) => bytes[2 * i] | bytes[2 * i + 1] << 8)
const patternBytes = (numbers) => Uint8Array.from(numbers.flatMap((number) => [number & 0xff, number >> 8]))
export const weightsHash = (layout, tensors) =>
  sha256(utf8('starling/weights/1\0'), layoutDigest(layout), ...tensors.map((tensor) => sha256(patternBytes(tensor))))

export function applyDiff (blob, layout, weights) {
  const t = layout.length
  const type = struct(hash16, hash32, hash32, bin(t), bin(4 * t), bin(8 * t), bin(8 * t), bin(16 * t))
  const { header: [, base, target, codings, counts, gapLengths, lengths, digests], take, atEnd } = opened(blob, 'SLD1', type, layout)
  if (!equal(weightsHash(layout, weights), base)) throw new Refused('stale_base')
  const changed = weights.map((tensor, i) => {
    const section = take(u64s(lengths)[i])
    if (!equal(sha256(section).subarray(0, 16), digests.subarray(16 * i, 16 * i + 16))) {
      integrity(`section ${i}`)
    }
    if (codings[i] === 32) return fromPlanes(decompress(section), tensor.length, [2])
    const count = u32s(counts)[i]
    if (count === 0) return tensor
    const gaps = rice(section.subarray(0, u64s(gapLengths)[i]), count, codings[i])
    const changes = fromPlanes(decompress(section.subarray(u64s(gapLengths)[i])), count, [2])
    const found = [...tensor]
    let position = -1
    changes.forEach((zigzag, k) => {
      position += 1 + gaps[k]
      const change = zigzag % 2 === 0 ? zigzag / 2 : -(zigzag + 1) / 2
      found[position] = (found[position] + change) & 0xffff
    })
    return found
  })
  if (!atEnd()) malformed('bytes after the sections')
  if (!equal(weightsHash(layout, changed), target)) integrity('another target')
  return changed
}

export function readDense (blob, layout) {
  const { header: [, padding], take, atEnd } = opened(blob, 'SLW1', struct(hash16, bin(35)), layout)
  if (padding.some((byte) => byte)) malformed('padding')
  const tensors = layout.map((tensor) => patterns(take(2 * sizeOf(tensor))))
  if (!atEnd()) malformed('bytes after the sections')
  return tensors
}

const ramp = (size, multiplier) =>
  Float32Array.from({ length: size }, (_, i) => ((i * multiplier) % 2003 - 1001) / 1024)

export function checkSparse (v, holds) {
  holds(hex(layoutDigest(v.layout)) === v.layout_digest, 'layout')
  const tensors = readUpdate(unhex(v.blob), v.layout)
  holds(JSON.stringify(tensors.map((tensor) => tensor.codebook)) === JSON.stringify(v.codebooks), 'codebooks')
  const left = v.layout.map((tensor, i) => {
    const delta = ramp(sizeOf(tensor), 1201)
    const e = ramp(sizeOf(tensor), 577).map((x) => Math.fround(x * Math.fround(v.decay))).map((x, k) => Math.fround(x + delta[k]))
    tensors[i].positions.forEach((position, k) => { e[position] -= tensors[i].codebook[tensors[i].codes[k]] })
    return floatBytes([...e])
  })
  holds(hex(sha256(join(...left))) === v.residuals_left_sha256, 'what is left')
}

export function checkCompressed (v, holds) {
  const found = readCompressed(unhex(v.blob), v.layout)
  holds(found.stride === v.stride && found.phase === v.phase && found.bits === v.bits, 'slice')
  holds(JSON.stringify(found.steps) === JSON.stringify(v.steps), 'steps')
  holds(hex(sha256(Uint8Array.from(found.codes))) === v.codes_sha256, 'codes')
  const own = v.layout.map((tensor) => ramp(sizeOf(tensor), 577).map((x) => Math.fround(x + Math.fround(0.01))))
  const differences = sliceDifferences(found, v.layout, own)
  holds(hex(sha256(floatBytes(differences))) === v.differences_sha256, 'differences')
}

export function checkDiff (v, holds) {
  const [base, target] = [v.base, v.target].map((tensors) => tensors.map((tensor) => patterns(unhex(tensor))))
  holds(hex(weightsHash(v.layout, base)) === v.base_hash && hex(weightsHash(v.layout, target)) === v.target_hash, 'hashes')
  const found = applyDiff(unhex(v.blob), v.layout, base)
  holds(JSON.stringify(found) === JSON.stringify(target), 'target')
}

export function checkDense (v, holds) {
  const found = readDense(unhex(v.blob), v.layout)
  holds(found.every((tensor, i) => hex(patternBytes(tensor)) === v.tensors[i]), 'tensors')
}
