"""Whether a run was right, by what it has written."""

import json
import re

SAMPLES = 12   # of a step

# Where the state was read from elsewhere than the ranks that had it, or began again.
GOES_BACK = r'restored the state after step \d+|going on after step \d+|begins after step \d+'
BEGINS_AGAIN = 'it begins after step'
REFUSED = r"no (member|tier|snapshot)\b.* has .* of the state|nothing has all of the run's state; .* lacks"


def records_of(path):
    """Of a metrics file; a line that was cut off is none."""
    lines = path.read_text().split('\n')[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


class Curve:
    """The steps that a run has decided, one after the other: each follows the last, but where a generation says that it goes
    on after an earlier one, or all ranks were lost. Steps that are repeated are recorded again only by a rank that has not
    recorded them before. `exact`: how many steps ran by the first plan alone."""

    def __init__(self):
        self.losses, self.all, self.problems = [], [], []
        self.after = 0   # the step that the run has come to, or gone back to
        self.generations, self.repeated, self.went_back = 0, 0, 0
        self.exact, self.is_exact = 0, True
        self.covered = False   # the last generation has said that a snapshot of its state is whole

    def read(self, records, workers):
        for record in records:
            if 'generation' in record:
                self.generations += 1
                self.repeated += record['steps_repeated']
                self.is_exact = self.is_exact and record['members'] == workers
                if record['step'] > len(self.losses) + 1:
                    self.problems.append(f'generation {record["generation"]} goes on after step {record["step"]}, '
                                         f'{len(self.losses)} were recorded')
                self.after = min(record['step'], len(self.losses))
                self.covered = False
            elif record.get('samples_lost') or record.get('samples_repeated'):
                self.problems.append(f'{record["samples_lost"]} samples were lost and {record["samples_repeated"]} repeated')
            elif 'loss' in record:
                self._step(record['step'], record['loss'])
                self.covered = self.covered or record.get('snapshot_age_steps') is not None

    def _step(self, step, loss):
        self.all.append((step, loss))
        done = len(self.losses)
        if step in (done, done - 1) and self.losses[step - 1] == loss:
            return   # said again by the rank that took over
        if step > done + 1:
            self.problems.append(f'step {step} follows step {done}')
            return
        if step <= self.after:   # all ranks were lost
            self.went_back += 1
            self.is_exact = False
        self.losses[step - 1:] = [loss]
        self.after = step
        if self.is_exact:
            self.exact = step

    def problem(self, right, exact, said):
        """Empty: each step was decided once, with the loss of the undisturbed run. `exact`: the losses by the run's first
        plan, which are the same to the bit as long as it is followed."""
        if self.problems:
            return self.problems[0]
        if len(self.losses) != len(right):
            return f'{len(self.losses)} of {len(right)} steps were decided'
        far = {step: (loss, right[step - 1]) for step, loss in self.all if abs(loss - right[step - 1]) > 1e-4 * right[step - 1]}
        if far:
            return f'other losses than the undisturbed run: {dict(list(far.items())[:3])}'
        if re.search(BEGINS_AGAIN, said):   # by whatever plan is for the ranks that were there
            self.exact = 0
        other = [step for step in range(1, self.exact + 1) if self.losses[step - 1] != exact[step - 1]]
        if other:
            return f'other bits than the undisturbed run by the same plan: steps {other[:5]}'
        if self.went_back > len(re.findall(GOES_BACK, said)):
            return 'it went back and did not say so'
        return ''


def problem_of(run, code, said, curve, right, exact):
    """Why a run was not right; empty: it was. 'refused': it ended and named what was lost, as the schedule allows."""
    if code is None:
        return 'it does not end'
    if code != 0 and run.all_lost():
        return 'refused'
    if code == 75 and re.search(REFUSED, said):
        if run.damaged or run.schedule.may_be_lost() or run.schedule.loses_close_together() and not curve.covered:
            return 'refused'
        return 'it gave up though enough was there'
    if code != 0:
        return f'exit code {code}'
    return curve.problem(right, exact, said) or problem_on_disk(run) or (
        f'it left {run.left_behind()}' if run.left_behind() else '')


def problem_on_disk(run):
    """Each snapshot that is listed as whole is so, and its cursor counts each sample once."""
    if not run.schedule.disk:
        return ''
    for listed in run.listed('kept'):
        if 'problem' in listed:
            continue
        shown = run.command('snapshot', 'show', 'kept', f'--step={listed["step"]}', '--json')
        if json.loads(shown.stdout)['cursor'] != SAMPLES * listed['step']:
            return f'the snapshot of step {listed["step"]} goes on at another sample: {shown.stdout[:200]}'
        verified = run.command('snapshot', 'verify', 'kept', f'--step={listed["step"]}')
        if verified.returncode != 0:
            return f'a snapshot that is listed as whole is not: {verified.stdout} {verified.stderr}'
    return ''
