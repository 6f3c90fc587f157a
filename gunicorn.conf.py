from plants.hosting.gunicorn_conf import *
