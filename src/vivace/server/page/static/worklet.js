// Plays pieces of sound as soon as they come, without a buffer to fill first, and counts honestly
// how often and for how long it was silent in between. Once it ran dry it waits for a little more
// than the next piece: one long gap is easier to listen through than many short ones. Posts its
// state some 25 times a second.

const AUDIBLE = 0.008; // the peak of a sine at -45 dBFS
const REFILL = 3840; // samples that end a gap: 160 ms
const REPORT_FRAMES = 896; // 7 quanta, 37 ms

class Speaker extends AudioWorkletProcessor {
  constructor() {
    super();
    this.pieces = [];
    this.offset = 0; // into the first piece
    this.buffered = 0; // samples that wait
    this.played = 0;
    this.gap = 0; // samples of silence since it ran dry
    this.ended = false;
    this.stopped = false;
    this.heard = false;
    this.nextReport = 0;
    this.port.onmessage = ({ data }) => this.take(data);
  }

  take({ pcm, end, stop }) {
    if (pcm) {
      this.pieces.push(pcm);
      this.buffered += pcm.length;
    }
    this.ended ||= Boolean(end);
    this.stopped ||= Boolean(stop);
  }

  process(_inputs, [[out]]) {
    if (this.stopped) return false;
    const filled = this.fill(out);
    if (!this.heard) this.listen(out, filled);
    if (filled < out.length && this.ended) {
      this.report({ done: true });
      return false;
    }
    if (filled < out.length && this.played) this.gap += out.length - filled;
    if (currentFrame >= this.nextReport) this.report();
    return true;
  }

  fill(out) {
    if (this.gap && this.buffered) {
      if (this.buffered < REFILL && !this.ended) return 0;
      this.resume();
    }
    let filled = 0;
    while (filled < out.length && this.pieces.length) {
      const piece = this.pieces[0];
      const part = piece.subarray(this.offset, this.offset + out.length - filled);
      out.set(part, filled);
      filled += part.length;
      this.offset += part.length;
      if (this.offset === piece.length) {
        this.pieces.shift();
        this.offset = 0;
      }
    }
    this.played += filled;
    this.buffered -= filled;
    return filled;
  }

  resume() {
    this.report({ gap: this.gap }); // only now: silence behind the last word is no gap
    this.gap = 0;
  }

  listen(out, filled) {
    const at = out.findIndex((sample) => Math.abs(sample) >= AUDIBLE);
    if (at < 0) return;
    this.heard = true;
    this.report({ heard: { frame: currentFrame + at, sample: this.played - filled + at } });
  }

  report(extra) {
    this.nextReport = currentFrame + REPORT_FRAMES;
    const { played, buffered } = this;
    this.port.postMessage({ played, buffered, dry: this.gap > 0, ...extra });
  }
}

registerProcessor("speaker", Speaker);
