// Browsers allow a page that was opened from disk no worker, which the search runs in. There a
// frame takes its place.
if (location.protocol === "file:") {
  window.Worker = class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.inside.document.createElement("script");
      script.src = url;
      this.isReady = new Promise((ready) => script.addEventListener("load", ready));
      this.inside.document.body.append(script);
    }

    async postMessage(data) {
      await this.isReady;
      this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
