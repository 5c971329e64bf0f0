// The same request as the form's, written out for a terminal and for OpenAI's package.

const shellQuoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** JSON strings are Python strings too, but for a character beyond 16 bits in escapes: none is. */
const literal = (value) => JSON.stringify(value);

export function curl(base, fields) {
  const body = JSON.stringify({ ...fields, response_format: "wav" });
  return [
    `curl ${base}/audio/speech \\`,
    "  -H 'Content-Type: application/json' \\",
    `  -d ${shellQuoted(body)} \\`,
    "  -o speech.wav",
  ].join("\n");
}

export function python(base, { input, voice, language, instructions }) {
  const extra = language ? [`extra_body={"language": ${literal(language)}}`] : [];
  const given = [
    'model="tts-1"',
    `voice=${literal(voice ?? "alloy")}`, // the package insists on one
    `input=${literal(input)}`,
    ...(instructions ? [`instructions=${literal(instructions)}`] : []),
    'response_format="wav"',
    ...extra,
  ];
  return [
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${literal(base)}, api_key="none")`,
    "with client.audio.speech.with_streaming_response.create(",
    ...given.map((line) => `    ${line},`),
    ") as response:",
    '    response.stream_to_file("speech.wav")',
  ].join("\n");
}
