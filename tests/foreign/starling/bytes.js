// Byte strings: joining, hashing, hexadecimal, base58.
import { createHash } from 'node:crypto'

export const utf8 = (text) => new TextEncoder().encode(text)
export const text = (bytes) => new TextDecoder('utf-8', { fatal: false }).decode(bytes)
export const hex = (bytes) => Buffer.from(bytes).toString('hex')
export const unhex = (digits) => new Uint8Array(Buffer.from(digits, 'hex'))
export const join = (...parts) => new Uint8Array(Buffer.concat(parts))
export const equal = (a, b) => Buffer.compare(a, b) === 0
export const sha256 = (...parts) => {
  const digest = createHash('sha256')
  for (const part of parts) digest.update(part)
  return new Uint8Array(digest.digest())
}

export function u32 (number) {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32BE(number)
  return new Uint8Array(bytes)
}

export function u64 (number) {
  const bytes = Buffer.alloc(8)
  bytes.writeBigUInt64BE(BigInt(number))
  return new Uint8Array(bytes)
}

const ALPHABET = '123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz'

export function base58 (bytes) {
  let number = BigInt('0x0' + hex(bytes))
  let digits = ''
  while (number > 0n) {
    digits = ALPHABET[Number(number % 58n)] + digits
    number /= 58n
  }
  let zeros = 0
  while (zeros < bytes.length && bytes[zeros] === 0) zeros++
  return '1'.repeat(zeros) + digits
}

export function unbase58 (digits) {
  let number = 0n
  for (const digit of digits) {
    const value = ALPHABET.indexOf(digit)
    if (value < 0) throw new Error(`${digit} is no base58`)
    number = number * 58n + BigInt(value)
  }
  let zeros = 0
  while (zeros < digits.length && digits[zeros] === '1') zeros++
  let body = number === 0n ? '' : number.toString(16)
  if (body.length % 2) body = '0' + body
  return join(new Uint8Array(zeros), unhex(body))
}

// A receiver's refusal: its reason is one of the page's names.
export class Refused extends Error {
  constructor (reason, detail = '') {
    super(`${reason}: ${detail}`)
    this.reason = reason
  }
}
