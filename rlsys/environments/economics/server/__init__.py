"""The environment as an OpenEnv server.

`application` builds and serves it, `frames` guards its sockets, `settings` reads environment
variables, `app` is the entry point of containers, and `staging` writes a folder to deploy.
"""
