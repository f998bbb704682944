#!/usr/bin/env python3
"""README.md and the pages of the guide: their commands run, what they print is what the program prints, and the
options, names and files that they speak of exist. Examples in Lua run here or in the suites of their subjects.

usage: run.py HETRUN [unittest arguments]
"""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HETRUN = str(pathlib.Path(sys.argv.pop(1)).resolve())
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'recipes').rglob('*.md'))]

RECIPE = '''
local het = require "het"
local nn, optim, data = het.nn, het.optim, het.data
local opt = het.options { steps = { 8, "optimizer steps" } }
local corpus = data.text { path = "shakespeare.txt", tokenizer = "char", holdout = 0.1 }
return het.train {
  model = nn.gpt { vocab = corpus.vocab, context = 16, width = 16, layers = 2, heads = 2 },
  data = corpus, batch = 12, steps = opt.steps, optimizer = optim.adamw { lr = 1e-3 }, evaluate = { every = 0 },
}
'''
# What makes a command short, or keeps it from a GPU; the rest of it stays as the page has it.
SMALL_GPT = ['--width=16', '--layers=2', '--heads=2', '--context=16', '--batch=4', '--steps=2', '--write=5']
SMALL = {
    'hetrun --workers 3 recipe.lua': [],
    'hetrun --workers 5 --trace=step.json recipe.lua': [],
    'hetrun --workers 4 --elastic 2:4 --chaos 7 recipes/spot.lua': [
        '--text=shakespeare.txt', '--width=16', '--layers=1', '--heads=2', '--context=16', '--steps=30'],
    'hetrun doctor': [],
    'hetrun recipe.lua --allow-read=shakespeare.txt --allow-write=runs/mine': [],
    'hetrun recipes/gpt_text.lua --text=shakespeare.txt': SMALL_GPT,
    'hetrun recipes/gpt_text.lua --text=shakespeare.txt --precision=bf16 --device=cuda': [*SMALL_GPT, '--device=cpu'],
    'hetrun profile recipes/gpt_text.lua': ['--text=shakespeare.txt', *SMALL_GPT, '--runs=1', '--microbatches=1,4'],
    'hetrun snapshot import runs/mine kept': [],
    'hetrun snapshot list kept': [],
    'hetrun snapshot show runs/mine': [],
    'hetrun snapshot verify runs/mine': [],
    'hetrun snapshot copy kept backup': [],
    'hetrun snapshot export backup model': [],
    'hetrun plan recipes/llama_tiny.lua --cluster=recipes/clusters/mixed.lua --policy=policy.lua': ['--batch=32'],
    'hetrun plan recipes/llama_tiny.lua --cluster=cluster.lua --precision=bf16': ['--batch=16'],
    'hetrun plan recipes/gpt_text.lua --cluster=cluster.lua --policy=hap': [
        '--text=shakespeare.txt', *SMALL_GPT[:4], '--batch=32'],
    'hetrun solve instance.json --seconds=60 --out=choice.txt': [],
    'hetrun generate runs/mine --prompt=ROMEO: --tokens=60': ['--prompt=be'],
    'hetrun merge runs/lora runs/merged': [],
    'hetrun convert runs/mine runs/small --precision=bf16': [],
    'hetrun eval runs/mine --text=shakespeare.txt': [],
    'hetrun plan recipes/gpt_text.lua --profile=gpt_text.profile.json': ['--text=shakespeare.txt', *SMALL_GPT],
}
# Tests below run these.
LONG = {
    'hetrun --workers 4 --elastic 2:4 recipe.lua',
    'hetrun --workers 4 --elastic 2:8 --listen 10.0.0.7:7777 recipe.lua',
    'hetrun --workers 2 --join 10.0.0.7:7777 recipe.lua',
    'hetrun status',
    'hetrun attach',
    'hetrun plan recipes/llama_tiny.lua --cluster=recipes/clusters/mixed.lua --precision=bf16 --width=2048 '
    '--layers=24 --heads=16 --kv_heads=8 --context=2048 --batch=64',
}


def blocks(page):
    """The indented blocks of a page, each a list of lines; lines that end with a backslash are joined."""
    found, block = [], []
    for line in [*page.read_text().splitlines(), '']:
        if line.startswith('    ') and not re.match(r' *(\d+\.|-|\*) ', line):
            block.append(line[4:])
        elif block:
            found.append(re.sub(r' \\\n +', ' ', '\n'.join(block)).split('\n'))
            block = []
    return found


def lua_blocks(page):
    return re.findall(r'```lua\n(.*?)```', page.read_text(), re.DOTALL)


def lua_block(page, words):
    """The one Lua block of a page that has these words."""
    found = [block for block in lua_blocks(page) if words in block]
    assert len(found) == 1, f'{page}: {len(found)} blocks have {words!r}'
    return found[0]


def commands(page):
    return [line for block in blocks(page) for line in block if line.startswith('hetrun ')]


def prose(page):
    """The text of a page without its fenced code."""
    return re.sub(r'```.*?```', '', page.read_text(), flags=re.DOTALL)


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / 'recipes').symlink_to(ROOT / 'recipes')
        (self.folder / 'recipe.lua').write_text(RECIPE)
        for page, name, words in (('README.md', 'readme.lua', 'return het.train'),
                                  ('recipes/guide/plan_a_cluster.md', 'cluster.lua', 'return het.cluster'),
                                  ('recipes/guide/plan_a_cluster.md', 'policy.lua', 'return function(problem)')):
            (self.folder / name).write_text(lua_block(ROOT / page, words))
        solve = (ROOT / 'recipes' / 'guide' / 'solve.md').read_text()
        instance = re.search(r'```json\n(.*?)```', solve, re.DOTALL)
        (self.folder / 'instance.json').write_text(instance[1])
        (self.folder / 'shakespeare.txt').write_text('To be, or not to be: that is the question.\n' * 400)
        self.environment = os.environ | {'HETRUN_SECRET': '0123456789abcdef', 'XDG_CACHE_HOME': str(self.folder)}

    def hetrun(self, words, code=0, **options):
        done = subprocess.run([HETRUN, *words], cwd=self.folder, env=self.environment, capture_output=True, text=True,
                              timeout=300, check=False, **options)
        self.assertEqual(done.returncode, code, f'{words}\n{done.stdout}\n{done.stderr}')
        return done

    def start(self, words):
        process = subprocess.Popen([HETRUN, *words], cwd=self.folder, env=self.environment, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def read_until(self, process, pattern):
        """What the process printed up to a line that has `pattern`."""
        lines = []
        for line in process.stderr:
            lines.append(line)
            if re.search(pattern, line):
                return ''.join(lines)
        self.fail(f'no line has {pattern!r}:\n{"".join(lines)}')


class Commands(Case):
    def test_every_command_of_the_pages_is_run_here(self):
        found = {command for page in PAGES for command in commands(page)}
        self.assertEqual(found, SMALL.keys() | LONG)

    def test_the_commands_run(self):
        (self.folder / 'saving.lua').write_text(RECIPE.replace('return het.train {', 'return het.train { save = "runs/mine",'))
        self.hetrun(['saving.lua', '--allow-write=runs/mine'])
        self.train_adapters()
        for command, small in SMALL.items():
            with self.subTest(command):
                words = command.split()[1:]
                kept = [word for word in words if word.split('=')[0] not in {each.split('=')[0] for each in small}]
                self.hetrun([*kept, *small])
        trace = json.loads((self.folder / 'step.json').read_text())
        self.assertEqual({event['pid'] for event in trace['traceEvents']}, set(range(5)))

    def train_adapters(self):
        """As the page about fine-tuning does, of the model in runs/mine."""
        block = lua_block(ROOT / 'recipes' / 'guide' / 'fine_tune.md', 'nn.lora').strip()
        text = re.sub(r'model = nn.gpt.*?},', f'save = "runs/lora", {block}', RECIPE)
        (self.folder / 'adapters.lua').write_text(text.replace('opt.model', '"runs/mine"'))
        self.hetrun(['adapters.lua', '--allow-write=runs/lora'])
        self.assertTrue((self.folder / 'runs/lora/adapter_model.safetensors').exists())

    def test_the_plan_that_the_pages_show_is_found(self):
        command = max(LONG, key=len)
        printed = [line.rstrip() for line in self.hetrun(command.split()[1:]).stdout.splitlines()]
        shown = 0
        for page in PAGES:
            for block in blocks(page):
                if not block[0].startswith('device  '):
                    continue
                at = 0
                for line in block:
                    if line == '...':
                        continue
                    self.assertIn(line, printed[at:], f'{page.name}: not printed, or in another place')
                    at = printed.index(line, at) + 1
                    shown += 1
        self.assertGreater(shown, 15)

    def test_a_run_goes_on_without_a_rank_and_others_join(self):
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            address = f'127.0.0.1:{free.getsockname()[1]}'
        first, second = (command.replace('10.0.0.7:7777', address).split()[1:]
                         for command in sorted(LONG) if '10.0.0.7' in command)
        if '--join' in first:
            first, second = second, first
        steps = ['--steps=1000000']
        run = self.start([*first, *steps])
        self.read_until(run, r'step 1/')
        self.start([*second, *steps])
        self.read_until(run, r'6 ranks go on')
        # The last process of the first machine.
        children = pathlib.Path(f'/proc/{run.pid}/task/{run.pid}/children').read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        line = self.read_until(run, r'is lost; ').splitlines()[-1]
        page = (ROOT / 'recipes' / 'guide' / 'elastic.md').read_text()
        example = re.search(r'^    (generation \d+: .* is lost; .*)$', page, re.MULTILINE).group(1)
        self.assertEqual(self.form(line), self.form(example))
        run.send_signal(signal.SIGINT)

    def test_a_run_is_looked_at_and_steered(self):
        page = (ROOT / 'recipes' / 'guide' / 'steer_a_run.md').read_text()
        words = re.findall(r'`(\w+)`', ' '.join(re.findall(r'^\| (`.*?) \|', page, re.MULTILINE)))
        self.assertEqual(words, ['status', 'pause', 'resume', 'snapshot', 'replan', 'stop', 'leave'])
        policies = lua_block(ROOT / 'recipes' / 'guide' / 'elastic.md', 'on_notice =')
        text = RECIPE.replace('evaluate =', f'snapshot = {{ folder = "shots" }},\n{policies}\n  evaluate =')
        (self.folder / 'steered.lua').write_text(text.replace('steps = { 8,', 'steps = { 1000000,'))
        run = self.start(['--workers', '2', '--elastic', '1:2', 'steered.lua', '--allow-write=shots'])
        self.read_until(run, r'step 1/')
        self.assertIn('steered.lua', self.hetrun(['status', f'--pid={run.pid}']).stdout)
        self.hetrun(['attach', f'--pid={run.pid}'], input='\n'.join(words) + '\n', code=0)
        self.assertEqual(run.wait(timeout=60), 130)

    @staticmethod
    def form(line):
        """A line without its numbers, names of machines and units."""
        line = re.sub(r'\(([^)]*)\)', '(HOST)', line.strip())
        return re.sub(r'\d[\d.]*( [KMG]?i?B)?', 'N', line)


class Blocks(Case):
    GUIDE = ROOT / 'recipes' / 'guide'
    HERE = {ROOT / 'README.md': 1, GUIDE / 'elastic.md': 2, GUIDE / 'fine_tune.md': 1, GUIDE / 'plan_a_cluster.md': 2, GUIDE / 'plans.md': 1}
    ELSEWHERE = {GUIDE / 'data.md': 2, GUIDE / 'fine_tune.md': 1, GUIDE / 'meshes.md': 9, GUIDE / 'plans.md': 5, GUIDE / 'snapshots.md': 2,
                 GUIDE / 'write_a_layer.md': 3, GUIDE / 'write_an_optimizer.md': 3}

    def test_every_lua_block_is_run_by_a_test(self):
        for page in PAGES:
            run = self.HERE.get(page, 0) + self.ELSEWHERE.get(page, 0)
            self.assertEqual(len(lua_blocks(page)), run, f'{page.name}: run a new block in a test, and count it here')

    def test_the_recipe_of_the_readme_trains(self):
        text = (self.folder / 'readme.lua').read_text()
        self.assertIn('steps = 2000,', text)
        (self.folder / 'readme.lua').write_text(text.replace('steps = 2000,', 'steps = 2,').replace('every = 250', 'every = 2'))
        result = json.loads(self.hetrun(['readme.lua', '--json']).stdout.splitlines()[-1])
        self.assertEqual(result['steps'], 2)

    def test_the_snapshots_of_the_page_about_elastic_runs_are_taken(self):
        block = lua_block(ROOT / 'recipes' / 'guide' / 'elastic.md', 'snapshot =').strip()
        text = (self.folder / 'readme.lua').read_text().replace('steps = 2000,', 'steps = 3,')
        (self.folder / 'snapshots.lua').write_text(
            text.replace('  evaluate ', f'  {block.replace("every = 200", "every = 1")},\n  evaluate '))
        self.hetrun(['snapshots.lua'])
        self.assertTrue(list((self.folder / 'runs/mine/snapshots').glob('step-*.snapshot')))

    def test_the_hint_of_the_page_about_plans_is_taken(self):
        block = lua_block(ROOT / 'recipes' / 'guide' / 'plans.md', ':shard')
        done = self.hetrun([], input=f'print({block.strip()})\n')
        self.assertIn('linear', done.stdout)

    def test_the_cluster_of_the_page_has_all_its_types(self):
        plan = json.loads(self.hetrun(['plan', 'recipes/llama_tiny.lua', '--cluster=cluster.lua', '--precision=bf16',
                                       '--batch=16', '--json']).stdout)
        report = plan['report']
        self.assertEqual({device['device'] for device in report['devices']} | set(report['idle']), {f'a:{i}' for i in range(4)} | {f'b{n}:{i}' for n in (1, 2) for i in (0, 1)}
                         | {f'c:{i}' for i in range(3)})


class References(Case):
    def test_links_lead_to_files(self):
        for page in PAGES:
            for target in re.findall(r'\]\(([^)#]+)(?:#[^)]*)?\)', page.read_text()):
                if not re.match(r'https?:', target):
                    self.assertTrue((page.parent / target).exists(), f'{page.name}: {target}')

    def test_links_within_pages_lead_to_headings(self):
        for page in PAGES:
            for target, heading in re.findall(r'\]\(([^)#]*)#([^)]*)\)', page.read_text()):
                if re.match(r'https?:', target):
                    continue
                text = (page.parent / target if target else page).read_text()
                headings = {re.sub(r'[^\w -]', '', line.lstrip('# ').lower()).replace(' ', '-')
                            for line in text.splitlines() if line.startswith('#')}
                self.assertIn(heading, headings, page.name)

    def test_options_exist(self):
        help_texts = [self.hetrun(words).stdout for words in (
            ['--help'], *([command, '--help'] for command in ('plan', 'simulate', 'profile', 'bench', 'snapshot', 'status', 'attach', 'solve',
                                                              'generate', 'eval', 'merge', 'convert')),
            *([f'recipes/{recipe.name}', '--help'] for recipe in sorted((ROOT / 'recipes').glob('*.lua'))))]
        known = set(re.findall(r'(?<![\w-])--[a-z][\w-]*', '\n'.join(help_texts)))
        of_others = {'--name', '--no-python', '--nnodes', '--nproc-per-node'}   # of het.train, as --name=value; torchrun's
        for page in PAGES:
            for option in re.findall(r'(?<![\w-])--[a-z][\w-]*', prose(page)):
                self.assertIn(option, known | of_others, page.name)

    def test_names_have_help(self):
        names = {name for page in PAGES
                 for name in re.findall(r'\b(?:het|nn|optim|data|op)\.(?!md\b)[a-z_0-9]+(?:\.[a-z_0-9]+)*', page.read_text())}
        self.assertGreater(len(names), 30)
        lines = ''.join(f'?{name}\n' for name in sorted(names))
        done = self.hetrun([], input=lines)
        self.assertEqual(done.stderr, '')
        self.assertNotIn('no help for', done.stdout)
        self.assertNotIn('no help for', done.stdout)


if __name__ == '__main__':
    unittest.main()
