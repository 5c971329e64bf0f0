// The text while it is typed: what was heard, the word that sounds, what was written, what is not.
// Nobody tells when a word sounds, so its place is a guess: how long the voice has sounded, pauses
// left out, against how long its letters take. It is a share of the whole once that is known.

const BIN = 240; // samples of 10 ms
const LOUD = 0.02;
const words = new Intl.Segmenter(undefined, { granularity: "word" });

let pace = 0.175; // letters a bin; each speech corrects it for the next

const weigh = (c) => (/\p{N}/u.test(c) ? 6 : /\p{Lo}/u.test(c) ? 2.5 : /\p{L}/u.test(c) ? 1 : 0);

export function script(node) {
  let text, marks, written, heard, voiced, filled, peak;

  /** Words with where they begin and end, and the weight that is before them. */
  function measure() {
    let before = 0;
    marks = [...words.segment(text)].filter((word) => word.isWordLike);
    for (const word of marks) {
      word.end = word.index + word.segment.length;
      word.before = before;
      for (const c of word.segment) before += weigh(c);
    }
    return before;
  }

  function draw() {
    const { index = 0, end = 0 } = marks[heard - 1] ?? {};
    const cuts = [0, index, Math.min(end, written), written, text.length];
    [...node.children].forEach((part, i) => (part.textContent = text.slice(cuts[i], cuts[i + 1])));
    const [, now] = node.children;
    node.scrollTop = Math.max(0, now.offsetTop - node.clientHeight / 2);
  }

  let total = 0;
  return {
    begin(input) {
      text = input;
      node.hidden = !text;
      written = heard = filled = peak = 0;
      voiced = [0];
      total = measure();
      draw();
    },
    typed(length) {
      written += length;
      draw();
    },
    add(pcm) {
      for (const sample of pcm) {
        peak = Math.max(peak, Math.abs(sample));
        if ((filled = (filled + 1) % BIN)) continue;
        voiced.push(voiced.at(-1) + (peak > LOUD));
        peak = 0;
      }
    },
    /** The same sound from its start. */
    again() {
      heard = 0;
    },
    /** All of the sound is there. */
    end() {
      if (total && voiced.at(-1)) pace = total / voiced.at(-1); // else they say nothing of it
    },
    /** So many samples were played; returns words written and words heard, about. */
    at(played) {
      const sounded = voiced[Math.min(Math.floor(played / BIN), voiced.length - 1)];
      const ready = marks.filter((word) => word.index < written).length;
      const reached = marks.filter((word) => word.before < sounded * pace).length;
      heard = Math.max(heard, Math.min(ready, reached));
      draw();
      return { written: ready, heard };
    },
  };
}
