"""HTTP of all servers: the server, the checks of a request, the formats of requests and replies, and live pages."""
