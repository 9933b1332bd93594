// Joins a running node's swarm, hears it, exchanges blobs with it, and is learnt from. Each step prints what it shows;
// the first one that fails ends the program with 1.
//
//   node run.js ADDRESS HOME PYTHON      an address of the node, its data directory, a Python with starling
import './polyfill.js'
import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import http from 'node:http'
import { isDeepStrictEqual, promisify } from 'node:util'
import { advertOf, encodeContent, groupBlob, readGroup } from './starling/groups.js'
import { base58, equal, hex, sha256, utf8 } from './starling/bytes.js'
import { Key } from './starling/identity.js'
import { providerKey } from './starling/manifest.js'
import { Peer } from './starling/peer.js'
import { canMake, partOf, prompt } from './starling/prompts.js'
import { checkVectors } from './vectors.js'

const [address, home, python] = process.argv.slice(2)
const MEGABYTES = 8_000_000
const HEAR_SECONDS = 90
const LEARN_SECONDS = Number(process.env.LEARN_SECONDS ?? 240)
const COMPLETIONS = 8
const GROUPS_OF_TASK = 4
const END = 256 // our tokens are bytes, and one that ends a completion
const TOKENIZER = sha256(utf8('foreign client: bytes')).subarray(0, 16)
const FAMILY = sha256(utf8('foreign client: no weights')).subarray(0, 16)

const plain = (values) => values.map((each) => each instanceof Uint8Array ? hex(each) : each)
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds))
const seconds = (since) => `${((Date.now() - since) / 1000).toFixed(1)} s`
function fail (why) {
  console.log(`FAILED  ${why}`)
  process.exit(1)
}
const holds = (condition, why) => { if (!condition) fail(why) }
async function step (name, act) {
  const began = Date.now()
  try {
    console.log(`ok      ${name}: ${await act()} (${seconds(began)})`)
  } catch (error) {
    fail(`${name}: ${error.stack}`)
  }
}
async function until (what, found, limitSeconds) {
  const began = Date.now()
  for (;;) {
    const result = await found()
    if (result) return result
    if (Date.now() - began > 1000 * limitSeconds) throw new Error(`not in ${limitSeconds} s: ${what}`)
    await pause(0.2)
  }
}
const nodeSide = async (...words) =>
  (await promisify(execFile)(python, ['-m', 'tests.foreign.node_side', ...words, home], { cwd: new URL('../..', import.meta.url) })).stdout.trim()
const api = (path) => new Promise((resolve, reject) => {
  http.get({ socketPath: `${home}/supervisor.sock`, path, headers: { host: 'localhost' } }, (response) => {
    let body = ''
    response.on('data', (part) => { body += part }).on('end', () => resolve(JSON.parse(body)))
  }).on('error', reject)
})

const peer = await Peer.start(new Key(new Uint8Array(randomBytes(32))))
let node
let swarm

await step('vectors', async () => {
  const { agreed, wrong } = await checkVectors()
  holds(wrong.length === 0, wrong.join('\n'))
  return `all ${agreed} agree`
})

await step('connects', async () => {
  node = await peer.connect(address)
  const known = await until('identify', async () => {
    const protocols = await peer.protocolsOf(node)
    return protocols.some((each) => each.startsWith('/meshsub/')) && protocols
  }, 10)
  for (const wanted of ['/ipfs/kad/1.0.0', '/starling/manifest/1', '/starling/peers/1', '/starling/blobs/1']) {
    holds(known.includes(wanted), `the node does not name ${wanted}`)
  }
  return `Noise and Yamux, ${known.filter((each) => each.startsWith('/meshsub/')).join(' ')}`
})

await step('learns which swarm it met', async () => {
  swarm = await peer.askManifest(node)
  return `"${swarm.manifest[0]}", ${swarm.manifest[1].length} tasks, id ${hex(swarm.swarmId)}`
})

await step('is a member', async () => {
  await peer.join(swarm.swarmId)
  const { own } = await peer.askPeers(node)
  holds(own.includes(address), `the node names ${own}, not ${address}`)
  return `the node gives ${own.length} of its addresses`
})

await step('finds a member in the DHT', async () => {
  const found = await until('the node names itself as a provider', async () => {
    const providers = await peer.askProviders(node)
    return providers.some((id) => base58(id) === node.toString()) && providers
  }, 30)
  return `${found.length} provider${found.length === 1 ? '' : 's'} of ${hex(providerKey(swarm.swarmId)).slice(0, 12)}…`
})

const nodeHeartbeats = () => peer.heard.filter(({ sender, body }) => sender === node.toString() && body[0] === 'heartbeat')
await step('hears heartbeats', async () => {
  await until('two heartbeats', () => nodeHeartbeats().length >= 2, HEAR_SECONDS)
  const [, name, software, model] = nodeHeartbeats()[0].body
  return `"${name}", ${software}, ${model}`
})

const beat = () => peer.announce(['heartbeat', 'foreign', 'foreign-client 1', 'answers from a table', FAMILY, TOKENIZER,
  0, 1, 'learn', 0, announced, 0, [], new Uint8Array()])
let announced = 0
setInterval(() => beat().catch((error) => fail(`a heartbeat: ${error.stack}`)), 5000)
await step('is heard', async () => {
  await beat()
  const found = await until('the node lists us', async () => {
    const { peers } = await api('/api/v1/peers')
    return peers.find((each) => each.peer === peer.key.peerId && each.heartbeat?.name === 'foreign')
  }, 30)
  return `the node lists "${found.heartbeat.name}", ${found.heartbeat.software}`
})

await step('hears rollouts, fetches and checks a group', async () => {
  const { body } = await until('a rollout advert', () => peer.heard.find(({ sender, body }) => sender === node.toString() && body[0] === 'rollouts'), HEAR_SECONDS)
  const [, family, tokenizer, version, adverts] = body
  let checked = 0
  for (const advert of adverts.slice(0, 8)) {
    const [blob, size, reference] = advert
    const group = readGroup(await peer.fetch(node, blob, size), advert[4].reduce((a, b) => a + b, 0))
    const claims = advertOf(group, { length: size }, blob)
    holds(equal(group.family, family) && equal(group.tokenizer, tokenizer) && group.policyVersion === version, 'integrity: policy')
    holds(isDeepStrictEqual(plain(group.prompt), plain(reference)), 'integrity: prompt')
    holds(isDeepStrictEqual(claims.slice(3, 5), advert.slice(3, 5)), 'integrity: rewards or lengths')
    holds(claims[5].every((mean, i) => Math.abs(mean - advert[5][i]) <= 0.01), 'integrity: mean log-probabilities')
    if (!canMake(reference[0])) continue
    const [, answer] = prompt(reference[0], reference[3])
    for (const { text, reward } of group.completions) {
      holds(Buffer.from(text).toString() !== answer || reward === 1, `"${answer}" has reward ${reward} in ${reference[0]}`)
    }
    checked++
  }
  return `${adverts.length} groups announced; of ${Math.min(8, adverts.length)} fetched, ${checked} have prompts that we make too`
})

await step('fetches 8 MB from the node', async () => {
  const digest = await nodeSide('share', String(MEGABYTES))
  const { body } = await until('its state', () => peer.heard.find(({ body }) => body[0] === 'state' && body[6][1] === MEGABYTES), 30)
  const [blob, size] = body[6]
  const rounds = []
  for (let round = 0; round < 3; round++) {
    const began = Date.now()
    const content = await peer.fetch(node, blob, size)
    holds(hex(sha256(content)) === digest, 'other bytes came')
    rounds.push(seconds(began))
  }
  return `three of three times whole, in ${rounds.join(', ')}`
})

await step('serves 8 MB to the node', async () => {
  const rounds = []
  for (let round = 0; round < 3; round++) {
    const content = new Uint8Array(randomBytes(MEGABYTES))
    const blob = peer.keep(content)
    const began = Date.now()
    const digest = await nodeSide('fetch', hex(blob), String(content.length), peer.key.peerId)
    holds(digest === hex(sha256(content)), 'the node has other bytes')
    rounds.push(seconds(began))
  }
  return `three of three times whole, in ${rounds.join(', ')} with the start of a Python each`
})

await step('is learnt from', async () => {
  const tasks = swarm.manifest[1].filter(([name]) => canMake(name))
  const used = async () => {
    const rollouts = await api('/api/v1/rollouts')
    const ours = JSON.stringify(rollouts).includes(peer.key.peerId) ? findOurs(rollouts) : []
    return { ours, used: ours.filter((each) => each.outcome === 'used') }
  }
  const findOurs = (value) => Array.isArray(value)
    ? value.flatMap(findOurs)
    : value !== null && typeof value === 'object'
      ? (value.peer === peer.key.peerId && 'outcome' in value ? [value] : Object.values(value).flatMap(findOurs))
      : []
  const counted = () => Math.max(...nodeHeartbeats().map(({ body }) => Number(body[11])))
  let seed = randomBytes(4).readUInt32BE() % 2 ** 30
  const began = Date.now()
  for (;;) {
    const adverts = []
    for (const [name, version, hash] of tasks) {
      for (let n = 0; n < GROUPS_OF_TASK; n++) {
        while (partOf(prompt(name, seed)[0]) !== 'training') seed++
        const reference = [name, version, hash, seed++]
        const [, answer] = prompt(name, reference[3])
        const text = utf8(answer)
        const completion = {
          text, ids: [...text, END], tokenBytes: [...text.map(() => 1), 0], logps: Array(text.length + 1).fill(0), stop: true, reward: 1
        }
        const group = { prompt: reference, family: FAMILY, tokenizer: TOKENIZER, policyVersion: 1, completions: Array(COMPLETIONS).fill(completion) }
        const blob = groupBlob(encodeContent(group))
        adverts.push(advertOf(group, blob, peer.keep(blob)))
      }
    }
    await peer.announce(['rollouts', FAMILY, TOKENIZER, 1, adverts])
    announced += adverts.length
    for (let i = 0; i < 10; i++) {
      const found = await used()
      if (found.used.length && counted() > 0) {
        return `${announced} groups announced; the node's record says "used" of ${found.used.length} from us, its heartbeat counts ${counted()}`
      }
      if (Date.now() - began > 1000 * LEARN_SECONDS) throw new Error(`no group was used: ${JSON.stringify(found.ours.slice(-5))}`)
      await pause(1)
    }
  }
})

await step('says goodbye', async () => {
  await peer.announce(['goodbye', 'done'])
  await until('the node disconnects', () => peer.net.getConnections(node).length === 0, 15)
  return 'the node closed the connection'
})
await peer.stop()
process.exit(0)
