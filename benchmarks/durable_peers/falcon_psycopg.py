"""PostgreSQL with Falcon, marshmallow and psycopg: a pool, and a statement that each connection prepares once."""

import hmac
import os

import falcon
from marshmallow import EXCLUDE, Schema, ValidationError, fields, validate
from psycopg_pool import ConnectionPool

# psycopg chooses the type of an integer by its value. With the casts, all ids share one prepared statement.
INSERT = "INSERT INTO plants (id, name, tag) VALUES (%s::bigint, %s, %s) ON CONFLICT (id) DO NOTHING"
AUTHORIZATION = f"Bearer {os.environ['PLANTS_TOKENS']}".encode()
SIZE = int(os.environ["POOL"])
pool = ConnectionPool(os.environ["PLANTS_STORE"], min_size=SIZE, max_size=SIZE, kwargs={"autocommit": True}, open=True)


class Plant(Schema):
    name = fields.String(required=True)
    tag = fields.String()


class NewPlant(Plant):
    id = fields.Integer(required=True, strict=True, validate=validate.Range(-(2**63), 2**63 - 1))


new_plant, stored_plant = NewPlant(unknown=EXCLUDE), Plant()


class Authentication:
    def process_request(self, req, _resp) -> None:
        presented = req.get_header("Authorization", default="").encode()
        if req.path == "/plants" and not hmac.compare_digest(presented, AUTHORIZATION):
            raise falcon.HTTPUnauthorized


class Ready:
    def on_get(self, _req, resp) -> None:
        resp.media = {"status": "ready"}


class Plants:
    def on_post(self, req, resp) -> None:
        try:
            plant = new_plant.load(req.get_media())
        except ValidationError as error:
            raise falcon.HTTPBadRequest(description=str(error)) from None
        with pool.connection() as connection:
            cursor = connection.execute(INSERT, (str(plant["id"]), plant["name"], plant.get("tag")), prepare=True)
        if not cursor.rowcount:
            raise falcon.HTTPBadRequest(description="The id is in use.")
        resp.media = stored_plant.dump(plant)


app = falcon.App(middleware=[Authentication()])
app.add_route("/plants", Plants())
app.add_route("/readyz", Ready())
