"""What a hosted service adds around the application."""
