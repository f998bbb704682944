#!/usr/bin/env python3
"""What comes from outside (names, files, errors of recipes, other ranks) reaches the terminal without anything that the
terminal would obey.

usage: control_characters.py HETRUN [unittest arguments]
"""
import html.parser
import json
import os
import re
import struct
import subprocess

from case import Case, HETRUN, TEXT, change_snapshot, main, recipe

# Sets the clipboard, goes back to the start of the line, colours, a C1 sequence, DEL, reversed text.
EVIL = 'x\x1b]52;c;aGk=\x07\r\x1b[31m\u009b2Jz\x7f\u0085\u202etxt\u2066y'
LUA = '"x\\27]52;c;aGk=\\7\\13\\27[31m\\194\\1552Jz\\127\\194\\133\\226\\128\\174txt\\226\\129\\166y"'   # the same
NAME = EVIL.replace('/', '').encode() + b'\xff\x9b'   # of a file
INVISIBLE = re.compile('[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]')


class ControlCharacters(Case):
    def run_it(self, *words, lines=None, code=None, evil=True, **environment):
        """Both streams as text, checked. `evil`: the name shows, so that the case tests something."""
        done = subprocess.run([HETRUN, *(word if isinstance(word, bytes) else str(word) for word in words)],
                              cwd=self.folder, input=None if lines is None else lines.encode(), capture_output=True,
                              timeout=300, check=False, env={**self.environment, **environment},
                              **({} if lines is not None else {'stdin': subprocess.DEVNULL}))
        out, err = done.stdout.decode(), done.stderr.decode()   # raises where it is not UTF-8
        for text in (out, err):
            found = INVISIBLE.search(text)
            self.assertIsNone(found, f'{words}: {found and text[max(0, found.start() - 60):found.end() + 60]!r}')
        if code is not None:
            self.assertEqual(done.returncode, code, f'{words}\n{out}\n{err}')
        if evil:
            self.assertRegex(out + err, r'\\x1b|\\u001b|\\27', words)
        return out, err

    def refused(self, *words, **options):
        return self.run_it(*words, code=2, **options)[1]

    def test_errors_of_recipes(self):
        for value in (LUA, f'setmetatable({{}}, {{ __tostring = function() return {LUA} end }})',
                      f'{{ kind = "usage", message = {LUA} }}', f'{{ kind = {LUA}, message = {LUA} }}',
                      f'{{ sentence = {LUA}, context = {{ {LUA} }} }}', f'{{ message = {LUA}, sentence = {LUA} }}'):
            self.write('r.lua', f'error({value}, 0)')
            self.run_it('r.lua', evil='kind = "usage"' not in value and 'sentence' not in value and 'kind' not in value)
            self.write('r.lua', recipe(f'error({value}, 0)'))
            self.run_it('r.lua', '--save=', evil=False)
        for text in (f'local x = {LUA} x.y.z = 1', f'local t = {{}} t[{LUA}]()', f'load("]", {LUA})()',
                     f'assert(load("]", "=" .. {LUA}))', f'require({LUA})', f'require("het")[{LUA}]()',
                     f'require("het").options {{ [{LUA}] = 3 }}', f'require("het").nn.gpt {{ [{LUA}] = 3 }}',
                     f'require("het").nn.gpt {{ vocab = {LUA} }}', f'require("het").data.text {{ path = {LUA} }}',
                     f'require("het").load({LUA})', f'return {LUA}', f'os[{LUA}]()', f'io.open({LUA})',
                     f'return require("het").train {{ save = {LUA}, precision = {LUA} }}'):
            self.write('r.lua', text)
            self.run_it('r.lua', evil=False, code=2)
        self.write('r.lua', f'local x = {EVIL}')
        self.refused('r.lua', evil=False)

    def test_what_a_recipe_prints(self):
        self.write('r.lua', recipe(before=f'print({LUA}, 3) io.write({LUA}, 4, "\\n")'))
        out, _ = self.run_it('r.lua')
        self.assertEqual(out.count('\\x1b]52;c;aGk=\\x07\\x0d\\x1b[31m\\u009b2Jz\\x7f\\u0085\\u202etxt\\u2066y'), 2)
        self.assertTrue(out.split('\n')[0].endswith('\t3'))

    def test_names_of_files(self):
        for name, text in ((NAME + b'.lua', recipe('error "as asked"')), (NAME + b'.lua', 'syntax error')):
            with open(os.fsencode(self.folder) + b'/' + name, 'w', encoding='utf-8') as file:
                file.write(text)
            self.refused(name, '--save=')
            self.run_it(name, '--help', evil='options' in text)
        for words in ((b'no' + NAME,), (b'no' + NAME + b'.lua',), (b'r.lua', b'--metrics=' + NAME + b'/x'),
                      (b'r.lua', b'--trace=' + NAME + b'/x'), (b'r.lua', b'--save=text.txt/' + NAME),
                      (b'r.lua', NAME), (b'plan', b'r.lua', b'--cluster=' + NAME), (b'plan', b'r.lua', b'--old=' + NAME),
                      (b'plan', b'r.lua', b'--profile=' + NAME), (b'profile', NAME), (b'bench', NAME), (b'--workers=2', NAME)):
            self.refused(*words)
        os.mkdir(os.fsencode(self.folder) + b'/' + NAME)
        self.run_it('r.lua', b'--save=' + NAME, '--steps=2')
        self.refused('r.lua', b'--save=' + NAME, '--steps=2')

    def test_options(self):
        evil = EVIL.encode() + b'\xff'
        for word in (b'--' + evil, b'--' + evil + b'=1', b'--steps=' + evil, b'--device=' + evil, b'--threads=' + evil,
                     b'--workers=' + evil, b'--limit-time=' + evil, b'--resume=' + evil, b'-' + evil):
            self.refused('r.lua', word)
        for word in (b'--timeout=' + evil, b'--warn-after=' + evil, b'--rendezvous=' + evil, b'--interface=' + evil,
                     b'--secret-file=' + evil):
            self.run_it('r.lua', word, '--save=', evil=False, RANK='0', WORLD_SIZE='2', LOCAL_RANK='0',
                        MASTER_ADDR='127.0.0.1', MASTER_PORT='1', HETRUN_SECRET='short')

    def test_the_environment(self):
        for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_PORT', 'MASTER_ADDR', 'HETRUN_INSTRUCTION_SET',
                     'HETRUN_RENDEZVOUS', 'HETRUN_TIMEOUT', 'HETRUN_SECRET_FILE'):
            self.run_it('r.lua', '--save=', evil=False, **{'RANK': '0', 'WORLD_SIZE': '2', 'LOCAL_RANK': '0',
                        'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': '1', name: EVIL})

    def test_models_of_others(self):
        bad = self.folder / 'bad'
        bad.mkdir()
        load = 'return require("het").load "bad"'
        self.write('load.lua', load)
        for config in ({'model_type': EVIL}, {EVIL: 1},
                       {'model_type': 'gpt2', 'vocab_size': 8, 'n_positions': 8, 'n_embd': 8, 'n_layer': 1, 'n_head': 1,
                        'activation_function': EVIL}):
            (bad / 'config.json').write_text(json.dumps(config))
            self.run_it('load.lua', code=2, evil=EVIL in config.values())
        (bad / 'config.json').write_text('{"' + EVIL.replace('\x1b', '\x1b\x1b') + '": }')
        self.run_it('load.lua', code=2, evil=False)
        (bad / 'config.json').write_bytes(b'{"a": "' + NAME + b'"}')
        self.run_it('load.lua', code=2, evil=False)

        def tensors(**named):
            header, data = {'__metadata__': {'step': EVIL, EVIL: EVIL}}, b''
            for name, shape in named.items():
                count = 4
                for size in shape:
                    count *= size
                header[name] = {'dtype': 'F32', 'shape': shape, 'data_offsets': [len(data), len(data) + count]}
                data += bytes(count)
            encoded = json.dumps(header).encode()
            return struct.pack('<Q', len(encoded)) + encoded + data
        self.write('from.lua', '''local het = require "het"
return het.train { model = het.nn.linear(2, 3), batch = 1, steps = 1, from = "bad", optimizer = het.optim.sgd { lr = 1 },
  data = het.data.pairs { inputs = het.randn { 4, 2 }, labels = het.randn { 4, 3 }, holdout = 0 } }''')
        (bad / 'model.safetensors').write_bytes(tensors(**{EVIL: [2]}))
        self.refused('from.lua')
        for dtype in (EVIL, 3):
            header = {EVIL: {'dtype': dtype, 'shape': [1], 'data_offsets': [0, 4]}}
            encoded = json.dumps(header).encode()
            (bad / 'model.safetensors').write_bytes(struct.pack('<Q', len(encoded)) + encoded + bytes(4))
            self.refused('from.lua')
        (bad / 'model.safetensors').unlink()
        for table in ({EVIL: EVIL + '.safetensors'}, {'a': '../' + EVIL}, {'a': {EVIL: 1}}, EVIL):
            (bad / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': table}))
            self.run_it('from.lua', evil=False)
        (bad / 'model.safetensors.index.json').unlink()
        self.hetrun('r.lua', '--quiet')
        run = self.folder / 'runs' / 'x'
        change_snapshot(run / 'training.snapshot', {'precision': EVIL})
        self.refused('r.lua', '--resume')
        self.assertIn('runs/x holds a model of 6 steps', self.run_it('r.lua', evil=False, code=2)[1])

    def test_texts_of_others(self):
        """Tokens that are control characters, in what a model writes and in what is said of them."""
        (self.folder / 'text.txt').write_text((EVIL + 'abc') * 200)
        sampled = recipe(fields=f'sample = {{ prompt = {LUA}, tokens = 300, temperature = 3 }},')
        for tokenizer in ('char', 'byte'):
            self.write('r.lua', sampled.replace('path = "text.txt"', f'path = "text.txt", tokenizer = "{tokenizer}"'))
            out, _ = self.run_it('r.lua', '--quiet', f'--save=runs/{tokenizer}', code=0)
            self.assertIn('\\x1b]52;c;aGk=\\x07\\x0d', out)
            out, _ = self.run_it('r.lua', '--quiet', '--json', f'--save=runs/{tokenizer}', '--overwrite', code=0)
            self.assertTrue(json.loads(out)['sample'].startswith(EVIL))
        (self.folder / 'text.txt').write_text(TEXT)
        self.write('r.lua', sampled)
        self.refused('r.lua', '--save=runs/z', evil=False)

    def test_characters_of_several_tokens_are_shown_whole(self):
        (self.folder / 'text.txt').write_text('é€😀' * 400)
        self.write('r.lua', recipe(fields='sample = { prompt = "é€😀", tokens = 90, temperature = 0 },').replace(
            'path = "text.txt"', 'path = "text.txt", tokenizer = "byte"'))
        out, _ = self.run_it('r.lua', '--quiet', '--steps=300', evil=False, code=0)
        self.assertIn('é€😀é€😀é€😀', out)

    CLUSTER = '''local het = require "het"
return het.cluster { bandwidth = "10 Gbit/s", latency = "50 us",
  het.node { name = %s, type = "A100-80", devices = 2, zone = %s, price = 8 },
  het.node { name = "t", type = "T4", devices = 2, zone = "b", price = 1 },
  het.link { from = "b", to = "b", bandwidth = "100 Gbit/s", latency = "8 us" } }
'''

    def test_clusters_and_plans(self):
        for values in ((LUA, '"a"'), ('"a"', LUA), (LUA, LUA), ('"a"', '"a"')):
            self.write('cluster.lua', self.CLUSTER % values)
            for words in ((), ('--json',), ('--lua',), ('--html=plan.html',), ('--trace=plan.json',)):
                self.run_it('plan', 'r.lua', '--cluster=cluster.lua', *words, evil=False)
                page = self.folder / 'plan.html'
                if page.exists():
                    self.assertIsNone(INVISIBLE.search(page.read_text()))
                    page.unlink()
        for field in ('type', 'bandwidth', 'price', LUA):
            field = field if field.isalpha() else f'[{field}]'
            self.write('cluster.lua', f'return require("het").cluster {{ require("het").node {{ {field} = {LUA} }} }}')
            self.refused('plan', 'r.lua', '--cluster=cluster.lua', evil=False)
        self.write('old.lua', f'het.plan {{ het.pipeline {{ het.stage {{ {LUA}, layers = 3 }} }} }}')
        self.write('cluster.lua', self.CLUSTER % ('"a"', '"a"'))
        for name in ('plan', 'old'):
            command = 'simulate' if name == 'plan' else 'plan'
            self.run_it(command, 'r.lua', '--cluster=cluster.lua', f'--{name}=old.lua', evil=False)
        for profile in ({'profile': EVIL}, {'profile': 1, 'devices': [{'type': EVIL, 'name': EVIL}]}, {EVIL: EVIL}, [EVIL]):
            self.write('r.profile.json', json.dumps(profile))
            self.run_it('plan', 'r.lua', '--cluster=cluster.lua', '--profile=r.profile.json', evil=False)
            self.run_it('profile', 'r.lua', '--out=r.profile.json', '--runs=1', '--microbatches=1', evil=False)
        self.run_it('profile', 'r.lua', '--runs=1', '--microbatches=1', b'--type=' + EVIL.encode(), evil=False)

    def test_plans_that_were_measured(self):
        (self.folder / 'profiles').mkdir()
        (self.folder / 'plans').mkdir()
        self.write('info.json', json.dumps({EVIL: EVIL}))
        self.write('profiles/' + EVIL.replace('/', '') + '.json', json.dumps({EVIL: [EVIL]}))
        self.write('plans/' + EVIL.replace('/', '') + '.json', json.dumps({EVIL: [EVIL]}))
        self.run_it('simulate', '--profiles', 'profiles', '--model-info', 'info.json', '--plans', 'plans', evil=False)

    def test_pages_escape_what_a_browser_would_obey(self):
        name = '"a<script>alert(1)</script>\\"><img src=x onerror=alert(1)>"'
        self.write('cluster.lua', self.CLUSTER % ('"a"', name))
        self.write('r.lua', recipe().replace('het.train {', f'het.train {{ name = {name},'))
        page = self.folder / 'plan.html'
        self.run_it('plan', 'r.lua', '--cluster=cluster.lua', '--html=plan.html', evil=False)
        if page.exists():
            found = []

            class Tags(html.parser.HTMLParser):
                def handle_starttag(self, tag, attributes):
                    found.extend([tag] if tag in ('img', 'script') else [])
                    found.extend(key for key, _ in attributes if key.startswith('on'))
            Tags().feed(page.read_text())
            self.assertNotIn('img', found)
            self.assertNotIn('onerror', found)
            self.assertNotIn('<script>alert', page.read_text())

    def test_layers_and_traces(self):
        self.write('r.lua', f'''local het = require "het"
local own = het.nn.layer {{ name = {LUA}, forward = function(_, x) return x end }}
local model = het.nn.sequential {{ het.nn.linear(2, 2), own }}
print(model)
return het.train {{ model = model, batch = 2, steps = 5, save = "runs/x", optimizer = het.optim.sgd {{ lr = 0.1 }},
  data = het.data.pairs {{ inputs = het.randn {{ 8, 2 }}, labels = het.randn {{ 8, 2 }}, holdout = 0 }} }}''')
        self.run_it('r.lua', '--trace=step.json', '--metrics=metrics.jsonl', evil=False)
        for name in ('step.json', 'metrics.jsonl'):
            if (self.folder / name).exists():
                self.assertIsNone(INVISIBLE.search((self.folder / name).read_text()), name)
        self.run_it('plan', 'r.lua', evil=False)
        self.run_it('simulate', 'r.lua', evil=False)

    def test_of_several_workers(self):
        self.write('r.lua', recipe(f'if step.step == 2 then error({LUA}) end'))
        self.run_it('--workers', 2, 'r.lua', '--save=')
        # What a rank writes past the library is relayed by the launcher.
        self.write('r.lua', recipe(before=f'if os.getenv "RANK" == "1" then io.stderr:write({LUA}, "\\n") end'))
        self.run_it('--workers', 2, '--trust', 'r.lua', '--save=')

    def test_at_the_prompt(self):
        lines = [LUA, f'{{ [{LUA}] = {LUA} }}', f'print({LUA})', f'error({LUA})', f'error({{ message = {LUA} }})',
                 f'?{EVIL}', EVIL, f'x = setmetatable({{}}, {{ __tostring = function() return {LUA} end }})', 'x', '?x',
                 f'nn.gpt {{ [{LUA}] = 1 }}', f'het[{LUA}]', f'nn.layer {{ name = {LUA} }}', f'{LUA} .. "\\n"',
                 f'error(setmetatable({{}}, {{ __tostring = function() return {LUA} end }}))']
        for line in lines:
            self.run_it(lines=line + '\n', evil=False)
        self.run_it(lines='\n'.join(lines) + '\n')
        self.run_it(lines=f'f({EVIL}', evil=False)
        self.run_it(lines='\x1b\x9b\n', evil=False)


if __name__ == '__main__':
    main()
