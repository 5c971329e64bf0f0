// Samples: 16-bit little-endian mono bytes off the wire, floats to play, a WAV file to keep.

export const RATE = 24000;

/** The whole samples of a stream of bytes, as Int16Array pieces; a sample may be cut in two. */
export async function* samples(body) {
  const reader = body.getReader();
  let rest = new Uint8Array(0);
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const bytes = new Uint8Array(rest.length + value.length);
    bytes.set(rest);
    bytes.set(value, rest.length);
    const whole = bytes.length & ~1;
    rest = bytes.slice(whole);
    if (whole) yield new Int16Array(bytes.buffer, 0, whole / 2);
  }
}

export function toFloat(pcm) {
  return Float32Array.from(pcm, (sample) => sample / 32768);
}

/** A WAV file of Int16Array pieces. */
export function wavFile(pieces) {
  const size = pieces.reduce((sum, piece) => sum + piece.byteLength, 0);
  const head = new DataView(new ArrayBuffer(44));
  const word = (at, text) => [...text].forEach((c, i) => head.setUint8(at + i, c.charCodeAt(0)));
  word(0, "RIFF");
  head.setUint32(4, size + 36, true);
  word(8, "WAVEfmt ");
  head.setUint32(16, 16, true);
  head.setUint16(20, 1, true); // PCM
  head.setUint16(22, 1, true); // mono
  head.setUint32(24, RATE, true);
  head.setUint32(28, RATE * 2, true);
  head.setUint16(32, 2, true);
  head.setUint16(34, 16, true);
  word(36, "data");
  head.setUint32(40, size, true);
  return new Blob([head, ...pieces], { type: "audio/wav" });
}
