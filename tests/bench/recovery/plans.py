"""How long a run with --elastic looks for a plan when a rank is lost, with plans made ahead and without.

Each trial starts six ranks of a small GPT under the planner's plan, ends one of them with SIGKILL, and reads from the
timeline of that change how long the ranks waited for their next plan, and for their next step."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from metrics import Metrics
from pauses import until

RECIPE = """local het = require "het"
local opt = het.options { ahead = { 8, "plans made ahead", min = 0 } }
local corpus = het.data.text { path = "text.txt", tokenizer = "char" }
return het.train {
  model = het.nn.gpt { vocab = corpus.vocab, context = 32, width = 64, layers = 12, heads = 4 },
  data = corpus, batch = 24, steps = 100000, optimizer = het.optim.adamw { lr = 1e-3 }, evaluate = { every = 0 },
  plan = het.plan.auto { ahead = opt.ahead },
}
"""
RANKS, PATIENCE = 6, 60


def are_planned(hetrun, process):
    """Whether the first rank has a plan for each change that it foresees."""
    done = subprocess.run([hetrun, 'status', f'--pid={process.pid}', '--json'], capture_output=True, text=True, check=False)
    ahead = json.loads(done.stdout).get('ahead') if done.returncode == 0 else None
    return ahead is not None and ahead['planned'] == ahead['foreseen']


def trial(hetrun, folder, chance, ahead):
    metrics = folder / 'metrics.jsonl'
    metrics.unlink(missing_ok=True)
    process = subprocess.Popen([hetrun, '--workers', str(RANKS), '--elastic', f'2:{RANKS}', '--threads', '1', 'recipe.lua',
                                f'--ahead={ahead}', '--quiet', f'--metrics={metrics}'], cwd=folder,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        lines = Metrics(metrics)
        until(lines, lambda record: record.get('step') == 10, process)
        deadline = time.monotonic() + PATIENCE
        while ahead and not are_planned(hetrun, process):
            if time.monotonic() > deadline:
                sys.exit(f'no plans ahead within {PATIENCE} s')
            time.sleep(0.1)
        ranks = sorted(int(pid) for pid in subprocess.run(['pgrep', '-P', str(process.pid)], capture_output=True, text=True,
                                                          check=True).stdout.split())
        os.kill(chance.choice(ranks[1:]), signal.SIGKILL)   # not the first one: whose plans the status shows
        _, timeline = until(lines, lambda record: 'timeline' in record, process)
    finally:
        process.terminate()
        process.communicate()
    if timeline['planned_ahead'] != (ahead > 0):
        sys.exit(f'ahead = {ahead}: {timeline}')
    return timeline['planned_seconds'] - timeline['connected_seconds'], timeline['first_step_seconds']


def measure(hetrun, trials, seed=1):
    """Milliseconds, medians: without plans ahead and with them, by turns."""
    folder, chance = Path(tempfile.mkdtemp()), random.Random(seed)
    (folder / 'text.txt').write_text(' '.join(chance.choice(['the', 'quick', 'brown', 'fox']) for _ in range(3000)))
    (folder / 'recipe.lua').write_text(RECIPE)
    rows = {0: [], 8: []}
    try:
        for _ in range(trials):
            for ahead, found in rows.items():
                found.append(trial(hetrun, folder, chance, ahead))
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    def middle(ahead, column):
        times = sorted(1e3 * row[column] for row in rows[ahead])
        return times[len(times) // 2]
    return {'planned_ms': middle(0, 0), 'planned_ahead_ms': middle(8, 0), 'planned_next_step_ms': middle(0, 1),
            'planned_ahead_next_step_ms': middle(8, 1), 'planned_losses': trials}
