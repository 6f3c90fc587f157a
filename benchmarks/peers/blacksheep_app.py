"""``POST /plants`` with BlackSheep and pydantic.

pip install blacksheep pydantic uvicorn[standard]
uvicorn --app-dir benchmarks/peers --no-access-log --port PORT blacksheep_app:app
"""

import hmac
import os

from blacksheep import Application, FromJSON, Request, Response, json
from pydantic import BaseModel, StrictInt, StrictStr

app = Application()
authorization = f"Bearer {os.environ['PLANTS_TOKENS']}".encode()
plants: dict[int, "Plant"] = {}


class Plant(BaseModel):
    id: StrictInt
    name: StrictStr
    tag: StrictStr | None = None


def refuse(status: int, message: str) -> Response:
    return json({"code": status * 100, "message": message}, status=status)


async def authenticate(request: Request, handler) -> Response:
    presented = request.get_first_header(b"authorization") or b""
    if request.path == "/plants" and not hmac.compare_digest(presented, authorization):
        return refuse(401, "The token is missing or not valid.")
    return await handler(request)


app.middlewares.append(authenticate)


@app.router.get("/readyz")
async def ready() -> Response:
    return json({"status": "ready"})


@app.router.post("/plants")
async def create(body: FromJSON[Plant]) -> Response:
    plant = body.value
    if plants.setdefault(plant.id, plant) is not plant:
        return refuse(400, "The id is in use.")
    return json(plant.model_dump(exclude={"id"}, exclude_none=True))
