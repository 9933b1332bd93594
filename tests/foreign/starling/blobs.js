// "Blobs": ids, requests and answers.
import { equal, join, sha256, u64, utf8 } from './bytes.js'
import { array, bool, decoded, hash32, int, struct } from './encoding.js'
import { Refused } from './bytes.js'

export const CHUNK_BYTES = 262_144
export const BLOB_REQUEST_BYTES = 65_536
export const chunkCount = (size) => Math.ceil(size / CHUNK_BYTES)
export const chunksOf = (content) =>
  Array.from({ length: chunkCount(content.length) }, (_, n) => content.subarray(n * CHUNK_BYTES, (n + 1) * CHUNK_BYTES))
export const chunkHashes = (content) => chunksOf(content).map((chunk) => sha256(chunk))
export const idOf = (size, hashes) => sha256(utf8('starling/blob/1\0'), u64(size), ...hashes)
export const blobId = (content) => idOf(content.length, chunkHashes(content))

const request = array(struct(hash32, int(0, 2 ** 32), int(0, 2 ** 32), bool))
export function readRequest (raw) {
  const ranges = decoded(raw, request, BLOB_REQUEST_BYTES)
  if (ranges.length > 1024) throw new Refused('oversized', `${ranges.length} ranges`)
  return ranges
}

// The answer to one range, in parts; `find` returns the content of a blob, or nothing.
export function answer ([blob, first, count, hashes], find) {
  const content = find(blob)
  if (content === undefined) return [join(new Uint8Array([1]), u64(0))]
  const chunks = chunksOf(content)
  return [
    join(new Uint8Array([0]), u64(content.length), ...(hashes ? chunkHashes(content) : [])),
    ...chunks.slice(first, first + count)
  ]
}

// Reads the answer to one range through `read(bytes)`, every chunk verified. Returns { status, size, hashes, chunks }.
export async function readAnswer (read, [blob, first, count, wantsHashes], known) {
  const head = Buffer.from(await read(9))
  const status = head[0]
  const size = Number(head.readBigUInt64BE(1))
  if (status !== 0) return { status, size, hashes: [], chunks: [] }
  let hashes = known
  if (wantsHashes) {
    const all = await read(32 * chunkCount(size))
    hashes = Array.from({ length: chunkCount(size) }, (_, n) => all.subarray(32 * n, 32 * n + 32))
    if (!equal(idOf(size, hashes), blob)) throw new Refused('integrity', 'the hashes are not those of the blob')
  }
  const chunks = []
  for (let n = first; n < Math.min(first + count, chunkCount(size)); n++) {
    const chunk = await read(Math.min(CHUNK_BYTES, size - n * CHUNK_BYTES))
    if (!equal(sha256(chunk), hashes[n])) throw new Refused('integrity', `chunk ${n}`)
    chunks.push(chunk)
  }
  return { status, size, hashes, chunks }
}
