// "Identity": Ed25519 keys, peer ids, signatures with a domain.
import { createPrivateKey, createPublicKey, sign as signRaw, verify as verifyRaw } from 'node:crypto'
import { base58, join, unhex, utf8 } from './bytes.js'

const PKCS8 = unhex('302e020100300506032b657004220420')
const SPKI = unhex('302a300506032b6570032100')
const PEER_ID = unhex('002408011220')

export class Key {
  constructor (seed) {
    this.seed = seed
    this.private = createPrivateKey({ key: Buffer.from(join(PKCS8, seed)), format: 'der', type: 'pkcs8' })
    this.public = new Uint8Array(createPublicKey(this.private).export({ format: 'der', type: 'spki' }).subarray(SPKI.length))
    this.peerId = peerIdOf(this.public)
  }

  sign (domain, message) { return this.signPlain(join(utf8(domain + '\0'), message)) }
  signPlain (message) { return new Uint8Array(signRaw(null, message, this.private)) }
}

export const peerIdBytes = (publicKey) => join(PEER_ID, publicKey)
export const peerIdOf = (publicKey) => base58(peerIdBytes(publicKey))
export const verify = (publicKey, domain, message, signature) =>
  verifyPlain(publicKey, join(utf8(domain + '\0'), message), signature)

export function verifyPlain (publicKey, message, signature) {
  const key = createPublicKey({ key: Buffer.from(join(SPKI, publicKey)), format: 'der', type: 'spki' })
  return verifyRaw(null, message, key, signature)
}
