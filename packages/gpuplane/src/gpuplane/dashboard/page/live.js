// The cluster's state in this page: one snapshot, then merge patches (RFC 7396) by server-sent events.

const SILENT = 7000; // ms without a sign of life after which the page says that it is old

export function merged(old, changes) {
  const result = { ...old };
  for (const [key, value] of Object.entries(changes)) {
    if (value === null) delete result[key];
    else if (typeof value === "object" && !Array.isArray(value)) {
      const before = result[key];
      result[key] = merged(before && typeof before === "object" && !Array.isArray(before) ? before : {}, value);
    } else result[key] = value;
  }
  return result;
}

export class Live {
  // changed() is called when data are new, heard() at every sign of life.
  constructor(changed, heard) {
    this.data = null;
    this.why = "";
    this.refused = "";
    this.trouble = ""; // why the dashboard gives no data now, in its words
    this.changed = changed;
    this.heard = heard;
    this.current = performance.now(); // when the data were current for the last time
    this.sign = performance.now();
    this.source = null;
  }

  async start() {
    this.source?.close();
    this.source = null;
    try {
      const answer = await fetch("/api/snapshot");
      if (answer.status === 401) {
        location.assign("/login");
        return;
      }
      if (answer.status === 403) {
        const says = answer.headers.get("content-type")?.startsWith("application/json") ? await answer.json() : {};
        this.refused = says.what || "The dashboard was started again: open the address that it printed.";
        this.heard();
        return;
      }
      if (!answer.ok) {
        const { what = "", cure = "" } = await answer.json();
        this.trouble = [what, cure].filter(Boolean).join(": ");
        throw new Error(String(answer.status));
      }
      this.trouble = "";
      const { version, data } = await answer.json();
      this.data = data;
      this.alive();
      this.changed();
      this.listen(version);
    } catch {
      this.heard();
      setTimeout(() => this.start(), 2000);
    }
  }

  listen(version) {
    const source = new EventSource(`/api/changes?after=${version}`);
    this.source = source;
    source.addEventListener("change", (event) => {
      this.data = merged(this.data, JSON.parse(event.data));
      this.alive();
      this.changed();
    });
    source.addEventListener("state", (event) => {
      const { why, seconds } = JSON.parse(event.data);
      this.why = why;
      this.sign = performance.now();
      this.current = this.sign - seconds * 1000;
      this.heard();
    });
    source.addEventListener("again", () => this.start());
    source.addEventListener("error", () => {
      this.heard();
      // A browser gives up where the answer is no stream; a server that comes back has another snapshot.
      if (source.readyState === EventSource.CLOSED) setTimeout(() => this.start(), 2000);
    });
  }

  alive() {
    this.sign = performance.now();
    this.current = this.sign;
  }

  // How old the data are, in whole seconds; 0 while they are current.
  oldness() {
    const now = performance.now();
    if (this.why || now - this.sign > SILENT) return Math.max(1, Math.floor((now - this.current) / 1000));
    return 0;
  }

  get silent() {
    return performance.now() - this.sign > SILENT;
  }
}
