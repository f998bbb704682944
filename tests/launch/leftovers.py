"""What runs leave behind: processes, the ports at which they listen, files in /dev/shm that no process has open.

Whoever imports this marks its environment, and so all that it starts and what that starts.
"""
import os
import pathlib
import time
import uuid

MARK = 'HETRUN_STARTED_BY'
SHARED_MEMORY = pathlib.Path('/dev/shm')
os.environ.setdefault(MARK, uuid.uuid4().hex)


def processes():
    """Of those that carry the mark: number -> command line. This one and those that started it are not among them."""
    wanted = f'{MARK}={os.environ[MARK]}'.encode()
    found, parents = {}, {}
    for entry in pathlib.Path('/proc').glob('[0-9]*'):
        try:
            parents[int(entry.name)] = int((entry / 'stat').read_text().rpartition(')')[2].split()[1])
            if wanted in (entry / 'environ').read_bytes().split(b'\0'):
                found[int(entry.name)] = (entry / 'cmdline').read_bytes().replace(b'\0', b' ').decode(errors='replace')
        except OSError:   # it has ended meanwhile, or is somebody else's
            continue
    own = os.getpid()
    while own in parents:
        found.pop(own, None)
        own = parents[own]
    return found


def listening(numbers):
    """Addresses at which these processes listen, as the kernel writes them: '0100007F:1234'."""
    addresses = {}
    for table in pathlib.Path('/proc/net').glob('tcp*'):   # without IPv6 there is no tcp6
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == '0A':   # TCP_LISTEN
                addresses[f'socket:[{fields[9]}]'] = fields[1]
    return {addresses[link] for link in links(numbers) if link in addresses}


def links(numbers):
    """What the open descriptors of processes lead to."""
    for number in numbers:
        try:
            for descriptor in pathlib.Path(f'/proc/{number}/fd').iterdir():
                yield os.readlink(descriptor)
        except OSError:
            continue


def shared_memory():
    return set(SHARED_MEMORY.iterdir()) if SHARED_MEMORY.is_dir() else set()


def abandoned(files):
    """Of these files in /dev/shm those that no process has open or mapped."""
    files = {str(file) for file in files if file.exists()}
    everyone = [entry.name for entry in pathlib.Path('/proc').glob('[0-9]*')]
    files -= set(links(everyone))
    for number in everyone if files else []:
        try:
            maps = pathlib.Path(f'/proc/{number}/maps').read_text()
        except OSError:
            continue
        files -= {file for file in files if file in maps}
    return files


class Watch:
    """Begun before runs; found() returns what is left of them afterwards, a sentence each."""

    def __init__(self):
        self.processes, self.files = processes(), shared_memory()

    def found(self, patience=10):
        """Whoever was killed takes a moment to go: what is left after `patience` seconds."""
        until = time.monotonic() + patience
        while True:
            left = {number: words for number, words in processes().items() if number not in self.processes}
            sentences = [f'process {number}: {words}' for number, words in left.items()]
            sentences += [f'somebody listens at {address}' for address in listening(left)]
            sentences += [f'{file} is left' for file in abandoned(shared_memory() - self.files)]
            if not sentences or time.monotonic() > until:
                return sorted(sentences)
            time.sleep(0.05)
