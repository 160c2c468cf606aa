"""HTTP of all servers: the server, the guarded application, and the formats of requests and replies."""
