"""The environment behind FastAPI: messages are guarded in `frames`, built in `application`."""
