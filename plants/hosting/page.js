const at = (id) => document.getElementById(id);

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

// What the description has between backticks is code.
const prose = (text) => text.split("`").map((part, index) => (index % 2 ? element("code", part) : part));

const row = (header, ...cells) => {
  const first = element("th", header);
  first.scope = "row";
  return element("tr", first, ...cells.map((cell) => element("td", ...cell)));
};

const api = await (await fetch("openapi.json")).json();
const [path, methods] = Object.entries(api.paths)[0];
const [method, operation] = Object.entries(methods)[0];
const url = new URL(path.slice(1), document.baseURI);
const follow = (reference) => reference.split("/").slice(1).reduce((found, key) => found[key], api);

function members(schema) {
  const { allOf = [], properties = {}, required = [] } = schema.$ref ? follow(schema.$ref) : schema;
  const own = Object.entries(properties).map(([name, { type, format, description }]) =>
    row(element("code", name), [format ?? type, required.includes(name) ? "" : ", optional"], prose(description)),
  );
  return [...own, ...allOf.flatMap(members)];
}

function showDescription() {
  const sent = operation.requestBody;
  const [status, success] = Object.entries(operation.responses).find(([status]) => status.startsWith("2"));
  document.title = api.info.title;
  at("title").replaceChildren(api.info.title);
  at("summary").replaceChildren(`${api.info.summary} Version ${api.info.version}.`);
  at("request").append(`${method.toUpperCase()} ${path}`);
  at("name").append(operation.summary);
  at("about").append(...prose(operation.description));
  at("accepted").append(...prose(sent.description));
  at("sent").append(...members(sent.content["application/json"].schema));
  at("success").append(status);
  at("received").append(...members(success.content["application/json"].schema));
  at("judged").append(...prose(api.info.description));
  // The description lists the codes in a sentence: "40000 what it means; 40001 what it means. What else there is."
  for (const part of api.components.schemas.Error.properties.error.description.split(/\b(?=\d{5} )/).slice(1)) {
    const [, code, meaning, rest] = part.match(/^(\d{5}) ([^;.]+)[;.]\s*(.*)$/s);
    at("errors").append(row(element("code", code), [code.slice(0, 3)], prose(meaning)));
    at("others").append(rest);
  }
  at("body").value = JSON.stringify(Object.values(sent.content["application/json"].examples)[0].value, null, 2);
}

function showCurl() {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const parts = [
    `curl ${quoted(url.href)}`,
    '-H "Authorization: Bearer $TOKEN"',
    "-H 'Content-Type: application/json'",
    `--data-raw ${quoted(at("body").value)}`,
  ];
  at("curl").textContent = parts.join(" \\\n  ");
}

function showAnswer(outcome, text) {
  at("answer").dataset.outcome = outcome;
  at("answer").textContent = text;
}

async function send() {
  const token = at("token").value.trim();
  const headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
  try {
    const response = await fetch(url, { method: method.toUpperCase(), headers, body: at("body").value });
    const text = await response.text();
    showAnswer(response.ok ? "succeeded" : "failed", `${response.status} ${response.statusText}\n${text}`);
  } catch (error) {
    showAnswer("failed", `There is no answer: ${error.message}`);
  }
}

showDescription();
showCurl();
at("body").addEventListener("input", showCurl);
document.forms[0].addEventListener("submit", (event) => {
  event.preventDefault();
  showAnswer("waiting", "Sent; waiting for the answer.");
  send();
});
document.querySelector("main").hidden = false;
