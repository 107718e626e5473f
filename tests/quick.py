"""A `mpired` for shells that starts in a hundredth of a second: a server forks for each command.

Most of the time of a small command is the start of Python and NumPy. The server has imported them, takes the words,
the folder, the environment and the three streams of a client, and becomes the command in a child. The client is no
parent of it, so what asks for limits or signals of the process needs the installed command.
"""

import contextlib
import marshal
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

# Its modules are in the interpreter: `socket` and `json` would double the time that it takes.
_CLIENT = """#!{python} -IS
import _socket, marshal, os, sys
server = _socket.socket(_socket.AF_UNIX)
server.connect({path!r})
words = marshal.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)])
streams = b"".join(fd.to_bytes(4, sys.byteorder) for fd in range(3))
server.sendmsg([len(words).to_bytes(8, "little")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
server.sendall(words)
status = int(server.recv(8) or 70)
os._exit(status if status >= 0 else 128 - status)
"""


@contextlib.contextmanager
def commands(folder: Path) -> Iterator[Path]:
    """Serve, and give the folder of the client, which is called `mpired`."""
    path = str(folder / "socket")
    client = folder / "mpired"
    client.write_text(_CLIENT.format(python=sys.executable, path=path))
    client.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(64)
        words = [sys.executable, __file__, str(listening.fileno())]
        server = subprocess.Popen(words, pass_fds=[listening.fileno()], stdin=subprocess.DEVNULL)
        try:
            yield folder
        finally:
            server.kill()
            server.wait()


def run(words: list[str], folder: Path, cwd: Path, environment: dict[str, str]) -> tuple[int, bytes, bytes]:
    """Let the server of a folder run a command without a client; return status, standard output and error."""
    texts: list[bytes] = []
    with contextlib.ExitStack() as stack, socket.socket(socket.AF_UNIX) as server:
        nothing = stack.enter_context(open(os.devnull, "rb"))
        (out, to_out), (err, to_err) = os.pipe(), os.pipe()
        reading = [stack.enter_context(os.fdopen(each, "rb")) for each in (out, err)]
        server.connect(str(folder / "socket"))
        request = marshal.dumps([words, str(cwd), environment])
        socket.send_fds(server, [len(request).to_bytes(8, "little")], [nothing.fileno(), to_out, to_err])
        os.close(to_out)
        os.close(to_err)
        server.sendall(request)
        second = threading.Thread(target=lambda: texts.append(reading[1].read()))
        second.start()
        out_text = reading[0].read()
        second.join()
        status = int(server.recv(8) or 70)
    return status if status >= 0 else 128 - status, out_text, texts[0]


def _become(connection: socket.socket) -> None:
    """Become the command of a client."""
    size, streams, _, _ = socket.recv_fds(connection, 8, 3)
    text = b""
    while len(text) < int.from_bytes(size, "little"):
        text += connection.recv(1 << 16)
    words, folder, environment = marshal.loads(text)
    os.environ.clear()
    command.become_command(words, folder, streams, environment)


if __name__ == "__main__":
    import command
    import template

    requests = socket.socket(fileno=int(sys.argv[1]))
    template.import_libraries(("h5py", "mpired.formats.hierarchy"))
    template.serve(requests, lambda: requests.accept()[0], _become)
