// "Tasks and prompts": five of the default swarm's six tasks, made from a seed without reasoning-gym.
import { sha256, utf8 } from './bytes.js'

// MT19937, seeded by init_by_array with the words of the seed.
export class Random {
  constructor (seed) {
    const words = []
    for (let rest = BigInt(seed); rest > 0n; rest >>= 32n) words.push(Number(rest & 0xffffffffn))
    if (words.length === 0) words.push(0)
    const mt = this.mt = new Uint32Array(624)
    mt[0] = 19650218
    for (let i = 1; i < 624; i++) mt[i] = Math.imul(1812433253, mt[i - 1] ^ (mt[i - 1] >>> 30)) + i
    let i = 1
    let j = 0
    for (let k = Math.max(624, words.length); k > 0; k--) {
      mt[i] = (mt[i] ^ Math.imul(mt[i - 1] ^ (mt[i - 1] >>> 30), 1664525)) + words[j] + j
      i++; j++
      if (i >= 624) { mt[0] = mt[623]; i = 1 }
      if (j >= words.length) j = 0
    }
    for (let k = 623; k > 0; k--) {
      mt[i] = (mt[i] ^ Math.imul(mt[i - 1] ^ (mt[i - 1] >>> 30), 1566083941)) - i
      i++
      if (i >= 624) { mt[0] = mt[623]; i = 1 }
    }
    mt[0] = 0x80000000
    this.at = 624
  }

  next () {
    const mt = this.mt
    if (this.at >= 624) {
      for (let k = 0; k < 624; k++) {
        const y = (mt[k] & 0x80000000) | (mt[(k + 1) % 624] & 0x7fffffff)
        mt[k] = mt[(k + 397) % 624] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0)
      }
      this.at = 0
    }
    let y = mt[this.at++]
    y ^= y >>> 11
    y ^= (y << 7) & 0x9d2c5680
    y ^= (y << 15) & 0xefc60000
    return (y ^ (y >>> 18)) >>> 0
  }

  bits (k) { return this.next() >>> (32 - k) }
  below (n) {
    const k = 32 - Math.clz32(n)
    let drawn = this.bits(k)
    while (drawn >= n) drawn = this.bits(k)
    return drawn
  }

  int (a, b) { return a + this.below(b - a + 1) }
  choice (list) { return list[this.below(list.length)] }
  float (a, b) { return a + (b - a) * ((this.bits(27) * 2 ** 26 + this.bits(26)) / 2 ** 53) }
}

const gcd = (a, b) => b ? gcd(b, a % b) : a
const halfEven = (x) => x % 1 === 0.5 ? 2 * Math.round(x / 2) : Math.round(x)

const turned = ([a, b, c, d]) => [c, a, d, b]
const numbers = (random, most) => Array.from({ length: random.int(4, 5) }, () => {
  const number = halfEven(random.float(0, most))
  random.int(0, 0)
  return number
})

const ENTRIES = {
  basic_arithmetic (random) {
    random.int(2, 2); random.int(2, 2)
    const [a, b] = [random.int(0, 100), random.int(0, 100)]
    const operator = random.choice(['+', '-'])
    return [`${a} ${operator} ${b}=`, `${operator === '+' ? a + b : a - b}`]
  },
  fraction_simplification (random) {
    let n, d
    for (let tries = 0; tries < 10; tries++) {
      [n, d] = [random.int(11, 250), random.int(11, 250)]
      const common = gcd(n, d)
      ;[n, d] = [n / common, d / common]
      if (n >= 11 && d >= 11) break
      if (tries === 9) [n, d] = [random.int(11, 250), random.int(11, 250)]
    }
    if (n > d) [n, d] = [d, n]
    const factor = random.int(2, 3)
    return [`reduce ${n * factor}/${d * factor}=`, `${n}/${d}`]
  },
  rotate_matrix (random) {
    random.int(2, 2)
    const matrix = Array.from({ length: 4 }, () => random.int(0, 9))
    const times = random.int(1, 3)
    const text = ([a, b, c, d]) => `${a} ${b}\n${c} ${d}`
    let answer = matrix
    for (let n = 0; n < times; n++) answer = turned(answer)
    return [`turn ${times} ${text(matrix)}=`, text(answer)]
  },
  number_sorting (random) {
    const given = numbers(random, 9.49)
    const ascending = random.choice([true, false])
    const sorted = [...given].sort((a, b) => ascending ? a - b : b - a)
    return [`sort ${ascending ? 'asc' : 'des'} ${given.join('')}=`, `[${sorted.join(',')}]`]
  },
  number_filtering (random) {
    const given = numbers(random, 9)
    const bound = halfEven(random.float(Math.min(...given), Math.max(...given)))
    random.int(0, 0)
    const larger = random.choice([true, false])
    const keep = random.choice([true, false])
    const kept = given.filter((n) => (larger ? n > bound : n < bound) === keep)
    return [`${keep ? 'keep' : 'remove'}_${larger ? 'larger' : 'smaller'} ${bound}: ${given.join('')}=`, `[${kept.join(',')}]`]
  }
}

export const canMake = (task) => task in ENTRIES
// The prompt's text and its right answer.
export const prompt = (task, seed) => ENTRIES[task](new Random(seed))
export const configHash = (configuration) => sha256(utf8(configuration)).subarray(0, 16)
// What the question is for: "training", or "validation" or "test", on which nobody trains.
export const partOf = (question) => {
  const normalised = question.normalize('NFKC').toLowerCase().split(/\s+/).filter(Boolean).join(' ')
  return ['validation', 'test'][sha256(utf8(`starling/split/1\n${normalised}`))[0] % 16] ?? 'training'
}
