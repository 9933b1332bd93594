// Messages of the other stream protocols.
import { array, bin, bool, counter, decoded, hash16, hash32, int, name, oneOf, optional, str, struct, union, withDefault } from './encoding.js'

const MEBI = 2 ** 20
export const MOST_BYTES = { averaging: 1024, blobs: 65_536, peers: 32_768, handshake: 303_104, members: 427_008, lends: 4096, letters: 2144 }
const address = str(256)
const own = array(address, 0, 8)
const offer = struct(hash16, hash16, name, counter, hash32, int(1, 2 ** 40))
const time = int(0, 137_438_953_471)
const document = bin(0, 1024)
const revocations = bin(0, 32_768)
const nothing = new Uint8Array()

export const question = struct(hash16, own, array(address, 0, 8))
export const answer = struct(hash16, own, array(address, 0, 64))
const averaging = union({
  propose: struct(hash16, offer), accept: struct(offer), decline: struct(name, withDefault(str(64), '')), have: struct(hash16),
  abandon: struct(hash16, str(200))
})
const reasons = ['damaged', 'version', 'wrong_swarm', 'wrong_key', 'clock', 'not_yet_valid', 'expired', 'revoked',
  'needs_owner', 'taken', 'full', 'outdated', 'wrong_psk', 'no_member']
const greeting = struct(hash16, time, document, counter, counter, withDefault(bool, false))
const refusal = struct(oneOf(...reasons), time, withDefault(revocations, nothing))
const documents = struct(
  withDefault(bin(0, 262_144), nothing), withDefault(revocations, nothing), withDefault(document, nothing),
  withDefault(document, nothing)
)
const version = int(0, 65_535)
const lendAnswer = union({
  terms: struct(str(512), int(0, 65_536), bool, name, hash16, withDefault(oneOf('', 'float32', 'bfloat16'), '')),
  refused: struct(name, str(512))
})
const membersQuestion = struct(bin(0, 131_072), counter, counter)
const letterState = oneOf('waiting', 'taken', 'expired', 'unknown', 'full')
const news = struct(array(document, 0, 128), revocations, document)

const KINDS = {
  peer: { question, answer, most: MOST_BYTES.peers },
  handshake: {
    greeting, answer: struct(optional(refusal), optional(greeting), optional(documents)),
    conclusion: struct(optional(refusal), documents), most: MOST_BYTES.handshake
  },
  lend: {
    hello: union({ hello: struct(version, version, hash32, name) }), terms: lendAnswer, refused: lendAnswer,
    most: MOST_BYTES.lends
  },
  letter: {
    request: union({ letter: struct(hash16) }), answer: struct(letterState, bin(0, 2016)),
    hold: union({ hold: struct(hash16, hash32, bin(1, 2016), int(1, 3600)) }), ask: union({ ask: struct(hash16) }),
    receipt: struct(letterState, withDefault(str(64), '')), most: MOST_BYTES.letters
  },
  member: { question: membersQuestion, answer: struct(membersQuestion, news), news, most: MOST_BYTES.members }
}

export const read = (protocol, kind, raw) => protocol === 'averaging'
  ? decoded(raw, averaging, MOST_BYTES.averaging)
  : decoded(raw, KINDS[protocol][kind], KINDS[protocol].most)
