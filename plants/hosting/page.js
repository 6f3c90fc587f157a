const at = (id) => document.getElementById(id);

function element(name, ...children) {
  const created = document.createElement(name);
  created.append(...children);
  return created;
}

// Backticks in the description enclose code.
const prose = (text = "") => text.split("`").map((part, index) => (index % 2 ? element("code", part) : part));

const row = (header, ...cells) => {
  const first = element("th", element("code", header));
  first.scope = "row";
  return element("tr", first, ...cells.map((cell) => element("td", ...prose(cell))));
};

const api = await (await fetch("openapi.json")).json();
const operations = Object.entries(api.paths)
  .flatMap(([path, item]) =>
    Object.entries(item).map(([method, operation]) => ({ path, method: method.toUpperCase(), operation })),
  )
  .filter(({ operation }) => operation.responses); // A path may also have parameters or a summary.
const chosen = operations.find(({ operation }) => location.hash === `#${operation.operationId}`) ?? operations[0];
const { path, method, operation } = chosen;
const url = () => new URL(api.servers[0].url + at("path").value, document.baseURI);
const resolve = ({ $ref, ...node }) => ($ref ? $ref.split("/").slice(1).reduce((found, key) => found[key], api) : node);
const json = (message) => message.content?.["application/json"];

function members(reference) {
  const { allOf = [], properties = {}, required = [] } = resolve(reference);
  const own = Object.entries(properties).map(([name, { type, format, description }]) =>
    row(name, `${format ?? type}${required.includes(name) ? "" : ", optional"}`, description),
  );
  return [...allOf.flatMap(members), ...own];
}

function headers() {
  const responses = Object.entries(operation.responses).map(([status, response]) => [status, resolve(response)]);
  return Object.entries(api.components.headers).flatMap(([name, { description }]) => {
    const statuses = responses.filter(([, { headers = {} }]) => name in headers).map(([status]) => status);
    const shown = statuses.length === responses.length ? "all" : statuses.join(", ");
    return shown ? row(name, shown, description) : [];
  });
}

function showDescription() {
  const sent = operation.requestBody && resolve(operation.requestBody);
  const responses = Object.entries(operation.responses).map(([status, response]) => [status, json(resolve(response))]);
  const [status, success] = responses.find(([status]) => status.startsWith("2"));
  const failure = responses.find(([status, content]) => status >= "4" && content?.example)?.[1];
  const problem = api.components.schemas.Error;
  document.title = api.info.title;
  at("title").replaceChildren(api.info.title);
  const versions = `Interface ${api.info.version}, package ${document.documentElement.dataset.version}.`;
  at("summary").replaceChildren(`${api.info.summary} ${versions}`);
  at("request").append(`${method} ${path}`);
  at("name").append(...prose(operation.summary));
  at("about").append(...prose(operation.description));
  at("token-hint").append(...prose(Object.values(api.components.securitySchemes)[0].description));
  at("success").append(status);
  if (success) at("received").append(...members(success.schema));
  else hide("received");
  at("headers").append(...headers());
  at("rules").append(...prose(api.info.description));
  if (failure) at("example").append(JSON.stringify(failure.example, null, 2));
  else hide("example");
  at("problem").append(...members(problem));
  const codes = Object.entries(problem.properties.error["x-error-codes"]);
  at("errors").append(...codes.map(([code, meaning]) => row(code, code.slice(0, 3), meaning)));
  const others = operations.filter((other) => other !== chosen);
  at("operations").append(...others.map(link));
  at("path").value = path;
  if (!path.includes("{") && !operation.parameters) hide("path");
  if (sent) showBody(sent);
  else hide("body", "accepted", "sent");
}

function link(other) {
  const created = element("a", `${other.method} ${other.path}`);
  created.href = `#${other.operation.operationId}`;
  return element("li", created);
}

function showBody(sent) {
  at("accepted").append(...prose(sent.description));
  at("sent").append(...members(json(sent).schema));
  const { examples: [example] = [{}] } = resolve(json(sent).schema);
  // The id of the example is soon in use, and each reload would try it again.
  if ("id" in example) example.id = Math.ceil(Math.random() * 2 ** 48);
  at("body").value = JSON.stringify(example, null, 2);
}

function hide(...ids) {
  for (const id of ids) {
    const label = at(id).labels?.[0];
    for (const part of [at(id).closest("table") ?? at(id), label]) if (part) part.hidden = true;
  }
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

let curlBody = ""; // That of the last request, until the form changes.

const curl = (authorization) =>
  [
    `curl ${quoted(url().href)} -X ${method}`,
    `-H ${authorization}`,
    ...(operation.requestBody ? ["-H 'Content-Type: application/json'", `--data-raw ${quoted(curlBody)}`] : []),
  ].join(" \\\n  ");

const anyToken = '"Authorization: Bearer $TOKEN"';

function showCurl() {
  curlBody = at("body").value;
  at("curl").textContent = curl(anyToken);
  at("copy").textContent = "Copy";
}

function copyCurl() {
  // A page from plain HTTP has no navigator.clipboard, except on localhost.
  const token = at("token").value.trim();
  const source = element("textarea", curl(token ? quoted(`Authorization: Bearer ${token}`) : anyToken));
  document.body.append(source);
  source.select();
  const done = document.execCommand("copy");
  source.remove();
  at("copy").focus();
  at("copy").textContent = done ? "Copied" : "Not copied";
}

function showAnswer(outcome, text) {
  at("hint").textContent = usualHint;
  at("answer").dataset.outcome = outcome;
  at("answer").textContent = text;
}

const usualHint = at("hint").textContent;

const LARGEST_ID = 2n ** 63n - 1n; // A number would be rounded beyond 2^53.

function useNextId() {
  const next = (found, name, id) => (BigInt(id) < LARGEST_ID ? `${name}${BigInt(id) + 1n}` : found);
  const body = at("body").value.replace(/("id"\s*:\s*)(-?\d+)/, next);
  if (body !== at("body").value) at("hint").textContent = "The id in the body was incremented.";
  at("body").value = body;
}

function inLines(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // A proxy may respond with something else.
  }
}

async function send() {
  const token = at("token").value.trim();
  if (/[^ -~]/.test(token)) return showAnswer("failed", "Not sent: the token has a character that is not ASCII.");
  const fields = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
  const began = performance.now();
  try {
    const body = operation.requestBody && at("body").value;
    const response = await fetch(url(), { method, headers: fields, body });
    const text = await response.text();
    const duration = Math.ceil(performance.now() - began);
    const variable = Object.entries(api.components.headers).filter(([, { schema }]) => !("const" in schema));
    const received = variable.filter(([name]) => response.headers.has(name));
    const head = [
      `${response.status} ${response.statusText} (${duration} ms)`,
      ...received.map(([name]) => `${name}: ${response.headers.get(name)}`),
    ];
    showAnswer(response.ok ? "succeeded" : "failed", `${head.join("\n")}\n\n${inLines(text)}`);
    if (response.ok && body) useNextId();
  } catch (error) {
    showAnswer("failed", `No response: ${error.message}`);
  }
}

showDescription();
showCurl();
addEventListener("hashchange", () => location.reload());
const [form] = document.forms;
form.addEventListener("input", showCurl);
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  showAnswer("waiting", "Waiting for the response.");
  send();
});
at("copy").addEventListener("click", copyCurl);
document.querySelector("main").hidden = false;
