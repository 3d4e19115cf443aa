"""Hands its arguments, environment, folder and streams to a server and ends as the fork ends; see `__init__.py`.

Started with `-I -S` and importing little: it is the part that every test pays.
"""

import json
import os
import resource
import signal
import socket
import sys


def main() -> None:
    """Ends with the exit code of the fork, or by the signal that ended it."""
    request = {
        "words": sys.argv[2:],
        "folder": os.getcwd(),  # noqa: PTH109 - pathlib takes as long to import as all the rest
        "environment": dict(os.environ),
        "memory": resource.getrlimit(resource.RLIMIT_AS),
    }
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[1])
    text = json.dumps(request).encode()
    socket.send_fds(connection, [len(text).to_bytes(8, "big")], [0, 1, 2])
    connection.sendall(text)
    answer = connection.recv(16).decode()
    if not answer:
        sys.exit("the server of the tests has ended")
    code = int(answer)
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
