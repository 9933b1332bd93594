// libp2p uses Promise.withResolvers, which Node.js has since version 22.
Promise.withResolvers ??= function () {
  let resolve, reject
  const promise = new this((onResolve, onReject) => { resolve = onResolve; reject = onReject })
  return { promise, resolve, reject }
}
