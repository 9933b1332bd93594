// "Private clusters": documents, invites, who is admitted.
import { Refused, base58, equal, hex, join, sha256, unbase58, unhex, utf8 } from './bytes.js'
import { array, bin, bool, checkStructure, counter, decoded, encoded, hash16, hash32, int, name, oneOf, struct, value } from './encoding.js'
import { Key, peerIdOf, verify } from './identity.js'

const SECONDS = 137_438_953_471
const WINDOW = 300
const time = int(0, SECONDS)
const tasks = array(struct(name, int(0, 2 ** 31 - 1), hash16), 0, 1024)

const KINDS = {
  manifest: ['starling/cluster-manifest/1', struct(name, tasks, hash32, time, oneOf('invitation', 'owner'), int(1, 4096), int(1, SECONDS))],
  invitation: ['starling/invitation/1', struct(hash16, hash32, int(1, 4096), bool, time, time, time, name)],
  join: ['starling/join/1', struct(bin(0, 1024), hash32, time)],
  certificate: ['starling/certificate/1', struct(hash16, hash32, hash32, time, time, name)],
  revocations: ['starling/revocations/1', struct(hash16, counter, time, array(hash32), array(hash32))]
}
const most = (kind) => kind === 'manifest' ? 262_144 : kind === 'revocations' ? 32_768 : 1024

// A document's payload, its body and its signatures; damage is `damaged`, another major version `version`.
function read (kind, raw) {
  const [domain, type] = KINDS[kind]
  try {
    const parts = kind === 'join' ? struct(bin(0, 1024), bin(64), bin(64)) : struct(bin(0, most(kind)), bin(64))
    const [payload, ...signatures] = decoded(raw, parts, most(kind))
    checkStructure(payload)
    const given = value(payload)
    if (!Array.isArray(given) || given.length < 3) throw new Refused('damaged')
    if (given[0] !== 1) throw new Refused('version')
    return { payload, signatures, body: type(given[2]), domain }
  } catch (error) {
    if (error instanceof Refused) throw new Refused(error.reason === 'version' ? 'version' : 'damaged', error.message)
    throw error
  }
}
const signed = ({ payload, domain }, signature, key) => {
  if (!verify(key, domain, payload, signature)) throw new Refused('wrong_key')
}

export function openManifest (raw) {
  const found = read('manifest', raw)
  signed(found, found.signatures[0], found.body[2])
  return { body: found.body, swarmId: sha256(utf8('starling/cluster/1\0'), found.payload).subarray(0, 16) }
}

function openInvitation (raw, owner) {
  const found = read('invitation', raw)
  signed(found, found.signatures[0], owner)
  const [swarmId, key, seats, needsOwner, made, from, joinBy] = found.body
  return { swarmId, key, seats, needsOwner, made, from, joinBy }
}

const credentialType = struct(oneOf('join', 'certificate'), bin(0, 1024))

// Who is admitted, in the page's order. Returns { peer, invitation, made, until }, or throws its reason.
export function judge (now, { body: [, , owner, , admission, members, membership], swarmId }, revoked, raw, shownBy) {
  let kind, document
  try { [kind, document] = decoded(raw, credentialType, 1024) } catch (error) { throw new Refused('damaged', error.message) }
  const found = read(kind, document)
  const isRevoked = (list, key) => revoked !== null && revoked.body[list].some((each) => equal(each, key))
  if (kind === 'certificate') {
    const [theirs, peer, invitation, made, until] = found.body
    signed(found, found.signatures[0], owner)
    if (!equal(theirs, swarmId)) throw new Refused('wrong_swarm')
    if (!equal(peer, shownBy)) throw new Refused('wrong_key')
    if (made > now + WINDOW) throw new Refused('clock')
    if (now >= until) throw new Refused('expired')
    if (isRevoked(3, peer)) throw new Refused('revoked')
    return { peer, invitation, made, until, byOwner: true }
  }
  const [document2, peer, joined] = found.body
  const invitation = openInvitation(document2, owner)
  signed(found, found.signatures[0], invitation.key)
  signed(found, found.signatures[1], peer)
  if (!equal(invitation.swarmId, swarmId)) throw new Refused('wrong_swarm')
  if (!equal(peer, shownBy)) throw new Refused('wrong_key')
  if (invitation.needsOwner || admission === 'owner') throw new Refused('needs_owner')
  if (joined > now + WINDOW || joined < invitation.made - WINDOW) throw new Refused('clock')
  if (joined < invitation.from - WINDOW) throw new Refused('not_yet_valid')
  if (joined >= invitation.joinBy || now >= joined + membership) throw new Refused('expired')
  if (isRevoked(3, peer) || isRevoked(4, invitation.key)) throw new Refused('revoked')
  return { peer, invitation: invitation.key, made: joined, until: joined + membership, byOwner: false, seats: invitation.seats, members }
}

const inviteType = struct(bin(0, 1024), hash32, hash32, hash32, array(struct(bin(4, 16), int(1, 65535), hash32), 0, 8))
const checksum = (body) => sha256(utf8('starling/invite/1\0'), body).subarray(0, 4)

export function readInvite (text) {
  const bare = text.replace(/\s/g, '')
  if (!bare.startsWith('starling://1')) throw new Refused('damaged')
  const raw = unbase58(bare.slice('starling://1'.length))
  const body = raw.subarray(0, -4)
  if (!equal(checksum(body), raw.subarray(-4))) throw new Refused('damaged', 'checksum')
  return { body, fields: decoded(body, inviteType, 2000) }
}

const address = ([ip, port, peer]) => {
  const shown = ip.length === 4 ? `/ip4/${[...ip].join('.')}` : `/ip6/${hex(ip).match(/.{4}/g).join(':')}`
  return `${shown}/tcp/${port}/p2p/${peerIdOf(peer)}`
}
const sameAddress = (ours, theirs) => {
  const [, kind, ip, , port, , peer] = theirs.split('/')
  const groups = (text) => {
    const [left, right] = text.split('::').map((half) => half ? half.split(':') : [])
    return right === undefined ? left : [...left, ...Array(8 - left.length - right.length).fill('0'), ...right]
  }
  const shown = kind === 'ip4' ? ip : groups(ip).map((group) => group.padStart(4, '0')).join(':')
  return ours === `/${kind}/${shown}/tcp/${port}/p2p/${peer}`
}

export function checkMembership (v, holds, agrees) {
  const [owner, invitationKey, peer] = [v.owner_seed, v.invitation_seed, v.peer_seed].map((seed) => new Key(unhex(seed)))
  const cluster = openManifest(unhex(v.manifest_document))
  holds(agrees(cluster.body, v.manifest) && hex(cluster.swarmId) === v.swarm_id, 'manifest')
  const made = encoded([1, 4, cluster.body])
  holds(hex(encoded([made, owner.sign('starling/cluster-manifest/1', made)])) === v.manifest_document, 'manifest made again')
  const { body, fields: [document, secret, ownerKey, psk, addresses] } = readInvite(v.invite)
  holds(hex(document) === v.invitation_document && hex(psk) === v.psk && equal(ownerKey, owner.public), 'invite')
  holds(equal(secret, invitationKey.seed) && equal(openInvitation(document, owner.public).key, invitationKey.public), 'secret')
  holds(addresses.every((each, i) => sameAddress(address(each), v.addresses[i])), 'addresses')
  holds('starling://1' + base58(join(body, checksum(body))) === v.invite, 'invite made again')
  for (const credential of v.credentials) {
    const revoked = credential.revocations === null ? null : read('revocations', unhex(credential.revocations))
    let found
    try {
      const admitted = judge(credential.now_seconds, cluster, revoked, unhex(credential.credential), peer.public)
      found = 'admitted'
      const { answer } = credential
      holds(admitted.byOwner === answer.certified && admitted.until === answer.until_seconds, `${credential.name}: until when`)
      holds(hex(admitted.peer) === answer.peer && hex(admitted.invitation) === answer.invitation, credential.name)
    } catch (error) {
      if (!(error instanceof Refused)) throw error
      found = error.reason
    }
    holds(found === (typeof credential.answer === 'string' ? credential.answer : 'admitted'), `${credential.name}: ${found}`)
  }
}
