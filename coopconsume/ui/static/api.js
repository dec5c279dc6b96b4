// Requests. An error has a message for people, and the status of the answer; 0: there was none.

export const session = { csrf: "", group: null, interval: 2, allowDecisions: false };

async function ask(url, options = {}) {
  let answer;
  try {
    answer = await fetch(url, { credentials: "same-origin", ...options });
  } catch {
    throw Object.assign(new Error("The page's server does not answer. It may have been stopped; trying again."), { status: 0 });
  }
  const found = await answer.json().catch(() => ({ error: `unexpected answer, status ${answer.status}` }));
  if (!answer.ok) throw Object.assign(new Error(found.error), { status: answer.status });
  return found;
}

export function api(group, rest, body) {
  const url = `api/groups/${encodeURIComponent(group)}/${rest}`;
  if (body === undefined) return ask(url);
  return ask(url, {
    method: "POST", body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", "X-Coopconsume-CSRF": session.csrf },
  });
}

export const groups = () => ask("api/groups");

export async function open() {
  Object.assign(session, await ask("api/session"));
}
