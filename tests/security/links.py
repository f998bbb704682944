#!/usr/bin/env python3
"""Links that a recipe may read through: those of a folder that the person named, to files of the same folder, and those
of a snapshot of Hugging Face's cache, to its blobs.

usage: links.py HETRUN
"""
import shutil
import struct

from case import Case, TEXT, main

OPENS = '''local het = require "het"
local opt = het.options { folder = { "", "folder", path = "read" } }
for _, name in ipairs { %s } do
  local ok, file = pcall(io.open, opt.folder .. "/" .. name)
  print(name, ok and file:read "*a" or file)
end
error("done", 0)
'''

LOADS = '''local het = require "het"
local opt = het.options { model = { "", "folder", path = "read" } }
print(het.load(opt.model))
error("done", 0)
'''


class Links(Case):
    def opened(self, *names):
        """What recipe code reads by these names of the folder that the person named."""
        self.write('opens.lua', OPENS % ', '.join(f'"{name}"' for name in names))
        said = self.hetrun('opens.lua', '--folder=named', code=2).stdout
        read = dict(line.split('\t', 1) for line in said.splitlines())
        self.assertEqual(list(read), list(names))
        return read

    def setUp(self):
        super().setUp()
        for name in ('named/sub', 'other'):
            (self.folder / name).mkdir(parents=True)
        self.write('named/file', 'the file')
        self.write('other/secret', 'a secret')

    def link(self, name, leads_to):
        (self.folder / name).symlink_to(leads_to)

    def test_a_link_within_the_folder_is_read_through(self):
        self.link('named/beside', 'file')
        self.link('named/sub/above', '../file')
        self.link('named/absolute', (self.folder / 'named' / 'file').resolve())
        self.assertEqual(self.opened('beside', 'sub/above', 'absolute'),
                         {'beside': 'the file', 'sub/above': 'the file', 'absolute': 'the file'})

    def test_a_link_out_of_it_is_not(self):
        self.link('named/out', '../other/secret')
        self.link('named/far', '/etc/passwd')
        self.link('named/folder', '../other')
        self.link('named/inner', 'sub')
        self.link('named/twice', 'out')
        self.link('named/itself', 'itself')
        self.write('named/.hidden', 'a secret')
        self.link('named/hidden', '.hidden')
        for name, said in self.opened('out', 'far', 'folder/secret', 'inner', 'twice', 'itself', 'hidden').items():
            self.assertIn(f"'named/{name}' is a link, or lies behind one", said)

    def test_a_link_to_what_is_named_too_is_read_through(self):
        self.link('named/out', '../other/secret')
        self.write('opens.lua', OPENS % '"out"')
        self.assertIn('a secret', self.hetrun('opens.lua', '--folder=named', '--allow-read=other', code=2).stdout)

    def test_a_linked_file_of_the_folder_is_read_once(self):
        shutil.copy(self.folder / 'text.txt', self.folder / 'named' / 'text.txt')
        self.link('named/again.txt', 'text.txt')
        for name in ('text.txt', 'named'):
            self.write('counts.lua', f'print(require("het").data.text {{ path = "{name}" }}.tokens)\nerror("done", 0)\n')
            counted = int(self.hetrun('counts.lua', code=2).stdout)
            self.assertEqual(counted, len(TEXT) + (len('the file') if name == 'named' else 0))

    def test_a_megatron_data_set_is_two_files(self):
        index = b'MMIDIDX\0\0' + struct.pack('<QBQQiqqq', 1, 4, 1, 2, 3, 0, 0, 1)
        for ending, content in (('bin', struct.pack('<3i', 70000, 1, 2)), ('idx', index)):
            (self.folder / 'other' / f'wiki.{ending}').write_bytes(content)
        self.write('tokens.lua', """local het = require "het"
local opt = het.options { data = { "", "tokens", path = "read" } }
print(het.data.tokens(opt.data).vocab)
error("done", 0)
""")
        for name in ('wiki', 'wiki.bin'):
            done = self.hetrun('tokens.lua', f'--data={self.folder}/other/{name}', code=2)
            self.assertEqual(done.stdout, '70001\n', done.stderr)
        self.write('opens.lua', OPENS % '"../other/secret"')
        self.assertNotIn('a secret', self.hetrun('opens.lua', '--folder=named', '--allow-read=other/wiki', code=2).stdout)

    def test_nothing_is_written_through_one(self):
        self.link('named/beside', 'file')
        self.write('writes.lua', 'print(pcall(io.open, "named/beside", "w"))\nerror("done", 0)\n')
        self.assertIn("'named/beside' is a link", self.hetrun('writes.lua', '--allow-write=named', code=2).stdout)
        self.assertEqual((self.folder / 'named' / 'file').read_text(), 'the file')

    def test_a_snapshot_of_hugging_faces_cache_is_loaded(self):
        self.hetrun('r.lua', '--quiet')
        model = self.folder / 'hub' / 'models--a--b'
        blobs, snapshot = model / 'blobs', model / 'snapshots' / '0123'
        for folder in (blobs, snapshot, model / 'refs'):
            folder.mkdir(parents=True)
        (model / 'refs' / 'main').write_text('0123')
        for path in (self.folder / 'runs' / 'x').iterdir():
            if not path.name.startswith('.'):
                shutil.copy(path, blobs / f'blob-of-{path.name}')
                (snapshot / path.name).symlink_to(f'../../blobs/blob-of-{path.name}')
        (snapshot / 'ref').symlink_to('../../refs/main')
        self.write('loads.lua', LOADS)
        self.assertIn('gpt vocab', self.hetrun('loads.lua', f'--model={snapshot}', code=2).stdout)
        self.write('opens.lua', OPENS % '"ref"')
        said = self.hetrun('opens.lua', f'--folder={snapshot}', code=2).stdout
        self.assertIn('is a link, or lies behind one', said)   # out of the snapshot, and not among the blobs

    def test_a_recipe_in_the_home_folder_requires_modules_beside_it(self):
        self.environment['HOME'] = str(self.folder)
        self.write('mod.lua', 'return "a module"')
        self.write('requires.lua', 'print(require "mod")\nerror("done", 0)\n')
        self.assertEqual(self.hetrun('requires.lua', code=2).stdout, 'a module\n')

    def test_links_in_a_data_folder_are_counted(self):
        shutil.copy(self.folder / 'text.txt', self.folder / 'named' / 'text.txt')
        self.link('named/secret.txt', '/etc/passwd')
        self.write('data.lua', (self.folder / 'r.lua').read_text().replace('"text.txt"', '"named"'))
        self.assertIn('files of named: 2 read, 1 skipped (binary, links, or beyond `limit`)', self.hetrun('data.lua').stderr)


if __name__ == '__main__':
    main()
