// PostgreSQL with Fastify and pg: a pool, and a named statement that each connection prepares once.
import { createHash, timingSafeEqual } from 'node:crypto'
import Fastify from 'fastify'
import pg from 'pg'

const digest = (text) => createHash('sha256').update(text).digest()
const valid = digest(process.env.PLANTS_TOKENS)
const size = Number(process.env.POOL)
const pool = new pg.Pool({ connectionString: process.env.PLANTS_STORE, min: size, max: size })
const insert = {
  name: 'insert',
  text: 'INSERT INTO plants (id, name, tag) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING',
}
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
  const result = await pool.query({ ...insert, values: [id, name, tag] })
  return result.rowCount ? { name, tag } : refuse(reply, 400, 'The id is in use.')
})
await app.listen({ host: '127.0.0.1', port: Number(process.argv[2]) })
