// What comes from Python: models that were read, results of the lab. Asked of the server that sent this page, or, in a
// page that stands alone, found inside it.

import { say } from "ropewalk/words.js";

const settings = JSON.parse(document.getElementById("settings")?.textContent ?? "{}");

export const MOST_BYTES = 16 * 1024 * 1024 - 1;

export const version = () => settings.version ?? "";
export const alone = () => Boolean(settings.data);
export const language = () => settings.language ?? (navigator.language.startsWith("ja") ? "ja" : "en");

async function answer(asked) {
  let response;
  try {
    response = await asked;
  } catch {
    throw new Error(
      say(
        "the server of this page does not answer; is `ropewalk explore` still running?",
        "このページのサーバーが応答しません。`ropewalk explore` は動いていますか？",
      ),
    );
  }
  const found = await response.json();
  if (!response.ok) throw new Error(found.error ?? response.statusText);
  return found;
}

/** `models` or `results`. */
export const get = async (name) => (settings.data ? settings.data[name] : answer(fetch(`api/${name}`)));

/** Whether a document has what the view Stretch needs of it. */
function isPlan({ layers, warnings }) {
  const numbers = (list) => Array.isArray(list) && list.every((x) => Number.isFinite(x));
  const layer = (l) => l && typeof l.kind === "string" && Array.isArray(l.layers) && numbers(l.inv_freq);
  return Array.isArray(layers) && layers.length > 0 && layers.every(layer) && Array.isArray(warnings);
}

/**
 * A file that was dropped, read: { name, plan } for a configuration, { name, result } for a result of the lab.
 * A JSON file that ropewalk wrote is read here; other files by the server. Of a GGUF file only its beginning is sent.
 */
export async function read(file) {
  const begins = new Uint8Array(await file.slice(0, 4).arrayBuffer());
  const gguf = String.fromCharCode(...begins) === "GGUF";
  if (!gguf) {
    if (file.size > MOST_BYTES) {
      throw new Error(
        say(
          `${file.name} has ${file.size} bytes; a configuration has at most 16 MiB`,
          `${file.name} は ${file.size} バイトあります。設定ファイルは 16 MiB までです`,
        ),
      );
    }
    const text = await file.text();
    let found;
    try {
      found = JSON.parse(text);
    } catch {
      throw new Error(say(`${file.name} is neither JSON nor GGUF`, `${file.name} は JSON でも GGUF でもありません`));
    }
    if (typeof found?.schema === "string" && found.schema.startsWith("ropewalk.")) {
      if (!found.schema.startsWith("ropewalk.inspect/")) return { name: file.name, result: found };
      if (found.schema === "ropewalk.inspect/1" && isPlan(found)) return { name: file.name, plan: found };
      throw new Error(
        say(
          `${file.name} is not what \`ropewalk inspect --json\` of this version writes`,
          `${file.name} は、このバージョンの \`ropewalk inspect --json\` の出力ではありません`,
        ),
      );
    }
  }
  if (alone()) {
    throw new Error(
      say(
        "this page stands alone: it reads what `ropewalk inspect --json` writes; start `ropewalk explore` to read other files",
        "このページは単独で動いているので、`ropewalk inspect --json` の出力だけを読めます。ほかのファイルは `ropewalk explore` を起動して読んでください",
      ),
    );
  }
  const sent = gguf ? file.slice(0, MOST_BYTES) : file;
  const plan = await answer(
    fetch(`api/inspect?${new URLSearchParams({ name: file.name, size: file.size })}`, {
      method: "POST",
      headers: { "Content-Type": "application/octet-stream" },
      body: sent,
    }),
  );
  return { name: file.name, plan };
}
