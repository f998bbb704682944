#!/usr/bin/env python3
"""What a hostile recipe tries, and that it stays shut in: each attack against both walls together, and against each alone.

usage: attacks.py HETRUN [--walls=both|sandbox|kernel] [--unbounded] [NAME ...]

--unbounded: without those on memory, for programs with an address sanitizer, whose memory cannot be bounded.

Each attack is a piece of Lua. It runs as a recipe in a home folder that holds what is worth stealing, beside a folder
`outside`. Afterwards nothing but runs/ may have changed, no secret may have been printed, and hetrun must have ended with
a separate exit code: no signal, and not 70, which is that of a bug.
"""
import ctypes
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading

SECRET = 'top-secret-7f3a'

# The attack's result is printed, so that a test that attacks nothing is seen.
RECIPE = '''local het = require "het"
local function attack()
%s
end
local ok, result = pcall(attack)
error(("%%s: %%s"):format(ok and "DONE" or "refused", type(result) == "table" and result.message or tostring(result)), 0)
'''

TRAIN = '''local het = require "het"
  local corpus = het.data.text { path = "text.txt" }
  return het.train {
    model = het.nn.gpt { vocab = corpus.vocab, context = 8, width = 8, layers = 1, heads = 1 },
    data = corpus, batch = 2, steps = 3, optimizer = het.optim.sgd { lr = 0.1 }, %s }
'''


@dataclasses.dataclass
class Attack:
    name: str
    lua: str
    arguments: tuple = ()
    whole: bool = False       # `lua` is the whole recipe
    kernel: bool = True       # an attack on files or programs, which the kernel's wall alone holds too
    sandbox: bool = True      # one that needs what the sandbox does not give is for the kernel's wall alone
    allowed: tuple = ()       # files below the home folder that it may change
    environment: dict = dataclasses.field(default_factory=dict)
    codes: tuple = (2,)
    says: str = ''            # in what is printed, both walls up
    done: bool = False        # it ends well, having got nothing
    outside: object = None    # a function of the home folder and an event, which runs beside it until the event
    home: bool = False        # the recipe lies in the person's home folder
    furnish: object = None    # puts more into the home folder


def reads(path):
    return f'local f = assert(io.open({path})); local s = f:read("*a"); print(s); return s'


def writes(path, mode='w'):
    return f'local f = assert(io.open({path}, "{mode}")); f:write("owned"); f:close()'


SWAPPED = ('home/text.txt', 'home/given/swapped', 'home/runs/mine/swapped')
SWAPPED_FOLDER = 'home/given/sub'


def swaps(home, stop):
    """Beside a run: files and a folder become links out of the home folder and come back, as fast as it goes."""
    outside, files = home.parent / 'outside', [home.parent / name for name in SWAPPED]
    folder, aside = home.parent / SWAPPED_FOLDER, home / 'given' / 'aside'
    while not stop.is_set():
        for path in files:
            spare = path.with_name(path.name + '.spare')
            spare.symlink_to(outside / 'secret.txt')
            os.replace(spare, path)
            spare.write_text('harmless ' * 200)
            os.replace(spare, path)
        folder.rename(aside)
        folder.symlink_to(outside)
        folder.unlink()
        aside.rename(folder)


def replace(path, leads_to):
    shutil.rmtree(path)
    path.symlink_to(leads_to)


def snapshot(home, name, blobs):
    """What looks like a model of Hugging Face's cache; its blobs are a link, or hold what no model has."""
    (home / name / 'snapshots' / 'x').mkdir(parents=True)
    if blobs:
        (home / name / 'blobs').symlink_to(blobs)
    else:
        (home / name / 'blobs').mkdir()
        shutil.copy(home / '.ssh' / 'id_rsa', home / name / 'blobs')
    (home / name / 'snapshots' / 'x' / 'key').symlink_to('../../blobs/id_rsa')


def race(name, lua):
    """An attack that is tried again and again while what it names changes."""
    return Attack('race: ' + name, f'local began = os.clock(); while os.clock() - began < 0.5 do {lua} end', ('--allow-write=given', '--overwrite'), done=True, outside=swaps,
                  allowed=(*SWAPPED, SWAPPED_FOLDER + '/secret.txt'))


ATTACKS = [
    # --- the list of the first report
    Attack('arg is the library\'s own table', 'arg[#arg + 1] = "--x=/"; het.options { x = { "", "x", path = "read" } }; '
           + reads('"/etc/shadow"')),
    Attack('arg grants a write', 'arg[#arg + 1] = "--x=/"; het.options { x = { "", "x", path = "write" } }; '
           + writes('"../outside/owned"')),
    Attack('a dangling link is written through', writes('"dangling"')),
    Attack('a dangling link in the run folder', writes('"runs/linked/dangling"')),
    Attack('a text option does not grant', 'het.options { text = { "", "text" } }; ' + writes('"mine.txt"'), ('--text=mine.txt',)),
    Attack('a text option does not grant reading', 'het.options { text = { "", "text" } }; ' + reads('"secret.txt"'),
           ('--text=secret.txt',)),
    Attack('a read option does not grant writing', 'het.options { text = { "", "text", path = "read" } }; ' + writes('"mine.txt"'),
           ('--text=mine.txt',)),
    Attack('the root as an option', 'het.options { prompt = { "", "prompt", path = "read" } }; ' + reads('"/etc/shadow"'),
           ('--prompt=/',), says='too much to give'),
    Attack('the home folder as an option', 'het.options { prompt = { "", "p", path = "write" } }; ' + writes('".bashrc"'),
           ('--prompt=.',), says='too much to give'),
    Attack('.bashrc', writes('".bashrc"', 'a')),
    Attack('.ssh', reads('".ssh/id_rsa"')),
    Attack('.git', writes('".git/config"')),
    Attack('a file beside the recipe', reads('"secret.txt"')),
    Attack('a link in a data folder', 'local c = het.data.text { path = "data" }; '
           'print(c:decode(c:encode("a"))); for _, s in ipairs { "train" } do '
           'print(c:decode(c:sampler { context = 64, batch = 1, split = s, start = 0 }:next().inputs[1]:tolist()[1])) end', done=True),
    Attack('a link as data', 'local c = het.data.text { path = "link.txt" }; print(c:decode(c:encode "t"))'),
    Attack('a file of the home folder as data', 'return het.data.text { path = "secret.txt" }', home=True, says='holds the home folder'),
    Attack('a model through metrics', TRAIN % 'metrics = "runs/mine/model.safetensors"', whole=True, kernel=False,
           says='belongs to'),
    Attack('a model through what is staged, by metrics', TRAIN % 'metrics = "runs/mine/model.safetensors.next"', whole=True,
           kernel=False, says='belongs to'),
    Attack('an earlier model, replaced by the recipe', TRAIN % 'save = "runs/mine", overwrite = true', whole=True, kernel=False,
           says='--overwrite lets it'),
    Attack('the library\'s cache', TRAIN % 'save = "../cache/hetrun/x"', whole=True, kernel=False),
    Attack('beside a folder that is named', writes('"given.next"'), ('--allow-write=given',)),
    Attack('beside a folder that is named, again and again', 'for i = 1, 200 do pcall(io.open, "given/" .. ("A"):rep(i), "r"); '
           'pcall(io.open, "given.next", i % 2 == 0 and "w" or "a") end; ' + writes('"given.next"'), ('--allow-write=given',)),
    Attack('a read grant made a write grant', 'het.options { text = { "", "t", path = "read" } }; '
           'het.options { text = { "", "t", path = "write" } }; ' + writes('"mine.txt"'), ('--text=mine.txt',)),
    Attack('another\'s exit code', 'error({ kind = "peer", message = "run me again" }, 0)', whole=True, kernel=False),
    Attack('another\'s exit code, of an error that was caught', 'local _, caught = pcall(require("het").op.add, 1); '
           'rawset(caught, "kind", "peer"); error(caught, 0)', whole=True, kernel=False),
    Attack('two run folders, by two ranks', TRAIN % 'on_step = function(run, step) if run.rank == step.step - 1 then '
           'assert(io.open("runs/" .. (run.rank == 0 and "one" or "two") .. "/x", "w")) end end', ('--workers=2',), whole=True,
           kernel=False, says='another rank of this run writes'),
    Attack('a model that was downloaded', writes('"runs/hf/notes.txt"'), says='no run of hetrun wrote'),
    Attack('a hidden file as data', 'local c = het.data.text { path = ".ssh/id_rsa" }; return c.vocab'),
    Attack('rendezvous of the recipe\'s own', TRAIN % 'name = "stolen", rendezvous = "etcd://127.0.0.1:1"',
           whole=True, environment={'RANK': '0', 'WORLD_SIZE': '2', 'HETRUN_SECRET': 'x' * 32}, kernel=False,
           says='may only talk to what the command line names'),
    # --- links that come with a recipe
    Attack('runs is a link', writes('"runs/mine/notes"'), furnish=lambda home: replace(home / 'runs', home.parent / 'outside'),
           says='runs is a link'),
    Attack('runs is a link, as data', 'return het.data.text { path = "runs/secret.txt" }',
           furnish=lambda home: replace(home / 'runs', home.parent / 'outside'), says='is a link'),
    Attack('runs is a link, to save in', TRAIN % 'save = "runs/mine"', whole=True,
           furnish=lambda home: replace(home / 'runs', home.parent / 'outside'), says='runs is a link'),
    Attack('blobs that are a link', reads('"models--a/snapshots/x/key"'), ('--allow-read=models--a/snapshots/x',),
           furnish=lambda home: snapshot(home, 'models--a', '../.ssh'), kernel=False),
    Attack('blobs of no cache', reads('"hub/snapshots/x/key"'), ('--allow-read=hub/snapshots/x',),
           furnish=lambda home: snapshot(home, 'hub', None), kernel=False),
    Attack('a link to a hidden folder as an option', 'het.options { model = { "", "m", path = "read" } }; ' + reads('"model/id_rsa"'),
           ('--model=model',), furnish=lambda home: (home / 'model').symlink_to('.ssh'), says='which is hidden'),
    Attack('a link to a hidden file beside the recipe', 'local c = het.data.text { path = "key" }; print(c:decode(c:encode "t"))',
           furnish=lambda home: (home / 'key').symlink_to('.ssh/id_rsa')),
    Attack('a link to a text as a module', 'return require "key"', furnish=lambda home: (home / 'key.lua').symlink_to('secret.txt')),
    Attack('a link to the recipe\'s whole folder', 'return het.data.text { path = "all" }', furnish=lambda home: (home / 'all').symlink_to('.')),
    Attack('what is staged beside a file that is named', writes('"notes.txt.next"'), ('--allow-write=notes.txt',),
           furnish=lambda home: [(home / name).write_text('mine') for name in ('notes.txt', 'notes.txt.next')]),
    Attack('a file cut short while it is mapped', 'local f = io.open("runs/a/d.bin", "w"); f:write(("\\1\\0"):rep(200000)); f:close(); '
           'local c = het.data.tokens { path = "runs/a/d.bin", vocab = 10 }; io.open("runs/a/d.bin", "w"):close(); '
           'local s = c:sampler { context = 8, batch = 4 }; for i = 1, 2000 do s:next() end; error "it held"', kernel=False, says='it held'),
    Attack('an earlier run\'s log', writes('"runs/mine/log"'), says='holds the model of an earlier run'),
    # --- between a check and what is done
    race('a file that is read', 'local f = io.open "given/swapped"; if f then if f:read("*a"):find "secret" then print "TAKEN" end; '
         'f:close() end'),
    race('a file that is written', 'local f = io.open("given/swapped", "a"); if f then f:write "owned"; f:close() end'),
    race('a file that is emptied', 'local f = io.open("given/swapped", "w"); if f then f:close() end'),
    race('a folder on the way', 'local f = io.open "given/sub/secret.txt"; if f then if f:read("*a"):find "secret" then print "TAKEN" end; '
         'f:close() end'),
    race('a folder on the way, written in', 'local f = io.open("given/sub/secret.txt", "a"); if f then f:write "owned"; f:close() end'),
    race('a file of the run folder', 'local f = io.open("runs/mine/swapped", "a"); if f then f:write "owned"; f:close() end'),
    race('a text', 'local ok, c = pcall(het.data.text, { path = "text.txt" }); local s = ok and '
         'c:decode(c:sampler { context = 64 }:next().inputs[1]:tolist()[1]); '
         'if type(s) == "string" and s:find "secret" then print "TAKEN" end'),
    # --- paths
    Attack('absolute', reads('"/etc/passwd"')),
    Attack('dots', reads('"../outside/secret.txt"')),
    Attack('dots behind a folder that is given', reads('"runs/../../outside/secret.txt"')),
    Attack('dots through a folder that is not there', reads('"runs/x/../../.ssh/id_rsa"')),
    Attack('many slashes', reads('"//etc///shadow"')),
    Attack('a trailing slash', reads('"/etc/shadow/"')),
    Attack('a path that begins like the folder', reads('"../home2/secret.txt"')),
    Attack('NUL in a path', reads(r'"text.txt\0/../../etc/shadow"')),
    Attack('NUL in a mode', r'return assert(io.open("runs/a/x", "r\0w"))'),
    Attack('a very long path', 'return assert(io.open(("a/"):rep(100000) .. "x"))'),
    Attack('an empty path', 'return assert(io.open(""))'),
    Attack('a path that is no text', 'return assert(io.open(setmetatable({}, { __tostring = function() return "/etc/shadow" end })))'),
    Attack('a linked folder', reads('"linked/secret.txt"')),
    Attack('a linked folder as data', 'return het.data.text { path = "linked/secret.txt" }'),
    Attack('a linked run folder', TRAIN % 'save = "runs/linkedfolder"'),
    Attack('a run folder of others', writes('"runs/other/file"')),
    Attack('two run folders', writes('"runs/one/x"') + ' ' + writes('"runs/two/x"')),
    Attack('runs itself', writes('"runs"')),
    Attack('out of the run folder', writes('"runs/one/../../.bashrc"')),
    Attack('a hidden file of the run folder', writes('"runs/one/.hidden"')),
    Attack('the model of the run folder', writes('"runs/mine/model.safetensors"')),
    Attack('what is staged for the model', writes('"runs/mine/model.safetensors.next"')),
    Attack('the training state', writes('"runs/mine/training.snapshot"')),
    Attack('a link to /proc/self/root', reads('"/proc/self/root/etc/shadow"')),
    Attack('/proc/self/environ', reads('"/proc/self/environ"'), environment={'HETRUN_SECRET': SECRET + SECRET}),
    Attack('/proc/self/mem', reads('"/proc/self/mem"')),
    Attack('/proc/self/cwd', reads('"/proc/self/cwd/.ssh/id_rsa"')),
    Attack('/proc/self/fd', 'for i = 3, 64 do local f = io.open("/proc/self/fd/" .. i); if f then print(f:read "*a") end end', done=True),
    Attack('another process', reads('"/proc/1/environ"')),
    Attack('a FIFO beside the recipe as data', 'return het.data.text { path = "fifo" }', kernel=False),
    Attack('a FIFO', reads('"fifo"')),
    Attack('a device', reads('"/dev/zero"')),
    Attack('a disk', reads('"/dev/vda"')),
    Attack('a terminal', writes('"/dev/tty"'), kernel=False),
    Attack('a socket', reads('"socket"')),
    Attack('shared memory', writes('"/dev/shm/owned"')),
    Attack('a temporary folder', writes('"/tmp/owned-by-a-recipe"')),
    Attack('the program itself', writes('"/proc/self/exe"')),
    Attack('lines of a file', 'for l in io.lines ".ssh/id_rsa" do print(l) end'),
    # --- the library as a way
    Attack('save elsewhere', TRAIN % 'save = "../outside/model"'),
    Attack('save in a hidden folder', TRAIN % 'save = ".ssh"'),
    Attack('save over a file of the home folder', TRAIN % 'save = "secret.txt"'),
    Attack('metrics elsewhere', TRAIN % 'metrics = ".bashrc"'),
    Attack('metrics through a link', TRAIN % 'metrics = "dangling"'),
    Attack('weights from elsewhere', TRAIN % 'from = "../outside"'),
    Attack('a model from elsewhere', 'return het.load "../outside"'),
    Attack('an index that names files elsewhere', 'local m = het.load "hostile_index"; return m:generate { tokens = 1 }'),
    Attack('a vocabulary from elsewhere', 'return het.data.text { path = "text.txt", vocabulary = "../outside/secret.txt" }'),
    Attack('a vocabulary that is a link', 'return het.data.text { path = "text.txt", vocabulary = "link.txt" }'),
    Attack('a profile from elsewhere', 'return het.plan.auto { profile = "../outside/secret.txt" }'),
    Attack('saves after the run began', TRAIN % 'on_step = function(run) run:save "../outside/model" end', whole=True, kernel=False),
    Attack('the whole home folder as text', 'local c = het.data.text { path = "." }; local ids = '
           'c:sampler { context = 60, batch = 1, split = "train" }:next().inputs[1]:tolist()[1]; print(c.tokens); '
           'return c:encode("\\1")'),
    # --- the language as a way
    Attack('require of a path', 'return require "../outside/module"'),
    Attack('require of dots', 'return require "..outside.module"'),
    Attack('require through a link', 'return require "linked.module"'),
    Attack('require of native code', 'return require "het.native"', kernel=False),
    Attack('require of ffi', 'return require("ffi").C.system("id")', kernel=False),
    Attack('the registry', 'return debug.getregistry()', kernel=False),
    Attack('package', 'return package.loaded["het.native"].read_text("/etc/shadow")', kernel=False),
    Attack('getfenv', 'return getfenv(0).io.popen "id"', kernel=False),
    Attack('getfenv of a library function', 'return getfenv(het.train).require "ffi"', kernel=False),
    Attack('the metatable of strings', 'getmetatable("").__index = function() return "owned" end', kernel=False),
    Attack('string.dump through a text', 'return ("").dump(print)', kernel=False),
    Attack('bytecode', r'return load("\27LJ\2\0\0")()', kernel=False),
    Attack('bytecode through a function', r'return load(function() return "\27LJ" end)', kernel=False),
    Attack('load with an environment', 'return load("return io.popen", "x", "t", {})()("id")', kernel=False),
    Attack('the metatable of a file', 'return getmetatable(io.open("runs/a/x", "w")).__gc', kernel=False, done=True),
    Attack('a file after it was closed', 'local f = io.open("runs/a/x", "w"); f:close(); f:write "x"', kernel=False),
    Attack('methods of a file on others', 'local f = io.open("runs/a/x", "w"); f.read(het.randn(2))', kernel=False),
    Attack('methods of a file on nothing', 'local f = io.open("runs/a/x", "w"); f.read(coroutine.create(print))', kernel=False),
    Attack('newproxy', 'return newproxy(true)', kernel=False),
    Attack('a coroutine keeps its environment', 'return coroutine.wrap(function() return os.execute "id" end)()'),
    Attack('__gc of a table', 'setmetatable({}, { __gc = function() os.execute "touch owned" end }); collectgarbage()', kernel=False, done=True),
    Attack('an error handler with more rights', 'return select(2, xpcall(function() error "x" end, function() return io.popen "id" end))', done=True),
    Attack('the environment\'s metatable', 'getmetatable(_G).__index = function() return print end', kernel=False),
    Attack('rawset into the library', 'rawset(het, "train", print); return het.train', kernel=False),
    Attack('rawset into operators', 'rawset(het.op, "linear", print); return het.op.linear', kernel=False),
    Attack('a metatable that pretends', 'return het.train { model = setmetatable({}, { kind = "layer" }) }', kernel=False),
    Attack('jit', 'return jit.off()', kernel=False),
    Attack('collectgarbage cannot be stopped', 'return collectgarbage "stop"', kernel=False),
    # --- programs
    Attack('os.execute', 'return assert(os.execute "echo owned > owned.txt" == 0)'),
    Attack('io.popen', 'return io.popen("cat .ssh/id_rsa"):read "*a"'),
    Attack('os.remove', 'assert(os.remove "secret.txt")'),
    Attack('os.rename', 'assert(os.rename("secret.txt", "owned.txt"))'),
    Attack('os.tmpname', 'return os.tmpname()', kernel=False),
    Attack('os.exit', 'os.exit(0)', kernel=False),
    Attack('os.getenv', 'return os.getenv "HOME"', kernel=False),
    # --- limits
    Attack('a table that grows', 'local t = {}; while true do t[#t + 1] = {} end', ('--limit-memory=300MiB',), kernel=False, codes=(2, 71)),
    Attack('a text that grows', 'local s = "x"; while true do s = s .. s end', ('--limit-memory=300MiB',), kernel=False, codes=(2, 71)),
    Attack('a long text', 'return #(("x"):rep(2^31))', ('--limit-memory=300MiB',), kernel=False, codes=(2, 71), done=True),
    Attack('tensors that grow', 'local t = {}; while true do t[#t + 1] = het.zeros(1024, 1024) end', ('--limit-memory=300MiB',),
           kernel=False, codes=(2, 71)),
    Attack('a huge tensor', 'return het.zeros(2^20, 2^20, 2^20)', kernel=False),
    Attack('recursion', 'local function f() return 1 + f() end; return f()', kernel=False),
    Attack('recursion through pcall', 'local function f() return pcall(f) end; return f()', ('--limit-memory=300MiB',), kernel=False,
           codes=(2, 71), done=True),
    Attack('recursion through metatables', 't = nil; local t = setmetatable({}, {}); getmetatable(t).__index = t; return t.x', kernel=False),
    Attack('many options', 'local o = {}; for i = 1, 1e5 do o["o" .. i] = { i, "x" } end; return het.options(o)', kernel=False),
    Attack('options that are no options', 'return het.options { x = { setmetatable({}, { __tostring = error }), "x" } }', kernel=False),
    Attack('hostile JSON', 'return het.load "hostile_json"', kernel=False),
    Attack('a header that lies', 'return het.load("hostile_header"):generate { tokens = 1 }', kernel=False),
    # --- the kernel's wall alone: attacks with all of Lua
    Attack('ffi: a shell', 'local ffi = require "ffi"; ffi.cdef "int system(const char*); int execl(const char*, const char*, ...);"; '
           'ffi.C.system("echo owned > owned.txt"); ffi.C.execl("/bin/sh", "sh", "-c", "echo owned > owned.txt", nil)', sandbox=False),
    Attack('ffi: fork', 'local ffi = require "ffi"; ffi.cdef "int fork(void);"; assert(ffi.C.fork() >= 0)', sandbox=False),
    Attack('ffi: open', 'local ffi = require "ffi"; ffi.cdef "int open(const char*, int, ...); long read(int, void*, size_t);"; '
           'local fd = ffi.C.open(".ssh/id_rsa", 0); local b = ffi.new "char[256]"; local n = ffi.C.read(fd, b, 256); assert(n > 0); '
           'print(ffi.string(b, n))', sandbox=False),
    Attack('ffi: links', 'local ffi = require "ffi"; ffi.cdef "int symlink(const char*, const char*); int link(const char*, const char*);"; '
           'ffi.C.symlink("/etc", "owned"); ffi.C.link("secret.txt", "owned2"); ffi.C.symlink("/etc", "runs/owned")', sandbox=False),
    Attack('ffi: modes and owners', 'local ffi = require "ffi"; ffi.cdef "int chmod(const char*, int); int chown(const char*, int, int); '
           'int truncate(const char*, long);"; ffi.C.chmod("secret.txt", 511); ffi.C.chown("secret.txt", 1, 1); '
           'ffi.C.truncate("secret.txt", 0)', sandbox=False),
    Attack('ffi: folders', 'local ffi = require "ffi"; ffi.cdef "int mkdir(const char*, int); int rmdir(const char*); '
           'int rename(const char*, const char*); int unlink(const char*);"; ffi.C.mkdir("owned", 511); ffi.C.rmdir("data"); '
           'ffi.C.rename("text.txt", "owned.txt"); ffi.C.unlink("text.txt")', sandbox=False),
    Attack('ffi: signals', 'local ffi = require "ffi"; ffi.cdef "int kill(int, int); int getppid(void);"; '
           'assert(ffi.C.kill(ffi.C.getppid(), 0) == 0)', sandbox=False),
    Attack('ffi: typing into the terminal', 'local ffi = require "ffi"; ffi.cdef "int ioctl(int, unsigned long, ...);"; '
           'assert(ffi.C.ioctl(0, 0x5412, "x") == 0)', sandbox=False),
    Attack('ffi: limits and signals of another process', 'local ffi = require "ffi"; ffi.cdef "long syscall(long, ...); int getppid(void);"; '
           'local one = ffi.new("uint64_t[2]", { 1, 1 }); local p = ffi.cast("long", ffi.C.getppid()); local n = ffi.cast("long", 0); '
           'local ok = ffi.C.syscall(302, p, n, one, nil) == 0 or ffi.C.syscall(234, p, p, n) == 0 or ffi.C.syscall(141, n, p, '
           'ffi.cast("long", 19)) == 0 ; '
           'local policy = ffi.new("int[1]"); '   # sched_setscheduler of its parent, and of its own to another policy than idle
           'ok = ok or ffi.C.syscall(144, p, ffi.cast("long", 5), policy) == 0 or ffi.C.syscall(144, n, ffi.cast("long", 3), policy) == 0; if ok then print(os.time(), "TAKEN") end', sandbox=False),
    Attack('ffi: later system calls', 'local ffi = require "ffi"; ffi.cdef "long syscall(long, ...);"; local b = ffi.new "char[64]"; '
           'for call = 451, 475 do if ffi.C.syscall(call, ffi.cast("long", -100), "secret.txt", ffi.cast("long", 0), b) >= 0 then '
           'print(call, "TAKEN") end end', sandbox=False),
    Attack('ffi: System V objects', 'local ffi = require "ffi"; ffi.cdef "long syscall(long, ...);"; local n = ffi.cast("long", 0); '
           'for _, call in ipairs { 29, 31, 64, 66, 68, 71 } do if ffi.C.syscall(call, n, n, n, n) >= 0 then print(call, "TAKEN") end end',
           sandbox=False),
    Attack('ffi: datagrams to any socket', 'local ffi = require "ffi"; ffi.cdef "int socketpair(int, int, int, int*);"; '
           'local s = ffi.new "int[2]"; if ffi.C.socketpair(1, 2, 0, s) == 0 then print "TAKEN" end', sandbox=False),
    Attack('ffi: what the shell left open', 'local ffi = require "ffi"; ffi.cdef "long pread(int, void*, size_t, long);"; local b = ffi.new "char[256]"; '
           'for fd = 3, 64 do local n = ffi.C.pread(fd, b, 256, 0); if n > 0 then print(ffi.string(b, n)) end end', sandbox=False),
    Attack('ffi: files that send signals', 'local ffi = require "ffi"; ffi.cdef "int fcntl(int, int, ...); int getppid(void);"; '
           'for _, command in ipairs { 8, 10, 15 } do if ffi.C.fcntl(0, command, ffi.cast("int", ffi.C.getppid())) == 0 then '
           'print "TAKEN" end end', sandbox=False),
    Attack('ffi: the debugger', 'local ffi = require "ffi"; ffi.cdef "long ptrace(int, int, void*, void*); int getppid(void);"; '
           'assert(ffi.C.ptrace(16, ffi.C.getppid(), nil, nil) == 0)', sandbox=False),
    Attack('ffi: raw system calls of another width', 'local ffi = require "ffi"; ffi.cdef "long syscall(long, ...);"; '
           'assert(ffi.C.syscall(0x40000000 + 2, ".ssh/id_rsa", 0) >= 0)', sandbox=False),
    Attack('ffi: io_uring', 'local ffi = require "ffi"; ffi.cdef "long syscall(long, ...);"; local p = ffi.new "char[256]"; '
           'assert(ffi.C.syscall(425, 4, p) >= 0)', sandbox=False),
    Attack('all of Lua: the shell', 'os.execute "echo owned > owned.txt"; io.popen("echo owned > owned.txt"):close()', sandbox=False),
    Attack('all of Lua: files', 'for _, p in ipairs { ".bashrc", "secret.txt", "../outside/secret.txt", "runs/x" } do '
           'local f = io.open(p); if f then print(f:read "*a") end; f = io.open(p, "a"); if f then f:write "owned"; f:close() end end; '
           'os.remove "secret.txt"; os.rename("text.txt", "owned")', sandbox=False),
]


def connects(port):
    return Attack('ffi: the network', 'local ffi = require "ffi"; ffi.cdef "int socket(int, int, int); int connect(int, const void*, int);"; '
                  'local a = ffi.new("uint8_t[16]", { 2, 0, %d, %d, 127, 0, 0, 1 }); local s = ffi.C.socket(2, 1, 0); '
                  'assert(s >= 0, "no socket"); assert(ffi.C.connect(s, a, 16) == 0, "no connection")' % (port >> 8, port & 255), sandbox=False)


def safetensors(header, data=b''):
    text = json.dumps(header).encode()
    return struct.pack('<Q', len(text)) + text + data


GPT = {'model_type': 'gpt2', 'vocab_size': 64, 'n_positions': 8, 'n_embd': 8, 'n_layer': 1, 'n_head': 1}


def furnish(base):
    """The home folder with what is worth stealing, and `outside`."""
    home, outside, other = base / 'home', base / 'outside', base / 'home2'
    for folder in (home, outside, other, home / '.ssh', home / '.git', home / 'data', home / 'runs' / 'other',
                   home / 'runs' / 'linked', home / 'runs' / 'mine', home / 'runs' / 'hf', home / 'given' / 'sub', home / 'hostile_index', home / 'hostile_json',
                   home / 'hostile_header'):
        folder.mkdir(parents=True)
    text = 'the quick brown fox jumps over the lazy dog. ' * 40
    for path in (home / 'text.txt', home / 'mine.txt', home / 'data' / 'a.txt'):
        path.write_text(text)
    for path in (home / '.bashrc', home / '.ssh' / 'id_rsa', home / '.git' / 'config', outside / 'secret.txt', other / 'secret.txt',
                 outside / 'module.lua', home / 'secret.txt'):
        path.write_text(f'-- {SECRET}\n' * 20)
    (base / SWAPPED_FOLDER / 'secret.txt').write_text('harmless')
    for name in SWAPPED[1:]:
        (base / name).write_text('harmless')
    (home / 'runs' / 'other' / 'events.out').write_text('of another program')
    (home / 'runs' / 'hf' / 'config.json').write_text('{}')
    for name in ('model.safetensors', 'training.snapshot', 'config.json'):
        (home / 'runs' / 'mine' / name).write_text('a model')
    (home / 'dangling').symlink_to(outside / 'owned')
    (home / 'runs' / 'linked' / '.hetrun').touch()
    (home / 'runs' / 'linked' / 'dangling').symlink_to(outside / 'owned')
    (home / 'runs' / 'linkedfolder').symlink_to(outside)
    (home / 'link.txt').symlink_to(outside / 'secret.txt')
    (home / 'data' / 'b.txt').symlink_to(outside / 'secret.txt')
    (home / 'linked').symlink_to(outside)
    os.mkfifo(home / 'fifo')
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.getcwd()
        os.chdir(home)   # names of sockets are short
        bound.bind('socket')
        os.chdir(here)
    (home / 'hostile_index' / 'config.json').write_text(json.dumps(GPT))
    (home / 'hostile_index' / 'model.safetensors.index.json').write_text(
        json.dumps({'weight_map': {'transformer.wte.weight': '../../outside/secret.txt', 'b': '/etc/shadow', 'c': '../.ssh/id_rsa'}}))
    (home / 'hostile_json' / 'config.json').write_text('[' * 100000)
    (home / 'hostile_header' / 'config.json').write_text(json.dumps(GPT))
    (home / 'hostile_header' / 'model.safetensors').write_bytes(
        safetensors({'transformer.wte.weight': {'dtype': 'F32', 'shape': [2**62, 4], 'data_offsets': [0, 2**62]}}, bytes(64)))
    return home


def state(base):
    """What stands where: contents, links and modes, but for the folders of runs/ that may be written."""
    found = {}
    for path in sorted(base.rglob('*')):
        name = str(path.relative_to(base))
        status = path.lstat()
        kind = f'{status.st_mode:o} {status.st_uid}'
        if path.is_symlink():
            found[name] = f'{kind} -> {os.readlink(path)}'
        elif path.is_file():
            found[name] = f'{kind} {hashlib.sha256(path.read_bytes()).hexdigest()}'
        else:
            found[name] = kind
    return found


OWN_RUNS = ('home/runs/mine/.hetrun', 'home/runs/a', 'home/runs/one', 'home/runs/linked/.hetrun')


def changes(before, after):
    names = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    return [name for name in names if not name.startswith(OWN_RUNS) and name != 'home/runs']


def run(hetrun, attack, walls):
    """Problems with how an attack ended, as sentences, and what was printed."""
    with tempfile.TemporaryDirectory(prefix='hetrun-attack-') as temporary:
        base = pathlib.Path(temporary)
        home = furnish(base)
        if attack.furnish:
            attack.furnish(home)
        (home / 'attack.lua').write_text(attack.lua if attack.whole else RECIPE % attack.lua)
        before = state(base)
        environment = {**os.environ, 'HOME': str(home if attack.home else base / 'person'), 'XDG_CACHE_HOME': str(base / 'cache'), **attack.environment}
        environment.pop('HETRUN_WALLS', None)
        if walls != 'both':
            environment['HETRUN_WALLS'] = walls
        stop, beside = threading.Event(), None
        if attack.outside:
            beside = threading.Thread(target=attack.outside, args=(home, stop), daemon=True)
            beside.start()
        try:
            with open(home / 'secret.txt', encoding='utf-8') as left_open:
                done = subprocess.run([hetrun, '--quiet', '--threads=1', 'attack.lua', *attack.arguments], cwd=home, env=environment,
                                      stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False, start_new_session=True,
                                      pass_fds=[left_open.fileno()])
        except subprocess.TimeoutExpired:
            return ['it hung'], ''
        finally:
            stop.set()
            if beside:
                beside.join()
        printed = (done.stdout + done.stderr).decode(errors='replace')
        problems = []
        shutil.rmtree(base / 'cache', ignore_errors=True)
        before = {name: what for name, what in before.items() if not name.startswith('cache')}
        for name in changes(before, state(base)):
            if name not in attack.allowed:
                problems.append(f'{name} changed')
        for path in ('/dev/shm/owned', '/tmp/owned-by-a-recipe'):
            if os.path.exists(path):
                problems.append(f'{path} is there')
                os.remove(path)
        if SECRET in printed or 'root:' in printed or 'TAKEN' in printed:
            problems.append('a secret was printed')
        if done.returncode < 0 or done.returncode == 70:
            problems.append(f'exit code {done.returncode}')
        if walls != 'kernel':   # whose attacks run on in a trusted recipe
            if done.returncode not in attack.codes:
                problems.append(f'exit code {done.returncode}')
            if 'hetrun: ' not in printed:
                problems.append('nothing was said')
            if not attack.done and 'hetrun: DONE' in printed:
                problems.append('it was not refused')
        if walls == 'both' and attack.says and attack.says not in printed:
            problems.append(f'{attack.says!r} was not said')
        return problems, printed


def has_landlock():
    create_ruleset, ask_version = 444, 1
    return ctypes.CDLL(None).syscall(create_ruleset, None, 0, ask_version) > 0


def main():
    hetrun = str(pathlib.Path(sys.argv[1]).resolve())
    chosen = [word[8:] for word in sys.argv[2:] if word.startswith('--walls=')] or ['both', 'sandbox', 'kernel']
    names = [word for word in sys.argv[2:] if not word.startswith('--')]
    listener = socket.create_server(('127.0.0.1', 0))
    threading.Thread(target=lambda: [listener.accept() for _ in iter(int, 1)], daemon=True).start()
    attacks = ATTACKS + [connects(listener.getsockname()[1])]
    if len({attack.name for attack in attacks}) < len(attacks):
        sys.exit('two attacks have one name')
    passed = failed = 0
    landlock = has_landlock()
    for walls in chosen:
        if walls == 'kernel' and not landlock:
            print('skipped: the kernel\'s wall alone (this kernel has no Landlock)')
            continue
        for attack in attacks:
            if names and attack.name not in names or walls == 'kernel' and not attack.kernel or walls != 'kernel' and not attack.sandbox:
                continue
            if '--unbounded' in sys.argv and any(word.startswith('--limit-memory') for word in attack.arguments):
                continue
            problems, printed = run(hetrun, attack, walls)
            if problems or names or "--verbose" in sys.argv:
                print(f'{"FAIL" if problems else "ok"}  [{walls}] {attack.name}: {"; ".join(problems)}\n  ' + printed[-600:].replace('\n', '\n  '))
            failed += bool(problems)
            passed += not problems
    print(f'{passed} passed, {failed} failed')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
