// Two canvases: the sound with what has been played, and how much waits in the buffer.

import { RATE } from "./sound.js";

const BIN = 240; // samples of 10 ms
const BAR = 3;
const STEP = 5; // CSS pixels from bar to bar
const HEADROOM = 16; // for the label of the highest tick
const TICKS = [0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500]; // s

/** Draws for as long as the canvas lives; `paint(pen, width, height, colour)` in CSS pixels. */
function sheet(canvas, paint) {
  const pen = canvas.getContext("2d");
  const draw = () => {
    const { clientWidth: width, clientHeight: height } = canvas;
    const scale = devicePixelRatio;
    canvas.width = width * scale;
    canvas.height = height * scale;
    pen.scale(scale, scale);
    const style = getComputedStyle(canvas);
    pen.font = `12px ${style.fontFamily}`;
    paint(pen, width, height, (name) => style.getPropertyValue(`--${name}`));
  };
  new ResizeObserver(draw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  return draw;
}

/** The loudest sample of each bar, at least four seconds wide. */
export function waveform(canvas) {
  let peaks = [];
  let filled = 0; // samples in the last bin
  let played = 0;

  const draw = sheet(canvas, (pen, width, height, colour) => {
    const bars = Math.floor(width / STEP);
    const per = Math.max(peaks.length, 400) / bars;
    for (let i = 0; i < bars; i++) {
      const share = peaks.slice(Math.floor(i * per), Math.max(Math.ceil((i + 1) * per), 1));
      const peak = share.length ? Math.max(...share) : 0;
      const tall = Math.max(BAR, peak ** 0.7 * (height - 8));
      const over = share.length && i * per * BIN < played;
      pen.fillStyle = colour(over ? "accent" : share.length ? "ahead" : "line");
      pen.beginPath();
      pen.roundRect(i * STEP, (height - tall) / 2, BAR, tall, BAR / 2);
      pen.fill();
    }
  });

  return {
    draw,
    clear() {
      peaks = [];
      filled = played = 0;
    },
    add(pcm) {
      for (const sample of pcm) {
        if (filled === 0) peaks.push(0);
        const last = peaks.length - 1;
        peaks[last] = Math.max(peaks[last], Math.abs(sample));
        filled = (filled + 1) % BIN;
      }
    },
    at(samples) {
      played = samples;
    },
  };
}

/** Seconds of sound that wait, over the seconds since playback began; gaps are marked. */
export function level(canvas) {
  let points = []; // [s since the first, s buffered]
  let gaps = [];
  let highest = 0.5; // s

  const draw = sheet(canvas, (pen, width, height, colour) => {
    const floor = height - 20;
    const longest = Math.max(4, points.at(-1)?.[0] ?? 0);
    const x = (s) => (s / longest) * width;
    const y = (s) => floor - (s / highest) * (floor - HEADROOM);

    pen.globalAlpha = 0.5;
    pen.fillStyle = colour("bad");
    for (const [at, lasted] of gaps)
      pen.fillRect(x(at - lasted), HEADROOM, Math.max(2, x(lasted)), floor - HEADROOM);
    pen.globalAlpha = 1;

    pen.beginPath();
    points.forEach(([t, buffered]) => pen.lineTo(x(t), y(buffered)));
    pen.strokeStyle = colour("level");
    pen.lineWidth = 2;
    pen.lineJoin = "round";
    pen.stroke();
    if (points.length) {
      pen.lineTo(x(points.at(-1)[0]), floor);
      pen.lineTo(x(points[0][0]), floor);
      pen.globalAlpha = 0.16;
      pen.fillStyle = colour("level");
      pen.fill();
      pen.globalAlpha = 1;
    }

    const tick = TICKS.findLast((seconds) => seconds <= highest);
    pen.fillStyle = colour("line");
    pen.fillRect(0, floor, width, 1);
    pen.fillRect(0, y(tick), width, 1);
    pen.fillStyle = colour("muted");
    pen.textBaseline = "bottom";
    pen.fillText("0 s", 0, height);
    pen.textAlign = "right";
    pen.fillText(`${longest.toFixed(1)} s`, width, height);
    pen.fillText(`${tick} s`, width, y(tick) - 2);
  });

  return {
    draw,
    clear() {
      points = [];
      gaps = [];
      highest = 0.5;
    },
    add(ms, buffered) {
      points.push([ms / 1000, buffered / RATE]);
      highest = Math.max(highest, buffered / RATE);
    },
    gap(ms, samples) {
      gaps.push([ms / 1000, samples / RATE]);
    },
  };
}
