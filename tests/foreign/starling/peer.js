// A member of an open swarm: "Connecting", "Manifest", "Peer exchange", "Gossip", "Blobs".
import '../polyfill.js'
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { privateKeyFromRaw } from '@libp2p/crypto/keys'
import { TopicValidatorResult, gossipsub } from '@libp2p/gossipsub'
import { identify } from '@libp2p/identify'
import { tcp } from '@libp2p/tcp'
import { byteStream } from '@libp2p/utils'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'
import * as announcements from './announcements.js'
import * as blobs from './blobs.js'
import { Refused, equal, hex, join } from './bytes.js'
import { frame, frameLength } from './encoding.js'
import { field, fields, messageId, varint } from './gossip.js'
import * as manifest from './manifest.js'
import * as streams from './streams.js'

const MANIFEST = '/starling/manifest/1'
const PEERS = '/starling/peers/1'
const KAD = '/ipfs/kad/1.0.0'
const BLOBS = '/starling/blobs/1'
const FAULTS = new Set(['oversized', 'malformed', 'signature', 'wrong_swarm', 'version'])
const STREAM_MS = 10_000
const RANGE_CHUNKS = 4
const AHEAD_REQUESTS = 4

const reader = (bytes) => async (count, signal = AbortSignal.timeout(STREAM_MS)) =>
  count === 0 ? new Uint8Array() : (await bytes.read({ bytes: count, signal })).subarray()
async function readFrame (read, most, signal) {
  return read(frameLength(await read(4, signal), most), signal)
}

export class Peer {
  static async start (key, { listen = '/ip4/127.0.0.1/tcp/0' } = {}) {
    const peer = new Peer()
    peer.key = key
    peer.blobs = new Map() // by id in hexadecimal
    peer.members = new Set()
    peer.heard = []
    peer.sequence = Date.now() * 1000
    peer.net = await createLibp2p({
      privateKey: privateKeyFromRaw(join(key.seed, key.public)),
      addresses: { listen: [listen] },
      transports: [tcp()],
      connectionEncrypters: [noise()],
      streamMuxers: [yamux()],
      services: {
        identify: identify(),
        pubsub: gossipsub({
          globalSignaturePolicy: 'StrictSign',
          msgIdFn: ({ topic, data }) => messageId(topic, data),
          emitSelf: false,
          fallbackToFloodsub: false,
          allowPublishToZeroTopicPeers: true
        })
      }
    })
    const contained = (serve) => (stream, connection) =>
      serve(stream, connection).catch((error) => stream.abort(error))
    await peer.net.handle(PEERS, contained((stream, connection) => peer.answerPeer(stream, connection)))
    await peer.net.handle(BLOBS, contained((stream) => peer.serveBlobs(stream)))
    return peer
  }

  stop () { return this.net.stop() }
  addresses () { return this.net.getMultiaddrs().map(String) }
  protocolsOf (peerId) { return this.net.peerStore.get(peerId).then(({ protocols }) => protocols) }
  async connect (address) { return (await this.net.dial(multiaddr(address))).remotePeer }

  // Manifest

  async askManifest (peerId) {
    const stream = await this.net.dialProtocol(peerId, MANIFEST)
    const read = reader(byteStream(stream))
    await stream.close()
    const found = manifest.readManifest(await readFrame(read, manifest.MANIFEST_BYTES))
    return { manifest: found, swarmId: manifest.swarmIdOf(found) }
  }

  // Peer exchange

  async askPeers (peerId, sought = []) {
    const stream = await this.net.dialProtocol(peerId, PEERS)
    const bytes = byteStream(stream)
    await bytes.write(frame([this.swarmId, this.addresses().slice(0, 8), sought]))
    const answer = streams.read('peer', 'answer', await readFrame(reader(bytes), streams.MOST_BYTES.peers))
    await stream.close()
    const [swarmId, own, others] = answer
    if (!equal(swarmId, this.swarmId)) throw new Refused('wrong_swarm', hex(swarmId))
    this.members.add(peerId.toString())
    return { own: own.filter((address) => address.endsWith(`/p2p/${peerId}`)), others }
  }

  async answerPeer (stream, connection) {
    const bytes = byteStream(stream)
    const [swarmId] = streams.read('peer', 'question', await readFrame(reader(bytes), streams.MOST_BYTES.peers))
    const ours = this.swarmId !== undefined && equal(swarmId, this.swarmId)
    if (ours) this.members.add(connection.remotePeer.toString())
    await bytes.write(frame([this.swarmId ?? new Uint8Array(16), ours ? this.addresses().slice(0, 8) : [], []]))
    await stream.close()
  }

  // DHT: the peer ids, as bytes, that the peer names as providers of the swarm's key

  async askProviders (peerId) {
    const request = join(new Uint8Array([0x08, 0x03]), field(2, manifest.providerKey(this.swarmId))) // GET_PROVIDERS
    const stream = await this.net.dialProtocol(peerId, KAD)
    const bytes = byteStream(stream)
    const read = reader(bytes)
    await bytes.write(join(new Uint8Array(varint(request.length)), request))
    let length = 0
    for (let shift = 0, byte = 0x80; byte >= 0x80; shift += 7) {
      byte = (await read(1))[0]
      length += (byte & 0x7f) * 2 ** shift
    }
    const answer = await read(length)
    await stream.close()
    return [...fields(answer)].filter(([number]) => number === 9).map(([, peer]) => [...fields(peer)].find(([n]) => n === 1)[1])
  }

  // Gossip

  // Joins the gossip of a swarm; `onAnnouncement` gets every accepted one.
  async join (swarmId, onAnnouncement = () => {}) {
    this.swarmId = swarmId
    this.topic = manifest.topicOf(swarmId)
    const pubsub = this.net.services.pubsub
    const last = new Map() // highest sequence by sender: enough of a replay window for a client that lives shortly
    pubsub.topicValidators.set(this.topic, (forwarder, { data }) => {
      try {
        const found = announcements.open(data, this.swarmId, Date.now())
        if (found.sender === this.key.peerId || found.sequence <= (last.get(found.sender) ?? -1)) return TopicValidatorResult.Ignore
        last.set(found.sender, found.sequence)
        this.heard.push(found)
        onAnnouncement(found)
        return TopicValidatorResult.Accept
      } catch (error) {
        if (!(error instanceof Refused)) throw error
        return FAULTS.has(error.reason) ? TopicValidatorResult.Reject : TopicValidatorResult.Ignore
      }
    })
    pubsub.subscribe(this.topic)
  }

  async announce (body) {
    const raw = announcements.seal(this.key, this.swarmId, ++this.sequence, Date.now(), body)
    const { recipients } = await this.net.services.pubsub.publish(this.topic, raw)
    return recipients.map(String)
  }

  // Blobs

  keep (content) {
    const id = blobs.blobId(content)
    this.blobs.set(hex(id), content)
    return id
  }

  async serveBlobs (stream) {
    const bytes = byteStream(stream)
    const read = reader(bytes)
    const find = (id) => this.blobs.get(hex(id))
    while (true) {
      let head
      try {
        head = await read(4, AbortSignal.timeout(5_000))
      } catch { // the asker ended its direction, or asks no more
        await stream.close()
        return
      }
      const ranges = blobs.readRequest(await read(frameLength(head, blobs.BLOB_REQUEST_BYTES)))
      for (const range of ranges) await bytes.write(join(...blobs.answer(range, find))) // as much as a window at once
    }
  }

  // Fetches a whole blob of an advertised size from one peer; every chunk is verified.
  async fetch (peerId, blob, size) {
    const stream = await this.net.dialProtocol(peerId, BLOBS)
    const bytes = byteStream(stream, { maxBufferSize: 32 << 20 })
    const read = reader(bytes)
    const ranges = []
    for (let first = 0; first < Math.max(1, blobs.chunkCount(size)); first += RANGE_CHUNKS) {
      ranges.push([blob, first, RANGE_CHUNKS, first === 0])
    }
    const chunks = []
    let hashes
    let asked = 0
    try {
      for (const [i, range] of ranges.entries()) {
        while (asked < Math.min(ranges.length, i + AHEAD_REQUESTS)) await bytes.write(frame([ranges[asked++]]))
        const found = await blobs.readAnswer(read, range, hashes)
        if (found.status !== 0) throw new Refused(found.status === 2 ? 'busy' : 'missing')
        if (found.size !== size) throw new Refused('integrity', `${found.size} bytes, ${size} were advertised`)
        hashes = found.hashes
        chunks.push(...found.chunks)
      }
      await stream.close()
    } catch (error) {
      stream.abort(error)
      throw error
    }
    return join(...chunks)
  }
}
