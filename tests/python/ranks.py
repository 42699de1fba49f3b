"""Runs a test's function on several ranks: processes of one Gloo job."""

import os
import pickle
import socket
import traceback

import torch


def run_rank(function, rank, size, port, results):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    try:
        # Pickled here: a queue would share tensors by files that end with this process.
        results.put((rank, True, pickle.dumps(function(rank))))
    except BaseException:
        results.put((rank, False, traceback.format_exc()))
    torch.distributed.destroy_process_group()
    results.close()
    results.join_thread()
    os._exit(0)  # Python's own end aborts if a gloo thread frees a tensor meanwhile


def on_ranks(function, size=2):
    """Return what `function(rank)`, a function of a module, returns on each rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [context.Process(target=run_rank, args=(function, r, size, port, results)) for r in range(size)]
    for worker in workers:
        worker.start()
    found = {}
    for _ in workers:
        rank, succeeded, result = results.get(timeout=300)
        assert succeeded, f"rank {rank}: {result}"
        found[rank] = pickle.loads(result)
    for worker in workers:
        worker.join()
    return [found[rank] for rank in range(size)]
