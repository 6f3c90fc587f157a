"""The hosted application on the standard library's own server: python -m tests.audits.peers.wsgiref_server PORT."""

import sys
from wsgiref.simple_server import make_server

from plants.wsgi import app

if __name__ == "__main__":
    make_server("127.0.0.1", int(sys.argv[1]), app).serve_forever()
