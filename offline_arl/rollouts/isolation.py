"""Libraries that seed the global random states are run so that the caller does not notice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_random_states() -> Iterator[None]:
    """Put the global random states of Python, NumPy and torch (every device) back afterwards.

    vLLM and TRL seed them when they start. Nothing in offline_arl draws from them.
    """
    import numpy as np
    import torch

    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002 (the global state is the very thing to keep)
    torch_state = torch.get_rng_state()
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        torch.set_rng_state(torch_state)
        if cuda_states:
            torch.cuda.set_rng_state_all(cuda_states)
