/* Search runs in a Worker, which browsers refuse to pages that are opened from the file system. There the same script
   runs in a hidden frame instead, and messages go to and fro as they would to a Worker. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      const start = () => {
        document.body.appendChild(frame);
        const inside = frame.contentWindow;
        inside.document.open();
        inside.document.write("<!doctype html><body></body>");
        inside.document.close();
        inside.postMessage = (data) => {
          const event = new MessageEvent("message", { data });
          this.dispatchEvent(event);
          if (this.onmessage) this.onmessage(event);
        };
        inside.importScripts = (...scripts) =>
          scripts.reduce((before, script) => before.then(() => this.load(inside, script)), Promise.resolve());
        this.load(inside, url).then(() => {
          this.inside = inside;
          this.waiting.splice(0).forEach((data) => this.postMessage(data));
        });
      };
      document.body ? start() : addEventListener("DOMContentLoaded", start);
    }
    load(inside, script) {
      return new Promise((done, failed) => {
        const tag = inside.document.createElement("script");
        tag.src = new URL(script, location.href).href;
        tag.onload = done;
        tag.onerror = failed;
        inside.document.body.appendChild(tag);
      });
    }
    postMessage(data) {
      if (!this.inside) return void this.waiting.push(data);
      this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }
    terminate() {}
  };
}
