"""The parts of a hosted service around the application."""
