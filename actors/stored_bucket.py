"""A bucket of weights in Ray's object store, as a file that vLLM's processes can open."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rlsys.errors import LearnerDied
from rlsys.weights import StoredBucket


@asynccontextmanager
async def bucket_file(bucket: StoredBucket) -> AsyncIterator[str]:
    """Fetch a bucket to this node; yield the path of a safetensors file that exists in memory only.

    Raises LearnerDied if the learner's process and with it the bucket are gone.
    """
    from ray.exceptions import ObjectLostError

    try:
        content = await bucket.content
    except ObjectLostError as error:
        raise LearnerDied(
            "the weights were lost together with the process of learner rank 0; give the same "
            "command again to go on from the last checkpoint"
        ) from error
    # vLLM's processes cannot reach Ray's store, and calls to them carry no tensors. They run on
    # this node and can open the file by its descriptor here. The kernel removes it with the last
    # process that has it open, so a killed run leaves none behind.
    with open(os.memfd_create("rlsys-bucket"), "wb") as file:
        file.write(content.data)
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"
