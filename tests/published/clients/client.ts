// Create a plant with a client that is made from the interface description, and again: prints the two bodies, one a line.
import createClient from "openapi-fetch";
import type { paths } from "./schema.d.ts";

declare const process: { argv: string[] };
const [, , baseUrl, token] = process.argv;
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${token}` } });
const first = await client.POST("/plants", { body: { id: 1, name: "Fern" } });
console.log(JSON.stringify(first.data));
const second = await client.POST("/plants", { body: { id: 1, name: "Fern" } });
console.log(JSON.stringify(second.error));
