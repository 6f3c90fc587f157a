"""SQLite with FastAPI and aiosqlite: one connection, whose thread commits each statement by itself."""

import os
from contextlib import asynccontextmanager

import aiosqlite
from fastapi_plants import make_app

INSERT = "INSERT INTO plants (id, name, tag) VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING"
FILE = os.environ["PLANTS_STORE"].removeprefix("sqlite:///")
connections = []


@asynccontextmanager
async def lifespan(_app):
    async with aiosqlite.connect(FILE, isolation_level=None) as connection:
        await connection.execute("PRAGMA journal_mode = WAL")
        await connection.execute("PRAGMA synchronous = FULL")
        connections.append(connection)
        yield


async def add(*plant) -> bool:
    cursor = await connections[0].execute(INSERT, plant)
    return cursor.rowcount == 1


app = make_app(lifespan, add)
