"""What happens in the run of a seed: who runs it, by which plan, and which faults come before which steps."""

import random

STEPS = 40
# What a run is started as, and the faults that are drawn for it with their weights. `launcher`: one that starts lost ranks
# again; `joins`: one that does not, which others join; `hosts`: three machines, each in a network namespace; `resume`: on
# disk, from which all goes on after all is killed; `etcd`: ranks without a launcher that meet in etcd.
WORLDS = {
    'launcher': (38, {'kill': 4, 'kill at': 4, 'kill two': 2, 'kill again': 4, 'stop': 2, 'pause store': 1, 'damage': 1,
                      'terminate': 2, 'fill disk': 3}),
    'joins': (20, {'join': 5, 'kill': 2, 'kill at': 1, 'terminate': 1}),
    'hosts': (14, {'cut': 3, 'part': 2, 'slow': 2, 'kill host': 1, 'kill': 1}),
    'resume': (14, {'end': 1}),
    'etcd': (14, {'restart store': 5, 'kill': 2, 'kill at': 1, 'terminate': 1}),
}
FOLLOWED_BY = {'fill disk': (8, 'empty disk'), 'terminate': (2, 'wait')}
LOSE_RANKS = ('kill', 'kill two', 'kill again', 'kill host', 'stop', 'pause store', 'damage', 'join', 'cut', 'part', 'restart store')
DAMAGES = ('flip a bit', 'truncate', 'empty', 'remove', 'none')


class Schedule:
    """`events`: by step, (what, rank, a number to draw from); `faults`: of HETRUN_FAULT."""

    def __init__(self, seed, worlds=tuple(WORLDS)):
        draw = random.Random(seed)
        self.seed = seed
        self.world = draw.choices(worlds, [WORLDS[world][0] for world in worlds])[0]
        self.plan = draw.choice(['replicas', 'spread', 'spread', 'tensor'])
        if self.world in ('joins', 'hosts', 'etcd'):
            self.plan = draw.choice(['replicas', 'replicas', 'spread'])
        self.sharded = self.plan != 'replicas' and draw.random() < 0.6
        self.workers = {'replicas': draw.choice([4, 5, 6]), 'spread': 5, 'tensor': 6}[self.plan]
        self.machines = [self.workers]   # ranks of each launcher
        if self.world == 'joins' and self.plan == 'replicas':
            self.workers = draw.choice([2, 3, 4])
            self.machines = [self.workers]
        if self.world == 'hosts':
            self.machines = [2, 2, 1] if self.workers == 5 else [2, 1, 1]
            self.workers = sum(self.machines)
        self.disk = self.world == 'resume' or (self.world == 'launcher' and draw.random() < 0.3)
        self.events, self.faults, self.kinds = {}, [], set()
        self._draw_faults(draw)
        # A bucket in which snapshots arrive late, beside what is drawn otherwise: seeds keep their faults.
        self.store = self.world in ('launcher', 'joins', 'etcd') and random.Random(f'store {seed}').random() < 0.3
        self.disk = self.disk or self.store

    def _draw_faults(self, draw):
        weights = WORLDS[self.world][1]
        first = 8 if self.world in ('hosts', 'resume') else 4
        most = {'hosts': 2, 'resume': 1}.get(self.world, 3)
        for step in sorted(draw.sample(range(first, STEPS - 2), draw.randint(1, most))):
            rank = draw.randrange(self.workers)
            what = draw.choices(list(weights), list(weights.values()))[0]
            if what == 'end':
                what = draw.choice(DAMAGES)
            if what == 'kill at':   # before an instruction of the step
                self.faults.append(f'rank={rank} step={step} at={draw.random():.3f}')
            else:
                self.events[step] = (what, rank, draw.randrange(1 << 30))
            self.disk = self.disk or what == 'fill disk'
            self.kinds.add(what)
        # A rank killed after the decision of a step may not have recorded it: all others would hold at the gate before the
        # next one, which opens when it is recorded.
        steps = {int(fault.split()[1][5:]) for fault in self.faults}
        self.events = {step + (step - 1 in steps): event for step, event in self.events.items()}
        # A full disk has room again some steps later; who has a notice leaves after half a second, within the run.
        for step, (what, *_) in list(self.events.items()):
            if what in FOLLOWED_BY:
                after, follows = FOLLOWED_BY[what]
                self.events.setdefault(min(step + after, STEPS - 1), (follows, 0, 0))
        self.events = dict(sorted(self.events.items()))

    def words(self):
        silence = 5 if self.world == 'hosts' else 2 if 'stop' in self.kinds else 20
        words = [f'--steps={STEPS}', '--every=10', f'--timeout={silence}s', '--warn-after=0.2s']
        if self.plan != 'replicas':
            words.append(f'--{self.plan}')
        if self.sharded:
            words.append('--sharded')
        if self.disk:
            words += ['--snapshots=kept', f'--snapshot_every={3 if self.world == "resume" or self.store else 7}']
        if self.store:
            words += ['--store=s3://bucket/run', '--trust']   # a recipe may send data nowhere else
        return words

    def may_be_lost(self):
        """Whether the faults may destroy more than the copies of the state make good."""
        if self.plan == 'replicas':
            return False   # each rank has all of it
        hosts = [rank % len(self.machines) if what == 'cut' else 1 for what, rank, _ in self.events.values()
                 if what in ('cut', 'part', 'kill host')]
        # The first machine alone has lost both others.
        return self.kinds & {'damage', 'kill two', 'kill again'} or len(hosts) > 1 or 0 in hosts

    def loses_close_together(self):
        """Whether ranks may be lost before a new plan's state has copies, which takes a step or two."""
        losses = sorted([step for step, (what, *_) in self.events.items() if what in LOSE_RANKS]
                        + [int(fault.split()[1][5:]) for fault in self.faults])
        return self.plan != 'replicas' and any(later - step <= 3 for step, later in zip(losses, losses[1:]))

    def __str__(self):
        parts = [f'step {step}: {what} rank {rank}' for step, (what, rank, _) in self.events.items()]
        parts += [f'fault {fault}' for fault in self.faults]
        return (f'seed {self.seed}: {self.world}, {self.workers} ranks, {self.plan}{", sharded optimizer" if self.sharded else ""}'
                f'{", snapshots on disk" if self.disk else ""}{" and in a slow bucket" if self.store else ""}; {"; ".join(parts)}')
