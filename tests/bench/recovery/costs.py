"""What snapshots cost: the time that steps lose to those in memory, as often as they get done and as often as pays, and
how fast they reach a disk.

Two machines (namespaces, 10 Gb/s) train a pipeline of two stages, one micro-batch at a time: one of the two ranks waits
at any moment. Runs with and without snapshots take turns. Steps are longer because processors and memory also copy, check,
send and receive; `stall` is the part of the time in which the training itself waited for its snapshots.

The processors compute the steps here, so that nothing is left for snapshots. With `rest` they compute a quarter of a step and
rest for the others, as hosts do while their GPUs compute: an imitation, with the state in the hosts' memory."""

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
LAYERS, WIDTH, BATCH = 6, 512, 120   # steps of about a second on one processor
REST = 0.75   # of a step with a quarter of the batch
LINK = '10gbit'
STATE_BYTES = 12 * LAYERS * 12 * WIDTH ** 2 / 2   # of a rank: weights of the blocks and AdamW's two moments, in f32
INTERVALS = 2   # of snapshots as often as pays, that are measured
MODES = {'without': ['--memory=false'], 'each': ['--memory_every=1'], 'as pays': ['--memory_every=0']}


def resting(seconds):
    """The variables of ranks that rest in each step."""
    return {'HETRUN_FAULT': ', '.join(f'rank={rank} rest={seconds}' for rank in (0, 1))} if seconds else {}


def run_steps(hetrun, network, mode, folder, rest):
    """Seconds of each step, the metrics of the last one, and the share of the time in which the training waited."""
    cluster = Cluster(hetrun, network, folder, resting(rest))
    try:
        batch = BATCH // 4 if rest else BATCH
        cluster.begin([0, 1], [f'--batch={batch}', f'--microbatch={batch}', f'--layers={LAYERS}', f'--width={WIDTH}',
                               *MODES[mode]])
        times, record, steps, stalls = [], None, STEPS, []
        while len(times) < steps + WARMUP:
            before = record and record['seconds']   # since the run began
            at, record = cluster.until(is_step, 'a step')
            if before:
                times.append(record['seconds'] - before)
            if 'snapshot_stall_seconds' in record:
                stalls.append((at, record['snapshot_stall_seconds']))
            if mode == 'as pays' and record.get('snapshot_cost_seconds') and steps == STEPS:
                # The first interval that is chosen by what was measured begins here: so many of these.
                steps = STEPS + len(times) + INTERVALS * record['snapshot_every_steps']
                first = len(times)
        stall = (stalls[-1][1] - stalls[0][1]) / (stalls[-1][0] - stalls[0][0]) if len(stalls) > 1 else None
        return (times[first:] if mode == 'as pays' else times[WARMUP:]), record, stall
    finally:
        cluster.close()


def overhead(hetrun, rounds=3, rest=0):
    network = Network(2, LINK, '100mbit')
    seconds, last, stalls = {mode: [] for mode in MODES}, {}, []
    try:
        for turn in range(rounds):
            for mode in MODES:
                if mode == 'as pays' and turn > 0:
                    continue
                folder = Path(tempfile.mkdtemp())
                try:
                    times, last[mode], stall = run_steps(hetrun, network, mode, folder, rest)
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                seconds[mode] += times
                if mode == 'each':
                    stalls.append(stall)
    finally:
        network.remove()
    without, each = (statistics.median(seconds[mode]) for mode in ('without', 'each'))
    paying = last['as pays']
    step = statistics.median(seconds['as pays'])
    return {'rest_seconds': rest, 'step_seconds': without, 'with_snapshots': each, 'overhead_each': each / without - 1,
            'stall_each': statistics.median(stalls), 'link': LINK,
            'mean_overhead_each': statistics.mean(seconds['each']) / statistics.mean(seconds['without']) - 1,
            'snapshot_age_steps': last['each'].get('snapshot_age_steps'), 'state_bytes_of_a_rank': STATE_BYTES,
            # Within one run, so that a busy machine counts for all of its steps alike.
            'overhead': statistics.mean(seconds['as pays']) / step - 1,
            'every_steps': paying.get('snapshot_every_steps'), 'cost_seconds': paying.get('snapshot_cost_seconds'),
            'steps_as_pays': len(seconds['as pays'])}


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
