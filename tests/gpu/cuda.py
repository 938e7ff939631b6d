"""How many GPUs CUDA sees, by libcuda alone: as the program was started, and when it hides none itself.

`python cuda.py` prints {"visible": N, "all": N, "value": CUDA_VISIBLE_DEVICES, "order": CUDA_DEVICE_ORDER} as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from typing import Any

NO_DEVICE = 100


def count() -> int:
    """GPUs that this process may use; libcuda reads the environment once."""
    library, number = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    status = library.cuInit(0)
    if status == NO_DEVICE:
        return 0
    status = status or library.cuDeviceGetCount(ctypes.byref(number))
    return -status if status else number.value


def asked(python: str, path: str = __file__) -> Any:
    """What this program says in a process of its own."""
    done = subprocess.run([python, path], capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    if sys.argv[1:] == ["count"]:
        print(count())
    else:
        shown = {**os.environ}
        hidden = shown.pop("CUDA_VISIBLE_DEVICES", None)
        found = [
            int(subprocess.run([sys.executable, __file__, "count"], env=env, capture_output=True, check=True).stdout)
            for env in (os.environ, shown)
        ]
        told = {"value": hidden, "order": os.environ.get("CUDA_DEVICE_ORDER")}
        print(json.dumps({"visible": found[0], "all": found[1], **told}))
