// Create the same plant twice, and print both response bodies, one per line.
import createClient from "openapi-fetch";
import type { paths } from "./schema.d.ts";

declare const process: { argv: string[] };
const [, , baseUrl, token] = process.argv;
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${token}` } });
const first = await client.POST("/plants", { body: { id: 1, name: "Fern" } });
console.log(JSON.stringify(first.data));
const second = await client.POST("/plants", { body: { id: 1, name: "Fern" } });
console.log(JSON.stringify(second.error));
