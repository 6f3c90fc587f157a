"""The hosted service: the application with settings, logs, metrics and a command, run by Gunicorn."""
