// Answers each request with what Node's parser understood: the method and the body.
const http = require("node:http");

const server = http.createServer((request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    const body = Buffer.concat(parts).toString("latin1");
    const answer = Buffer.from(JSON.stringify({ method: request.method, target: request.url, body }));
    response.writeHead(200, { "Content-Type": "application/json", "Content-Length": answer.length });
    response.end(answer);
  });
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
