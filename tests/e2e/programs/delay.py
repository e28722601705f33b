"""A proxy that a kernel without netem needs: delay.py PORT MS. What nftables redirects to PORT is sent
on to where it was going, MS milliseconds later, in both directions."""
import asyncio
import socket
import struct
import sys

SO_ORIGINAL_DST, SO_MARK = 80, 36
MARK = 7                # of this proxy's own packets, which are not redirected
PORT, DELAY = int(sys.argv[1]), float(sys.argv[2]) / 1e3


async def pump(reader, writer):
    waiting = asyncio.Queue(maxsize=4096)
    clock = asyncio.get_running_loop().time

    async def send():
        while (item := await waiting.get()) is not None:
            due, piece = item
            await asyncio.sleep(max(0, due - clock()))
            writer.write(piece)
            await writer.drain()
        writer.write_eof()

    sender = asyncio.create_task(send())
    try:
        while piece := await reader.read(1 << 16):
            await waiting.put((clock() + DELAY, piece))
        await waiting.put(None)
        await sender
    finally:
        sender.cancel()


async def serve(reader, writer):
    to = writer.get_extra_info("socket").getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
    port, host = struct.unpack(">2xH4s8x", to)
    out = socket.socket()
    out.setsockopt(socket.SOL_SOCKET, SO_MARK, MARK)
    out.setblocking(False)
    far = None
    try:
        await asyncio.get_running_loop().sock_connect(out, (socket.inet_ntoa(host), port))
        far_reader, far = await asyncio.open_connection(sock=out)
        await asyncio.gather(pump(reader, far), pump(far_reader, writer))
    except OSError:
        pass                    # one side is gone: so is the other
    finally:
        out.close() if far is None else far.close()
        writer.close()


async def main():
    server = await asyncio.start_server(serve, "0.0.0.0", PORT)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


asyncio.run(main())
