"""The server: OpenAI's schema, what it means here, the engine's thread, and the routes."""
