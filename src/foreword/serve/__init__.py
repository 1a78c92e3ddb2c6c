"""The server's side of a request: OpenAI's schema and what it means here. No HTTP so far."""
