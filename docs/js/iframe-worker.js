/* Search runs in a Worker, which browsers refuse to a page that was opened from the file system.
   There this class takes the place of Worker. It runs the same script in a hidden frame, and
   delivers messages as a Worker does: copied, and after the sender has returned. */
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
          const event = new MessageEvent("message", { data: structuredClone(data) });
          setTimeout(() => {
            this.dispatchEvent(event);
            if (this.onmessage) this.onmessage(event);
          });
        };
        inside.importScripts = (...scripts) =>
          scripts.reduce(
            (before, script) => before.then(() => this.load(inside, script)),
            Promise.resolve(),
          );
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
      const event = new MessageEvent("message", { data: structuredClone(data) });
      setTimeout(() => this.inside.dispatchEvent(event));
    }
    terminate() {}
  };
}
