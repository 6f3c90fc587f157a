"""What both FastAPI peers share: the token check, a strict pydantic model and the routes."""

import hmac
import os

from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel, Field, StrictInt, StrictStr

AUTHORIZATION = f"Bearer {os.environ['PLANTS_TOKENS']}".encode()


class Plant(BaseModel):
    name: StrictStr
    tag: StrictStr | None = None


class NewPlant(Plant):
    id: StrictInt = Field(ge=-(2**63), lt=2**63)


async def authenticate(authorization: str = Header("")) -> None:
    if not hmac.compare_digest(authorization.encode(), AUTHORIZATION):
        raise HTTPException(401, "The token is missing or not valid.")


def make_app(lifespan, add) -> FastAPI:
    """Return an application; ``await add(id, name, tag)`` returns whether the id was free."""
    app = FastAPI(lifespan=lifespan)

    @app.get("/readyz")
    async def ready() -> dict[str, str]:
        return {"status": "ready"}

    @app.post("/plants", dependencies=[Depends(authenticate)], response_model_exclude_none=True)
    async def create(plant: NewPlant) -> Plant:
        if not await add(plant.id, plant.name, plant.tag):
            raise HTTPException(400, "The id is in use.")
        return Plant(name=plant.name, tag=plant.tag)

    return app
