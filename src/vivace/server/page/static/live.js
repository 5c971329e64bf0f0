// Types a text into the socket as a language model would, and takes its speech meanwhile.
// One connection serves all turns, one after another.

const PIECE = /\s*(?:\p{Lo}{1,2}|[\p{L}\p{M}]{1,7}|\p{N}{1,3}|\S)|\s+/gu; // about a token
const TICK_MS = 16;
const UNSAID = { voice: null, language: null, instructions: null }; // else the last turn's hold

let socket;
let over; // resolves when the last turn has come to its end

export const pieces = (text) => text.match(PIECE) ?? [];

/** A connection that is open: the one there is, or a new one. */
export async function connect(url) {
  if (!(socket?.readyState < WebSocket.CLOSING)) {
    socket = new WebSocket(url.replace(/^http/, "ws"));
    socket.binaryType = "arraybuffer";
  }
  const line = socket;
  if (line.readyState === WebSocket.CONNECTING)
    await new Promise((done) => (line.onopen = line.onclose = done));
  if (line.readyState !== WebSocket.OPEN) throw new TypeError("not connected");
  return line;
}

/** Write pieces at a pace, which may change meanwhile. Returns how to stop. */
function type(text, pace, write, end) {
  const left = pieces(text);
  let due = 1;
  let before = performance.now();
  const timer = setInterval(tick, TICK_MS);
  function tick() {
    const now = performance.now();
    due += ((now - before) / 1000) * pace();
    before = now;
    const ready = left.splice(0, due);
    due -= ready.length;
    if (ready.length) write(ready.join(""));
    if (left.length) return;
    clearInterval(timer);
    end();
  }
  tick();
  return () => clearInterval(timer);
}

/**
 * One turn: a stream of the bytes of its sound. `told` has pace(), pieces a second, and is called:
 * typed(characters), ended() when the last is sent, skipped(words), cancelled(ms, s heard at most).
 */
export async function dictate(url, text, wishes, told, signal) {
  await over;
  const line = await connect(url);
  // On its way to being closed it would complain; that it is closed is told when it is.
  const say = (type, more) => line.readyState === WebSocket.OPEN && line.send(JSON.stringify({ type, ...more }));
  signal.throwIfAborted();
  return new ReadableStream({
    start(sound) {
      let open = true; // somebody listens
      let left; // when the turn was given up
      let finish;
      over = new Promise((done) => (finish = done));
      say("session.update", { ...UNSAID, ...wishes, format: "pcm" });
      const write = (piece) => (say("input_text.append", { text: piece }), told.typed(piece.length));
      const end = () => (say("input_text.end"), told.ended());
      const hush = type(text, told.pace, write, end);

      const leave = (error) => {
        if (!open) return;
        open = false;
        hush();
        sound.error(error);
        left = performance.now();
        if (line.readyState === WebSocket.OPEN) say("response.cancel");
        else finish();
      };
      const hear = {
        "response.cancelled"({ played_s }) {
          told.cancelled(performance.now() - left, played_s);
          finish();
        },
        "speech.audio.done"({ error, skipped }) {
          finish();
          if (!open) return;
          hush(); // it may end before its text does
          if (skipped.length) told.skipped(skipped);
          open = false;
          if (error) sound.error(new Error(error.message));
          else sound.close();
        },
        error({ error }) {
          if (open) leave(new Error(error.message));
          else if (error.code === "no_open_turn") finish(); // there was nothing to cancel
        },
      };
      line.onmessage = ({ data }) => {
        if (typeof data === "string") {
          const message = JSON.parse(data);
          hear[message.type]?.(message);
        } else if (open) sound.enqueue(new Uint8Array(data, 4)); // behind the turn's number
      };
      line.onclose = () => (leave(new TypeError("closed")), finish());
      signal.addEventListener("abort", () => leave(signal.reason));
    },
  });
}
