#!/usr/bin/env python3
"""No keystroke and no second run loses what was trained: what is replaced, what is refused, what is kept beside.

usage: overwrite.py HETRUN [unittest arguments]
"""
import os
import shutil
import signal
import socket
import time

from case import Case, change_metadata, change_snapshot, main, recipe

# A run that waits in step 5, for the interrupt that is to come there.
WAITS = recipe('if step.step == 5 then io.open("here", "w"):close(); while true do end end')
WAYS_ON = ('--resume (resume = true) goes on with it, --overwrite replaces it, another folder for '
           '`save` keeps both')


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return str(probe.getsockname()[1])


class Overwrite(Case):
    def train(self, steps, *words):
        self.hetrun('r.lua', f'--steps={steps}', '--quiet', *words)
        return self.files()

    def interrupt(self, *words, asked=signal.SIGINT, text=WAITS, code=130):
        """A run with `words` that is interrupted in step 5."""
        self.write('waits.lua', text)
        (self.folder / 'here').unlink(missing_ok=True)
        process = self.start(*words[:-1], 'waits.lua', '--steps=1000', words[-1])
        self.until_file('here', process)
        process.send_signal(asked)
        return self.end(process, code)

    def goes_on(self, name, steps):
        done = self.hetrun('r.lua', '--resume', f'--save={name}', f'--steps={steps + 1}')
        self.assertIn(f'going on after step {steps}\n', done.stderr)
        self.assertEqual(self.steps(name), steps + 1)

    def test_a_folder_with_a_model_is_refused_before_anything_is_computed(self):
        old = self.train(30)
        done = self.hetrun('r.lua', '--metrics=metrics.jsonl', code=2)
        self.assertEqual(done.stderr, f'hetrun: runs/x holds a model of 30 steps; {WAYS_ON}\n')
        self.assertEqual(self.files(), old)
        self.assertFalse((self.folder / 'metrics.jsonl').exists())
        self.assertFalse((self.folder / 'runs' / 'x' / 'interrupted').exists())

    def test_it_is_refused_before_the_peak_is_measured(self):
        (self.folder / 'runs' / 'x').mkdir(parents=True)
        (self.folder / 'runs' / 'x' / 'model.safetensors').write_bytes(b'not even a model')
        done = self.hetrun('r.lua', '--allow-write=runs/x', code=2)
        self.assertEqual(done.stderr, 'hetrun: runs/x holds a model; from = "runs/x" begins with its weights, '
                         f'{WAYS_ON[WAYS_ON.index("--overwrite"):]}\n')
        self.assertFalse((self.folder / 'cache' / 'hetrun' / 'peak.json').exists())

    def test_a_configuration_alone_is_not_replaced_either(self):
        (self.folder / 'runs' / 'x').mkdir(parents=True)
        (self.folder / 'runs' / 'x' / 'config.json').write_text('{}')
        self.assertIn('runs/x holds config.json; ', self.hetrun('r.lua', '--allow-write=runs/x', code=2).stderr)
        self.assertIn('files that no run of hetrun wrote', self.hetrun('r.lua', code=2).stderr)

    def test_one_of_several_workers_reports_it(self):
        old = self.train(3)
        done = self.hetrun('--workers', 3, 'r.lua', '--timeout=60s', code=2)
        self.assertEqual(done.stderr, f'hetrun: runs/x holds a model of 3 steps; {WAYS_ON}\n')
        self.assertEqual(self.files(), old)

    def test_ranks_without_a_launcher_all_end_with_the_same_sentence(self):
        self.train(3)
        common = {'WORLD_SIZE': '2', 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': free_port(), 'OMP_NUM_THREADS': '1',
                  'HETRUN_SECRET': 'a secret of more than sixteen bytes'}
        ranks = [self.start('r.lua', RANK=str(rank), LOCAL_RANK=str(rank), **common) for rank in range(2)]
        for rank in ranks:
            self.assertEqual(self.end(rank, 2)[1], f'hetrun: runs/x holds a model of 3 steps; {WAYS_ON}\n')

    def test_resume_and_overwrite_contradict_each_other(self):
        self.assertIn('--resume goes on with a saved model and --overwrite replaces it; give one of them',
                      self.hetrun('r.lua', '--resume', '--overwrite', code=2).stderr)
        self.write('both.lua', recipe(fields='resume = true, overwrite = true,'))
        self.assertIn('both.lua:11: resume = true goes on with a saved model, overwrite = true replaces it; take one',
                      self.hetrun('both.lua', code=2).stderr)

    def test_what_the_command_line_says_counts(self):
        self.train(3)
        self.write('overwrites.lua', recipe(fields='overwrite = true,'))
        self.assertIn('going on after step 3', self.hetrun('overwrites.lua', '--resume').stderr)
        self.write('resumes.lua', recipe(fields='resume = true,'))
        self.assertNotIn('going on', self.hetrun('resumes.lua', '--overwrite', '--steps=2').stderr)
        self.assertEqual(self.steps(), 2)

    def test_a_model_that_others_saved_is_not_mixed_with_ours(self):
        (self.folder / 'runs' / 'x').mkdir(parents=True)
        (self.folder / 'runs' / 'x' / 'pytorch_model.bin').write_text('a model')
        for words, said in ((['--overwrite'], 'which a save would leave beside the files it writes'),
                            (['--resume'], 'holds a model but nothing to go on from'), ([], 'runs/x holds a model;')):
            self.assertIn(said, self.hetrun('r.lua', '--save=runs/x', *words, code=2).stderr)

    def test_a_folder_of_links_is_refused_before_the_first_step(self):
        self.train(3)
        (self.folder / 'runs' / 'links').mkdir()
        for name in self.files():
            (self.folder / 'runs' / 'links' / name).symlink_to(f'../x/{name}')
        done = self.hetrun('r.lua', '--save=runs/links', '--overwrite', code=2)
        self.assertIn('is a link, or lies behind one; recipes write through none', done.stderr)
        self.assertNotIn('step 1', done.stderr)

    def test_resume_needs_a_folder(self):
        self.assertIn('--resume needs the folder to go on from: this run has no `save`',
                      self.hetrun('r.lua', '--save=', '--resume', code=2).stderr)

    def test_resume_begins_where_nothing_is_saved_and_takes_a_value(self):
        done = self.hetrun('r.lua', '--resume=true', '--steps=3')
        self.assertIn('nothing is saved in runs/x yet: this run begins at step 1', done.stderr)
        self.assertIn('going on after step 3', self.hetrun('r.lua', '--resume=true').stderr)
        self.hetrun('r.lua', '--resume=false', code=2)
        self.write('resumes.lua', recipe(fields='resume = true,'))
        self.assertIn('going on after step 6', self.hetrun('resumes.lua', '--steps=7').stderr)

    def test_overwrite_replaces(self):
        self.train(5)
        done = self.hetrun('r.lua', '--overwrite', '--steps=3')
        self.assertIn('runs/x holds a model of 5 steps, which is kept until this run is saved', done.stderr)
        self.assertEqual(self.steps(), 3)
        self.write('overwrites.lua', recipe(fields='overwrite = true,'))
        self.assertIn('the recipe asks to replace it, and --overwrite lets it', self.hetrun('overwrites.lua', code=2).stderr)
        self.assertEqual(self.steps(), 3)
        self.hetrun('--trust', 'overwrites.lua', '--steps=2')
        self.assertEqual(self.steps(), 2)
        self.hetrun('--workers', 2, 'r.lua', '--overwrite', '--steps=4')
        self.assertEqual(self.steps(), 4)

    def test_an_interrupt_as_soon_as_it_is_reported_loses_nothing(self):
        old = self.train(300)
        process = self.start('r.lua', '--overwrite', '--steps=1000000')
        for line in process.stderr:
            if 'which is kept until this run is saved' in line:
                break
        process.send_signal(signal.SIGINT)
        self.end(process, 130)
        self.assertEqual(self.files(), old)

    def test_an_interrupted_run_replaces_no_model_that_has_had_more_steps(self):
        old = self.train(20)
        for asked, name in ((signal.SIGINT, 'Ctrl-C'), (signal.SIGTERM, 'SIGTERM')):
            for words in ([], ['--quiet']):
                _, err = self.interrupt(*words, '--overwrite', asked=asked)
                self.assertEqual(self.files(), old)
                self.assertEqual(self.steps('runs/x/interrupted'), 5)
                self.assertIn('stopped and saved after step 5 in runs/x/interrupted; runs/x keeps its model of 20 '
                              'steps. To go on with this one: save = "runs/x/interrupted" and --resume. To go on with '
                              'the other: --resume\n', err)
                self.assertIn(f'hetrun: {name}: ending at the next safe point of waits.lua; again ends at once\n', err)
        self.assertEqual([path.name for path in (self.folder / 'runs' / 'x').iterdir() if path.is_dir()], ['interrupted'])
        self.goes_on('runs/x/interrupted', 5)
        self.goes_on('runs/x', 20)

    def test_nor_does_one_of_several_workers(self):
        old = self.train(20)
        _, err = self.interrupt('--workers', 2, '--overwrite')
        self.assertEqual(self.files(), old)
        steps = self.steps('runs/x/interrupted')
        self.assertIn(f'stopped and saved after step {steps} in runs/x/interrupted; runs/x keeps its model of 20 steps', err)
        self.goes_on('runs/x/interrupted', steps)

    def test_an_interrupted_run_that_has_had_more_steps_replaces_the_model(self):
        self.train(3)
        _, err = self.interrupt('--overwrite')
        self.assertIn('stopped and saved after step 5 in runs/x\n', err)
        self.goes_on('runs/x', 5)

    def test_once_a_run_has_replaced_a_model_it_is_its_own(self):
        self.train(20)
        _, err = self.interrupt('--every=2', '--overwrite')
        self.assertIn('stopped and saved after step 5 in runs/x\n', err)
        self.goes_on('runs/x', 5)

    def test_an_interrupted_run_that_goes_on_saves_where_it_began(self):
        self.train(3)
        _, err = self.interrupt('--resume')
        self.assertIn('stopped and saved after step 5 in runs/x\n', err)
        self.goes_on('runs/x', 5)

    def test_a_run_that_fails_is_saved_beside_the_model(self):
        old = self.train(20)
        for stop, place in ((5, 'interrupted'), (6, 'interrupted'), (4, 'interrupted-2')):
            self.write('fails.lua', recipe(f'if step.step == {stop} then error "as asked" end'))
            done = self.hetrun('fails.lua', '--steps=9', '--overwrite', code=2)
            self.assertIn('as asked', done.stderr)
            self.assertIn(f'failed and saved after step {stop} in runs/x/{place}; runs/x keeps its model of 20 steps',
                          done.stderr)
            self.assertEqual(self.files(), old)
            self.assertEqual(self.steps(f'runs/x/{place}'), stop)
        self.assertEqual(self.steps('runs/x/interrupted'), 6)
        self.goes_on('runs/x/interrupted-2', 4)

    def test_a_run_that_fails_with_nothing_saved_is_saved_in_its_folder(self):
        self.write('fails.lua', recipe('if step.step == 5 then error "as asked" end'))
        self.assertIn('failed and saved after step 5 in runs/x\n', self.hetrun('fails.lua', '--steps=9', code=2).stderr)
        self.goes_on('runs/x', 5)

    def test_what_came_into_the_folder_meanwhile_is_kept(self):
        self.hetrun('r.lua', '--save=runs/other', '--steps=3', '--quiet')
        self.write('waits.lua', recipe('if step.step == 5 then io.open("here", "w"):close(); '
                                       'repeat local f = io.open("go") until f end'))
        process = self.start('waits.lua', '--steps=8')
        self.until_file('here', process)
        shutil.rmtree(self.folder / 'runs' / 'x')
        (self.folder / 'runs' / 'other').rename(self.folder / 'runs' / 'x')
        (self.folder / 'go').touch()
        self.assertIn('saved after step 8 in runs/x/interrupted; runs/x keeps its model of 3 steps', self.end(process, 0)[1])
        self.assertEqual((self.steps(), self.steps('runs/x/interrupted')), (3, 8))

    LARGE = '''local het = require "het"
return het.train { model = het.nn.linear(2000, 2000), batch = 1, steps = 1, overwrite = %s, save = "runs/x",
  data = het.data.pairs { inputs = het.full({ 1, 2000 }, %d), labels = het.full({ 1, 2000 }, 2), holdout = 0 },
  optimizer = het.optim.adamw { lr = 1e-3 } }
'''

    def test_a_kill_within_the_first_save_leaves_the_old_model(self):
        self.write('large.lua', self.LARGE % ('false', 1))
        self.hetrun('large.lua', '--quiet')
        old = self.files()

        def begun():
            """Files of a save that is not in its place."""
            return [name for name in os.listdir(self.folder / 'runs' / 'x') if name not in old]
        killed, tries = 0, 0
        while killed < 3:   # moments of the save: a kill may also come too late
            tries += 1
            self.assertLess(tries, 60, 'no save was met')
            for name in begun():
                (self.folder / 'runs' / 'x' / name).unlink()
            self.write('large.lua', self.LARGE % ('true', 3))
            process = self.start('large.lua', '--quiet', '--overwrite')
            while process.poll() is None and not begun():
                pass
            time.sleep(0.01 * (tries % 4))
            process.kill()
            process.communicate(timeout=60)
            now = {name: content for name, content in self.files().items() if name in old}
            # It may have been done before the kill; then the old model is put back for the next try.
            killed += now == old and len(begun()) > 0
            if now != old:
                self.assertEqual(self.steps(), 1)
                for name, content in old.items():
                    (self.folder / 'runs' / 'x' / name).write_bytes(content)
        self.write('large.lua', (self.LARGE % ('false', 1)).replace('steps = 1', 'steps = 2'))
        self.assertIn('going on after step 1', self.hetrun('large.lua', '--resume').stderr)


class Save(Case):
    def test_run_save_replaces_no_other_runs_model(self):
        self.hetrun('r.lua', '--save=runs/y', '--quiet')
        self.write('saves.lua', recipe('if step.step == 3 then run:save "runs/y" end'))
        done = self.hetrun('saves.lua', '--allow-write=runs/y', code=2)
        self.assertIn('run:save: runs/y holds a model of 6 steps that this run has not written; --overwrite replaces it, '
                      'another folder keeps both', done.stderr)
        self.assertEqual((self.steps('runs/y'), self.steps('runs/x')), (6, 3))
        for name, code, words in (('given', 'run:save("runs/y", { overwrite = true })', ['--overwrite']),
                                  ('asked', 'run:save "runs/y"', ['--overwrite'])):
            self.write('saves.lua', recipe(f'if step.step == 3 then {code} end'))
            self.hetrun('saves.lua', '--allow-write=runs/y', f'--save=runs/{name}', *words)
            self.assertEqual((self.steps('runs/y'), self.steps(f'runs/{name}')), (3, 6))
            self.hetrun('r.lua', '--save=runs/y', '--overwrite', '--quiet')

    def test_a_run_replaces_what_it_wrote_itself(self):
        self.write('saves.lua', recipe('run:save "runs/y"'))
        self.hetrun('saves.lua', '--allow-write=runs/y')
        self.assertEqual((self.steps('runs/y'), self.steps('runs/x')), (6, 6))
        self.hetrun('--workers', 2, 'saves.lua', '--allow-write=runs/y', '--save=runs/z', code=2)
        self.assertEqual(self.steps('runs/y'), 6)

    def test_one_of_several_workers_reports_it(self):
        self.hetrun('r.lua', '--save=runs/y', '--quiet')
        self.write('saves.lua', recipe('if step.step == 3 then run:save "runs/y" end'))
        err = self.hetrun('--workers', 2, 'saves.lua', '--allow-write=runs/y', '--timeout=60s', code=2).stderr
        self.assertEqual(err.count('that this run has not written'), 1)

    def test_at_the_prompt(self):
        self.hetrun('r.lua', '--quiet')
        begin = recipe().replace('het.options', '(function() return { steps = 2, save = "", every = 0 } end)').replace(
            'return het.train', 'run = het.train').replace('local ', '')
        lines = f'{begin}run:start()\nrun:save "runs/x"\nrun:save "runs/y"\nrun:save "runs/y"\nrun:save("runs/y", true)\n'
        done = self.hetrun('--quiet', lines=lines, code=2)
        said = [line for line in done.stderr.splitlines() if 'run:save' in line]
        self.assertEqual(len(said), 2, done.stderr)
        self.assertIn('runs/x holds a model of 6 steps that this run has not written', said[0])
        self.assertIn('run:save: true is not an option; there are { overwrite = true, merge = true }', said[1])
        self.assertEqual((self.steps(), self.steps('runs/y')), (6, 2))
        self.hetrun('--quiet', lines=f'{begin}run:start()\nrun:save("runs/x", {{ overwrite = true }})\n')
        self.assertEqual(self.steps(), 2)


class Hostile(Case):
    """A training state with numbers that no run saves."""

    def test_each_is_one_sentence_that_names_run_and_field(self):
        self.hetrun('r.lua', '--quiet')
        path = self.folder / 'runs' / 'x' / 'training.snapshot'
        good = path.read_bytes()
        cases = [(name, value) for name in ('best_step', 'since', 'evaluated', 'packed')
                 for value in ('abc', -1, 1.5, 1e300, {}, [], True, '\x1b[31m6')]
        cases += [(name, value) for name in ('best', 'validation', 'lowest') for value in ('abc', {}, [1], False)]
        cases += [('precision', value) for value in (1, {}, False)]
        cases += [('account', value) for value in (1, 'abc', {}, {'age': 1, 'spans': []}, [])]
        for name, value in cases:
            path.write_bytes(good)
            change_snapshot(path, {name: value})
            err = self.hetrun('r.lua', '--resume', code=2).stderr
            self.assertEqual(err.count('\n'), 1, err)
            self.assertTrue(err.startswith(f'hetrun: the run saved in runs/x: its {name} is '), err)
        path.write_bytes(good[:4096] + b'\1' + good[4097:])   # a damaged tensor
        err = self.hetrun('r.lua', '--resume', code=2).stderr
        self.assertIn('runs/x/training.snapshot', err)
        self.assertIn('does not match its checksum', err)
        path.write_bytes(good[:-1])
        self.assertIn('is truncated', self.hetrun('r.lua', '--resume', code=2).stderr)

    def test_a_model_of_another_step_is_not_gone_on_with(self):
        self.hetrun('r.lua', '--quiet')
        path = self.folder / 'runs' / 'x' / 'model.safetensors'
        good = path.read_bytes()
        for change in (lambda header: header.pop('__metadata__'),
                       lambda header: header['__metadata__'].update(step='7')):
            path.write_bytes(good)
            change_metadata(path, change)
            err = self.hetrun('r.lua', '--resume', code=2).stderr
            self.assertEqual(err.count('\n'), 1, err)
            self.assertIn('they were not saved together', err)

    def test_a_new_run_is_refused_whatever_the_file_says(self):
        self.hetrun('r.lua', '--quiet')
        change_metadata(self.folder / 'runs' / 'x' / 'model.safetensors',
                        lambda header: header['__metadata__'].update(step='1e300'))
        self.assertIn('runs/x holds a model; ', self.hetrun('r.lua', code=2).stderr)

    def test_the_training_state_of_an_earlier_version_is_not_read(self):
        self.hetrun('r.lua', '--quiet')
        folder = self.folder / 'runs' / 'x'
        (folder / 'training.snapshot').rename(folder / 'training.safetensors')
        self.assertIn('runs/x holds a model but nothing to go on from (an earlier version of hetrun saved its training '
                      'state); from = "runs/x" begins with its weights', self.hetrun('r.lua', '--resume', code=2).stderr)
        self.assertIn('runs/x holds training.safetensors, which a save would leave beside the files it writes',
                      self.hetrun('r.lua', '--overwrite', code=2).stderr)


if __name__ == '__main__':
    main()
