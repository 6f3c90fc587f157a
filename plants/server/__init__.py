"""A Gunicorn worker for any WSGI application with small answers. It knows HTTP, and nothing of plants."""
