/* Search where the site is opened from the file system: browsers start no worker there.

   A worker's script runs in a hidden frame of the page instead, with the messages of a worker. */
if (window.location.protocol === 'file:') {
  window.Worker = class extends EventTarget {
    constructor(script) {
      super()
      const frame = document.createElement('iframe')
      frame.hidden = true
      document.documentElement.append(frame)
      const inside = frame.contentWindow
      const deliver = (to, data) => to.dispatchEvent(new MessageEvent('message', {data}))
      this.frame = frame
      this.ready = new Promise((resolve) => {
        inside.postMessage = (data) => deliver(this, data)
        inside.importScripts = (...scripts) => scripts.reduce(
          (before, each) => before.then(() => load(inside.document, each)), Promise.resolve()
        )
        load(inside.document, script).then(resolve)
      })
      this.deliver = (data) => this.ready.then(() => deliver(inside, data))
    }

    postMessage(data) {
      this.deliver(data)
    }

    terminate() {
      this.frame.remove()
    }
  }

  function load(document, source) {
    return new Promise((resolve, reject) => {
      const script = document.createElement('script')
      script.src = new URL(source, window.location.href)
      script.onload = resolve
      script.onerror = () => reject(new Error(`${source} cannot be loaded`))
      document.body.append(script)
    })
  }
}
