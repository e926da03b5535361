"""How long the folder of a server's sockets may be; without imports, so that login nodes can check it."""

from __future__ import annotations

LONGEST_SOCKET_PATH = 100
"""Characters; the system takes 107."""
DEEPEST_SOCKET = "/mrt-hpc-12345678/pymp-12345678/listener-12345678"
"""The longest path of a socket, relative to the folder for temporary files."""
LONGEST_SOCKET_FOLDER = LONGEST_SOCKET_PATH - len(DEEPEST_SOCKET)
"""Characters of the folder for temporary files; if it is longer, servers put their sockets into /tmp."""
