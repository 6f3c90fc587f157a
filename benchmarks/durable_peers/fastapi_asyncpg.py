"""PostgreSQL with FastAPI and asyncpg: a pool, and a statement that each connection prepares once and caches."""

import os
from contextlib import asynccontextmanager

import asyncpg
from fastapi_plants import make_app

INSERT = "INSERT INTO plants (id, name, tag) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING"
SIZE = int(os.environ["POOL"])
pools = []


@asynccontextmanager
async def lifespan(_app):
    async with asyncpg.create_pool(os.environ["PLANTS_STORE"], min_size=SIZE, max_size=SIZE) as pool:
        pools.append(pool)
        yield


async def add(*plant) -> bool:
    return await pools[0].execute(INSERT, *plant) == "INSERT 0 1"


app = make_app(lifespan, add)
