"""A server of known constants, as a program of its own: `python -m tests.calibrate.server.step_server P S R`.

It serves in steps: each takes P + S seconds and R per request in it, and gives every request in it a token at its
end; whoever comes in within INTAKE_S of that takes part in the next one. The first line that it prints is its address.
"""

from __future__ import annotations

import asyncio
import json
import sys

PROMPT_TOKENS = 16
INTAKE_S = 0.015
"""Of the beginning of a step: a client sends its next request when it has read the end of the last one."""
EVENT = b'data: {"choices": [{"text": "a "}]}\n\n'
LAST = b'data: {"choices": [], "usage": {"prompt_tokens": %d}}\n\ndata: [DONE]\n\n' % PROMPT_TOKENS
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


class Steps:
    """Requests under way, by what is left of each."""

    def __init__(self, pass_s: float, step_s: float, row_s: float) -> None:
        self.fixed_s, self.row_s = pass_s + step_s, row_s
        self.waiting: list[tuple[asyncio.StreamWriter, int]] = []
        self.came = asyncio.Event()

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        running: list[tuple[asyncio.StreamWriter, int]] = []
        now_s = loop.time()
        while True:
            running += self.waiting
            self.waiting = []
            if not running:
                self.came.clear()
                await self.came.wait()
                now_s = loop.time()
                continue
            now_s += self.fixed_s + self.row_s * len(running)
            await asyncio.sleep(max(0.0, now_s - loop.time()))
            for writer, left in running:
                writer.write(EVENT if left > 1 else EVENT + LAST)
                if left == 1:
                    writer.close()
            running = [(writer, left - 1) for writer, left in running if left > 1]
            await asyncio.sleep(INTAKE_S)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
        body = await reader.readexactly(int(lengths[0])) if lengths else b""
        if not head.startswith(b"POST /v1/completions "):
            text = b'{"data": [{"id": "tiny"}]}' if b" /v1/models " in head.split(b"\r\n")[0] else b""
            status = b"200 OK" if text else b"404 Not Found"
            writer.write(
                b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (status, len(text), text)
            )
            writer.close()
            return
        tokens = json.loads(body)["max_tokens"]
        writer.write(SSE)
        self.waiting.append((writer, tokens))
        self.came.set()


async def main(pass_s: float, step_s: float, row_s: float) -> None:
    steps = Steps(pass_s, step_s, row_s)
    server = await asyncio.start_server(steps.answer, "127.0.0.1", 0, backlog=256)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await steps.serve()


if __name__ == "__main__":
    asyncio.run(main(*map(float, sys.argv[1:])))
