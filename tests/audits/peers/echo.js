// Echo each request as Node's parser parsed it: method, target and body.
const http = require("node:http");

const server = http.createServer((request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    const body = Buffer.concat(parts).toString("latin1");
    const content = Buffer.from(JSON.stringify({ method: request.method, target: request.url, body }));
    response.writeHead(200, { "Content-Type": "application/json", "Content-Length": content.length });
    response.end(content);
  });
});
// Node parses all input before it responds. Delay the error, so that earlier requests get their responses first.
server.on("clientError", (error, socket) => {
  const status = error.code === "HPE_HEADER_OVERFLOW" ? "431 Too Large" : "400 Bad Request";
  setTimeout(() => socket.end(`HTTP/1.1 ${status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n`), 100);
});
server.listen(0, "127.0.0.1", () => console.error(server.address().port));
