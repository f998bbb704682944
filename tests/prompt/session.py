"""The prompt on a terminal, as a person sees and types it."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

INTERRUPT, END, TAB, KILL_LINE, EARLIER = '\x03', '\x04', '\t', '\x15', '\x10'
PATIENCE = 120   # seconds, of a machine that does other things too
CONTROL = re.compile(r'\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\([A-Z0-9]|\r')


class Session:
    """A program on a separate terminal: hetrun's prompt."""

    def __init__(self, words, folder):
        self.seen = ''
        self.code = None
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.chdir(folder)
            os.environ.update(TERM='xterm', XDG_STATE_HOME=str(folder / 'state'), XDG_CACHE_HOME=str(folder / 'cache'))
            os.execv(words[0], words)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack('HHHH', 50, 200, 0, 0))

    def type(self, text):
        os.write(self.terminal, text.encode())

    def read_until(self, pattern):
        """Wait until what was not yet looked at has the pattern; returns the match, and what follows it is left."""
        until = time.monotonic() + PATIENCE
        while True:
            found = re.search(pattern, self.seen)
            if found:
                self.seen = self.seen[found.end():]
                return found
            ready, _, _ = select.select([self.terminal], [], [], max(0, until - time.monotonic()))
            try:
                more = os.read(self.terminal, 4096).decode(errors='replace') if ready else ''
            except OSError:   # no process is at the other end
                more = ''
            if not more:
                raise AssertionError(f'{pattern!r} did not come; what came is {self.seen!r}')
            self.seen = CONTROL.sub('', self.seen + more)

    def ready(self):
        self.read_until(r'(^|\n)> $')

    def run(self, line, pattern):
        """Type a line at the prompt; what it prints has the pattern, and the prompt comes back."""
        self.type(line + '\r')
        found = self.read_until(pattern)
        self.ready()
        return found

    def leave(self):
        self.type(END)
        _, status = os.waitpid(self.process, 0)
        self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def close(self):
        if self.code is None:
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
        os.close(self.terminal)
