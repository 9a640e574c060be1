/** The page that asks for the key of ComfyUI's web interface. A key that this tab has already is tried at once. */

import { key } from "./api.js";
import { at, show } from "./dom.js";

const FORBIDDEN = 403;

async function open(secret) {
  let reply;
  try {
    reply = await fetch("../comfy-key", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ key: secret }),
    });
  } catch {
    return "The worker does not answer. Is it running, and is the network there?";
  }
  if (reply.ok) {
    location.reload();
    return "";
  }
  const found = await reply.json().catch(() => null);
  const words = found?.error?.message || `The worker answered ${reply.status}.`;
  return reply.status === FORBIDDEN ? `This key may not open the interface. ${words}` : words;
}

at("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  show(at("problem"), "");
  show(at("problem"), await open(at("key").value.trim()));
});

if (key.get()) await open(key.get());
