// Two ways to play a stream: an AudioWorklet, or, where the browser has none (plain http from
// another machine), buffers scheduled one behind the other. Both start at once, count gaps, and
// wait for a little more before they go on after one.
//
// A player has push(pcm), end() and stop(), and calls `report` with
//   { played, buffered, dry }   samples, samples, whether it waits for more
//   { gap }                     samples of silence between two pieces
//   { heard }                   { at: performance.now() of the first audible sample, sample }
//   { done }                    all was played

import { RATE } from "./sound.js";

const AUDIBLE = 0.008;
const REFILL_S = 0.16;
const REPORT_MS = 37;

let context;
let worklet; // resolves to whether there is one

/** Makes the audio context ahead of its first use; it stays silent until a gesture. */
export function prepare() {
  if (context) return;
  context = new AudioContext({ sampleRate: RATE, latencyHint: "interactive" });
  worklet = context.audioWorklet
    ? context.audioWorklet.addModule(new URL("worklet.js", import.meta.url)).then(() => true)
    : Promise.resolve(false);
}

/** A player, its sound running. Call it from a gesture. */
export async function openPlayer(report) {
  prepare();
  const running = context.resume();
  const modern = await worklet;
  await running;
  return modern ? workletPlayer(report) : scheduledPlayer(report);
}

/** When a moment of the context's clock reaches the listener, in performance.now() terms. */
function wallClock(contextS) {
  const latencyS = context.outputLatency || context.baseLatency || 0;
  return performance.now() + (contextS - context.currentTime + latencyS) * 1000;
}

function workletPlayer(report) {
  const node = new AudioWorkletNode(context, "speaker", {
    numberOfInputs: 0,
    outputChannelCount: [1],
  });
  node.port.onmessage = ({ data: { heard, ...state } }) => {
    if (heard) state.heard = { at: wallClock(heard.frame / RATE), sample: heard.sample };
    report(state);
    if (state.done) node.disconnect();
  };
  node.connect(context.destination);
  return {
    push: (pcm) => node.port.postMessage({ pcm }),
    end: () => node.port.postMessage({ end: true }),
    stop() {
      node.port.postMessage({ stop: true });
      node.disconnect();
    },
  };
}

function scheduledPlayer(report) {
  const sources = new Set();
  let queued = 0; // samples
  let until = 0; // the context's time when they are played; 0 before the first
  let ended = false;
  let heard = false;

  const state = () => {
    const buffered = Math.max(0, Math.round((until - context.currentTime) * RATE));
    return { played: Math.max(0, queued - buffered), buffered, dry: until > 0 && !buffered };
  };
  const timer = setInterval(() => {
    const now = state();
    const done = ended && !now.buffered;
    report({ ...now, dry: now.dry && !ended, done });
    if (done) clearInterval(timer);
  }, REPORT_MS);

  return {
    push(pcm) {
      const buffer = context.createBuffer(1, pcm.length, RATE);
      buffer.copyToChannel(pcm, 0);
      const source = new AudioBufferSourceNode(context, { buffer });
      const late = until > 0 && until < context.currentTime;
      const start = late ? context.currentTime + REFILL_S : Math.max(until, context.currentTime);
      if (late) report({ ...state(), gap: Math.round((start - until) * RATE) });
      source.connect(context.destination);
      source.start(start);
      source.onended = () => sources.delete(source);
      sources.add(source);
      const loud = heard ? -1 : pcm.findIndex((sample) => Math.abs(sample) >= AUDIBLE);
      if (loud >= 0) {
        heard = true;
        report({
          ...state(),
          heard: { at: wallClock(start + loud / RATE), sample: queued + loud },
        });
      }
      queued += pcm.length;
      until = start + pcm.length / RATE;
    },
    end: () => (ended = true),
    stop() {
      clearInterval(timer);
      sources.forEach((source) => source.stop());
    },
  };
}
