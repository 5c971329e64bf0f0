// The same request as the form's, written out for a terminal, for OpenAI's package and, typed, for
// the socket.

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

export function agent(line, { input, ...wishes }) {
  const update = literal({ type: "session.update", format: "wav", ...wishes });
  return `import asyncio, json
from websockets.asyncio.client import connect


async def main(words):
    async with connect(${literal(line.replace(/^http/, "ws"))}) as socket:
        await socket.send(json.dumps(${update}))
        for word in words:
            await socket.send(json.dumps({"type": "input_text.append", "text": word + " "}))
            await asyncio.sleep(0.05)  # your language model thinks
        await socket.send('{"type": "input_text.end"}')
        with open("speech.wav", "wb") as file:
            async for message in socket:
                if isinstance(message, bytes):
                    file.write(message[4:])  # behind the turn's number
                elif json.loads(message)["type"] == "speech.audio.done":
                    break


asyncio.run(main(${literal(input)}.split(" ")))`;
}
