// POST /plants with Fastify and its validation by JSON Schema: npm install fastify; node benchmarks/peers/fastify.mjs PORT
// An import is resolved from the folder of this file, so install there, or copy the file.
import { createHash, timingSafeEqual } from 'node:crypto'
import Fastify from 'fastify'

const digest = (text) => createHash('sha256').update(text).digest()
const valid = digest(process.env.PLANTS_TOKENS)
const plants = new Map()
const string = { type: 'string' }
const body = {
  type: 'object',
  required: ['id', 'name'],
  properties: { id: { type: 'integer' }, name: string, tag: string },
}
const plant = { type: 'object', properties: { name: string, tag: string } }
const app = Fastify({ ajv: { customOptions: { coerceTypes: false } } })

function refuse (reply, status, message) {
  return reply.code(status).send({ code: status * 100, message })
}

async function authenticate (request, reply) {
  const header = request.headers.authorization ?? ''
  if (!header.startsWith('Bearer ') || !timingSafeEqual(digest(header.slice(7)), valid)) {
    return refuse(reply, 401, 'The token is missing or not valid.')
  }
}

app.get('/readyz', async () => ({ status: 'ready' }))
app.post('/plants', { onRequest: authenticate, schema: { body, response: { 200: plant } } }, async (request, reply) => {
  const { id, name, tag } = request.body
  if (plants.has(id)) return refuse(reply, 400, 'The id is in use.')
  plants.set(id, { name, tag })
  return { name, tag }
})
await app.listen({ host: '127.0.0.1', port: Number(process.argv[2]) })
