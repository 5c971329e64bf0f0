// The form, one request at a time, and what was measured of it.

import { agent, curl, python } from "./calls.js";
import { level, waveform } from "./charts.js";
import { connect, dictate } from "./live.js";
import { openPlayer, prepare } from "./player.js";
import { script } from "./script.js";
import { RATE, samples, toFloat, wavFile } from "./sound.js";

const $ = (id) => document.getElementById(id);
const base = new URL("v1", document.baseURI).href;
const wave = waveform($("wave"));
const buffer = level($("level"));
const lines = script($("script"));
const line = `${base}/audio/speech/stream`;
const ms = (value) => `${Math.round(value)}\u00a0ms`;
const s = (samples, digits = 1) => `${(samples / RATE).toFixed(digits)}\u00a0s`;
const typing = () => $("form").way.value === "typed";
const gapWords = (n) => (n === 1 ? "1 gap" : `${n} gaps`);

let run = null; // what is sounding now: { stop }; an earlier one has nothing more to say
let kept = []; // Int16Array pieces of the last speech

/** The fields of the request, those left empty absent. */
function fields() {
  const form = new FormData($("form"));
  form.delete("way");
  form.delete("pace");
  const filled = [...form].filter(([, value]) => value.trim());
  return Object.fromEntries(
    filled.filter(([name, value]) => name !== "language" || value !== "auto"),
  );
}

function writeCalls() {
  const given = { input: "", ...fields() };
  $("curl").textContent = curl(base, given);
  $("python").textContent = typing() ? agent(line, given) : python(base, given);
}

function say(words) {
  $("status").textContent = words;
}

function complain(words) {
  $("error").textContent = words;
  $("error").hidden = !words;
}

function show(id, value, detail) {
  $(id).querySelector("dd").textContent = value;
  $(id).querySelector(".detail").textContent = detail;
}

/** One sound from start to end: the stage follows it, whoever brings the pieces. */
function follow(mine, measured) {
  const seen = { began: 0, gaps: 0, silent: 0, dry: false, unwritten: 0 };
  return (state) => {
    if (run !== mine || !(state.played || state.heard || state.done)) return;
    seen.began ||= performance.now();
    if (state.dry && !seen.dry) seen.unwritten += mine.writing ?? 0;
    seen.dry = state.dry;
    if (state.gap) {
      seen.gaps += 1;
      seen.silent += state.gap;
      buffer.gap(performance.now() - seen.began, state.gap);
    }
    wave.at(state.played);
    const words = lines.at(state.played);
    if (measured) {
      buffer.add(performance.now() - seen.began, state.buffered);
      measured({ ...state, ...seen, words });
    }
    document.body.dataset.state = state.dry ? "dry" : "playing";
    requestAnimationFrame(() => (wave.draw(), buffer.draw()));
    if (state.done) finish(mine);
  };
}

function begin(mine) {
  run = mine;
  complain("");
  document.body.dataset.state = "waiting";
  $("speak").textContent = "Stop";
  $("replay").disabled = true;
}

function finish(mine) {
  if (run !== mine) return;
  run = null;
  document.body.dataset.state = "idle";
  $("ahead").textContent = ""; // a player that was stopped says no more
  $("speak").textContent = "Speak";
  $("replay").disabled = $("download").disabled = !kept.length;
}

/** Clear the stage and return the meters of one request, asked at `asked` ms. */
function meters(asked, typed) {
  kept = [];
  lines.begin(typed ? $("input").value : "");
  wave.clear();
  buffer.clear();
  show("first", "–", "from your click to your ears");
  $("speed").querySelector("dt").textContent = typed ? "Words ahead" : "Speed";
  show("speed", "–", typed ? "written and not yet heard" : "sound made per second");
  show("gaps", "0", "times the sound ran dry");
  const made = { samples: 0, firstByte: 0 };

  return {
    arrived(pcm) {
      made.firstByte ||= performance.now();
      made.samples += pcm.length;
      kept.push(pcm);
      const took = performance.now() - asked;
      if (typed) return;
      show(
        "speed",
        `${((made.samples / RATE / took) * 1000).toFixed(1)} ×`,
        `${s(made.samples)} of sound in ${s((took * RATE) / 1000)}`,
      );
    },
    played({ heard, gaps, silent, unwritten, words, buffered, done }) {
      if (typed) {
        const told = `${words.written} written, about ${words.heard} heard`;
        show("speed", words.written - words.heard, told);
      }
      if (heard) {
        const server = made.firstByte - asked;
        const quiet = (heard.sample / RATE) * 1000;
        const player = Math.max(0, heard.at - asked - server - quiet);
        show(
          "first",
          ms(heard.at - asked),
          `server ${ms(server)}, quiet onset ${ms(quiet)}, player ${ms(player)}`,
        );
        say(`First sound after ${ms(heard.at - asked)}.`);
      }
      if (gaps) {
        const waited = unwritten ? `, ${unwritten} for text` : "";
        show("gaps", gaps, `${ms((silent / RATE) * 1000)} of silence in all${waited}`);
      }
      $("ahead").textContent = `${s(buffered, 2)} ahead`;
      if (done) say(`Done: ${s(made.samples)} of speech, ${gaps ? gapWords(gaps) : "no gaps"}.`);
    },
  };
}

/** The bytes of the speech, while it is made and, maybe, while its text is typed. */
async function sound(mine, signal) {
  if (!typing()) return (await request(signal)).body;
  const { input, ...wishes } = fields();
  mine.writing = 1;
  const told = {
    pace: () => $("pace").value,
    typed: lines.typed,
    ended: () => (mine.writing = 0),
    skipped: (words) => complain(`Note: skipped ${words.join(", ")}.`),
    cancelled(took, heard) {
      if (!run) say(`Stopped within ${ms(took)}; at most ${heard.toFixed(1)}\u00a0s were heard.`);
    },
  };
  return dictate(line, $("input").value, wishes, told, signal);
}

async function request(signal) {
  const response = await fetch(`${base}/audio/speech`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...fields(), response_format: "pcm" }),
    signal,
  });
  if (!response.ok) {
    const told = await response.json().catch(() => null);
    throw new Error(told?.error?.message ?? `The server answered ${response.status}.`);
  }
  const warning = response.headers.get("x-vivace-warning");
  if (warning) complain(`Note: ${warning}.`);
  return response;
}

async function speak() {
  const asked = performance.now();
  const meter = meters(asked, typing());
  const leave = new AbortController();
  const mine = { stop: () => leave.abort() };
  let answered = false;
  begin(mine);
  say("Asked for speech.");
  const opening = openPlayer(follow(mine, meter.played));
  const hush = () =>
    opening.then(
      (player) => player.stop(),
      () => {},
    ); // or there never was one
  leave.signal.addEventListener("abort", hush);
  try {
    const body = await sound(mine, leave.signal);
    answered = true;
    const player = await opening;
    for await (const pcm of samples(body)) {
      if (leave.signal.aborted) return;
      meter.arrived(pcm);
      const floats = toFloat(pcm);
      wave.add(floats);
      lines.add(floats);
      player.push(floats);
    }
    lines.end();
    player.end();
    if (!kept.length) throw new Error("The model made no sound for this text.");
  } catch (error) {
    if (leave.signal.aborted) return;
    complain(words(error, answered));
    say("");
    finish(mine);
    leave.abort();
  }
}

function words(error, answered) {
  if (!(error instanceof TypeError)) return error.message; // fetch's own errors say too little
  return answered ? "The speech broke off before its end." : "The server cannot be reached.";
}

function replay() {
  const mine = {};
  begin(mine);
  lines.again();
  const opening = openPlayer(follow(mine));
  mine.stop = async () => (await opening).stop();
  opening.then((player) => {
    kept.forEach((pcm) => player.push(toFloat(pcm)));
    player.end();
  });
}

function stop() {
  run.stop();
  say("Stopped.");
  finish(run);
}

function download() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(wavFile(kept));
  link.download = "vivace.wav";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // Safari reads it later
}

async function copy() {
  const shown = [$("curl"), $("python")].find((block) => block.offsetParent);
  getSelection().selectAllChildren(shown);
  // Browsers hide the clipboard from pages on plain http; the old command still works there.
  await (navigator.clipboard?.writeText(shown.textContent) ?? document.execCommand("copy"));
  say("Copied.");
  $("copy").textContent = "Copied";
  setTimeout(() => ($("copy").textContent = "Copy"), 1500);
}

const title = (name) => name[0].toUpperCase() + name.slice(1);

/** Fill the form with what this checkpoint has. */
async function furnish() {
  const json = { headers: { accept: "application/json" } };
  const [about, { voices }] = await Promise.all(
    ["./", "v1/audio/voices"].map(async (path) => (await fetch(path, json)).json()),
  );
  $("model").textContent = about.model;
  $("voice").append(...voices.map(({ id, name }) => new Option(name || title(id), id)));
  $("voice").closest("label").hidden = !voices.length;
  $("voice").disabled = !voices.length;
  $("language").append(...about.languages.map((id) => new Option(title(id), id)));
  $("instructions").closest("label").hidden = about.instructions === "none";
  $("instructions").disabled = about.instructions === "none";
  $("instructions").required = about.instructions === "required";
  chooseWay();
  writeCalls();
  document.body.dataset.state = "idle";
}

/** Sending at once, or typing: what the form shows, and a connection ahead of its first use. */
function chooseWay() {
  $("pace").closest("label").hidden = !typing();
  $("rate").textContent = $("pace").value;
  document.body.dataset.way = $("form").way.value;
  if (typing()) document.querySelector("[name=call][value=python]").checked = true;
  if (typing()) connect(line).catch(() => {}); // told when it is needed
}

$("form").addEventListener("input", () => (chooseWay(), writeCalls()));
$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  speak();
});
$("speak").addEventListener("click", (event) => {
  if (!run) return;
  event.preventDefault(); // a form that cannot be sent can still be stopped
  stop();
});
$("form").addEventListener("click", ({ target }) => {
  if (!target.dataset.say) return;
  $("input").value = target.dataset.say;
  writeCalls();
});
$("replay").addEventListener("click", replay);
$("download").addEventListener("click", download);
$("copy").addEventListener("click", copy);
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && run) stop();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !run) $("form").requestSubmit();
});

prepare();
furnish().catch(() => complain("The server cannot be reached."));
