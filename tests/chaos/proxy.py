"""A TCP proxy between two parties that can be made slow, silent, lossy or cut."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable

CHUNK_BYTES = 65_536
LOSS_S = 2.0
"""Mean time after which a connection breaks while the proxy is lossy."""


class Proxy:
    """Listens on a port (0: any free one) and forwards to another, in a separate thread."""

    def __init__(self, upstream: tuple[str, int], port: int = 0, seed: int = 0, host: str = "127.0.0.1") -> None:
        self.upstream, self.port, self.host = upstream, port, host
        self._rng = random.Random(seed)
        self._delay_s, self._cut, self._lossy = 0.0, False, False
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{upstream[1]}", daemon=True)

    def start(self) -> None:
        """Starts to listen."""
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, self.host, self.port), self._loop
        ).result(10)
        self._server, self.port = server, server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Closes all connections."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        self._break_all()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    # ---- faults; each call ends the previous one

    def open(self) -> None:
        """Forwards everything immediately."""
        self._set(0.0, flows=True, cut=False, lossy=False)

    def delay(self, seconds: float) -> None:
        """Delays everything."""
        self._set(seconds, flows=True, cut=False, lossy=False)

    def stall(self) -> None:
        """Accepts data and forwards nothing, like a network that drops packets."""
        self._set(0.0, flows=False, cut=False, lossy=False)

    def cut(self) -> None:
        """Breaks all connections, and each new one immediately."""
        self._set(0.0, flows=True, cut=True, lossy=False)
        self._on_loop(self._break_all)

    def lossy(self) -> None:
        """Breaks connections from time to time."""
        self._set(0.0, flows=True, cut=False, lossy=True)

    @property
    def connections(self) -> int:
        """The number of connections."""
        return len(self._writers) // 2

    def _set(self, delay_s: float, flows: bool, cut: bool, lossy: bool) -> None:
        def change() -> None:
            self._delay_s, self._cut, self._lossy = delay_s, cut, lossy
            if flows:
                self._flows.set()
            else:
                self._flows.clear()

        self._on_loop(change)

    def _on_loop(self, fn: Callable[[], object]) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (fn(), done.set()))
        done.wait(10)

    def _break_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    # ---- connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut:
            writer.transport.abort()
            return
        await self._flows.wait()
        try:
            up_reader, up_writer = await asyncio.open_connection(*self.upstream)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, up_writer}
        self._writers |= pair
        watch = asyncio.create_task(self._lose(pair))
        try:
            with contextlib.suppress(asyncio.CancelledError):  # else asyncio writes a traceback for each at the end
                await asyncio.gather(self._pump(reader, up_writer), self._pump(up_reader, writer))
        finally:
            watch.cancel()
            self._writers -= pair
            for each in pair:
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()

    async def _lose(self, pair: set[asyncio.StreamWriter]) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / LOSS_S))
            if self._lossy:
                for writer in pair:
                    writer.transport.abort()
