"""neighbours.py PORT NAME LOG - what else may run on a machine: listeners on loopback that no job should reach

TCP at 127.0.0.1 and ::1, UDP at 127.0.0.1, an abstract unix socket called NAME, each of which writes a line
to LOG when somebody comes, and a resolver at 127.0.0.53 that says 10.77.0.2 to every question."""
import selectors
import socket
import struct
import sys

port, name, log = int(sys.argv[1]), sys.argv[2], open(sys.argv[3], "a", buffering=1)
select = selectors.DefaultSelector()


def listen(family, address, kind=socket.SOCK_STREAM):
    s = socket.socket(family, kind)
    if family == socket.AF_INET6:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    s.bind(address)
    if kind == socket.SOCK_STREAM:
        s.listen()
    return s


def answer(question):
    """The same question with one address for it, of 60 seconds; none for what is not IPv4."""
    end = 12
    while question[end]:
        end += question[end] + 1
    end += 5
    four = struct.unpack(">H", question[end - 4:end - 2])[0] == 1
    found = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton("10.77.0.2") if four else b""
    return question[:2] + b"\x81\x80\0\1" + struct.pack(">HHH", four, 0, 0) + question[12:end] + found


for what, s in (("tcp", listen(socket.AF_INET, ("127.0.0.1", port))),
                ("tcp6", listen(socket.AF_INET6, ("::1", port))),
                ("udp", listen(socket.AF_INET, ("127.0.0.1", port), socket.SOCK_DGRAM)),
                ("unix", listen(socket.AF_UNIX, "\0" + name)),
                ("resolver", listen(socket.AF_INET, ("127.0.0.53", 53), socket.SOCK_DGRAM))):
    select.register(s, selectors.EVENT_READ, what)
print("ready", flush=True)
while True:
    for key, _ in select.select():
        if key.data == "resolver":
            text, who = key.fileobj.recvfrom(4096)
            key.fileobj.sendto(answer(text), who)
            continue
        if key.data == "udp":
            text = key.fileobj.recv(4096).decode()
        else:
            text = ""
            c, _ = key.fileobj.accept()
            c.sendall(b"neighbour")
            c.close()
        print(key.data, text, file=log)
