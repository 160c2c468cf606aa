"""HTTP server of a trained team: an OpenAI-compatible API, an MCP tool and a page.

The server process has the HTTP endpoints and runs episodes; it runs no guest code. Models run in the generation actors,
programs in the sandbox workers, as in an evaluation.
"""
