// "Gossip": the id of a message, and what a publisher signs.
import { join, sha256, utf8 } from './bytes.js'
import { verifyPlain } from './identity.js'

export const messageId = (topic, data) =>
  utf8(Buffer.from(sha256(utf8(topic), new Uint8Array(1), data).subarray(0, 18)).toString('base64'))

export const varint = (number) => number < 0x80 ? [number] : [(number & 0x7f) | 0x80, ...varint(number >>> 7)]
export const field = (number, bytes) => join(new Uint8Array([number << 3 | 2, ...varint(bytes.length)]), bytes)

export const signedPart = ({ from, data, seqno, topic }) =>
  join(utf8('libp2p-pubsub:'), field(1, from), field(2, data), field(3, seqno), field(4, utf8(topic)))

// The fields of a message in protobuf: [number, bytes or integer], in their order.
export function * fields (raw) {
  let at = 0
  const number = () => {
    let found = 0
    for (let shift = 0; ; shift += 7) {
      found += (raw[at] & 0x7f) * 2 ** shift
      if (raw[at++] < 0x80) return found
    }
  }
  while (at < raw.length) {
    const tag = number()
    const value = number()
    if ((tag & 7) === 2) yield [tag >> 3, raw.subarray(at, at += value)]
    else yield [tag >> 3, value]
  }
}

export function readMessage (raw) {
  const names = [undefined, 'from', 'data', 'seqno', 'topic', 'signature', 'key']
  const found = Object.fromEntries([...fields(raw)].map(([number, bytes]) => [names[number], bytes]))
  return { ...found, topic: Buffer.from(found.topic).toString() }
}

export const isSigned = (message) =>
  message.from.length === 38 && verifyPlain(message.from.subarray(6), signedPart(message), message.signature)
