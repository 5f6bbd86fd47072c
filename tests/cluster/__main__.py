"""A whole node to try things on, with the agent: ``python -m tests.cluster [MODE]``, as root. Ctrl-C ends it."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys

from tests.cluster.build import BuildError
from tests.cluster.node import Node
from tests.cluster.process import ClusterError
from tests.cluster.test_node import GPUS, DevicePlugin, deploy, kernel, with_images

HELP = """\
The node is ready, with {count} GPUs of the test, and the agent in mode {mode}.
  kubectl:     {kubectl}
  kernel log:  {log}
  for instance, GPU {address} fails:
    echo '4,900000,900000,-;NVRM: Xid (PCI:{address}): 79, pid=1, name=x, GPU has fallen off the bus.' >> {log}
Ctrl-C ends it.
"""


def main() -> int:
    mode = sys.argv[1] if len(sys.argv) > 1 else "observe"
    try:
        with Node() as node, DevicePlugin(node.kubelet_folder / "device-plugins", GPUS.values()):
            with_images(node)
            for address, uuid in GPUS.items():
                kernel(node, f"NVRM: GPU at PCI:{address}: {uuid}")
            deploy(node, mode)
            log = node.folder / "kernel-log" / "kmsg"
            kubectl = shlex.join(node.api.kubectl_command())
            address = next(iter(GPUS))
            print(HELP.format(count=len(GPUS), mode=mode, kubectl=kubectl, log=log, address=address), flush=True)
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
    except (BuildError, ClusterError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
