"""Run a function on several gloo processes over loopback, bounded by a timeout."""

import faulthandler
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _child(rank, world_size, path, function, arguments, results):
    faulthandler.dump_traceback_later(60)  # where it hangs, if it does
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}/store", rank=rank, world_size=world_size)
    try:
        results[rank] = function(rank, world_size, *arguments)
        dist.barrier()  # nobody leaves while another still reads from them
    finally:
        dist.destroy_process_group()


def run(function, world_size, *arguments, timeout=120):
    """Return [function(rank, world_size, *arguments)] of all processes; `function` lives at the top of a module."""
    with tempfile.TemporaryDirectory() as path, mp.get_context("spawn").Manager() as manager:
        results = manager.dict()
        context = mp.start_processes(
            _child,
            (world_size, path, function, arguments, results),
            nprocs=world_size,
            join=False,
            daemon=True,
            start_method="spawn",  # a fork of a process that has imported torch, and so has threads, may hang
        )
        deadline = time.monotonic() + timeout
        while not context.join(1):
            if time.monotonic() > deadline:
                for process in context.processes:
                    process.kill()
                raise TimeoutError(f"{function.__name__} on {world_size} processes took more than {timeout} s")
        return [results[rank] for rank in range(world_size)]
