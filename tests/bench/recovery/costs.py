"""What snapshots cost: the time that steps lose to one in memory after each of them, and how fast they reach a disk.

Two machines (namespaces, 10 Gb/s) train a pipeline of two stages, one micro-batch at a time: one of the two ranks waits
at any moment, as processors do beside a GPU. Runs with and without snapshots take turns."""

import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from network import Network
from scenarios import Cluster, is_step

STEPS, WARMUP = 24, 5


def run_steps(hetrun, network, memory, folder):
    """Seconds of each step, and the metrics of the last one."""
    cluster = Cluster(hetrun, network, folder)
    try:
        cluster.begin([0, 1], ['--batch=16', '--microbatch=16', f'--memory={"true" if memory else "false"}'])
        times, record = [], None
        while len(times) < STEPS + WARMUP:
            before = record and record['seconds']   # since the run began
            _, record = cluster.until(is_step, 'a step')
            if before:
                times.append(record['seconds'] - before)
        return times[WARMUP:], record
    finally:
        cluster.close()


def overhead(hetrun, rounds=3):
    network = Network(2, '10gbit', '100mbit')
    seconds, last = {False: [], True: []}, None
    try:
        for _ in range(rounds):
            for memory in (False, True):
                folder = Path(tempfile.mkdtemp())
                try:
                    times, record = run_steps(hetrun, network, memory, folder)
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                seconds[memory] += times
                last = record if memory else last
    finally:
        network.remove()
    without, with_snapshots = (statistics.median(seconds[each]) for each in (False, True))
    return {'step_seconds': without, 'with_snapshots': with_snapshots, 'overhead': with_snapshots / without - 1,
            'mean_overhead': statistics.mean(seconds[True]) / statistics.mean(seconds[False]) - 1,
            'snapshot_age_steps': last.get('snapshot_age_steps'), 'state_bytes_of_a_rank': 530e6 / 2}


def raw_write(path, size):
    """Seconds to write so many bytes with direct I/O, and flush them, as fast as this disk takes them from one thread."""
    import mmap
    block = mmap.mmap(-1, 8 << 20)
    block.write(os.urandom(1 << 20) * 8)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o600)
    began = time.monotonic()
    try:
        for _ in range(size // len(block)):
            os.write(descriptor, block)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    took = time.monotonic() - began
    os.unlink(path)
    return took


def disk(writer, folder, rounds=5, size=512 << 20):
    """The share of the disk's raw speed at which a snapshot is written; `writer` is tests/snapshot's disk_speed."""
    raw, ours = [], []
    for _ in range(rounds):
        raw.append(raw_write(f'{folder}/raw', size))
        done = subprocess.run([writer, folder, str(size)], capture_output=True, text=True, check=True)
        ours.append(json.loads(done.stdout)['seconds'])
    return {'raw_GB_per_s': size / statistics.median(raw) / 1e9, 'snapshot_GB_per_s': size / statistics.median(ours) / 1e9,
            'disk_fraction': statistics.median(raw) / statistics.median(ours)}
