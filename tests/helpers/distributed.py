"""Run functions on several processes that gloo joins over loopback; processes are started once and used again."""

import faulthandler
import os
import random
import tempfile
import time
import traceback
import warnings
from contextlib import contextmanager
from multiprocessing import connection, get_all_start_methods, get_context
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))


def _call(folder, rank, world_size, function, arguments):
    """Call the function as in a new process, whatever was called before, and leave nothing behind for the next call.

    Every call has its own process group. Lightning's Trainers and Accelerate find it, use it and leave it as it is; a
    function that destroys it does no harm to later calls. So no test that uses this has to start processes itself.
    """
    environment = dict(os.environ)
    random.seed(0), torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    with warnings.catch_warnings():
        result = function(rank, world_size, *arguments)
    if dist.is_initialized():
        dist.barrier()  # no process leaves while another still reads from it
        dist.destroy_process_group()
    os.environ.clear()
    os.environ.update(environment)
    return result


def _serve(calls):
    """Answer calls with (True, result), or with (False, traceback) and then return, until the pipe is closed."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        while True:
            folder, deadline, rank, *call = calls.recv()
            with open(f"{folder}/{rank}", "w") as where:
                faulthandler.dump_traceback_later(max(0.1, deadline - time.monotonic()), file=where)
                result = _call(folder, rank, *call)
                faulthandler.cancel_dump_traceback_later()
            calls.send((True, result))
    except EOFError:
        pass
    except BaseException:
        calls.send((False, traceback.format_exc()))


class Processes:
    """Processes that are started when first needed, and again after a call that failed or took too long."""

    def __init__(self):
        # a fork of this process may hang, because it has threads; one of a server that has only imported torch does not
        self._context = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
        if self._context.get_start_method() == "forkserver":
            self._context.set_forkserver_preload(["torchrecmetrics"])  # imported once for all processes
        self._started = {}

    def _start(self):
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self._started[ours] = process

    def close(self):
        """End all processes; those that still work are killed."""
        for calls in self._started:
            calls.close()
        for process in self._started.values():
            process.join(5)  # coverage writes its data when a process ends by itself
            process.kill()
            process.join()
        self._started = {}

    def run(self, function, world_size, *arguments, timeout=120):
        """Return [function(rank, world_size, *arguments)] of all processes; `function` is defined at a module's top."""
        while len(self._started) < world_size:
            self._start()
        try:
            with tempfile.TemporaryDirectory() as folder:
                results = self._run(folder, function, world_size, arguments, timeout)
        except BaseException:
            self.close()
            raise
        if TORCH < (2, 6):  # there, gloo may hang in a process that joins a second group
            self.close()
        return results

    def _run(self, folder, function, world_size, arguments, timeout):
        name, results = f"{function.__name__} on {world_size} processes", {}
        waiting = dict(zip(self._started, range(world_size), strict=False))
        deadline = time.monotonic() + timeout
        for calls, rank in waiting.items():
            calls.send((folder, deadline, rank, world_size, function, arguments))
        while waiting:
            answered = connection.wait(waiting, max(0, deadline + 1 - time.monotonic()))  # 1 s to write where it hangs
            if not answered:
                where = "\n".join(file.read_text() for file in Path(folder).glob("[0-9]"))
                raise TimeoutError(f"{name} took more than {timeout} s\n{where}")
            for calls in answered:
                rank = waiting.pop(calls)
                try:
                    done, results[rank] = calls.recv()
                except EOFError:
                    done, results[rank] = False, "it has died"
                if not done:
                    raise RuntimeError(f"{name} failed in process {rank}\n{results[rank]}")
        return [results[rank] for rank in range(world_size)]


@contextmanager
def counted_collectives():
    """Yield a list that gets the name of each collective called in the `with` block."""
    calls = []

    def counted(name):
        function = getattr(dist, name)
        return lambda *args, **kwargs: (calls.append(name), function(*args, **kwargs))[1]

    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "broadcast", "barrier"):
            patch.setattr(dist, name, counted(name))
        yield calls
